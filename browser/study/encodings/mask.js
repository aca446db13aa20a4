// @ts-check
/**
 * The link `mask`: sends a random fraction of the weights, chosen by a seed that is also sent
 * (`protocol/encodings/mask.py`). It keeps one weight of each of k blocks of neighbours. They are sent as float32
 * numbers, or as encoded by the link after it.
 *
 * @import { Encoder } from "../links.js"
 */

import { FLOAT32 } from "./float32.js";
import { draws, keyOf } from "./splitmix.js";

/** @type {Encoder} */
export const MASK = {
  trouble: ({ keep, draw = "blocks" }) => {
    if (!(keep > 0 && keep <= 1)) {
      return `has keep = ${keep}`;
    }
    return draw === "blocks" ? null : `has draw = '${draw}', which this client does not know`;
  },
  encode: ({ keep }, update, randomness) => {
    const seed = randomness.seed();
    return joined(headerOf(seed), FLOAT32.encode({}, keptOf(update, seed, keep), randomness));
  },
};

/**
 * The encoder of a mask and the link after it.
 *
 * @param {Encoder} values The encoder of the link after it.
 * @param {any} settings The settings of the link after it.
 * @returns {Encoder}
 */
export function maskThen(values, settings) {
  return {
    tag: () => `mask-${values.tag?.(settings) ?? settings.link}`,
    trouble: (mask) => {
      const trouble = values.trouble?.(settings) ?? (settings.rotate ? "has rotate = true" : null);
      return MASK.trouble?.(mask) ?? (trouble && `is followed by '${settings.link}', which ${trouble}`);
    },
    encode: ({ keep }, update, randomness) => {
      const seed = randomness.seed();
      const kept = keptOf(update, seed, keep);
      return joined(headerOf(seed, kept.length), values.encode(settings, kept, randomness));
    },
  };
}

/**
 * The positions of the weights that a seed keeps, ascending.
 *
 * @param {number} seed
 * @param {number} keep The fraction of weights to keep.
 * @param {number} weights The number of all weights.
 * @returns {number[]}
 */
export function keptPlaces(seed, keep, weights) {
  const blocks = Math.max(1, Math.floor(keep * weights + 0.5));
  const { high } = draws(keyOf(seed), blocks);
  const places = new Array(blocks);
  for (let block = 0; block < blocks; block += 1) {
    const start = Math.floor((block * weights) / blocks);
    const length = Math.floor(((block + 1) * weights) / blocks) - start;
    places[block] = start + shareOf(length, high[block]);
  }
  return places;
}

/**
 * The integer part of length × drawn / 2^32, by products that a double represents exactly.
 *
 * @param {number} length
 * @param {number} drawn A random number of 32 bits.
 */
function shareOf(length, drawn) {
  const low = Math.floor((length * (drawn & 0xffff)) / 65536);
  return Math.floor((length * (drawn >>> 16) + low) / 65536);
}

/** @param {readonly number[]} update @param {number} seed @param {number} keep */
function keptOf(update, seed, keep) {
  return keptPlaces(seed, keep, update.length).map((place) => update[place]);
}

/**
 * @param {number} seed
 * @param {number} [kept] The number of kept weights, if the rest of the payload doesn't contain it.
 */
function headerOf(seed, kept) {
  const view = new DataView(new ArrayBuffer(kept === undefined ? 8 : 12));
  view.setBigUint64(0, BigInt(seed), true);
  if (kept !== undefined) {
    view.setUint32(8, kept, true);
  }
  return new Uint8Array(view.buffer);
}

/** @param {Uint8Array} header @param {Uint8Array} values */
function joined(header, values) {
  const bytes = new Uint8Array(header.length + values.length);
  bytes.set(header);
  bytes.set(values, header.length);
  return bytes;
}
