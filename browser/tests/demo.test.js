// @ts-check
/** What the demo page makes up and works out: the same on every visit, and what the client itself computes. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { changes, lossUnder, moved, rankedBy, readable, reordered, shares, untilNextRound } from "../demo/explaining.js";
import { inWords, madeHistory, matching } from "../demo/history.js";
import { madeItems, madeQuery, rowInWords, someOf } from "../demo/items.js";
import { letChoose, searched } from "../demo/people.js";
import { seedOf, seeded } from "../demo/random.js";
import { letShop, wanted } from "../demo/shoppers.js";
import { PLACES, WORDS } from "../demo/sites.js";
import { visitorIn } from "../demo/visitor.js";
import { FRECENCY_NAMES, FRECENCY_START, learned, memoryStorage, ranked, rankingLoss, roleIn, startWeights } from "../fedping.js";
import { oddityOf } from "../product/checking.js";
import { SPEC, shopIngest } from "./shop.js";
import { DAY, VECTORS, fakeBrowser, fakeIngest, offline, settled } from "./support.js";

const NOW = 1_800_000_000_000;
const { study } = VECTORS.pings;
const TRAINED = study.arms.find((/** @type {any} */ arm) => arm.applies && arm.submits);

test("a history follows from its seed alone", () => {
  assert.deepEqual(madeHistory("7", NOW), madeHistory("7", NOW));
  assert.notDeepEqual(madeHistory("7", NOW), madeHistory("8", NOW));
  const digest = seedOf(JSON.stringify(madeHistory("1", NOW)));
  assert.equal(digest, DIGEST, "the history of a seed has changed: every picture and every address with a seed tells of another");
});

const DIGEST = 638_378_125;

test("a history moves with the moment, by whole visits", () => {
  const later = madeHistory("7", NOW + 3 * DAY);
  madeHistory("7", NOW).forEach((page, i) => {
    assert.deepEqual(page.visits.map(({ time }) => time + 3 * DAY), later[i].visits.map(({ time }) => time));
  });
});

test("a history is one that a client can rank: hundreds of pages, each once, at addresses that nobody owns", () => {
  for (const seed of ["1", "2", "anna", ""]) {
    const pages = madeHistory(seed, NOW);
    assert.ok(pages.length > 200 && pages.length < 400, `${pages.length} pages`);
    assert.equal(new Set(pages.map(({ url }) => url)).size, pages.length);
    for (const { url, visits, visitCount } of pages) {
      assert.ok(new URL(url).hostname.endsWith(".example"), url);
      assert.ok(visits.length <= 10 && visitCount >= 0);
      assert.ok(visits.every(({ time }, i) => time <= NOW && time > NOW - 200 * DAY && (i === 0 || time <= visits[i - 1].time)));
    }
    assert.ok(pages.some(({ visits, bookmarked }) => visits.length === 0 && bookmarked));
  }
});

test("each word of the page's examples finds enough to choose from, in any history", () => {
  for (const seed of ["1", "2", "3"]) {
    for (const word of WORDS) {
      assert.ok(matching(madeHistory(seed, NOW), word).length >= 4, `${word} in ${seed}`);
    }
  }
});

test("what fits has every word that was typed, in its title or its address", () => {
  const pages = PLACES.map((place) => ({ ...place, text: `${place.title} ${place.url}`.toLowerCase() }));
  assert.equal(matching(pages, "  ").length, pages.length);
  const found = matching(pages, "Weather  MORNINGPOST");
  assert.deepEqual(found.map(({ title }) => title), ["Weather – Morning Post"]);
  assert.deepEqual(matching(pages, "weather zebra"), []);
});

test("a page is told in words", () => {
  const at = (/** @type {number} */ days, /** @type {number} */ type) => ({ time: NOW - days * DAY, type });
  const page = { url: "", title: "", text: "", visits: [at(1.2, 2), at(3, 1), at(4, 2)], visitCount: 12, bookmarked: true };
  assert.equal(inWords(page, NOW), "2× typed, 1× link of 12 visits; last yesterday; bookmarked");
  assert.equal(inWords({ ...page, visits: [], visitCount: 0 }, NOW), "bookmarked, never visited");
  assert.equal(inWords({ ...page, visits: [at(0.1, 9)], visitCount: 0, bookmarked: false }, NOW), "other kinds; last today");
});

