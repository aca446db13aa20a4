// @ts-check
/**
 * The laboratory's models of examples: linear and logistic regression, and networks with hidden layers. Computed in
 * plain loops, which agree with NumPy's products within 1e-12 (`client_sim/learning/models/`).
 *
 * @import { ModelKind } from "../study/parts.js"
 * @import { ModelSpec } from "../study/study.js"
 *
 * @typedef {{ inputs: number, outputs: number, first: number, bias: boolean }} Layer A layer's weights: W row by row
 *   from position `first`, then b.
 *
 * @typedef {object} Form A model's form, as given by its spec.
 * @property {readonly Layer[]} layers
 * @property {number} features
 * @property {number} classes 0 for a model that predicts a number.
 * @property {number} l2
 * @property {number} m The number of weights.
 *
 * @typedef {{ x: readonly number[], y: number }} Example
 */

import { weightsTrouble, withAllWeights } from "../features/blocks.js";

/** The models by name. @type {readonly string[]} */
export const PREDICTING = ["linear-regression", "logistic-regression", "network"];

/** @type {ReadonlyMap<string, ModelKind>} */
export const PREDICTING_MODELS = new Map(
  PREDICTING.map((name) => [
    name,
    {
      trouble: (spec) => weightsTrouble(spec) ?? formTrouble(spec),
      completed: withAllWeights,
    },
  ]),
);

/**
 * The form of a spec's model.
 *
 * @param {ModelSpec} spec
 * @returns {Form}
 */
export function formOf({ model, settings = {} }) {
  const { features, intercept = true, l2 = 0 } = settings;
  const classes = model === "linear-regression" ? 0 : (settings.classes ?? (model === "network" ? NaN : 2));
  const hidden = model === "network" ? String(settings.hidden ?? 100).split(",").map(Number) : [];
  const outputs = classes === 0 || (classes === 2 && model !== "network") ? 1 : classes;
  const sizes = [features, ...hidden, outputs];
  let first = 0;
  const layers = sizes.slice(1).map((size, i) => {
    const layer = { inputs: sizes[i], outputs: size, first, bias: intercept || model === "network" };
    first += size * (sizes[i] + (layer.bias ? 1 : 0));
    return layer;
  });
  return { layers, features, classes, l2, m: first };
}

/** @param {any} spec */
function formTrouble(spec) {
  const { layers, m, l2, classes } = formOf(spec);
  const whole = layers.every(({ inputs, outputs }) => [inputs, outputs].every((each) => Number.isSafeInteger(each) && each >= 1));
  if (!whole || classes === 1 || !(l2 >= 0) || !Number.isFinite(l2)) {
    return "has settings of its model that this client cannot read";
  }
  const count = withAllWeights(spec).weights.length;
  return count === m ? null : `has ${count} weights, and its model has ${m}`;
}

/**
 * The prediction for an example: a number, or the probability of each class.
 *
 * @param {Form} form
 * @param {ArrayLike<number>} weights
 * @param {readonly number[]} x
 * @returns {number[]}
 */
export function predicted(form, weights, x) {
  const scores = forward(form, weights, x)[form.layers.length];
  if (form.classes === 0) {
    return scores;
  }
  return scores.length === 1 ? binary(scores[0]) : softmax(scores);
}

/**
 * The mean loss of examples, and the direction of descent.
 *
 * @param {Form} form
 * @param {ArrayLike<number>} weights
 * @param {readonly Example[]} examples
 * @returns {{ loss: number, update: number[] }}
 */
export function learnedOf(form, weights, examples) {
  const gradient = new Float64Array(form.m);
  const share = 1 / examples.length;
  let loss = 0;
  for (const { x, y } of examples) {
    const outs = forward(form, weights, x);
    const scores = outs[form.layers.length];
    const { own, pulls } = lossOf(form, scores, y);
    loss += share * own;
    backward(form, weights, outs, pulls.map((pull) => pull * share), gradient);
  }
  if (form.l2 > 0) {
    loss += penalised(form, weights, gradient);
  }
  return { loss, update: Array.from(gradient, (each) => 0 - each) };
}

/**
 * The input of each layer, and the scores.
 *
 * @param {Form} form
 * @param {ArrayLike<number>} weights
 * @param {readonly number[]} x
 * @returns {number[][]}
 */
function forward({ layers }, weights, x) {
  const outs = [[...x]];
  layers.forEach(({ inputs, outputs, first, bias }, i) => {
    const from = outs[i];
    const out = Array.from({ length: outputs }, (_, o) => (bias ? weights[first + inputs * outputs + o] : 0));
    for (let input = 0; input < inputs; input += 1) {
      for (let o = 0; o < outputs; o += 1) {
        out[o] += from[input] * weights[first + input * outputs + o];
      }
    }
    outs.push(i < layers.length - 1 ? out.map((each) => (each > 0 ? each : 0)) : out);
  });
  return outs;
}

/**
 * Add an example's gradient, given the gradient of its loss with respect to the scores.
 *
 * @param {Form} form
 * @param {ArrayLike<number>} weights
 * @param {number[][]} outs
 * @param {number[]} pulls
 * @param {Float64Array} gradient
 */
function backward({ layers }, weights, outs, pulls, gradient) {
  let by = pulls;
  for (let i = layers.length - 1; i >= 0; i -= 1) {
    const { inputs, outputs, first, bias } = layers[i];
    const from = outs[i];
    const next = new Array(inputs).fill(0);
    for (let input = 0; input < inputs; input += 1) {
      for (let o = 0; o < outputs; o += 1) {
        const at = first + input * outputs + o;
        gradient[at] += from[input] * by[o];
        next[input] += weights[at] * by[o];
      }
    }
    for (let o = 0; bias && o < outputs; o += 1) {
      gradient[first + inputs * outputs + o] += by[o];
    }
    by = next.map((pull, input) => (from[input] > 0 ? pull : 0));
  }
}

/**
 * @param {Form} form
 * @param {number[]} scores
 * @param {number} y
 * @returns {{ own: number, pulls: number[] }}
 */
function lossOf({ classes }, scores, y) {
  if (classes === 0) {
    const error = scores[0] - y;
    return { own: error * error, pulls: [2 * error] };
  }
  if (scores.length === 1) {
    const [z] = scores;
    return { own: Math.log1p(Math.exp(-Math.abs(z))) + Math.max(z, 0) - y * z, pulls: [binary(z)[1] - y] };
  }
  const largest = Math.max(...scores);
  const total = scores.reduce((sum, score) => sum + Math.exp(score - largest), 0);
  const pulls = softmax(scores).map((share, k) => (k === y ? share - 1 : share));
  return { own: Math.log(total) - (scores[y] - largest), pulls };
}

/**
 * The L2 penalty on W, not on b; adds its gradient.
 *
 * @param {Form} form
 * @param {ArrayLike<number>} weights
 * @param {Float64Array} gradient
 */
function penalised({ layers, l2 }, weights, gradient) {
  let squares = 0;
  for (const { inputs, outputs, first } of layers) {
    for (let at = first; at < first + inputs * outputs; at += 1) {
      squares += weights[at] * weights[at];
      gradient[at] += l2 * weights[at];
    }
  }
  return 0.5 * l2 * squares;
}

/** The probabilities of both classes. @param {number} z */
function binary(z) {
  const small = Math.exp(-Math.abs(z));
  const [more, less] = [1 / (1 + small), small / (1 + small)];
  return z >= 0 ? [less, more] : [more, less];
}

/** @param {readonly number[]} scores */
function softmax(scores) {
  const largest = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - largest));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}
