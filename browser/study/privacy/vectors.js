// @ts-check
/**
 * The vector that a client of a private line sends: its update and metrics as bounded whole numbers, with the client's
 * own noise if the line needs it. `protocol/privacy.py` describes its parts.
 *
 * @import { ModelSpec } from "../study.js"
 * @import { Chance } from "./chance.js"
 *
 * @typedef {object} Privacy The published privacy settings of a line.
 * @property {null | { epsilon: number, delta: number, rounds: number, population: number, noise_multiplier?: number |
 *   null }} central The guarantee by the operator's noise.
 * @property {null | { mechanism: "one-sign" | "gaussian", epsilon: number, delta?: number }} local The guarantee by the
 *   client's own noise.
 * @property {null | { helper: string, min_batch: number, seal: string, proofs: boolean }} [shared] The second server,
 *   with which no one server sees a vector.
 * @property {{ by: "signs" | "norm" | "kind" | "layer", norm?: number, norms?: Record<string, number> }} contribution
 * @property {readonly [number, number]} loss The smallest and largest loss that can be sent.
 * @property {readonly string[]} left_out Names of weights that are not in the vector.
 * @property {number | null} contributions The maximum number of versions that a client contributes to.
 * @property {number} delay_minutes
 *
 * @typedef {object} Frame The layout of a line's vectors.
 * @property {readonly number[]} group The group of each weight; -1 if it is left out.
 * @property {readonly number[]} units The size of 1 in the vector, in units of each weight.
 * @property {boolean} signs
 * @property {number} groups The number of groups of weights that clients can move.
 * @property {number} bound The maximum Euclidean norm of the weights' part.
 * @property {number} metric The largest number of a metric.
 */

import { leastNoise } from "./gaussian.js";

/** The upload link of private lines, and the tag of their updates. */
export const ENCODING = "private";

/**
 * The number of metrics in a vector, after the update: a 1 for the client, its loss, and whether its choice was on top.
 */
export const METRICS = 3;
const SIGN = 64;
const RADIUS = 2 ** 14;
const FARTHEST = 8;
const LARGEST = 2 ** 24 - 1;

/**
 * The layout of a line's vectors.
 *
 * @param {Privacy} privacy
 * @param {ModelSpec} spec
 * @returns {Frame}
 */
export function frameOf({ contribution, left_out: leftOut }, spec) {
  const kinds = spec.weights.map((weight) => String(/** @type {any} */ (weight).kind));
  const byKind = contribution.by === "kind";
  const numbers = new Map([...new Set(kinds)].map((kind, number) => [kind, number]));
  const group = spec.weights.map(({ name }, k) => (leftOut.includes(name) ? -1 : byKind ? Number(numbers.get(kinds[k])) : 0));
  const there = [...new Set(group)].filter((number) => number >= 0).sort((a, b) => a - b);
  const signs = contribution.by === "signs";
  const norm = (/** @type {string} */ kind) => Number(byKind ? contribution.norms?.[kind] : contribution.norm);
  const units = kinds.map((kind) => (signs ? 1 / SIGN : norm(kind) / RADIUS));
  const bound = signs ? SIGN * Math.sqrt(group.filter((number) => number >= 0).length) : RADIUS * Math.sqrt(there.length);
  const groups = group.map((number) => there.indexOf(number));
  return { group: groups, units, signs, groups: there.length, bound, metric: Math.max(1, rounded(bound / 4)) };
}

/**
 * The vector of one client.
 *
 * @param {Privacy} privacy
 * @param {Frame} frame
 * @param {readonly number[]} update
 * @param {number} loss
 * @param {boolean} top Whether the choice was on top.
 * @param {Chance} chance The source of the client's own noise.
 * @returns {number[]}
 */
export function vectorOf(privacy, frame, update, loss, top, chance) {
  const weights = boundedWeights(frame, update);
  if (privacy.local === null) {
    const [low, high] = privacy.loss;
    const share = (Math.min(Math.max(loss, low), high) - low) / (high - low);
    return [...weights, frame.metric, rounded(share * frame.metric) || 0, top ? frame.metric : 0];
  }
  const noisy =
    privacy.local.mechanism === "one-sign"
      ? oneSign(frame, weights, privacy.local.epsilon, chance)
      : withNoise(frame, weights, localSigma(privacy, frame), chance);
  return [...noisy, frame.metric, 0, 0]; // local noise covers only the weights, so no metrics are sent
}