test("seeded draws are even, and whole numbers reach both ends", () => {
  const draw = seeded(5);
  const drawn = Array.from({ length: 4000 }, () => draw.whole(1, 4));
  for (const number of [1, 2, 3, 4]) {
    const share = drawn.filter((each) => each === number).length / drawn.length;
    assert.ok(Math.abs(share - 0.25) < 0.03, `${number}: ${share}`);
  }
  assert.notEqual(seedOf("ab"), seedOf("ba"));
});

/** @param {string} typed */
function someShown(typed = "weather") {
  const role = roleIn(study, TRAINED);
  const held = { version: 3, weights: startWeights(role.spec) };
  return ranked(role, held, matching(madeHistory("1", NOW), typed), NOW, 8);
}

test("the shares of the suggestions sum to the loss that the client computes", () => {
  const shown = someShown();
  for (let chosen = 0; chosen < shown.pages.length; chosen += 1) {
    const costs = shares(shown.scores, chosen, shown.role.spec.margin);
    assert.equal(costs.reduce((sum, cost) => sum + cost, 0), rankingLoss(shown.scores, chosen, shown.role.spec.margin));
    assert.equal(costs[chosen], 0);
    assert.equal(lossUnder(shown, chosen, shown.held), learned(shown, chosen).loss);
  }
});

test("changes are named, the largest first, and zeros left out", () => {
  assert.deepEqual(changes(["a", "b", "c"], [1, 0, -5]), [{ name: "c", value: -5 }, { name: "a", value: 1 }]);
  assert.deepEqual(moved(["a", "b"], [3, 4], [3, 1]), [{ name: "b", before: 4, after: 1, value: -3 }]);
});

test("the same suggestions in another order are those of the new version", () => {
  const shown = someShown();
  const typedIsWorthNothing = shown.held.weights.map((weight, k) => (FRECENCY_NAMES[k] === "typedVisitBonus" ? 0 : weight));
  const other = { version: 4, weights: typedIsWorthNothing };
  const [before, after] = [rankedBy(shown, shown.held), rankedBy(shown, other)];
  const rows = reordered(before, after);
  assert.deepEqual(rows.map(({ was }) => was).sort(), shown.pages.map((_, place) => place));
  assert.ok(rows.every(({ score }, i) => i === 0 || score <= rows[i - 1].score));
  assert.ok(rows.some(({ was, place }) => was !== place));
  const control = { ...shown, role: { ...shown.role, arm: { ...TRAINED, applies: false } } };
  assert.deepEqual(rankedBy(control, other).scores, after.scores, "an arm that does not apply the model sees it all the same");
});

test("a ping is laid out without a change to what it says", () => {
  const { ping } = { ping: { clientId: "x", payload: { update: [1, -2.5, 0], text: "[1, 2]", list: [], nothing: null } } };
  assert.deepEqual(JSON.parse(readable(ping)), ping);
  assert.match(readable(ping), /"update": \[1, -2.5, 0\]/);
});

test("the next round is at a multiple of the interval since midnight UTC", () => {
  const midnight = Date.UTC(2026, 0, 5);
  assert.equal(untilNextRound(midnight, 20), 20);
  assert.equal(untilNextRound(midnight + 19_400, 20), 1);
  assert.equal(untilNextRound(midnight + 86_399_000, 1000), 1, "midnight is one, whatever the interval");
});

test("a visitor is a client of the arm that was asked for, and again after a reload", async () => {
  for (const { name } of study.arms) {
    const ingest = fakeIngest();
    const { environment } = fakeBrowser({ seed: 3, answer: ingest.answer });
    const storage = memoryStorage();
    const settings = { ingest: "http://ingest", study, arm: name, storage, environment, onAnswer: () => {} };
    const [first, again] = [visitorIn(settings), visitorIn(settings)];
    await first.start();
    await again.start();
    assert.equal(first.arm, name);
    assert.equal(again.arm, name);
    const ids = [first, again].map((client) => client.compose(client.rank(madeHistory("1", NOW), 5), { chosen: 2 })?.ping.clientId);
    assert.equal(ids[0], ids[1]);
    first.stop();
    again.stop();
  }
});

