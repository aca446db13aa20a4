// @ts-check
/** Laws that hold whatever the pages and the weights are. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  FRECENCY_START,
  MAX_SAMPLED,
  MODELS,
  PageTable,
  bestFirst,
  decayed,
  descent,
  frecency2018,
  rankingLoss,
} from "../fedping.js";
import { DAY, drawPage, seeded } from "./support.js";

const NOW = 1_700_000_000_000;

/** @param {number} seed @param {number} count */
function drawn(seed, count) {
  const draw = seeded(seed);
  return { draw, pages: Array.from({ length: count }, () => drawPage(draw, NOW)) };
}

for (const model of MODELS.values()) {
  const m = model.weightNames.length;
  const scoresOf = (/** @type {number[]} */ w, /** @type {any[]} */ pages, now = NOW) =>
    Array.from(model.scores(w, PageTable.of(pages, now)));

  test(`${model.name}: the score of a page depends on no other page, nor on the order of its visits`, () => {
    for (let seed = 0; seed < 20; seed += 1) {
      const { draw, pages } = drawn(seed, 30);
      const weights = Array.from({ length: m }, () => draw.whole(-50, 300));
      const together = scoresOf(weights, pages);
      const turned = pages.map((page) => ({ ...page, visits: [...(page.visits ?? [])].sort((a, b) => a.time - b.time) }));
      pages.forEach((page, i) => assert.equal(scoresOf(weights, [page])[0], together[i]));
      assert.deepEqual(scoresOf(weights, turned), together);
    }
  });

  test(`${model.name}: only the ten newest visits count, and ages only by whole days`, () => {
    const draw = seeded(3);
    const weights = Array.from({ length: m }, () => draw.whole(0, 300));
    const visits = Array.from({ length: MAX_SAMPLED }, (_, i) => ({ time: NOW - i * DAY - DAY / 4, type: 1 + (i % 3) }));
    const old = { time: NOW - 15 * DAY, type: 2 };
    const page = { visits, visitCount: 7 };
    const [full, more] = scoresOf(weights, [page, { ...page, visits: [old, ...visits] }]);
    assert.equal(more, full);
    assert.equal(scoresOf(weights, [page], NOW + DAY / 4 - 1)[0], full);
  });

  test(`${model.name}: an update is zero without a choice, and for a choice that is ahead by more than anything can move`, () => {
    const { draw, pages } = drawn(5, 8);
    const weights = Array.from({ length: m }, () => draw.whole(0, 300));
    const table = PageTable.of(pages, NOW);
    const at = (/** @type {number} */ chosen, /** @type {number} */ margin) =>
      descent((w) => rankingLoss(model.scores(w, table), chosen, margin), weights, 1);
    assert.ok(at(-1, 10).every((number) => number === 0));
    const best = bestFirst(model.scores(weights, table))[0];
    assert.ok(at(best, -1e9).every((number) => number === 0));
  });

  test(`${model.name}: a step along the update lowers a loss that is smooth enough`, () => {
    let lowered = 0;
    for (let seed = 0; seed < 40; seed += 1) {
      const { draw, pages } = drawn(100 + seed, 8);
      const weights = Array.from({ length: m }, () => draw.whole(50, 300));
      const table = PageTable.of(pages, NOW);
      const loss = (/** @type {ArrayLike<number>} */ w) => rankingLoss(model.scores(w, table), seed % 8, 10);
      const update = descent(loss, weights, 1);
      const length = Math.hypot(...update) || 1;
      const before = loss(weights);
      const after = loss(weights.map((weight, k) => weight + update[k] / length));
      lowered += after < before || before === 0 ? 1 : 0;
    }
    assert.ok(lowered >= 36, `lowered ${lowered} of 40`);
  });
}

test("the loss is what its definition says, and no candidate at the margin itself costs anything", () => {
  const draw = seeded(9);
  for (let i = 0; i < 200; i += 1) {
    const scores = Array.from({ length: draw.whole(1, 9) }, () => draw.whole(-20, 60));
    const chosen = draw.whole(-1, scores.length - 1);
    const margin = draw.whole(0, 30);
    const parts = scores.filter((_, j) => j !== chosen).map((score) => Math.max(0, score + margin - scores[chosen]));
    assert.equal(rankingLoss(scores, chosen, margin), chosen < 0 ? 0 : parts.reduce((a, b) => a + b, 0));
  }
  assert.equal(rankingLoss([50, 40], 0, 10), 0);
  assert.equal(rankingLoss([50, 41], 0, 10), 1);
});

test("pages are ranked by score, and of equal scores in the order given", () => {
  assert.deepEqual(bestFirst([3, 9, 3, -1, 9]), [1, 4, 0, 2, 3]);
});

test("decay never raises a score, never lowers one below 20, and comes to rest", () => {
  for (let score = 0; score < 3000; score += 7) {
    const after = decayed(score);
    assert.ok(after <= score);
    assert.ok(after >= Math.min(score, 20));
  }
});

test("a score that is rounded up to zero is a zero like any other", () => {
  const weights = FRECENCY_START.map((weight, k) => (k === 11 ? -1 : weight)); // linkVisitBonus
  const visit = { time: NOW - DAY, type: 1 };
  const pages = [
    { visits: [visit, visit], visitCount: 1 }, // -2 points: -1
    { visits: [visit, { ...visit, type: 2 }, { ...visit, type: 4 }], visitCount: 1, bookmarked: false },
    { visits: [visit, { ...visit, type: 4 }, { ...visit, type: 4 }], visitCount: 1 }, // a third of -1 point
    { visits: [{ ...visit, time: NOW - 60 * DAY }], visitCount: 1 }, // -0.3 points
  ];
  assert.deepEqual(Array.from(frecency2018.scores(weights, PageTable.of(pages, NOW))), [-1, 667, 0, 0]);
});

test("the cases that have no points or no visits", () => {
  const visit = { time: NOW - DAY, type: 4 }; // an embed, which is worth nothing
  const pages = [
    { visits: [visit], visitCount: 3 },
    {},
    { bookmarked: true },
    { bookmarked: true, typed: true },
    { bookmarked: true, isQuery: true },
    { visits: [{ time: NOW - DAY, type: 2 }], visitCount: 0, bookmarked: true },
  ];
  assert.deepEqual(Array.from(frecency2018.scores(FRECENCY_START, PageTable.of(pages, NOW))), [-1, 0, 140, 340, 0, 140]);
});
