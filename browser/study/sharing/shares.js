// @ts-check
/**
 * The two shares of a vector, and how they travel: `offer id (8) ‖ the leader's share ‖ the helper's, sealed`.
 *
 * The helper's is a seed, from which SHAKE128 makes a mask of a word of 64 bits a number. The leader's is the vector minus the
 * mask, modulo 2^64. Each alone is noise; `protocol/sharing/shares.py` says the same in Python.
 */

import { joined, toHex, utf8 } from "../bytes.js";
import { shake128 } from "./keccak.js";

/** The upload link of lines of shares, and the tag of their updates. */
export const SHARED = "shared";

export const SEED_BYTES = 32;
export const OFFER_ID_BYTES = 8;

const MASK = utf8("fedping mask v1");
const WORD = 2 ** 32;

/**
 * Settings of two servers, with their defaults.
 *
 * @param {any} shared
 * @returns {{ helper: string, min_batch: number, seal: string, proofs: boolean }}
 */
export function completed(shared) {
  return { min_batch: 100, seal: "x25519", proofs: false, ...shared };
}

/**
 * The mask that follows from a seed: d little-endian words of 64 bits.
 *
 * @param {Uint8Array} seed 32 bytes.
 * @param {number} d
 */
export function maskOf(seed, d) {
  return shake128(joined(MASK, seed), 8 * d);
}

/**
 * The leader's share of a vector: as many little-endian words of 64 bits.
 *
 * @param {readonly number[]} vector Whole numbers, within 2^53.
 * @param {Uint8Array} seed The helper's share, which never was another vector's.
 */
export function leaderShare(vector, seed) {
  const mask = new DataView(maskOf(seed, vector.length).buffer);
  const share = new DataView(new ArrayBuffer(8 * vector.length));
  vector.forEach((number, k) => {
    const low = (((number % WORD) + WORD) % WORD) - mask.getUint32(8 * k, true);
    const high = Math.floor(number / WORD) - mask.getUint32(8 * k + 4, true) - (low < 0 ? 1 : 0);
    share.setUint32(8 * k, low, true); // which takes it modulo 2^32
    share.setUint32(8 * k + 4, high, true);
  });
  return new Uint8Array(share.buffer);
}

/**
 * What a sealed share belongs to, as the helper has to say when it opens it.
 *
 * @param {object} to
 * @param {string} to.study The study's name.
 * @param {string} to.line
 * @param {number} to.version The model version that the ping names.
 * @param {string} to.arm
 * @param {string} to.document The ping's document id.
 * @param {number} to.numbers How many numbers the vector has.
 * @param {Uint8Array} to.offer The id of the offer whose key it is sealed with.
 */
export function infoOf({ study, line, version, arm, document, numbers, offer }) {
  return utf8(["fedping share v1", study, line, version, arm, document, numbers, toHex(offer)].join("|"));
}

/**
 * The payload of a ping.
 *
 * @param {Uint8Array} offer The offer's id.
 * @param {Uint8Array} leader The leader's share.
 * @param {Uint8Array} sealed The helper's.
 */
export function sharedPayload(offer, leader, sealed) {
  return joined(offer, leader, sealed);
}