test("what a visitor posts is told with its answer, also when none comes", async () => {
  const ingest = fakeIngest();
  const browser = fakeBrowser({ seed: 3, answer: ingest.answer });
  /** @type {any[]} */
  const heard = [];
  const onAnswer = (/** @type {any} */ posted, /** @type {any} */ answered) => void heard.push({ posted, answered });
  const client = visitorIn({ ingest: "http://ingest", study, arm: TRAINED.name, storage: memoryStorage(), environment: browser.environment, onAnswer });
  await client.start();
  const composed = client.report(client.rank(madeHistory("1", NOW), 5), { chosen: 1 });
  await settled();
  assert.deepEqual(JSON.parse(heard[0].posted.body), composed?.ping);
  assert.ok(heard[0].posted.url.endsWith(`/${composed?.documentId}`));
  assert.deepEqual(heard[0].answered, { status: 200, text: '{"accepted":1,"rejected":[]}' });
  browser.answer = offline;
  client.report(client.rank(madeHistory("1", NOW), 5), { chosen: 0 });
  await settled();
  assert.equal(heard[1].answered, null);
  assert.equal(client.counts.waiting, 1);
  client.stop();
});

test("a person takes what they like best of what they see", () => {
  const pages = madeHistory("anna", NOW);
  const client = { rank: (/** @type {any} */ given, /** @type {any} */ most) => ranked(roleIn(study, TRAINED), { version: 0, weights: [...FRECENCY_START] }, given, NOW, most) };
  for (let seed = 0; seed < 20; seed += 1) {
    const { typed, shown, chosen } = searched(/** @type {any} */ (client), pages, seeded(seed), NOW);
    assert.ok(WORDS.includes(typed));
    assert.equal(chosen, 0, "ranked by what people like, the first is what they like");
    assert.ok(shown.pages.length > 1 && shown.pages.length <= 8);
  }
});

/** @param {number} seed @param {ReturnType<typeof fakeIngest>} ingest */
async function fiftyChoices(seed, ingest) {
  const browser = fakeBrowser({ seed, answer: ingest.answer });
  const made = await letChoose({ ingest: "http://ingest", study: study.name, seed: "1/0", count: 50, environment: browser.environment });
  const bodies = browser.posts.map(({ init }) => JSON.parse(init.body));
  return { made, ids: browser.posts.map(({ url }) => url.split("/").at(-1)), bodies };
}

test("fifty people choose, each a client of its own, the same ones from the same seed but for the document ids", async () => {
  const [one, again] = [await fiftyChoices(1, fakeIngest()), await fiftyChoices(2, fakeIngest())];
  assert.equal(one.made.accepted, 50);
  assert.equal(one.made.learning, one.bodies.filter(({ payload }) => payload.update !== null).length);
  assert.ok(one.made.learning > 10 && one.made.learning < 50);
  assert.equal(new Set(one.bodies.map(({ clientId }) => clientId)).size, 50);
  const sorted = (/** @type {any[]} */ bodies) => bodies.map((body) => JSON.stringify(body)).sort();
  assert.deepEqual(sorted(one.bodies), sorted(again.bodies));
  assert.equal(new Set([...one.ids, ...again.ids]).size, 100);
});

test("people who find no server say so, and nobody waits for them", async () => {
  const browser = fakeBrowser({ answer: offline });
  const made = await letChoose({ ingest: "http://ingest", study: study.name, seed: "1", count: 6, environment: browser.environment });
  assert.deepEqual(made, { accepted: 0, refused: 0, waiting: 6, learning: 0, notEnrolled: 0 });
  assert.equal(browser.timers.size, 0);
});

