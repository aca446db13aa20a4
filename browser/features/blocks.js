// @ts-check
/**
 * Blocks of weights, such as a hashed feature's or a layer's, expanded into single weights of a spec.
 *
 * @import { Block, ModelSpec, Weight } from "../study/study.js"
 */

import { startOf } from "./start.js";
import { isNumber } from "../study/study.js";

/** The maximum number of weights that a client accepts; each gets a name here. */
const MOST = 200_000;

/** The maximum number of axes of a block, as in `protocol/weights.py`; each adds a part to the names of its weights. */
const MOST_AXES = 8;

/**
 * The reason why this client can't expand the weights of a spec, in words that follow the line's name; null if it can.
 *
 * @param {any} spec
 * @returns {string | null}
 */
export function weightsTrouble({ model, weights = [], blocks = [] }) {
  const isWeight = (/** @type {any} */ each) => typeof each?.name === "string" && isNumber(each.start);
  if (!Array.isArray(weights) || !weights.every(isWeight) || !Array.isArray(blocks) || !blocks.every(isBlock)) {
    return `has weights of '${model}' that this client cannot read`;
  }
  const count = blocks.map(({ shape }) => product(shape)).reduce((a, b) => a + b, weights.length);
  return count <= MOST ? null : `has ${count.toLocaleString("en")} weights, and this client takes at most ${MOST.toLocaleString("en")}`;
}

/**
 * A spec with the weights of its blocks after the single ones, in the order of the wire.
 *
 * @param {ModelSpec} spec
 * @returns {ModelSpec}
 */
export function withAllWeights(spec) {
  const { weights = [], blocks = [] } = spec;
  const starts = startOf({ weights, blocks });
  /** @type {Weight[]} */
  const all = [...weights];
  for (const { name, shape, integer = false, kind } of blocks) {
    const count = product(shape);
    for (let k = 0; k < count; k += 1) {
      all.push({ name: `${name}[${indexOf(k, shape)}]`, start: starts[all.length], integer, kind });
    }
  }
  return { ...spec, weights: all };
}

/**
 * @param {number} k
 * @param {readonly number[]} shape
 */
function indexOf(k, shape) {
  const indices = [...shape];
  let rest = k;
  for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
    indices[axis] = rest % shape[axis];
    rest = Math.floor(rest / shape[axis]);
  }
  return indices.join();
}

/** @param {readonly number[]} shape */
function product(shape) {
  return shape.reduce((a, b) => a * b, 1);
}

/** @param {any} block */
function isBlock(block) {
  const { name, shape, start } = /** @type {Block} */ (block ?? {});
  const isSize = (/** @type {any} */ each) => Number.isSafeInteger(each) && each >= 1 && each <= 2_000_000;
  const numbers = start?.numbers ?? [0];
  const fits = numbers.length === 1 || (Array.isArray(shape) && numbers.length === product(shape));
  const isShape = Array.isArray(shape) && shape.length > 0 && shape.length <= MOST_AXES && shape.every(isSize);
  return typeof name === "string" && isShape && fits && numbers.every(isNumber);
}
