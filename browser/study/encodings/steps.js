// @ts-check
/**
 * The link `steps`: numbers rounded at random to multiples of a step (`protocol/encodings/steps.py`); not deflated
 * here.
 */

/** @import { Encoder } from "../links.js" */

/** The maximum number of steps that a byte holds. */
const MOST = 127;

/** The largest number that the server accepts. */
const LARGEST = 1e30;

/** @type {Encoder} */
export const STEPS = {
  trouble: ({ size, step }) => ([size, step].filter(isPositive).length === 1 ? null : "has not just one of size and step"),
  encode: (settings, update, { uniforms }) => inSteps(update, stepOf(settings, update), uniforms(update.length)),
};

/**
 * The step in single precision, rounded up, so that no number exceeds 127 steps.
 *
 * @param {any} settings
 * @param {readonly number[]} update
 */
function stepOf({ size, step }, update) {
  let largest = 0;
  let squares = 0;
  for (const number of update) {
    largest = Math.max(largest, Math.abs(number));
    squares += number * number;
  }
  const wanted = isPositive(step) ? step : Math.min(size * Math.sqrt(squares / update.length), LARGEST);
  return roundedUp(Math.max(wanted, largest / MOST));
}

/** Round up to single precision. @param {number} number At least 0. */
function roundedUp(number) {
  const near = Float32Array.of(number);
  if (near[0] < number) {
    new Uint32Array(near.buffer)[0] += 1;
  }
  return near[0];
}

/**
 * The payload: the step, then the number of steps of each number.
 *
 * @param {readonly number[]} update
 * @param {number} step
 * @param {Float64Array} uniforms Random numbers for rounding.
 */
function inSteps(update, step, uniforms) {
  const bytes = new Uint8Array(4 + update.length);
  new DataView(bytes.buffer).setFloat32(0, step, true);
  for (let k = 0; k < update.length && step > 0; k += 1) {
    bytes[4 + k] = Math.max(-MOST, Math.min(Math.floor(update[k] / step + uniforms[k]), MOST));
  }
  return bytes;
}

/** @param {unknown} value */
function isPositive(value) {
  return typeof value === "number" && Number.isFinite(value) && value > 0;
}
