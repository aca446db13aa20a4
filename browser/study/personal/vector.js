// @ts-check
/**
 * A private vector v; the client predicts with the weights w + U v (`client_sim/learning/personal/vector.py`). The
 * vector is stored in single precision. It is relative to the shared weights w, so the personal weights follow changes
 * of w.
 *
 * @import { ModelSpec } from "../study.js"
 * @import { Kept, Method } from "./personal.js"
 *
 * @typedef {object} Basis U, whose rows are nonzero only for some weights.
 * @property {readonly number[]} places The positions of these weights.
 * @property {readonly boolean[]} free For each weight, whether it is one of these.
 * @property {Float64Array | null} matrix The nonzero rows in sequence; the identity if null.
 * @property {number} size The length of v.
 */

import { draws } from "../encodings/splitmix.js";
import { sha256 } from "../sha256.js";
import { within } from "./bounds.js";
import { namesTrouble, placesOf } from "./names.js";
import { memoryOf, steps, steppingTrouble } from "./steps.js";

/** The number of 64-bit words from which one number of U is made. */
const DRAWS = 6;

/** @type {Method} */
export const VECTOR = Object.freeze({
  trouble(personal, spec) {
    const { on = [], basis = "identity", in_step = false, seed = 0 } = personal;
    const rows = new Set(on).size || spec.weights.length;
    const size = personal.size ?? rows;
    if (in_step) {
      return "are trained in step, which only simulations can";
    }
    if (basis !== "identity" && basis !== "random") {
      return `have the basis '${basis}', which this client does not have`;
    }
    if (!Number.isSafeInteger(size) || size < 1 || size > rows || (basis === "identity" && size !== rows)) {
      return `have a vector of ${size} for ${rows} weights`;
    }
    if (!Number.isSafeInteger(seed) || seed < 0) {
      return `have seed = ${seed}`;
    }
    return namesTrouble("on", on, spec) ?? steppingTrouble(personal);
  },

  begin(personal, spec, draw) {
    const { size } = basisOf(personal, spec);
    const turn = draw() < 0.5 ? "vector" : "weights";
    return { trained: 0, numbers: Array(size).fill(0), turn, memory: memoryOf(personal, size) };
  },

  sends: (_, { turn }) => turn !== "vector",

  weights: (personal, spec, shared, { numbers }) => {
    const basis = basisOf(personal, spec);
    return bounded(spec, basis, whole(basis, shared, numbers), numbers);
  },

  trained(personal, spec, shared, kept, descent) {
    if (kept.turn !== "vector") {
      return { ...kept, turn: "vector" };
    }
    const basis = basisOf(personal, spec);
    const at = (/** @type {ArrayLike<number>} */ v) => bounded(spec, basis, whole(basis, shared, v), v);
    const down = (/** @type {Float64Array} */ v) => pulled(basis, descent(at(v)));
    const { moved, memory } = steps(personal, down, Float64Array.from(kept.numbers), kept.memory);
    const numbers = Array.from(pulledBack(spec, basis, shared, moved), Math.fround);
    return { trained: kept.trained + 1, numbers, turn: "weights", memory };
  },
});

/**
 * w + U v, without bounds.
 *
 * @param {Basis} basis
 * @param {ArrayLike<number>} shared
 * @param {ArrayLike<number>} v
 */
function whole({ places, matrix, size }, shared, v) {
  const weights = Float64Array.from(shared);
  for (const [row, place] of places.entries()) {
    let sum = matrix === null ? v[row] : 0;
    for (let j = 0; matrix !== null && j < size; j += 1) {
      sum += matrix[row * size + j] * v[j];
    }
    weights[place] += sum;
  }
  return weights;
}

/**
 * @param {ModelSpec} spec
 * @param {Basis} basis
 * @param {Float64Array} weights The weights, changed in place.
 * @param {ArrayLike<number>} v The vector; where it is 0, the weights equal the version's exactly.
 */
function bounded(spec, { free }, weights, v) {
  return Array.from(v).some((each) => each !== 0) ? within(spec, weights, free) : weights;
}

/**
 * Uᵀ of a direction.
 *
 * @param {Basis} basis
 * @param {ArrayLike<number>} down
 */
function pulled({ places, matrix, size }, down) {
  if (matrix === null) {
    return places.map((place) => down[place]);
  }
  const found = new Float64Array(size);
  for (const [row, place] of places.entries()) {
    for (let j = 0; j < size; j += 1) {
      found[j] += down[place] * matrix[row * size + j];
    }
  }
  return found;
}

/**
 * A vector whose weights are within the bounds, if each number belongs to one weight. Otherwise a number would keep
 * growing while its weight is at a bound, and take as long to return.
 *
 * @param {ModelSpec} spec
 * @param {Basis} basis
 * @param {ArrayLike<number>} shared
 * @param {Float64Array} v
 */
function pulledBack(spec, basis, shared, v) {
  if (basis.matrix !== null) {
    return v;
  }
  const there = whole(basis, shared, v);
  const allowed = bounded(spec, basis, Float64Array.from(there), v);
  return v.map((each, row) => {
    const place = basis.places[row];
    return there[place] === allowed[place] ? each : allowed[place] - shared[place];
  });
}

/** @type {WeakMap<object, Basis>} */
const knownBases = new WeakMap();

/**
 * @param {any} personal
 * @param {ModelSpec} spec
 * @returns {Basis}
 */
function basisOf(personal, spec) {
  let basis = knownBases.get(personal);
  if (basis === undefined) {
    const { on = [], basis: kind = "identity", seed = 0 } = personal;
    const named = new Set(on.length ? placesOf(on, spec) : spec.weights.keys());
    const free = spec.weights.map((_, k) => named.has(k));
    const places = [...named].sort((a, b) => a - b);
    const size = personal.size ?? places.length;
    basis = { places, free, size, matrix: kind === "random" ? randomBasis(places.length, size, seed) : null };
    knownBases.set(personal, basis);
  }
  return basis;
}

/**
 * Entries of N(0, 1) / √size, row by row, computed from integers: the same as for a block of weights named U that
 * starts at normal numbers (`protocol/weights.py`). Each is the sum of twelve fractions, minus six.
 *
 * @param {number} rows
 * @param {number} size
 * @param {number} seed
 */
export function randomBasis(rows, size, seed) {
  const scale = 1 / Math.sqrt(size);
  const [first, second] = sha256(`${seed}\nU`);
  const key = { high: Uint32Array.of(reversed(second)), low: Uint32Array.of(reversed(first)) };
  const { high, low } = draws(key, rows * size * DRAWS);
  return Float64Array.from({ length: rows * size }, (_, k) => {
    let total = 0;
    for (let draw = 0; draw < DRAWS; draw += 1) {
      total += high[k * DRAWS + draw] + low[k * DRAWS + draw];
    }
    return scale * (total / 2 ** 32 - 6);
  });
}

/**
 * A 32-bit number with its bytes in reverse order.
 *
 * @param {number} word
 */
function reversed(word) {
  return ((word & 0xff) * 2 ** 24 + ((word >>> 8) & 0xff) * 2 ** 16 + ((word >>> 16) & 0xff) * 2 ** 8 + (word >>> 24)) >>> 0;
}
