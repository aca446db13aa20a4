// @ts-check
/**
 * The link `levels`: numbers rounded at random to one of 2^bits levels between the minimum and maximum of their block
 * (`protocol/encodings/levels.py`).
 *
 * @import { Encoder } from "../links.js"
 */

import { BLOCK, paddedLength, rotate } from "./rotation.js";

const BITS = [1, 2, 3, 4, 5, 6, 7, 8];
const SEED_BYTES = 8;
const HEADER_BYTES = 8;

/** @type {Encoder} */
export const LEVELS = {
  tag: ({ bits, rotate = false }) => (rotate ? `levels-r-${bits}` : `levels-${bits}`),
  trouble: ({ bits, rotate = false }) => {
    if (!BITS.includes(bits)) {
      return `has bits = ${bits}`;
    }
    return typeof rotate === "boolean" ? null : `has rotate = ${rotate}`;
  },
  encode: (settings, update, randomness) => {
    if (!settings.rotate) {
      return inLevels(Float32Array.from(update), settings.bits, randomness.uniforms(update.length), 0);
    }
    const seed = randomness.seed();
    const numbers = new Float32Array(paddedLength(update.length));
    numbers.set(update);
    const uniforms = randomness.uniforms(numbers.length);
    const bytes = inLevels(rotate(numbers, seed), settings.bits, uniforms, SEED_BYTES);
    new DataView(bytes.buffer).setBigUint64(0, BigInt(seed), true);
    return bytes;
  },
};

/**
 * Write the minimum and maximum of each block, then all levels, the first in the lowest bits of a byte.
 *
 * @param {Float32Array} numbers
 * @param {number} bits The bits of a level.
 * @param {Float64Array} uniforms Random numbers for rounding.
 * @param {number} at The offset in the payload.
 */
function inLevels(numbers, bits, uniforms, at) {
  const blocks = Math.ceil(numbers.length / BLOCK);
  const bytes = new Uint8Array(at + HEADER_BYTES * blocks + Math.ceil((numbers.length * bits) / 8));
  const headers = new DataView(bytes.buffer, at, HEADER_BYTES * blocks);
  const fields = bytes.subarray(at + HEADER_BYTES * blocks);
  const top = 2 ** bits - 1;
  for (let block = 0; block < blocks; block += 1) {
    const end = Math.min((block + 1) * BLOCK, numbers.length);
    const [low, high] = rangeOf(numbers.subarray(block * BLOCK, end));
    headers.setFloat32(HEADER_BYTES * block, low, true);
    headers.setFloat32(HEADER_BYTES * block + 4, high, true);
    for (let k = block * BLOCK; k < end && high > low; k += 1) {
      const level = Math.min(Math.floor(((numbers[k] - low) / (high - low)) * top + uniforms[k]), top);
      const at = (k * bits) >> 3;
      const shifted = level << ((k * bits) & 7);
      fields[at] |= shifted;
      fields[at + 1] |= shifted >> 8; // beyond the last byte the value is 0, and nothing is written
    }
  }
  return bytes;
}

/** @param {Float32Array} numbers */
function rangeOf(numbers) {
  let low = numbers[0];
  let high = numbers[0];
  for (let k = 1; k < numbers.length; k += 1) {
    low = Math.min(low, numbers[k]);
    high = Math.max(high, numbers[k]);
  }
  return [low, high];
}
