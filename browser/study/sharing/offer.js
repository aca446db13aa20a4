// @ts-check
/**
 * A helper's offer: its terms for a line and its key, signed by the helper. A client checks the offer itself before it
 * seals anything, and trusts no server: the study names the helper, and the noise follows from the study's settings.
 *
 * @import { Line, PublicStudy } from "../study.js"
 * @import { Privacy } from "../privacy/vectors.js"
 *
 * @typedef {object} Offer The offer as published with the line.
 * @property {string} terms The text that was signed.
 * @property {string} signature
 *
 * @typedef {object} Terms The part of an offer's terms that a client needs.
 * @property {Uint8Array} id The offer's id in a share: the first bytes of the SHA-256 of its terms.
 * @property {Uint8Array} key The public key for which shares are sealed.
 * @property {number} numbers The length of a vector.
 * @property {number} metric The largest number of a metric in a line with proofs; else 0.
 */

import { fromHex, isHex, joined, utf8 } from "../bytes.js";
import { frameOf, lengthOf, sensitivityOf } from "../privacy/vectors.js";
import { sha256Bytes } from "../sha256.js";
import { KEY_BYTES, seal } from "./sealing.js";
import { OFFER_ID_BYTES, completed } from "./shares.js";
import { metricOf } from "./votes.js";

const SIGNED_AS = "fedping offer v1";
const LONGEST = 65_536;
const PROMISED = ["epsilon", "delta", "rounds", "contributions", "noise_multiplier"];
/** The rounding error allowed for a bound computed in another language. */
const LAST_DIGITS = 1 - 1e-9;

/**
 * The terms for a line's clients; null if it has no offer yet.
 *
 * @param {PublicStudy} study
 * @param {Line} line A two-server line.
 * @returns {Promise<Terms | null>}
 * @throws {TypeError} The offer is not signed by the line's helper, is for something else, or protects clients less.
 */
export async function agreedTerms(study, line) {
  const { offer } = line;
  if (offer === undefined) {
    return null;
  }
  const helper = String(/** @type {Privacy} */ (line.privacy).shared?.helper);
  const signed = typeof offer?.terms === "string" && offer.terms.length <= LONGEST && isHex(offer.signature, 64);
  if (!signed || !(await isSigned(helper, offer))) {
    throw new TypeError(`the offer for line '${line.name}' is not signed by the helper ${helper.slice(0, 16)}…, which the study names`);
  }
  const terms = readTerms(offer.terms);
  const different = apart(terms, study, line) ?? ((await isKey(terms.key)) ? null : "its key can't be used to seal");
  if (different !== null) {
    throw new TypeError(`the helper's offer is not for line '${line.name}' of study '${study.name}' as it is: ${different}`);
  }
  const id = sha256Bytes(utf8(offer.terms)).slice(0, OFFER_ID_BYTES);
  return { id, key: fromHex(terms.key), numbers: terms.numbers, metric: metricOf(/** @type {Privacy} */ (line.privacy), line.spec) };
}

/**
 * @param {string} helper
 * @param {Offer} offer
 */
async function isSigned(helper, { terms, signature }) {
  const said = joined(utf8(`${SIGNED_AS}\n`), sha256Bytes(utf8(terms)));
  try {
    const key = await crypto.subtle.importKey("raw", fromHex(helper), "Ed25519", true, ["verify"]);
    return await crypto.subtle.verify("Ed25519", key, fromHex(signature), /** @type {Uint8Array<ArrayBuffer>} */ (said));
  } catch {
    return false; // the identity is not a valid key
  }
}

/** @param {string} key */
async function isKey(key) {
  try {
    await seal(fromHex(key), new Uint8Array(0), new Uint8Array(0)); // rejects points that would reveal the sealed data
    return true;
  } catch {
    return false;
  }
}

/** @param {string} text @returns {any} */
function readTerms(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}

/**
 * The difference between an offer and a line's settings; null if they match.
 *
 * @param {any} terms
 * @param {PublicStudy} study
 * @param {Line} line
 */
function apart(terms, study, { name, privacy, spec }) {
  const { central } = /** @type {Privacy} */ (privacy);
  const shared = completed(privacy?.shared);
  const { metric = 0 } = terms;
  const norm = sensitivityOf(frameOf(/** @type {Privacy} */ (privacy), spec));
  const noise = central === null ? 0 : Number(central.noise_multiplier) * norm;
  const arms = study.arms.filter((arm) => arm.line === name).map((arm) => arm.name);
  const checks = /** @type {[boolean, string][]} */ ([
    [(terms.format ?? 1) === 1, "it is of another format"],
    [terms.helper === shared.helper, "it names another helper"],
    [terms.study === study.name, "it is for another study"],
    [terms.line === name, "it is for another line"],
    [Array.isArray(terms.arms) && sameNames(terms.arms, arms), "it is for other arms"],
    [terms.numbers === lengthOf(spec.weights.length), "it is for another number of weights"],
    [terms.proofs === shared.proofs, "it differs in whether clients prove what they send"],
    [metric === metricOf(/** @type {Privacy} */ (privacy), spec), "it is for proofs of other metrics"],
    [terms.seal === shared.seal && isHex(terms.key, KEY_BYTES), "its key is of another kind"],
    [samePromise(terms.promise ?? null, /** @type {Privacy} */ (privacy)), "it is for another guarantee"],
    [Number.isFinite(terms.sigma) && terms.sigma >= noise * LAST_DIGITS, "it offers less noise than the study promises"],
    [Number.isInteger(terms.min_batch) && terms.min_batch >= shared.min_batch, "it gives sums of fewer clients than are promised"],
  ]);
  return checks.find(([holds]) => !holds)?.[1] ?? null;
}

/**
 * Whether the helper has checked the guarantee that this client shows; a client can't compute the noise that the
 * guarantee needs.
 *
 * @param {any} promise
 * @param {Privacy} privacy
 */
function samePromise(promise, { central, contributions }) {
  if (central === null || promise === null) {
    return central === promise;
  }
  const shown = /** @type {Record<string, unknown>} */ ({ ...central, contributions });
  return PROMISED.every((name) => promise[name] === shown[name]);
}

/** @param {readonly unknown[]} some @param {readonly string[]} others */
function sameNames(some, others) {
  return new Set(some).size === new Set(others).size && some.every((name) => others.includes(/** @type {string} */ (name)));
}