/**
 * A vector as it is sent: little-endian int32 numbers.
 *
 * @param {readonly number[]} vector
 */
export function payloadOf(vector) {
  const view = new DataView(new ArrayBuffer(4 * vector.length));
  vector.forEach((number, k) => view.setInt32(4 * k, number, true));
  return new Uint8Array(view.buffer);
}

/**
 * The standard deviation of the noise that a client adds to each weight; any two of its inputs are neighbours.
 *
 * @param {Privacy} privacy
 * @param {Frame} frame
 */
export function localSigma({ local }, { bound }) {
  return Math.ceil(2 * bound * leastNoise(Number(local?.epsilon), Number(local?.delta)));
}

/** @param {Frame} frame @param {readonly number[]} update */
function boundedWeights({ group, units, signs }, update) {
  if (signs) {
    return update.map((number, k) => (group[k] < 0 || !Number.isFinite(number) ? 0 : SIGN * Math.sign(number) + 0));
  }
  const scaled = update.map((number, k) => (group[k] >= 0 && Number.isFinite(number / units[k]) ? number / units[k] : 0));
  const found = scaled.map(() => 0);
  for (const number of new Set(group)) {
    const mine = [...group.keys()].filter((k) => group[k] === number && number >= 0);
    const part = mine.map((k) => scaled[k]);
    const largest = Math.max(0, ...part.map(Math.abs));
    const norm = largest * Math.sqrt(part.reduce((sum, value) => sum + (value / (largest || 1)) ** 2, 0));
    const share = norm > RADIUS ? RADIUS / norm : 1;
    const whole = part.map((value) => Math.trunc(value * share) + 0);
    const over = whole.reduce((sum, value) => sum + value ** 2, 0) > RADIUS ** 2; // by a rounding error
    mine.forEach((k, i) => {
      found[k] = over ? whole[i] - Math.sign(whole[i]) : whole[i];
    });
  }
  return found;
}

/**
 * The sign of one weight, or the opposite sign by randomised response (Warner 1965); zeros for all others.
 *
 * @param {Frame} frame
 * @param {readonly number[]} signs
 * @param {number} epsilon
 * @param {Chance} chance
 */
function oneSign({ group }, signs, epsilon, chance) {
  const kept = [...group.keys()].filter((k) => group[k] >= 0);
  const place = kept[Number(chance.below(BigInt(kept.length)))];
  const up = signs[place] === 0 ? chance.coin() : signs[place] > 0;
  const sent = up === chance.isTrue(epsilon) ? SIGN : -SIGN;
  return signs.map((_, k) => (k === place ? sent : 0));
}

/**
 * @param {Frame} frame
 * @param {readonly number[]} weights
 * @param {number} sigma
 * @param {Chance} chance
 */
function withNoise({ group, bound }, weights, sigma, chance) {
  const most = Math.min(Math.ceil(bound) + FARTHEST * sigma, LARGEST);
  return weights.map((weight, k) =>
    group[k] < 0 ? weight : Math.min(Math.max(weight + chance.discreteGaussian(sigma), -most), most),
  );
}

/**
 * The maximum Euclidean norm of a vector, by which adding or removing a client changes the sum.
 *
 * @param {Frame} frame
 */
export function sensitivityOf({ group, groups, signs, metric }) {
  const weights = signs ? SIGN ** 2 * group.filter((number) => number >= 0).length : RADIUS ** 2 * groups;
  return Math.sqrt(weights + METRICS * metric ** 2);
}

/** The length of a vector for m weights. @param {number} m */
export function lengthOf(m) {
  return m + METRICS;
}

/** Round to the nearest whole number; ties to the even one. @param {number} x */
function rounded(x) {
  const below = Math.floor(x);
  const rest = x - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 !== 0) ? below + 1 : below;
}
