// @ts-check
/**
 * Explanations in numbers, to show on the page: the parts of a choice's loss, and the changes of a new version.
 *
 * @import { Remembered } from "./history.js"
 * @import { Shown } from "../study/learning.js"
 * @import { Version } from "../study/study.js"
 *
 * @typedef {{ name: string, value: number }} Change A weight's name with a number.
 * @typedef {{ name: string, before: number, after: number, value: number }} Moved
 * @typedef {{ pages: readonly any[], scores: ArrayLike<number> }} Ordered Pages or items with a title, the highest score first.
 */

import { rankingLoss } from "../models/loss.js";
import { ranked } from "../study/learning.js";

/**
 * Each suggestion's part of the loss: the points by which its score is above the chosen one's, or too close below.
 *
 * @param {ArrayLike<number>} scores In displayed order.
 * @param {number} chosen
 * @param {number} margin
 * @returns {number[]}
 */
export function shares(scores, chosen, margin) {
  return Array.from(scores, (score, place) => (place === chosen ? 0 : Math.max(0, score + margin - scores[chosen])));
}

/**
 * The weights that an update would change, the largest change first.
 *
 * @param {readonly string[]} names
 * @param {readonly number[]} update
 * @returns {Change[]}
 */
export function changes(names, update) {
  const all = names.map((name, k) => ({ name, value: update[k] }));
  return all.filter(({ value }) => value !== 0).sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
}

/**
 * The weights that differ between two versions, the largest difference first.
 *
 * @param {readonly string[]} names
 * @param {readonly number[]} before
 * @param {readonly number[]} after
 * @returns {Moved[]}
 */
export function moved(names, before, after) {
  const all = names.map((name, k) => ({ name, before: before[k], after: after[k], value: after[k] - before[k] }));
  return all.filter(({ value }) => value !== 0).sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
}

/**
 * The pages of a list as a version ranks them, regardless of the client's arm.
 *
 * @param {Shown} shown
 * @param {Version} version
 */
export function rankedBy(shown, version) {
  const { arm } = shown.role;
  const role = { ...shown.role, arm: arm && { ...arm, applies: true } };
  return ranked(role, version, shown.pages, shown.now);
}

/**
 * The loss of a choice under a version.
 *
 * @param {Shown} shown
 * @param {number} chosen
 * @param {Version} version
 */
export function lossUnder(shown, chosen, version) {
  const again = rankedBy(shown, version);
  return rankingLoss(again.scores, again.pages.indexOf(shown.pages[chosen]), shown.role.spec.margin);
}

/**
 * A list before and after: each page with its place in both, in the new order.
 *
 * @param {Ordered} before
 * @param {Ordered} after The same pages.
 */
export function reordered(before, after) {
  return after.pages.map((page, place) => ({
    page: /** @type {{ title: string }} */ (page),
    place,
    was: before.pages.indexOf(page),
    score: after.scores[place],
  }));
}

/**
 * A ping as readable JSON: one entry a line, and a list of numbers on one line.
 *
 * @param {unknown} value
 */
export function readable(value) {
  return JSON.stringify(value, null, 2).replace(/\[[^[\]{}"]*\]/g, (list) => list.replace(/\s+/g, " ").replace(/\[ | \]/g, (end) => end.trim()));
}

/**
 * The seconds until the next round, if rounds run at multiples of an interval from midnight UTC.
 *
 * @param {number} now Milliseconds since 1970.
 * @param {number} every Seconds.
 */
export function untilNextRound(now, every) {
  const second = Math.floor(now / 1000) % 86_400;
  const next = Math.min(86_400, (Math.floor(second / every) + 1) * every);
  return next - second;
}
