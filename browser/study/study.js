// @ts-check
/**
 * The documents that ingest publishes: a study, and the versions of its models. They are checked on reading, because
 * they come from outside.
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
 * @property {boolean} applies Whether it ranks with the newest model; else with the start weights.
 * @property {boolean} submits Whether its pings carry updates.
 * @property {boolean} decays Whether stored scores decay daily.
 * @property {boolean} [personal] Whether it ranks with a personal model, as its line's training sets.
 *
 * @typedef {object} Weight
 * @property {string} name
 * @property {number} start
 * @property {boolean} integer
 * @property {string} [kind] The meaning of the number.
 *
 * @typedef {object} ModelSpec
 * @property {string} model The ranking model to evaluate.
 * @property {readonly Weight[]} weights
 * @property {number} margin Δ of the loss, in points.
 * @property {number} epsilon ε of the finite differences.
 * @property {readonly Constraint[]} [constraints] The constraints, which also apply to private weights.
 * @property {readonly Block[]} [blocks] The blocks, which {@link completed} has expanded into the weights.
 * @property {Record<string, any>} [settings] The model's settings.
 *
 * @typedef {import("../features/start.js").Block & { kind?: string }} Block
 *
 * @typedef {{ constraint: string, weights?: readonly string[], gap?: number, first?: number }} Constraint
 *
 * @typedef {object} Line
 * @property {string} name
 * @property {ModelSpec} spec
 * @property {{ algorithm: string, sign?: boolean, personal?: Personal | null }} training
 * @property {readonly UploadLink[]} [upload] The links that are applied to an update before it is sent; none if absent.
 * @property {Privacy} [privacy] The settings of a private line, whose clients send vectors.
 * @property {Offer} [offer] The helper's offer in a two-server line, once the helper has made one.
 *
 * @typedef {{ end: number, arm: string | null }} Piece A piece of [0, 1), from the end of the piece before to `end`,
 *   that belongs to an arm or to none.
 *
 * @typedef {object} PublicStudy
 * @property {string} name
 * @property {string} pings
 * @property {readonly Arm[]} arms
 * @property {readonly Line[]} lines
 * @property {readonly Piece[]} [pieces] The pieces of the arms, if the arms are not adjacent.
 * @property {string} [ended] The time when the study ended; absent while it runs.
 * @property {readonly Outcome[]} [outcomes] The columns for outcomes after a choice.
 *
 * @typedef {object} Version
 * @property {number} version The version's number; -1 before any was fetched.
 * @property {readonly number[]} weights
 *
 * @typedef {object} Staged A version that a share of the clients gets instead: `staged-<iteration>.json`.
 * @property {number} iteration
 * @property {number} share The share of the clients in arms that apply the model.
 */

import { linksTrouble } from "./links.js";

/** The type of pings of private lines. */
export const PRIVATE_TYPE = "private-update";

/** The version number before a client has fetched any. */
export const NO_VERSION = -1;

const LARGEST = 1e30;

/**
 * The maximum number of weights in all lines of a study; a block of a few bytes expands into one object for each
 * weight.
 */
const MOST_WEIGHTS = 1_000_000;

/**
 * The role of a client in an arm of a study; without a study, the product's role.
 *
 * @param {PublicStudy | null} study
 * @param {Arm | null} arm
 * @param {ModelSpec} product The spec that ranks without a study.
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
 * The start weights as published, usually version 0's: integer ones rounded half up, floor(x + 0.5).
 *
 * @param {ModelSpec} spec
 * @returns {number[]}
 */
export function startWeights(spec) {
  return spec.weights.map((weight) => (weight.integer ? Math.floor(weight.start + 0.5) : weight.start));
}

/**
 * Check a fetched study, and return it with {@link Parts.models completed} specs of its lines.
 *
 * @param {any} given The parsed JSON.
 * @param {string} name The study that was asked for.
 * @param {Parts} parts The optional parts that this client has.
 * @returns {PublicStudy}
 * @throws {TypeError} It is another study, or one that this client can't take part in.
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
  // A study with nothing to complete stays the same object, because caches use it as the key.
  return whole.every((line, i) => line === given.lines[i]) ? given : { ...given, lines: whole };
}

/**
 * Check a fetched version of a line's model.
 *
 * @param {any} given The parsed JSON.
 * @param {ModelSpec} spec
 * @returns {Version}
 * @throws {TypeError} It is not a version of this model.
 */
export function readModel(given, spec) {
  const { model, iteration, names } = given ?? {};
  const count = spec.weights.length;
  require(Number.isSafeInteger(iteration) && iteration >= 0, "the model document has no number");
  const isOfSpec =
    Array.isArray(names) &&
    Array.isArray(model) &&
    model.length === count &&
    // Documents of models with blocks omit the names.
    ((names.length === 0 && Boolean(spec.blocks?.length)) ||
      (names.length === count && spec.weights.every((weight, k) => weight.name === names[k])));
  stagedIn(given);
  require(isOfSpec && model.every(isNumber), `version ${iteration} does not have the weights of the study's model`);
  return { version: iteration, weights: model };
}

/**
 * The staged version that a model document names for some clients; null if it names none.
 *
 * @param {any} given The parsed JSON.
 * @returns {Staged | null}
 * @throws {TypeError} The entry is malformed.
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
 * @param {Line} line A line with a completed spec.
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
 * A hint which entry point has a model that this one lacks.
 *
 * @param {any} model
 * @param {string} entry
 */
function elsewhere(model, entry) {
  const home = model === "features" ? "ranker" : model?.includes?.("regression") || model === "network" ? "predictor" : "";
  return home && home !== entry ? `; the entry point 'fedping/${home}' has it` : "";
}

/**
 * Whether a value is a number that a study or a model may contain.
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
