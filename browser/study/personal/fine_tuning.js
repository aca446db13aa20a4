// @ts-check
/**
 * A personal model that starts as a copy of the shared one (`client_sim/learning/personal/fine_tuning.py`).
 *
 * The stored weights are those that are not frozen. They stay the same when the shared ones change.
 *
 * @import { ModelSpec } from "../study.js"
 * @import { Method } from "./personal.js"
 */

import { within } from "./bounds.js";
import { namesTrouble, placesOf } from "./names.js";
import { memoryOf, steps, steppingTrouble } from "./steps.js";

/** @type {Method} */
export const FINE_TUNE = Object.freeze({
  trouble: (personal, spec) => namesTrouble("frozen", personal.frozen, spec) ?? steppingTrouble(personal),

  begin: (personal, spec) => {
    const count = freeOf(personal, spec).filter(Boolean).length;
    return { trained: 0, numbers: Array(count).fill(0), memory: memoryOf(personal, spec.weights.length) };
  },

  sends: ({ shares = true }) => shares,

  weights(personal, spec, shared, kept) {
    const whole = Float64Array.from(shared);
    if (kept.trained === 0) {
      return whole;
    }
    const free = freeOf(personal, spec);
    let next = 0;
    for (let k = 0; k < whole.length; k += 1) {
      if (free[k]) {
        whole[k] = kept.numbers[next];
        next += 1;
      }
    }
    return within(spec, whole, free); // frozen weights may have changed since
  },

  trained(personal, spec, shared, kept, descent) {
    if (personal.steps === 0) {
      return kept;
    }
    const free = freeOf(personal, spec);
    const begin = this.weights(personal, spec, shared, kept).map((weight, k) => weight - shared[k]);
    const at = (/** @type {Float64Array} */ moved) => moved.map((each, k) => shared[k] + each);
    const down = (/** @type {Float64Array} */ moved) => descent(at(moved)).map((each, k) => (free[k] ? each : 0));
    const { moved, memory } = steps(personal, down, begin, kept.memory);
    const own = within(spec, at(moved), free);
    return { trained: kept.trained + 1, numbers: Array.from(own).filter((_, k) => free[k]), memory };
  },
});

/**
 * @param {any} personal
 * @param {ModelSpec} spec
 */
function freeOf({ frozen = [] }, spec) {
  const places = new Set(placesOf(frozen, spec));
  return spec.weights.map((_, k) => !places.has(k));
}
