// @ts-check
/**
 * Scores of items, and the order of a list.
 *
 * @import { Layout } from "./layout.js"
 * @import { Values } from "./values.js"
 */

/**
 * The score of an item from its values, without the offset of its place.
 *
 * @param {Layout} layout
 * @param {ArrayLike<number>} weights
 * @param {Values} values
 */
export function scoreOf(layout, weights, values) {
  const { at, value } = values;
  let total = 0;
  for (let k = 0; k < at.length; k += 1) {
    total += weights[at[k]] * value[k];
  }
  if (layout.hidden > 0) {
    unitsOf(layout, weights, values).forEach((z, unit) => {
      if (z > 0) {
        total += weights[layout.hiddenOut + unit] * z;
      }
    });
  }
  return total;
}

/**
 * The sums of the hidden layer's units, before the relu.
 *
 * @param {Layout} layout
 * @param {ArrayLike<number>} weights
 * @param {Values} values
 */
export function unitsOf(layout, weights, { at, value }) {
  const { hidden, hiddenBias } = layout;
  const units = Array.from({ length: hidden }, (_, unit) => weights[hiddenBias + unit]);
  for (let k = 0; k < at.length; k += 1) {
    const row = hiddenRow(layout, at[k]);
    for (let unit = 0; unit < hidden; unit += 1) {
      units[unit] += weights[row + unit] * value[k];
    }
  }
  return units;
}

/**
 * The position of a value's first weight in the hidden layer.
 *
 * @param {Layout} layout
 * @param {number} at The position of the value's own weight.
 */
export function hiddenRow({ places, offsets, hiddenIn, hidden }, at) {
  return hiddenIn + (at < places ? at : at - offsets) * hidden;
}

/**
 * The order of items, best first; pinned ones keep their given places. With equal scores, the first given ranks higher.
 *
 * @param {ArrayLike<number>} scores
 * @param {ReadonlySet<number>} [pinned]
 * @returns {number[]}
 */
export function orderOf(scores, pinned = new Set()) {
  const all = Array.from({ length: scores.length }, (_, item) => item);
  const rest = all.filter((item) => !pinned.has(item)).sort((a, b) => scores[b] - scores[a]);
  let next = 0;
  return all.map((place) => (pinned.has(place) ? place : rest[next++]));
}

/**
 * A ranked list; with probability `explore`, two unpinned neighbours are swapped.
 *
 * @param {readonly number[]} ranked
 * @param {ReadonlySet<number>} pinned The places of pinned items.
 * @param {number} explore
 * @param {readonly [number, number]} draws Random numbers from [0, 1).
 * @returns {number[]}
 */
export function swapped(ranked, pinned, explore, draws) {
  const found = [...ranked];
  const pairs = ranked.map((_, at) => at).filter((at) => at + 1 < ranked.length && !pinned.has(at) && !pinned.has(at + 1));
  if (pairs.length > 0 && draws[0] < explore) {
    const at = pairs[Math.floor(draws[1] * pairs.length)];
    [found[at], found[at + 1]] = [found[at + 1], found[at]];
  }
  return found;
}
