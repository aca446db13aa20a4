// @ts-check
/**
 * The two shares of a vector, and their payload: `offer id (8) ‖ the leader's share ‖ the helper's, sealed`.
 *
 * The helper's share is a seed, which SHAKE128 expands into a mask with a 64-bit word for each number. The leader's
 * share is the vector minus the mask, modulo 2^64. Each share alone is noise; `protocol/sharing/shares.py` is the same
 * in Python.
 */

import { joined, toHex, utf8 } from "../bytes.js";
import { shake128 } from "./keccak.js";

/** The upload link of two-server lines, and the tag of their updates. */
export const SHARED = "shared";

export const SEED_BYTES = 32;
export const OFFER_ID_BYTES = 8;

const MASK = utf8("fedping mask v1");
const WORD = 2 ** 32;

/**
 * The settings of a two-server line, completed with defaults.
 *
 * @param {any} shared
 * @returns {{ helper: string, min_batch: number, seal: string, proofs: boolean }}
 */
export function completed(shared) {
  return { min_batch: 100, seal: "x25519", proofs: false, ...shared };
}

/**
 * A seed's mask: d little-endian 64-bit words.
 *
 * @param {Uint8Array} seed 32 bytes.
 * @param {number} d
 */
export function maskOf(seed, d) {
  return shake128(joined(MASK, seed), 8 * d);
}

/**
 * The leader's share of a vector: a little-endian 64-bit word for each number.
 *
 * @param {readonly number[]} vector Whole numbers, within 2^53.
 * @param {Uint8Array} seed The helper's share, never used for another vector.
 */
export function leaderShare(vector, seed) {
  const mask = new DataView(maskOf(seed, vector.length).buffer);
  const share = new DataView(new ArrayBuffer(8 * vector.length));
  vector.forEach((number, k) => {
    const low = (((number % WORD) + WORD) % WORD) - mask.getUint32(8 * k, true);
    const high = Math.floor(number / WORD) - mask.getUint32(8 * k + 4, true) - (low < 0 ? 1 : 0);
    share.setUint32(8 * k, low, true); // setUint32 reduces modulo 2^32
    share.setUint32(8 * k + 4, high, true);
  });
  return new Uint8Array(share.buffer);
}

/**
 * The context of a sealed share, which the helper must also pass to open it.
 *
 * @param {object} to
 * @param {string} to.study The study's name.
 * @param {string} to.line
 * @param {number} to.version The model version that the ping names.
 * @param {string} to.arm
 * @param {string} to.document The ping's document id.
 * @param {number} to.numbers The length of the vector.
 * @param {Uint8Array} to.offer The id of the offer with the key for sealing.
 */
export function infoOf({ study, line, version, arm, document, numbers, offer }) {
  return utf8(["fedping share v1", study, line, version, arm, document, numbers, toHex(offer)].join("|"));
}

/**
 * The payload of a ping.
 *
 * @param {Uint8Array} offer The offer's id.
 * @param {Uint8Array} leader The leader's share.
 * @param {Uint8Array} sealed The helper's share, sealed.
 */
export function sharedPayload(offer, leader, sealed) {
  return joined(offer, leader, sealed);
}
