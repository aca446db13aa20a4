// @ts-check
/**
 * Measures a keystroke and a choice, in milliseconds: the first run, then the minimum, median and 95th percentile of
 * the runs after ten warm-up runs.
 *
 * `scores`: ranking 1,000 pages by their ten visits each. `ping`: the loss and the update of one ping, 44 evaluations
 * of the 10 shown pages. `scoresAndPing`: both. `scoresAndPingOfAll`: both, with all 1,000 pages shown.
 */

import { learned, ranked, roleIn } from "../study/learning.js";
import { startWeights } from "../study/study.js";

const PAGES = 1000;
const SHOWN = 10;
const DAY = 86_400_000;

/** @typedef {{ first: number, least: number, median: number, p95: number }} Figures */

/** @param {number} [runs] */
export function measure(runs = 60) {
  const now = 1_800_000_000_000;
  const pages = Array.from({ length: PAGES }, (_, i) => page(i, now));
  const arm = { name: "a", share: 1, line: "main", applies: true, submits: true, decays: false };
  const role = roleIn(null, arm);
  const held = { version: 0, weights: startWeights(role.spec) };
  const shownOf = (/** @type {number} */ most) => ranked(role, held, pages, now, most);
  const ten = shownOf(SHOWN);
  return {
    scores: timed(runs, () => shownOf(SHOWN)),
    ping: timed(runs, () => learned(ten, 7)),
    scoresAndPing: timed(runs, () => learned(shownOf(SHOWN), 7)),
    scoresAndPingOfAll: timed(runs, () => learned(shownOf(PAGES), 7)),
  };
}

/**
 * @param {number} runs
 * @param {() => unknown} work
 * @returns {Figures}
 */
function timed(runs, work) {
  const times = Array.from({ length: runs }, () => {
    const begin = performance.now();
    work();
    return performance.now() - begin;
  });
  const [first] = times;
  const sorted = times.slice(Math.min(10, runs - 1)).sort((a, b) => a - b);
  const at = (/** @type {number} */ share) => sorted[Math.floor(share * (sorted.length - 1))];
  return { first, least: at(0), median: at(0.5), p95: at(0.95) };
}

/**
 * A page with ten visits of all kinds and ages.
 *
 * @param {number} i
 * @param {number} now
 */
function page(i, now) {
  const visits = Array.from({ length: 10 }, (_, j) => ({
    time: now - ((i * 7 + j * 13) % 120) * DAY - 1000 * i,
    type: 1 + ((i + 3 * j) % 9),
    originType: j % 4 === 0 ? 1 + (i % 3) : null,
    onward: (i + j) % 7 === 0 ? 1 : 0,
  }));
  return { visits, visitCount: 1 + (i % 40), typed: i % 3 === 0, bookmarked: i % 5 === 0 };
}
