// @ts-check
/** The link `signs`: the signs of updates, with five or eight weights a byte; and the link `sign` of older studies. */

/** @import { Encoder } from "../links.js" */

/** @type {Encoder} */
export const SIGNS = {
  tag: ({ zero }) => (zero === "up" ? "signs-up" : "signs"),
  trouble: zeroTrouble,
  encode: ({ zero }, update) => (zero === "up" ? inBits(update, 1) : fiveAByte(update)),
};

/** @type {Encoder} */
export const SIGN = { trouble: zeroTrouble, encode: ({ zero }, update) => inBits(update, zero === "up" ? 1 : 2) };

/** @param {any} settings */
function zeroTrouble({ zero }) {
  return ["up", "abstain", undefined].includes(zero) ? null : `has zero = '${zero}'`;
}

/**
 * One base-three digit a weight: 0 down, 1 zero, 2 up, the first weight's lowest; the last byte is padded with ones.
 *
 * @param {readonly number[]} update
 */
function fiveAByte(update) {
  const bytes = new Uint8Array(Math.ceil(update.length / 5));
  for (let at = 0; at < bytes.length; at += 1) {
    for (let k = 5 * at + 4; k >= 5 * at; k -= 1) {
      bytes[at] = 3 * bytes[at] + 1 + (k < update.length ? Math.sign(update[k]) : 0);
    }
  }
  return bytes;
}

/**
 * One or two bits a weight. One bit: whether it is at least 0. Two bits: whether it is above 0, and whether it is
 * below. The first weight has the lowest bits of the first byte.
 *
 * @param {readonly number[]} update
 * @param {1 | 2} width
 */
function inBits(update, width) {
  const bytes = new Uint8Array(Math.ceil((update.length * width) / 8));
  for (const [k, number] of update.entries()) {
    const bits = width === 1 ? Number(number >= 0) : Number(number > 0) | (Number(number < 0) << 1);
    bytes[(k * width) >> 3] |= bits << ((k * width) & 7);
  }
  return bytes;
}