/** A feature of every kind, some with bounds and missing values. @type {any[]} */
const FEATURES = [
  { kind: "number", name: "price", low: 0, high: 500, log: true, center: 3.5 },
  { kind: "flag", name: "fresh" },
  { kind: "category", name: "colour", values: ["red", "blue"], missing: true },
  { kind: "hashed", name: "brand", buckets: 16 },
  { kind: "bucket", name: "age", cutoffs: [1, 5, 9] },
  { kind: "spline", name: "length", knots: [0, 2, 4] },
  { kind: "counts", name: "tags", values: ["sale", "eco"] },
  { kind: "equal", name: "same", query: "brand", item: "brand" },
  { kind: "product", name: "fit", query: "size", item: "size" },
  { kind: "category", name: "device", on: "query", values: ["phone", "desktop"] },
  { kind: "cross", name: "device.price", of: ["device", "price"] },
];

test("items follow from their seed, and have a fitting value of every field that a feature reads", () => {
  const items = madeItems(FEATURES, "7");
  assert.deepEqual(items, madeItems(FEATURES, "7"));
  assert.notDeepEqual(items, madeItems(FEATURES, "8"));
  const query = madeQuery(FEATURES, seeded(3));
  assert.deepEqual(Object.keys(query), ["brand", "size", "device"]);
  for (const feature of FEATURES.filter(({ kind }) => kind !== "cross")) {
    items.forEach(({ row }) => assert.equal(oddityOf(feature, query, row), null, feature.name));
  }
  assert.ok(items.some(({ row }) => !Object.hasOwn(row, "colour")) && items.some(({ row }) => Object.hasOwn(row, "colour")));
  assert.match(rowInWords(items[0].row), /^price [\d.,]+, /);
  const some = someOf(items, 8, seeded(1));
  assert.equal(new Set(some).size, 8);
});

test("people of a study of features choose by one taste, each as a client of its own", async () => {
  const ingest = shopIngest();
  const browser = fakeBrowser({ answer: (url, init) => ingest.answer(url, init) });
  const spec = /** @type {any} */ (SPEC);
  const crowd = { ingest: "https://i.example", study: "shop", seed: "1/0", itemSeed: "1", count: 12, onProgress: () => {} };
  const made = await letShop({ ...crowd, spec, environment: browser.environment });
  assert.deepEqual(made, { accepted: 12, refused: 0, waiting: 0, learning: 12, notEnrolled: 0 });
  const pings = browser.posts.map(({ init }) => JSON.parse(init.body));
  assert.equal(new Set(pings.map(({ clientId }) => clientId)).size, 12);
  const rows = madeItems(SPEC.features, "1").map(({ row }) => row);
  assert.deepEqual(wanted(spec, "shop", {}, rows), wanted(spec, "shop", {}, rows));
  assert.notDeepEqual(wanted(spec, "shop", {}, rows), wanted(spec, "other", {}, rows));
});

test("made-up numbers differ, whatever the bounds, and compared fields may agree", () => {
  /** @type {any[]} */
  const features = [
    { kind: "number", name: "year", low: 1990, high: 2020 },
    { kind: "number", name: "seconds", low: 1.5e9, center: 1.7e9, spread: 100 },
    { kind: "number", name: "price", low: 0, log: true, center: 3, spread: 1 },
    { kind: "counts", name: "visits", values: ["a", "b"], spread: 500 },
    { kind: "category", name: "colour", values: ["red", "blue"], other: true },
    { kind: "equal", name: "same colour", query: "wanted", item: "colour" },
  ];
  const rows = madeItems(features, "1").map(({ row }) => row);
  for (const name of ["year", "seconds", "price"]) {
    assert.ok(new Set(rows.map((row) => row[name])).size > 20, name);
  }
  assert.ok(rows.every(({ year }) => Number(year) >= 1990 && Number(year) <= 2020));
  assert.ok(rows.some(({ visits }) => Object.values(Object(visits)).some((count) => count > 50)));
  assert.ok(rows.some(({ colour }) => !["red", "blue"].includes(String(colour))), "one that is not listed");
  const queries = Array.from({ length: 20 }, (_, i) => madeQuery(features, seeded(i)).wanted);
  assert.deepEqual([...new Set(queries)].sort(), ["blue", "red"]);
});
