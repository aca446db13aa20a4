// @ts-check
/**
 * Votes as bits, and the leader's share of them with a proof that they are bits; `protocol/sharing/votes.py` is the
 * same in Python.
 *
 * A weight has two bits, a vote up and a vote down. The loss has a few bits with fixed weights, which sum to the
 * largest loss. One bit says whether the choice was the first suggestion. All randomness is derived from one seed, and
 * the helper's share doesn't depend on the vector, so it can be sealed before the vector exists.
 *
 * @import { ModelSpec } from "../study.js"
 * @import { Privacy } from "../privacy/vectors.js"
 *
 * @typedef {object} For The context that a proof is bound to.
 * @property {string} study The study's name.
 * @property {string} line
 * @property {number} version The model version that the ping names.
 * @property {string} arm
 * @property {string} documentId The ping's document id.
 * @property {number} metric The largest number of a metric.
 */

import { fromHex, joined, utf8 } from "../bytes.js";
import { METRICS, frameOf } from "../privacy/vectors.js";
import { shake128 } from "./keccak.js";
import { RAND_BYTES, SEED_BYTES, shard, shortest } from "./prio3.js";
import { completed } from "./shares.js";

const RAND = utf8("fedping proof rand v1");

/**
 * The largest number of a metric in a two-server line with proofs; 0 for a line without proofs.
 *
 * @param {Privacy} privacy
 * @param {ModelSpec} spec
 */
export function metricOf(privacy, spec) {
  return completed(privacy.shared).proofs ? frameOf(privacy, spec).metric : 0;
}

/**
 * The weights of the bits of a loss: their sums are all numbers from 0 to the largest loss.
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
 * A bounded vector of signs as bits: ups, downs, the loss's bits, and whether the choice was the first suggestion.
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
 * The helper's share, which is sealed for it: the two seeds of its part of the bits and of the proof.
 *
 * @param {Uint8Array} seed 32 secret bytes, drawn for one ping.
 */
export function helperSeeds(seed) {
  return randOf(seed).slice(0, 2 * SEED_BYTES);
}

/**
 * The leader's data: its share of the bits and of the proof, and the public share.
 *
 * @param {readonly number[]} vector Bounded signs and metrics.
 * @param {Uint8Array} seed A seed never used for another vector.
 * @param {For} to
 */
export function provenShare(vector, seed, to) {
  const bits = bitsOf(vector, to.metric);
  const nonce = fromHex(to.documentId.replaceAll("-", ""));
  const made = shard(shortest(bits.length), bits, nonce, randOf(seed), utf8(contextOf(to, vector.length)));
  return joined(made.leader, made.public);
}

/** @param {For} to @param {number} numbers The length of a vector. */
function contextOf({ study, line, version, arm, metric }, numbers) {
  return ["fedping proof v1", study, line, version, arm, numbers, metric].join("|");
}

/** @param {Uint8Array} seed */
function randOf(seed) {
  return shake128(joined(RAND, seed), RAND_BYTES);
}
