// @ts-check
/**
 * The client's side of Prio3SumVecWithMultiproof over Field64 with XofTurboShake128 and two shares
 * (draft-irtf-cfrg-vdaf-18): the shares of a vector, with a proof that it consists of bits. `protocol/proofs` describes
 * the proof and the servers' check.
 *
 * @typedef {object} Circuit
 * @property {number} length The number of bits of a vector.
 * @property {number} chunk The number of bits in each proven chunk.
 * @property {number} proofs The number of independent proofs.
 */

import { joined } from "../bytes.js";
import { ELEMENT_BYTES, P, add, elementBytes, mul, otherValues, sub } from "./field.js";
import { turboShake128 } from "./keccak.js";

export const NONCE_BYTES = 16;
export const SEED_BYTES = 32;
export const RAND_BYTES = 4 * SEED_BYTES;

const PROOFS = 3;
const [LEADER, HELPER] = [0, 1];
/**
 * The prefix of domain separation: the draft's version, the class (VDAF), and the unassigned number of instances with
 * several proofs.
 */
const TAG = Uint8Array.of(18, 0, 0xff, 0xff, 0xff, 0xff);
const XOF_DOMAIN = 1;
const USAGE = Object.freeze({ measurement: 1, proof: 2, jointRandomness: 3, prove: 4, jointSeed: 6, jointPart: 7 });

/** @param {Circuit} circuit */
function sizesOf({ length, chunk }) {
  const calls = Math.ceil(length / chunk);
  const points = 2 ** (Math.floor(Math.log2(calls)) + 1);
  return { calls, points, wires: 2 * chunk, proof: 2 * chunk + 2 * points - 1 };
}

/**
 * The circuit with the shortest proofs for vectors of a length in bits; of several, the one with the fewest wires.
 *
 * @param {number} length
 * @returns {Circuit}
 */
export function shortest(length) {
  const candidates = Array.from({ length }, (_, i) => ({ length, chunk: i + 1, proofs: PROOFS }));
  return candidates.reduce((best, each) => (sizesOf(each).proof < sizesOf(best).proof ? each : best));
}

/**
 * The shares that a client sends: to the leader, to both servers (the public share), and to the helper. The helper's is
 * the first 64 bytes of `rand`.
 *
 * @param {Circuit} circuit
 * @param {readonly number[]} bits
 * @param {Uint8Array} nonce 16 bytes, never used twice.
 * @param {Uint8Array} rand 128 bytes of the platform's randomness, used for nothing else.
 * @param {Uint8Array} context The application's context, to which the shares are bound.
 * @returns {{ leader: Uint8Array, public: Uint8Array, helper: Uint8Array }}
 */
export function shard(circuit, bits, nonce, rand, context) {
  const { calls, wires, proof } = sizesOf(circuit);
  const { length, proofs } = circuit;
  const [seed, blind, leaderBlind, proveSeed] = [0, 1, 2, 3].map((k) => rand.slice(SEED_BYTES * k, SEED_BYTES * (k + 1)));
  const x = bits.map(BigInt);
  const helperX = elements(USAGE.measurement, context, joined(seed, Uint8Array.of(HELPER)), length);
  const leaderX = x.map((bit, k) => sub(bit, helperX[k]));
  const part = (/** @type {number} */ side, /** @type {Uint8Array} */ by, /** @type {bigint[]} */ share) =>
    stream(USAGE.jointPart, context, joined(by, Uint8Array.of(side), nonce, elementBytes(share)))(SEED_BYTES);
  const parts = joined(part(LEADER, leaderBlind, leaderX), part(HELPER, blind, helperX));
  const jointSeed = stream(USAGE.jointSeed, context, joined(new Uint8Array(SEED_BYTES), parts))(SEED_BYTES);
  const many = Uint8Array.of(proofs);
  const joint = elements(USAGE.jointRandomness, context, joined(jointSeed, many), proofs * calls);
  const random = elements(USAGE.prove, context, joined(proveSeed, many), proofs * wires);
  const helperProofs = elements(USAGE.proof, context, joined(seed, Uint8Array.of(proofs, HELPER)), proofs * proof);
  const made = Array.from({ length: proofs }, (_, k) =>
    prove(circuit, x, random.slice(wires * k, wires * (k + 1)), joint.slice(calls * k, calls * (k + 1))),
  ).flat();
  const leaderProofs = made.map((element, k) => sub(element, helperProofs[k]));
  return {
    leader: joined(elementBytes(leaderX), elementBytes(leaderProofs), leaderBlind),
    public: parts,
    helper: joined(seed, blind),
  };
}

/**
 * One proof: the random values of the wires, and all values of the gadget's polynomial except the last.
 *
 * @param {Circuit} circuit
 * @param {readonly bigint[]} x
 * @param {readonly bigint[]} random A random value of each wire.
 * @param {readonly bigint[]} joint A joint random value of each call.
 */
function prove(circuit, x, random, joint) {
  const { calls, points } = sizesOf(circuit);
  const { chunk } = circuit;
  const gadget = new Array(2 * points).fill(0n);
  const factors = [...joint];
  for (let j = 0; j < chunk; j += 1) {
    const first = new Array(points).fill(0n);
    const second = new Array(points).fill(0n);
    [first[0], second[0]] = [random[2 * j], random[2 * j + 1]];
    for (let call = 0; call < calls; call += 1) {
      const bit = x[call * chunk + j] ?? 0n;
      first[call + 1] = mul(factors[call], bit);
      second[call + 1] = sub(bit, 1n);
      factors[call] = mul(factors[call], joint[call]);
    }
    const [odd, others] = [otherValues(first), otherValues(second)];
    for (let k = 0; k < points; k += 1) {
      gadget[2 * k] = add(gadget[2 * k], mul(first[k], second[k]));
      gadget[2 * k + 1] = add(gadget[2 * k + 1], mul(odd[k], others[k]));
    }
  }
  return [...random, ...gadget.slice(0, -1)];
}

/**
 * The stream of bytes derived from a seed and its usage.
 *
 * @param {number} usage
 * @param {Uint8Array} context
 * @param {Uint8Array} bound A seed of 32 bytes, and the data that it is bound to.
 */
function stream(usage, context, bound) {
  const tag = joined(TAG, Uint8Array.of(0, usage), context);
  return turboShake128(joined(Uint8Array.of(tag.length & 0xff, tag.length >> 8), tag, Uint8Array.of(SEED_BYTES), bound), XOF_DOMAIN);
}

/**
 * The first 64-bit numbers of a stream that are elements of the field.
 *
 * @param {number} usage @param {Uint8Array} context @param {Uint8Array} bound @param {number} count
 */
function elements(usage, context, bound, count) {
  const next = stream(usage, context, bound);
  const found = /** @type {bigint[]} */ ([]);
  while (found.length < count) {
    const number = new DataView(next(ELEMENT_BYTES).buffer).getBigUint64(0, true);
    if (number < P) {
      found.push(number);
    }
  }
  return found;
}
