// @ts-check
/**
 * What ingest publishes of a study, and the versions of its models: read with care, because it is from outside.
 *
 * @import { Outcome } from "./outcomes.js"
 * @import { Parts, Role } from "./parts.js"
 * @import { Personal } from "./personal/personal.js"
 * @import { Privacy } from "./privacy/vectors.js"
 * @import { Offer } from "./sharing/offer.js"
 * @import { UploadLink } from "./links.js"
 *
 * @typedef {object} Arm
 * @property {string} name
 * @property {number} share
 * @property {string | null} line The model line that it follows.
 * @property {boolean} applies It ranks with the newest model; else with the start weights.
 * @property {boolean} submits Its pings carry updates.
 * @property {boolean} decays Stored scores decay by the day.
 * @property {boolean} [personal] It ranks with the client's own model, from the training of its line.
 *
 * @typedef {object} Weight
 * @property {string} name
 * @property {number} start
 * @property {boolean} integer
 * @property {string} [kind] What the number means.
 *
 * @typedef {object} ModelSpec
 * @property {string} model The ranking model to evaluate.
 * @property {readonly Weight[]} weights
 * @property {number} margin Δ of the loss, in points.
 * @property {number} epsilon ε of the finite differences.
 * @property {readonly Constraint[]} [constraints] Which hold for clients' own weights too.
 * @property {readonly Block[]} [blocks] Which {@link completed} has put among the weights.
 * @property {Record<string, any>} [settings] Of the model.
 *
 * @typedef {import("../features/start.js").Block & { kind?: string }} Block
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
 * @property {readonly Outcome[]} [outcomes] The columns for outcomes after a choice.
 *
 * @typedef {object} Version
 * @property {number} version The version's number; -1 before any was fetched.
 * @property {readonly number[]} weights
 *
 * @typedef {object} Staged A version that a share of the clients takes instead: `staged-<iteration>.json`.
 * @property {number} iteration
 * @property {number} share Of the clients of arms that apply the model.
 */

import { linksTrouble } from "./links.js";

/** The type of pings of private lines. */
export const PRIVATE_TYPE = "private-update";

/** The version of a client that has not fetched any yet. */
export const NO_VERSION = -1;

const LARGEST = 1e30;

/** How many weights all lines of a study have at most: blocks of a few bytes become as many objects. */
const MOST_WEIGHTS = 1_000_000;

/**
 * The role of a client in an arm of a study; of no study, if there is none yet.
 *
 * @param {PublicStudy | null} study
 * @param {Arm | null} arm
 * @param {ModelSpec} product What ranks without a study.
 * @returns {Role}
 */
export function roleOf(study, arm, product) {
  /** @type {Line | undefined} */
  const line = study?.lines.find((each) => !arm?.line || each.name === arm.line);
  return {
    arm,
    spec: line?.spec ?? product,
    sign: line?.training.sign ?? false,
    upload: line?.upload ?? [],
    privacy: line?.privacy ?? null,
    personal: (arm?.personal && line?.training.personal) || null,
  };
}

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
 * A study as it was fetched; the specs of its lines are {@link Parts.models completed}.
 *
 * @param {any} given What the JSON says.
 * @param {string} name The study that was asked for.
 * @param {Parts} parts What this client can do.
 * @returns {PublicStudy}
 * @throws {TypeError} It is not that study, or one that this client cannot take part in.
 */
