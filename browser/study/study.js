// @ts-check
/**
 * What ingest publishes of a study, and the versions of its models: read with care, since it comes from outside.
 *
 * @import { Personal } from "./personal/personal.js"
 * @import { Privacy } from "./privacy/vectors.js"
 * @import { Offer } from "./sharing/offer.js"
 * @import { UploadLink } from "./upload.js"
 *
 * @typedef {object} Arm
 * @property {string} name
 * @property {number} share
 * @property {string | null} line The model line that it follows.
 * @property {boolean} applies It ranks with the newest model; else with the start weights.
 * @property {boolean} submits Its pings carry updates.
 * @property {boolean} decays Stored scores decay by the day.
 * @property {boolean} [personal] It ranks with what the training of its line makes the client's own.
 *
 * @typedef {object} Weight
 * @property {string} name
 * @property {number} start
 * @property {boolean} integer
 *
 * @typedef {object} ModelSpec
 * @property {string} model The ranking model to evaluate.
 * @property {readonly Weight[]} weights
 * @property {number} margin Δ of the loss, in points.
 * @property {number} epsilon ε of the finite differences.
 * @property {readonly Constraint[]} [constraints] Which hold for clients' own weights too.
 *
 * @typedef {{ constraint: string, weights?: readonly string[], gap?: number, first?: number }} Constraint
 *
 * @typedef {object} Line
 * @property {string} name
 * @property {ModelSpec} spec
 * @property {{ algorithm: string, sign?: boolean, personal?: Personal | null }} training
 * @property {readonly UploadLink[]} [upload] What is done to an update before it is sent; nothing if there is none.
 * @property {Privacy} [privacy] Of a private line, whose clients send vectors.
 * @property {Offer} [offer] Of a line of shares, as soon as its helper has made one.
 *
 * @typedef {{ end: number, arm: string | null }} Piece From where the piece before it ends; of an arm, or of none.
 *
 * @typedef {object} PublicStudy
 * @property {string} name
 * @property {string} pings
 * @property {readonly Arm[]} arms
 * @property {readonly Line[]} lines
 * @property {readonly Piece[]} [pieces] Where the arms lie, if not side by side.
 * @property {string} [ended] Since when the study has ended; not there while it goes on.
 *
 * @typedef {object} Version
 * @property {number} version The version's number; -1 before any was fetched.
 * @property {readonly number[]} weights
 *
 * @typedef {object} Staged A version that a share of the clients takes instead: `staged-<iteration>.json`.
 * @property {number} iteration
 * @property {number} share Of the clients of arms that apply the model.
 */

import { FRECENCY_NAMES, FRECENCY_START } from "../models/frecency.js";
import { MODELS } from "../models/ranking_model.js";
import { personalTrouble } from "./personal/personal.js";
import { PING_TYPE, PRIVATE_TYPE } from "./ping.js";
import { privacyTrouble } from "./privacy/guarantee.js";
import { ENCODING } from "./privacy/vectors.js";
import { SHARED, completed } from "./sharing/shares.js";
import { metricOf } from "./sharing/votes.js";
import { uploadTrouble } from "./upload.js";

/** The version of a client that has not fetched any yet. */
export const NO_VERSION = -1;

const LARGEST = 1e30;

/**
 * What a browser ranks with that takes part in no line: frecency with the weights it shipped.
 *
 * @type {ModelSpec}
 */
export const PRODUCT_SPEC = Object.freeze({
  model: "frecency-2018",
  weights: FRECENCY_NAMES.map((name, k) => ({ name, start: FRECENCY_START[k], integer: true })),
  margin: 10,
  epsilon: 1,
});

/**
 * The start weights as they are published, mostly those of version 0: whole ones rounded half up, floor(x + 0.5).
 *
 * @param {ModelSpec} spec
 * @returns {number[]}
 */
export function startWeights(spec) {
  return spec.weights.map((weight) => (weight.integer ? Math.floor(weight.start + 0.5) : weight.start));
}

/**
 * A study as it was fetched.
 *
 * @param {any} given What the JSON says.
 * @param {string} name The study that was asked for.
 * @returns {PublicStudy}
 * @throws {TypeError} It is not that study, or one that this module cannot take part in.
 */
