// @ts-check
/**
 * The start weights of a spec with single weights and blocks (`protocol/weights.py`).
 *
 * @typedef {{ values: string, seed?: number, scale?: number, numbers?: readonly number[] }} Start
 *
 * @typedef {object} Block
 * @property {string} name
 * @property {readonly number[]} shape
 * @property {Start} [start]
 * @property {boolean} [integer]
 *
 * @typedef {object} Weighed
 * @property {readonly { start: number, integer?: boolean }[]} [weights]
 * @property {readonly Block[]} [blocks]
 */

import { draws } from "../study/encodings/splitmix.js";
import { sha256 } from "../study/sha256.js";

const DRAWS_A_WEIGHT = 6;

/**
 * The weights of version 0 as published: integer ones rounded half up.
 *
 * @param {Weighed} spec
 * @returns {number[]}
 */
export function startOf({ weights = [], blocks = [] }) {
  const single = weights.map(({ start, integer }) => published(start, integer));
  return single.concat(...blocks.map((block) => startOfBlock(block).map((value) => published(value, block.integer))));
}

/**
 * @param {number} value
 * @param {boolean} [integer]
 */
function published(value, integer = false) {
  return integer ? Math.floor(value + 0.5) : value;
}

/** @param {Block} block */
function startOfBlock({ name, shape, start = { values: "zeros" } }) {
  const count = shape.reduce((a, b) => a * b, 1);
  const { values, scale = 1, numbers = [] } = start;
  switch (values) {
    case "numbers":
      return Array.from({ length: count }, (_, k) => numbers[numbers.length === 1 ? 0 : k]);
    case "uniform": {
      const { high, low } = drawn(name, start, count);
      return Array.from({ length: count }, (_, k) => {
        const first = k * DRAWS_A_WEIGHT;
        return scale * (2 * ((high[first] * 2 ** 21 + (low[first] >>> 11)) * 2 ** -53) - 1);
      });
    }
    case "normal": {
      const { high, low } = drawn(name, start, count);
      return Array.from({ length: count }, (_, k) => {
        let sum = 0;
        for (let draw = k * DRAWS_A_WEIGHT; draw < (k + 1) * DRAWS_A_WEIGHT; draw += 1) {
          sum += high[draw] + low[draw];
        }
        return scale * (sum * 2 ** -32 - 6);
      });
    }
    default:
      return new Array(count).fill(0);
  }
}

/**
 * @param {string} name
 * @param {Start} start
 * @param {number} count
 */
function drawn(name, { seed = 0 }, count) {
  const [first, second] = sha256(`${seed}\n${name}`);
  const key = { high: Uint32Array.of(swappedBytes(second)), low: Uint32Array.of(swappedBytes(first)) };
  return draws(key, count * DRAWS_A_WEIGHT);
}

/** @param {number} word */
function swappedBytes(word) {
  return ((word << 24) | ((word & 0xff00) << 8) | ((word >>> 8) & 0xff00) | (word >>> 24)) >>> 0;
}
