// @ts-check
/**
 * What a spec's constraints mean for weights that are a client's own: the nearest values that the constraints and the frozen
 * weights allow (`client_sim/learning/bounds.py`). The server's corrections are of steps, and a client has no one step.
 *
 * @import { ModelSpec } from "../study.js"
 */

import { placesOfName } from "./names.js";

const KNOWN = ["non_negative", "ordered_cutoffs"];

/**
 * Why this client cannot hold a spec's constraints; null if it can.
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
 * Move free weights to where the constraints allow them, in place; allowed ones stay, to the bit.
 *
 * @param {ModelSpec} spec
 * @param {Float64Array} weights
 * @param {readonly boolean[]} free Which weights may move.
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
 * First, from last to first, cutoffs before a frozen one leave room for as many as there are; then, from first to last, each is
 * raised that is too close to the one before.
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
