// @ts-check
/**
 * The randomness of encodings: seeds, which are sent, and numbers for rounding, which must stay secret.
 *
 * @typedef {object} Randomness
 * @property {() => number} seed Returns a whole number below 2^53.
 * @property {(count: number) => Float64Array} uniforms Returns numbers uniform in [0, 1).
 */

/** The maximum number of random bytes that the platform returns at once. */
const MOST = 65_536;

/**
 * The platform's randomness.
 *
 * @type {Randomness}
 */
export const SYSTEM = Object.freeze({
  seed: () => 2 ** 53 * uniforms(1)[0],
  uniforms,
});

/**
 * Uniform numbers in [0, 1), with 53 bits.
 *
 * @param {number} count
 */
function uniforms(count) {
  const words = new Uint32Array(2 * count);
  for (let start = 0; start < words.length; start += MOST / 4) {
    crypto.getRandomValues(words.subarray(start, start + MOST / 4));
  }
  const drawn = new Float64Array(count);
  for (let k = 0; k < count; k += 1) {
    drawn[k] = ((words[2 * k] >>> 11) * 2 ** 32 + words[2 * k + 1]) / 2 ** 53;
  }
  return drawn;
}
