// @ts-check
/**
 * A spec's constraints on private weights: moves them to the nearest values that the constraints and the frozen weights
 * allow (`client_sim/learning/bounds.py`). The server's corrections apply to a single step, which private weights don't
 * have.
 *
 * @import { ModelSpec } from "../study.js"
 */

import { placesOfName } from "./names.js";

const KNOWN = ["non_negative", "ordered_cutoffs"];

/**
 * The reason why this client can't keep a spec's constraints; null if it can.
 *
 * @param {ModelSpec} spec
 */
export function boundsTrouble({ constraints = [], weights }) {
  for (const { constraint, weights: named = [] } of constraints) {
    if (!KNOWN.includes(constraint) || !named.every((name) => placesOfName(weights, name).length > 0)) {
      return `its spec has the constraint '${constraint}', which this client cannot hold`;
    }
  }
  return null;
}

/**
 * Move free weights in place to values that the constraints allow; allowed values keep their bits.
 *
 * @param {ModelSpec} spec
 * @param {Float64Array} weights
 * @param {readonly boolean[]} free Whether each weight may move.
 * @returns {Float64Array} The same array.
 */
export function within(spec, weights, free) {
  const { constraints = [] } = spec;
  for (const { constraint, weights: names = [] } of constraints) {
    if (constraint === "non_negative") {
      const named = names.flatMap((name) => placesOfName(spec.weights, name));
      for (const k of names.length > 0 ? named : weights.keys()) {
        if (free[k] && weights[k] < 0) {
          weights[k] = 0;
        }
      }
    }
  }
  for (const { constraint, weights: names = [], gap = 1, first = 1 } of constraints) {
    if (constraint === "ordered_cutoffs") {
      order(weights, free, names.flatMap((name) => placesOfName(spec.weights, name)), gap, first);
    }
  }
  return weights;
}

/**
 * Put cutoffs in order. First, from last to first, lower those before a frozen cutoff to leave room for the ones
 * between; then, from first to last, raise those too close to the one before.
 *
 * @param {Float64Array} weights
 * @param {readonly boolean[]} free
 * @param {readonly number[]} places
 * @param {number} gap
 * @param {number} first
 */
function order(weights, free, places, gap, first) {
  let highest = Infinity;
  for (const place of [...places].reverse()) {
    if (free[place]) {
      weights[place] = Math.min(weights[place], highest);
      highest -= gap;
    } else {
      highest = weights[place] - gap;
    }
  }
  let least = first;
  for (const place of places) {
    if (free[place]) {
      weights[place] = Math.max(weights[place], least);
    }
    least = weights[place] + gap;
  }
}
