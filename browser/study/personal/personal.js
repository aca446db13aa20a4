// @ts-check
/**
 * The personal model of a client in a personal arm, which is never sent. Functions of numbers alone, without storage or
 * requests.
 *
 * @import { ModelSpec, Version } from "../study.js"
 * @import { Memory } from "./steps.js"
 *
 * @typedef {{ by: string, rate: number, [setting: string]: any }} Personal A line's published `training.personal`.
 *
 * @typedef {object} Kept The state of a personal model, which stays on the device.
 * @property {number} trained The number of trainings; before the first, the client ranks with the shared weights.
 * @property {number[]} numbers The private weights that are not frozen, or the vector.
 * @property {string} [turn] The next to train, for a client that trains its vector and the shared weights in turn.
 * @property {Memory | null} memory The optimizer's state between trainings.
 *
 * @typedef {object} Method
 * @property {(personal: Personal, spec: ModelSpec) => string | null} trouble Returns the reason why this client can't
 *   use the method, in words that follow "its personal models".
 * @property {(personal: Personal, spec: ModelSpec, draw: () => number) => Kept} begin Returns the state before any
 *   training; `draw` returns a random number in [0, 1).
 * @property {(personal: Personal, kept: Kept) => boolean} sends Whether the client's next training returns an update
 *   of the shared weights.
 * @property {(personal: Personal, spec: ModelSpec, shared: readonly number[], kept: Kept) => Float64Array} weights
 *   Returns the weights with which the client ranks.
 * @property {(personal: Personal, spec: ModelSpec, shared: readonly number[], kept: Kept, descent: Descent) => Kept} trained
 * @typedef {(weights: Float64Array) => number[]} Descent The direction of descent at any weights.
 */

import { sha256 } from "../sha256.js";
import { boundsTrouble } from "./bounds.js";
import { FINE_TUNE } from "./fine_tuning.js";
import { VECTOR } from "./vector.js";

/** @type {ReadonlyMap<string, Method>} */
const METHODS = new Map([
  ["fine_tune", FINE_TUNE],
  ["vector", VECTOR],
]);

const LARGEST = 1e30;

/**
 * The reason why this client can't train such a personal model; null if it can. The words follow "the line cannot be
 * trained here: ".
 *
 * @param {any} personal
 * @param {ModelSpec} spec
 * @returns {string | null}
 */
export function personalTrouble(personal, spec) {
  const method = METHODS.get(personal?.by);
  if (method === undefined) {
    return `its personal models are by '${personal?.by}', which this client does not have`;
  }
  const trouble = method.trouble(personal, spec);
  return trouble === null ? boundsTrouble(spec) : `its personal models ${trouble}`;
}

/**
 * The state of a personal model before its first training.
 *
 * @param {Personal} personal
 * @param {ModelSpec} spec
 * @param {() => number} draw
 */
export function begun(personal, spec, draw) {
  return methodOf(personal).begin(personal, spec, draw);
}

/**
 * Whether the next training returns an update of the shared weights, to be sent.
 *
 * @param {Personal} personal
 * @param {Version} held
 * @param {Kept} kept
 */
export function sends(personal, held, kept) {
  return waits(personal, held) || methodOf(personal).sends(personal, kept);
}

/**
 * The weights that a client ranks with.
 *
 * @param {Personal} personal
 * @param {ModelSpec} spec
 * @param {Version} held
 * @param {Kept} kept
 */
export function personalWeights(personal, spec, { weights }, kept) {
  return methodOf(personal).weights(personal, spec, weights, kept);
}

/**
 * The state after another training; the old state if its numbers would become infinite.
 *
 * @param {Personal} personal
 * @param {ModelSpec} spec
 * @param {Version} held
 * @param {Kept} kept
 * @param {Descent} descent
 */
export function trained(personal, spec, held, kept, descent) {
  if (waits(personal, held)) {
    return kept;
  }
  const next = methodOf(personal).trained(personal, spec, held.weights, kept, descent);
  return next.numbers.every(isNumber) ? next : { ...kept, turn: next.turn };
}

/**
 * The stored state, if it is valid for these settings; else null.
 *
 * @param {Personal} personal
 * @param {ModelSpec} spec
 * @param {any} given
 * @returns {Kept | null}
 */
export function readKept(personal, spec, given) {
  const like = begun(personal, spec, () => 0);
  const isList = (/** @type {any} */ list, /** @type {readonly number[]} */ of) =>
    Array.isArray(list) && list.length === of.length && list.every(isNumber);
  const remembers =
    like.memory === null
      ? given?.memory === null
      : isList(given?.memory?.rate, like.memory.rate) && isList(given.memory.sign, like.memory.sign);
  const hasTurn = like.turn === undefined ? given?.turn === undefined : ["vector", "weights"].includes(given?.turn);
  const { trained: count, numbers } = given ?? {};
  return Number.isSafeInteger(count) && count >= 0 && isList(numbers, like.numbers) && remembers && hasTurn ? given : null;
}

/**
 * A digest of the settings and the model, stored with the state, so that a client notices a change of either.
 *
 * @param {Personal} personal
 * @param {ModelSpec} spec
 */
export function digestOf(personal, spec) {
  return Array.from(sha256(inOrder([personal, spec])), (word) => word.toString(16).padStart(8, "0")).join("");
}

/** @param {any} value A JSON value; a server may write its keys in any order. @returns {string} */
function inOrder(value) {
  if (Array.isArray(value)) {
    return `[${value.map(inOrder).join()}]`;
  }
  if (typeof value !== "object" || value === null) {
    return JSON.stringify(value) ?? "null";
  }
  return `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${inOrder(value[key])}`).join()}}`;
}

/**
 * Whether only the shared weights are trained: before the method's first version, and before any version was fetched.
 *
 * @param {Personal} personal
 * @param {Version} held
 */
function waits({ from_version: from = 0 }, { version }) {
  return version < from;
}

/** @param {Personal} personal */
function methodOf({ by }) {
  return /** @type {Method} */ (METHODS.get(by)); // checked when the study was read
}

/** @param {unknown} value */
function isNumber(value) {
  return typeof value === "number" && Math.abs(value) <= LARGEST;
}