export function readStudy(given, name) {
  require(given?.name === name, `this is not the study '${name}'`);
  const isPrivate = given.pings === PRIVATE_TYPE;
  require(isPrivate || given.pings === PING_TYPE, `the study '${name}' does not take pings of interactions`);
  require(given.ended === undefined || typeof given.ended === "string", `the end of the study '${name}' is no time`);
  require(Array.isArray(given.arms) && given.arms.every(isArm), `the study '${name}' has no arms`);
  const { pieces = [] } = given;
  require(Array.isArray(pieces) && pieces.every(isPiece), `the pieces of the arms of the study '${name}' are none`);
  require(Array.isArray(given.lines), `the study '${name}' has no lines`);
  for (const line of given.lines) {
    checkLine(line);
    require(isPrivate === (line.privacy !== undefined), `the study '${name}' is private in parts only`);
  }
  const covered = (/** @type {Arm} */ arm) => !isPrivate || arm.line !== null;
  require(given.arms.every(covered), `an arm of the private study '${name}' follows no line`);
  const lines = new Set(given.lines.map((/** @type {Line} */ line) => line.name));
  const follows = (/** @type {Arm} */ arm) => arm.line === null || lines.has(arm.line);
  require(given.arms.every(follows), `an arm of the study '${name}' follows a line that is not there`);
  return given;
}

/**
 * A version of a line's model as it was fetched.
 *
 * @param {any} given What the JSON says.
 * @param {ModelSpec} spec
 * @returns {Version}
 * @throws {TypeError} It is not a version of that model.
 */
export function readModel(given, spec) {
  const { model, iteration, names } = given ?? {};
  require(Number.isSafeInteger(iteration) && iteration >= 0, "the model document has no number");
  const isOfSpec =
    Array.isArray(names) &&
    Array.isArray(model) &&
    names.length === spec.weights.length &&
    model.length === names.length &&
    spec.weights.every((weight, k) => weight.name === names[k]);
  stagedIn(given);
  require(isOfSpec && model.every(isNumber), `version ${iteration} does not have the weights of the study's model`);
  return { version: iteration, weights: model };
}

/**
 * What a model document says that some clients are to take instead; null if nothing.
 *
 * @param {any} given What the JSON says.
 * @returns {Staged | null}
 * @throws {TypeError} It is said wrongly.
 */
export function stagedIn(given) {
  const staged = given?.staged;
  if (staged === undefined) {
    return null;
  }
  const share = staged?.share;
  const isOne = Number.isSafeInteger(staged?.iteration) && staged.iteration >= 1 && typeof share === "number";
  require(isOne && share > 0 && share < 1, "the model document does not say well what is staged");
  return { iteration: staged.iteration, share };
}

/** @param {any} piece */
function isPiece(piece) {
  return isNumber(piece?.end) && (piece.arm === null || typeof piece.arm === "string");
}

/** @param {any} arm */
function isArm(arm) {
  const flags = [arm?.applies, arm?.submits, arm?.decays];
  const line = arm?.line;
  return (
    typeof arm?.name === "string" &&
    isNumber(arm.share) &&
    (line === null || typeof line === "string") &&
    flags.every((flag) => typeof flag === "boolean") &&
    (arm.personal === undefined || typeof arm.personal === "boolean")
  );
}

/** @param {any} line */
function checkLine(line) {
  const spec = line?.spec;
  const model = MODELS.get(spec?.model);
  require(model !== undefined, `there is no ranking model '${spec?.model}' in this client`);
  const fits =
    Array.isArray(spec.weights) &&
    spec.weights.length === model?.weightNames.length &&
    spec.weights.every((/** @type {any} */ weight) => typeof weight?.name === "string" && isNumber(weight.start));
  require(fits, `the line '${line.name}' does not name the weights of '${spec.model}' one by one`);
  require(isNumber(spec.margin) && isNumber(spec.epsilon), `the line '${line.name}' has no margin or epsilon`);
  require(line.training?.algorithm === "gradient", `the line '${line.name}' is not trained by gradients`);
  const isPrivate = line.privacy !== undefined;
  const personal = line.training.personal ?? null;
  const trouble =
    (isPrivate ? privateTrouble(line) : uploadTrouble(line.upload ?? [])) ?? (personal && personalTrouble(personal, spec));
  require(trouble === null, `the line '${line.name}' cannot be trained here: ${trouble}`);
}

/** @param {any} line */
function privateTrouble({ upload, privacy, spec }) {
  const [link, ...more] = Array.isArray(upload) ? upload : [];
  const shared = privacy?.shared ? completed(privacy.shared) : null;
  if (link?.link !== (shared === null ? ENCODING : SHARED) || more.length > 0) {
    return shared === null ? "it is private, and does not send vectors" : "it has two servers, and does not send shares";
  }
  const trouble = privacyTrouble(privacy, spec);
  if (trouble !== null || shared === null) {
    return trouble;
  }
  const { seal, proofs, metric = 0 } = /** @type {any} */ (completed(link));
  const agree = seal === shared.seal && proofs === shared.proofs && metric === metricOf(privacy, spec);
  return agree ? null : "its upload link and its privacy disagree on how shares are made";
}

/** @param {unknown} value */
function isNumber(value) {
  return typeof value === "number" && Math.abs(value) <= LARGEST;
}

/**
 * @param {boolean} holds
 * @param {string} problem
 */
function require(holds, problem) {
  if (!holds) {
    throw new TypeError(problem);
  }
}
