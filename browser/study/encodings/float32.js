// @ts-check
/** The link `float32`: updates as the bytes of their float32 numbers, little-endian. */

/** @import { Encoder } from "../links.js" */

/** @type {Encoder} */
export const FLOAT32 = { encode: (_, update) => singles(update) };

/**
 * @param {ArrayLike<number>} numbers
 */
function singles(numbers) {
  const view = new DataView(new ArrayBuffer(4 * numbers.length));
  for (let k = 0; k < numbers.length; k += 1) {
    view.setFloat32(4 * k, numbers[k], true);
  }
  return new Uint8Array(view.buffer);
}
