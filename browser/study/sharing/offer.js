// @ts-check
/**
 * The offer of a helper: on what terms it takes part in a line, and with what key, signed by it. A client looks for itself
 * before it seals anything, and takes no server's word: the study names the helper, and the noise follows from its settings.
 *
 * @import { Line, PublicStudy } from "../study.js"
 * @import { Privacy } from "../privacy/vectors.js"
 *
 * @typedef {object} Offer As it is published with the line.
 * @property {string} terms The text that was signed.
 * @property {string} signature
 *
 * @typedef {object} Terms What a client needs of them.
 * @property {Uint8Array} id What stands for the offer in a share: the first bytes of the SHA-256 of its terms.
 * @property {Uint8Array} key What shares are sealed for.
 * @property {number} numbers How many a vector has.
 * @property {number} metric With proofs the largest number of a metric; else 0.
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
 * @param {Line} line One of shares.
 * @returns {Promise<Terms | null>}
 * @throws {TypeError} The line's helper has not signed it, or it is for something else, or protects clients less.
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
    return false; // the identity is no key
  }
}

/** @param {string} key */
async function isKey(key) {
  try {
    await seal(fromHex(key), new Uint8Array(0), new Uint8Array(0)); // refuses points that give away what is sealed
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
 * What an offer says otherwise than a line's settings; null if it fits.
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
 * Whether the helper has checked the guarantee that this client shows: what noise it takes, no client can work out.
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