export function studyOf(given, name, parts) {
  require(given?.name === name, `this is not the study '${name}'`);
  const isPrivate = given.pings === PRIVATE_TYPE;
  const { types, of } = parts.pings;
  require(isPrivate || types.includes(given.pings), `the study '${name}' does not take pings of ${of}`);
  require(given.ended === undefined || typeof given.ended === "string", `the end of the study '${name}' is not a time`);
  require(Array.isArray(given.arms) && given.arms.every(isArm), `the study '${name}' has no arms`);
  const { pieces = [] } = given;
  require(Array.isArray(pieces) && pieces.every(isPiece), `the pieces of the arms of the study '${name}' are invalid`);
  require(parts.outcomes?.(given.outcomes ?? []) ?? true, `the study '${name}' has invalid outcomes`);
  require(Array.isArray(given.lines), `the study '${name}' has no lines`);
  const complete = (/** @type {Line} */ line) => parts.models.get(line.spec.model)?.completed?.(line.spec) ?? line.spec;
  /** @type {Line[]} */
  const whole = [];
  let count = 0;
  for (const line of given.lines) {
    checkLine(line, parts);
    whole.push(withSpec(line, complete(line)));
    count += whole[whole.length - 1].spec.weights.length;
    require(count <= MOST_WEIGHTS, `the study '${name}' has too many weights`);
    require(isPrivate === (line.privacy !== undefined), `only parts of the study '${name}' are private`);
  }
  const covered = (/** @type {Arm} */ arm) => !isPrivate || arm.line !== null;
  require(given.arms.every(covered), `an arm of the private study '${name}' follows no line`);
  const lines = new Set(given.lines.map((/** @type {Line} */ line) => line.name));
  const follows = (/** @type {Arm} */ arm) => arm.line === null || lines.has(arm.line);
  require(given.arms.every(follows), `an arm of the study '${name}' follows an unknown line`);
  whole.forEach((line) => checkTraining(line, parts));
  // A study without anything to complete stays the same value, by which what is computed from it is found again.
  return whole.every((line, i) => line === given.lines[i]) ? given : { ...given, lines: whole };
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
  const count = spec.weights.length;
  require(Number.isSafeInteger(iteration) && iteration >= 0, "the model document has no number");
  const isOfSpec =
    Array.isArray(names) &&
    Array.isArray(model) &&
    model.length === count &&
    // Of a model with blocks, a document leaves out the names.
    ((names.length === 0 && Boolean(spec.blocks?.length)) ||
      (names.length === count && spec.weights.every((weight, k) => weight.name === names[k])));
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
  require(isOne && share > 0 && share < 1, "the staged part of the model document is invalid");
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

/** @param {any} line @param {Parts} parts */
function checkLine(line, { models, entry }) {
  const spec = line?.spec;
  const kind = models.get(spec?.model);
  require(kind !== undefined, `this client has no ranking model '${spec?.model}'${elsewhere(spec?.model, entry)}`);
  const trouble = kind?.trouble(spec) ?? null;
  require(trouble === null, `the line '${line.name}' ${trouble}`);
  require(isNumber(spec.margin) && isNumber(spec.epsilon), `the line '${line.name}' has no margin or epsilon`);
  require(line.training?.algorithm === "gradient", `the line '${line.name}' is not trained by gradients`);
}

/**
 * @param {Line} line
 * @param {ModelSpec} spec
 * @returns {Line}
 */
function withSpec(line, spec) {
  return line.spec === spec ? line : { ...line, spec };
}

/**
 * @param {Line} line Its spec is completed.
 * @param {Parts} parts
 */
function checkTraining({ name, spec, training, upload = [], privacy }, { links, personal, privacy: part }) {
  const own = training.personal ?? null;
  const lacks = (/** @type {string} */ what, /** @type {string} */ entry) => `it ${what}; add the part of 'fedping/${entry}'`;
  const sends =
    privacy === undefined
      ? linksTrouble(upload, links)
      : part === null
        ? lacks("is private", "private")
        : part.trouble({ upload, privacy, spec });
  const keeps = own && (personal === null ? lacks("has personal models", "personal") : personal.trouble(own, spec));
  const trouble = sends ?? keeps;
  require(trouble === null, `the line '${name}' cannot be trained here: ${trouble}`);
}

/**
 * Where a model is that this entry does not have.
 *
 * @param {any} model
 * @param {string} entry
 */
function elsewhere(model, entry) {
  const home = model === "features" ? "ranker" : model?.includes?.("regression") || model === "network" ? "predictor" : "";
  return home && home !== entry ? `; the entry point 'fedping/${home}' has it` : "";
}

/**
 * Whether a value is a number that a study or a model may have.
 *
 * @param {unknown} value
 */
export function isNumber(value) {
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
