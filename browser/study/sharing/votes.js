// @ts-check
/**
 * Votes as bits, and the leader's share of them with a proof that they are bits; `protocol/sharing/votes.py` says the same in
 * Python.
 *
 * A weight is two bits, one that votes up and one that votes down; the loss is a few bits of fixed weights, which add up to the
 * largest that it can be; whether the first suggestion was on top is one. All randomness follows from one seed, and what is the
 * helper's does not depend on the vector: so it can be sealed before there is one.
 *
 * @import { ModelSpec } from "../study.js"
 * @import { Privacy } from "../privacy/vectors.js"
 *
 * @typedef {object} For What a proof is for; it holds for nothing else.
 * @property {string} study The study's name.
 * @property {string} line
 * @property {number} version The model version that the ping names.
 * @property {string} arm
 * @property {string} documentId The ping's.
 * @property {number} metric The largest number of a metric.
 */

import { fromHex, joined, utf8 } from "../bytes.js";
import { METRICS, frameOf } from "../privacy/vectors.js";
import { shake128 } from "./keccak.js";
import { RAND_BYTES, SEED_BYTES, shard, shortest } from "./prio3.js";
import { completed } from "./shares.js";

const RAND = utf8("fedping proof rand v1");

/**
 * The largest number of a metric of a line of shares whose clients prove their votes; 0 for a line without proofs.
 *
 * @param {Privacy} privacy
 * @param {ModelSpec} spec
 */
export function metricOf(privacy, spec) {
  return completed(privacy.shared).proofs ? frameOf(privacy, spec).metric : 0;
}

/**
 * The weights of the bits that a loss from 0 to the largest is told by: any sum up to that can be had.
 *
 * @param {number} metric
 */
export function lossWeights(metric) {
  const found = [];
  for (let left = metric; left > 0; left -= found[found.length - 1]) {
    found.push(Math.floor((left + 1) / 2));
  }
  return found;
}

/**
 * A bounded vector of signs as bits: ups, downs, those of the loss, and whether the first suggestion was on top.
 *
 * @param {readonly number[]} vector
 * @param {number} metric
 */
export function bitsOf(vector, metric) {
  const m = vector.length - METRICS;
  const signs = vector.slice(0, m);
  let left = vector[m + 1];
  const loss = lossWeights(metric).map((weight) => {
    const told = left >= weight;
    left -= told ? weight : 0;
    return told;
  });
  return [...signs.map((sign) => sign > 0), ...signs.map((sign) => sign < 0), ...loss, vector[m + 2] > 0].map(Number);
}

/**
 * The helper's share, which is sealed for it: the two seeds from which it makes its part of the bits and of the proof.
 *
 * @param {Uint8Array} seed 32 secret bytes, drawn for one ping.
 */
export function helperSeeds(seed) {
  return randOf(seed).slice(0, 2 * SEED_BYTES);
}

/**
 * What the leader gets: its share of the bits and of the proof, and the public share.
 *
 * @param {readonly number[]} vector Bounded signs and metrics.
 * @param {Uint8Array} seed Which never was another vector's.
 * @param {For} to
 */
export function provenShare(vector, seed, to) {
  const bits = bitsOf(vector, to.metric);
  const nonce = fromHex(to.documentId.replaceAll("-", ""));
  const made = shard(shortest(bits.length), bits, nonce, randOf(seed), utf8(contextOf(to, vector.length)));
  return joined(made.leader, made.public);
}

/** @param {For} to @param {number} numbers How many a vector has. */
function contextOf({ study, line, version, arm, metric }, numbers) {
  return ["fedping proof v1", study, line, version, arm, numbers, metric].join("|");
}

/** @param {Uint8Array} seed */
function randOf(seed) {
  return shake128(joined(RAND, seed), RAND_BYTES);
}
