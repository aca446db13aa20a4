// @ts-check
/**
 * Measures the list of a features study: milliseconds a ranking and updates a second for 30 features × 20 candidates,
 * and the time to compute the values of 1,000 items, first without and then with cached hashes.
 */

import { layoutOf } from "../features/layout.js";
import { updateOfList } from "../features/learning.js";
import { orderOf, scoreOf } from "../features/ranking.js";
import { valuesOf } from "../features/values.js";

const FEATURES = 30;
const CANDIDATES = 20;
const ITEMS = 1000;

/** 24 numbers, two categories, two splines, a hashed text, and a cross with the query's device. */
const SPEC = {
  features: [
    ...Array.from({ length: 22 }, (_, i) => ({ kind: "number", name: `n${i}`, low: 0, high: 1000, log: i % 2 === 0, center: 1, spread: 2 })),
    ...["c0", "c1"].map((name) => ({ kind: "category", name, values: ["a", "b", "c", "d"], other: true })),
    ...["s0", "s1"].map((name) => ({ kind: "spline", name, knots: [0, 1, 5, 20, 100] })),
    ...["h0", "h1"].map((name) => ({ kind: "hashed", name, buckets: 1000 })),
    { kind: "category", name: "device", on: /** @type {const} */ ("query"), values: ["phone", "desktop"] },
    { kind: "cross", name: "device.n0", of: ["device", "n0"] },
  ],
  ...{ places: 10, margin: 10, epsilon: 1 },
};

/** @typedef {{ first: number, median: number }} Times */

/**
 * @param {number} [seconds] The number of seconds over which updates are counted.
 * @returns {{ features: number, updatesASecond: number, firstRank: number, rank: Times }}
 */
export function measureLists(seconds = 1) {
  const layout = layoutOf(/** @type {any} */ (SPEC));
  const weights = Array.from({ length: layout.m }, (_, k) => Math.sin(k));
  const query = { device: "phone" };
  const items = Array.from({ length: ITEMS }, (_, i) => itemOf(i));
  const rank = () => orderOf(valuesOf(layout, query, items).map((values) => scoreOf(layout, weights, values)));
  const [firstRank] = times(1, rank);
  const ranks = times(40, rank);
  const lists = Array.from({ length: 50 }, (_, i) => ({ items: items.slice(CANDIDATES * i, CANDIDATES * (i + 1)), query, chosen: i % CANDIDATES }));
  let updates = 0;
  const begin = performance.now();
  while (performance.now() - begin < 1000 * seconds) {
    updateOfList(layout, weights, lists[updates % lists.length]);
    updates += 1;
  }
  const updatesASecond = updates / ((performance.now() - begin) / 1000);
  return { features: FEATURES, updatesASecond, firstRank, rank: { first: ranks[0], median: ranks.sort((a, b) => a - b)[20] } };
}

/** @param {number} i */
function itemOf(i) {
  const numbers = Object.fromEntries(Array.from({ length: 22 }, (_, k) => [`n${k}`, (i * 37 + k * 101) % 997]));
  return { ...numbers, c0: "abcde"[i % 5], c1: "abcde"[(i * 3) % 5], s0: i % 120, s1: (i * 7) % 120, h0: `brand ${i}`, h1: `seller ${i % 300}` };
}

/**
 * @param {number} runs
 * @param {() => unknown} work
 */
function times(runs, work) {
  return Array.from({ length: runs }, () => {
    const begin = performance.now();
    work();
    return performance.now() - begin;
  });
}
