// @ts-check
/**
 * The link `rotation`: random rotations block by block, which `levels` also uses (`protocol/encodings/rotation.py`).
 *
 * A block h of D numbers, D a power of two, becomes H S h / √D, where S flips signs at random and H is the
 * Walsh-Hadamard matrix in its natural order. It is computed by butterflies from the widest to the narrowest. These
 * only add and subtract, so the bits are the same everywhere.
 *
 * @import { ClientEnd } from "../links.js"
 */

import { childKeys, draws, keyOf } from "./splitmix.js";

/** The size of a block: numbers that are rotated together, or that share a header in `levels`. */
export const BLOCK = 1024;

/** @type {ClientEnd} */
export const ROTATION = {
  trouble: ({ seed = 0 }) => (Number.isSafeInteger(seed) && seed >= 0 ? null : `has seed = ${seed}`),
  transform: ({ seed = 0 }, update) => Array.from(rotate(Float64Array.from(update), seed)),
};

/**
 * Rotate numbers in place, in their own precision. The remainder after the last 1,024 has one block for each binary
 * digit of its length.
 *
 * @template {Float32Array | Float64Array} T
 * @param {T} numbers
 * @param {number} seed
 * @returns {T}
 */
export function rotate(numbers, seed) {
  const sizes = blockSizes(numbers.length);
  const keys = childKeys(childKeys(keyOf(seed), 1), sizes.length);
  let start = 0;
  for (const [k, size] of sizes.entries()) {
    const block = /** @type {T} */ (numbers.subarray(start, start + size));
    scale(block, draws({ high: keys.high.subarray(k, k + 1), low: keys.low.subarray(k, k + 1) }, Math.ceil(size / 64)));
    transform(block);
    start += size;
  }
  return numbers;
}

/**
 * The length of an update whose last block is padded to a power of two.
 *
 * @param {number} length
 */
export function paddedLength(length) {
  const rest = length % BLOCK;
  return length - rest + (rest === 0 ? 0 : 2 ** Math.ceil(Math.log2(rest)));
}

/** @param {number} length */
function blockSizes(length) {
  const sizes = new Array(Math.floor(length / BLOCK)).fill(BLOCK);
  for (let size = BLOCK / 2; size >= 1; size /= 2) {
    if ((length & size) !== 0) {
      sizes.push(size);
    }
  }
  return sizes;
}

/**
 * Multiply each number by a random sign and divide by the root of the length. A set bit means minus; the lowest bit is
 * the first number's.
 *
 * @param {Float32Array | Float64Array} block
 * @param {import("./splitmix.js").Words} bits
 */
function scale(block, { high, low }) {
  const root = Math.sqrt(1 / block.length); // rounded the same on every machine, unlike a power
  const factor = block instanceof Float32Array ? Math.fround(root) : root;
  for (let k = 0; k < block.length; k += 1) {
    const word = ((k >>> 5) & 1) === 0 ? low[k >>> 6] : high[k >>> 6];
    block[k] *= ((word >>> (k & 31)) & 1) === 1 ? -factor : factor;
  }
}

/**
 * The Walsh-Hadamard transform, in place.
 *
 * @param {Float32Array | Float64Array} block
 */
function transform(block) {
  for (let half = block.length / 2; half >= 1; half /= 2) {
    for (let start = 0; start < block.length; start += 2 * half) {
      for (let k = start; k < start + half; k += 1) {
        const one = block[k];
        const other = block[k + half];
        block[k] = one + other;
        block[k + half] = one - other;
      }
    }
  }
}
