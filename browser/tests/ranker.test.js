// @ts-check
/** What a shop's page does with a ranker: lists, choices, what follows them, and all that may go wrong. */

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { layoutOf } from "../features/layout.js";
import { lossOfList, updateOfList } from "../features/learning.js";
import { links } from "../links.js";
import { personal } from "../personal.js";
import { privacy } from "../private.js";
import { memoryStorage } from "../delivery/storage.js";
import { Ranker } from "../ranker.js";
import { outcomeId } from "../study/outcomes.js";
import { PRODUCTS, QUERY, SPEC, WEIGHTS, modelOf, openShop, shopIngest, shopOf } from "./shop.js";
import { DAY, PRIVACY, fakeBrowser, offline, settled, status, watchedStorage } from "./support.js";

/** @type {any[]} */
const opened = [];
afterEach(() => opened.splice(0).forEach(({ shop }) => shop.stop()));

/** @param {any} [settings] */
async function open(settings) {
  const made = await openShop(settings);
  opened.push(made);
  return made;
}

const layout = layoutOf(/** @type {any} */ (SPEC));
const byShop = [...PRODUCTS].sort((a, b) => b.shop_score - a.shop_score);

test("version 0 is the product's own order, and a new version another", async () => {
  const { shop, ingest } = await open();
  assert.equal(shop.arm, "ranked");
  assert.deepEqual(shop.rank(PRODUCTS, QUERY, 5).items, byShop.slice(0, 5));
  ingest.model = modelOf(1, { 0: 0, 1: -1 });
  assert.equal(await shop.fetchModel(), true);
  const list = shop.rank(PRODUCTS, QUERY, 20);
  assert.equal(list.version, 1);
  assert.deepEqual(list.items, PRODUCTS, "the cheapest first");
});

test("ranking never waits, and what is chosen before the study is known is sent after", async () => {
  const made = await shopOf();
  opened.push(made);
  const { shop, posts } = made;
  const list = shop.rank(PRODUCTS, QUERY, 20);
  assert.deepEqual(list.items, PRODUCTS);
  assert.equal(list.version, -1);
  assert.equal(list.choose(PRODUCTS[3], { basket: true }), true);
  assert.equal(list.outcome({ paid: 20 }), true);
  assert.equal(posts().length, 0);
  await shop.ready;
  await settled();
  assert.deepEqual(posts().map(({ ping }) => ping.type).sort(), ["list-update", "outcome"]);
  const { payload } = posts().map(({ ping }) => ping).find(({ type }) => type === "list-update");
  assert.deepEqual([payload.model_version, payload.place, payload.basket], [-1, 4, true]);
});

test("what is chosen while there is no network waits for the study, and is told nothing else about", async () => {
  const ingest = shopIngest();
  const { answer } = ingest;
  ingest.answer = offline;
  const { shop, browser, posts, codes } = await open({ ingest });
  assert.equal(shop.rank(PRODUCTS, QUERY, 5).choose(PRODUCTS[2]), true);
  await browser.pass(20_000);
  assert.deepEqual([posts(), codes()], [[], ["unreachable"]], "it is asked for again, and told once");
  ingest.answer = answer;
  await browser.pass(3_600_000);
  assert.deepEqual(posts().map(({ ping }) => ping.payload.place), [3]);
  assert.equal(shop.trouble, null);
});

test("a choice is sent as it was computed, at its place, with its outcomes within their bounds", async () => {
  const { shop, posts, troubles } = await open();
  const list = shop.rank(PRODUCTS, QUERY, 10);
  list.seen(6);
  list.seen(2);
  assert.equal(list.choose(byShop[3], { basket: true, seconds: 700.3, way: "key" }), true);
  await shop.deliver();
  const [{ url, ping }] = posts();
  assert.match(url, /^https:\/\/i\.example\/submit\/shop\/list-update\/1\/[0-9a-f-]{36}$/);
  const of = { items: byShop.slice(0, 10), query: QUERY, chosen: 3, seen: 6 };
  const weights = modelOf(0).model;
  const { update, loss, ...rest } = ping.payload;
  assert.deepEqual(update, updateOfList(layout, weights, of));
  assert.equal(loss, lossOfList(layout, weights, of));
  assert.equal(update.length, WEIGHTS);
  assert.deepEqual(rest, {
    ...{ model_version: 0, study_variation: "ranked", place: 4, candidates: 10, seen: 6, swapped: false, pinned: false },
    ...{ basket: true, seconds: 600, way: "key" },
  });
  assert.deepEqual(troubles, []);
});

test("the first choice of a list counts, what is not in it is none, and a list may be left without one", async () => {
  const { shop, posts, codes } = await open();
  const list = shop.rank(PRODUCTS, QUERY, 3);
  assert.equal(list.choose(/** @type {any} */ ({ id: 99 })), false);
  assert.equal(list.choose({ ...byShop[1] }), true, "an equal item is the same one");
  assert.equal(list.choose(byShop[2]), false);
  assert.equal(shop.rank(PRODUCTS, QUERY, 3).choose(null), true);
  await shop.deliver();
  assert.deepEqual(codes(), ["not_in_list", "chosen_already"]);
  assert.deepEqual(posts().map(({ ping }) => ping.payload.place), [2, 0]);
  assert.deepEqual(posts()[1].ping.payload.update, Array(WEIGHTS).fill(0));
  assert.equal("pinned" in posts()[1].ping.payload, false);
});

test("later outcomes name the choice if they are linked, follow from it, and are one document however often they are sent", async () => {
  const { shop, posts, codes, browser } = await open();
  const list = shop.rank(PRODUCTS, QUERY, 20);
  assert.equal(list.outcome({ paid: 3 }), false);
  list.choose(byShop[0]);
  await browser.pass(5 * 3_600_000);
  assert.equal(list.outcome({ paid: 49.901, returned: false }), true);
  assert.equal(list.outcome({ paid: 49.9 }), true);
  assert.equal(list.outcome(/** @type {any} */ ({ basket: true })), false);
  assert.equal(list.outcome(/** @type {any} */ ({ colour: "red" })), false);
  assert.equal(list.outcome(/** @type {any} */ ({ paid: "49.9" })), false);
  await shop.deliver();
  assert.deepEqual(codes(), ["not_chosen", "outcome_undeclared", "outcome_undeclared", "outcome_type"]);
  const [chosen, ...later] = posts();
  const id = String(chosen.url.split("/").at(-1));
  const paid = later.filter(({ ping }) => "paid" in ping.payload);
  assert.ok(paid.length >= 1);
  for (const { url, ping } of paid) {
    assert.ok(url.endsWith(`/submit/shop/outcome/1/${outcomeId(id, "paid", null)}`));
    assert.deepEqual(ping.payload, { model_version: 0, study_variation: "ranked", age: 5, choice: id, paid: 49.9 });
  }
  const returned = later.filter(({ ping }) => "returned" in ping.payload);
  assert.equal(returned.length, 1);
  assert.equal("choice" in returned[0].ping.payload, false);
  assert.notEqual(String(returned[0].url.split("/").at(-1)), outcomeId(id, "returned", null));
  await browser.pass(3 * DAY);
  assert.equal(list.outcome({ paid: 1 }), false);
  assert.equal(codes().at(-1), "outcome_late");
});

test("an outcome may have the name of what every object has", async () => {
  const outcomes = [{ kind: "count", name: "constructor", most: 5 }];
  const { shop, posts } = await open({ ingest: shopIngest({ outcomes }) });
  shop.rank(PRODUCTS, QUERY, 5).choose(byShop[0]);
  shop.rank(PRODUCTS, QUERY, 5).choose(byShop[0], { constructor: 3 });
  await shop.deliver();
  assert.deepEqual(posts().map(({ ping }) => Object.hasOwn(ping.payload, "constructor") && ping.payload.constructor), [false, 3]);
});

test("a clock that is set back makes an outcome of age 0", async () => {
  const { shop, posts, browser } = await open();
  const list = shop.rank(PRODUCTS, QUERY, 20);
  list.choose(byShop[0]);
  const { now } = browser.environment;
  browser.environment.now = () => now() - 30 * DAY;
  assert.equal(list.outcome({ paid: 1 }), true);
  await shop.deliver();
  assert.equal(posts().find(({ ping }) => ping.type === "outcome").ping.payload.age, 0);
});

test("a list goes on in another page, chosen or not, and only with the same client", async () => {
  const first = await open();
  const { storage, ingest } = first;
  const [chosen, unchosen] = [first.shop.rank(PRODUCTS, QUERY, 5), first.shop.rank(PRODUCTS, QUERY, 5)];
  chosen.choose(byShop[1]);
  await first.shop.deliver();
  const kept = [chosen, unchosen].map((each) => JSON.stringify(each));
  assert.equal(kept[0].includes("brand 1"), false, "once an item is chosen, the items are left out");
  first.shop.stop();
  ingest.model = modelOf(4, { 0: -1 });
  const second = await open({ ingest, storage, seed: 2 });
  await second.shop.fetchModel();
  const [again, still] = kept.map((each) => second.shop.resume(each));
  assert.equal(again?.isChosen, true);
  assert.equal(again?.outcome({ paid: 7 }), true);
  assert.equal(still?.choose({ ...byShop[2] }), true);
  await second.shop.deliver();
  const [outcome, list] = second.posts().map(({ ping }) => ping);
  assert.equal(outcome.payload.choice, first.posts()[0].url.split("/").at(-1));
  assert.deepEqual([list.payload.model_version, list.payload.place], [0, 3], "it belongs to the version that ranked it");
  const of = { items: byShop.slice(0, 5), query: QUERY, chosen: 2 };
  assert.deepEqual(list.payload.update, updateOfList(layout, modelOf(0).model, of));
  const other = await open({ ingest, seed: 3 });
  assert.equal(other.shop.resume(kept[0])?.outcome({ paid: 7 }), false);
  assert.deepEqual(other.codes(), ["forgotten"]);
  for (const odd of ["", "{}", "null", kept[0].replace('"shop"', '"other"'), kept[0].slice(1)]) {
    assert.equal(other.shop.resume(odd), null);
  }
  assert.equal(other.codes().at(-1), "list_unfit");
});

test("a study that was kept does not hide that the address of ingest has changed, or is wrong", async () => {
  const { storage, ingest, shop } = await open();
  shop.stop();
  const same = await open({ ingest, storage });
  assert.deepEqual([same.browser.requests.length, same.codes()], [0, []], "the same address is not asked again so soon");
  const { answer } = ingest;
  ingest.answer = (/** @type {string} */ url, /** @type {any} */ init) => (url.startsWith("https://i.example/") ? answer(url, init) : offline());
  const wrong = await open({ ingest, storage, address: "https://wrong.example/" });
  assert.deepEqual(wrong.codes(), ["unreachable"]);
  assert.equal(wrong.shop.version, 0, "what is kept still ranks");
});

test("items that are null or cyclic, and outcomes that are null, do not break the page", async () => {
  const { shop, posts, codes } = await open();
  const cyclic = /** @type {any} */ ({ ...PRODUCTS[4] });
  cyclic.self = cyclic;
  const list = shop.rank([null, cyclic, PRODUCTS[2], undefined], /** @type {any} */ (null), 4);
  assert.equal(list.items.length, 4);
  assert.equal(list.choose({ ...cyclic }), false, "a copy of a cyclic item cannot be told from others");
  assert.equal(list.choose(cyclic, /** @type {any} */ (null)), true);
  assert.equal(list.outcome(/** @type {any} */ (null)), true);
  await shop.deliver();
  assert.deepEqual(posts().map(({ ping }) => ping.payload.place), [list.items.indexOf(cyclic) + 1]);
  assert.deepEqual([...new Set(codes())].sort(), ["feature_missing", "not_in_list"]);
});

test("what is resumed and was changed on the way is no list, and throws nothing", async () => {
  const { shop, posts, codes } = await open();
  const kept = JSON.parse(JSON.stringify(shop.rank(PRODUCTS, QUERY, 5)));
  for (const odd of [{ items: [null, {}] }, { query: null }, { id: "../other/1" }, { id: [kept.id, 1] }, { pinned: 5 }]) {
    assert.equal(shop.resume(JSON.stringify({ ...kept, ...odd })), null, JSON.stringify(odd));
  }
  for (const weights of [[1, 2], Array(WEIGHTS + 1).fill(1)]) {
    assert.equal(shop.resume({ ...kept, weights })?.choose({ ...byShop[0] }), false);
  }
  assert.deepEqual([codes(), posts()], [Array(7).fill("list_unfit"), []]);
});

test("several lists on a page are their own, and pinned items keep their place", async () => {
  const { shop, posts } = await open();
  const isAd = (/** @type {any} */ item) => item.id === PRODUCTS[0].id;
  const [one, other] = [shop.rank(PRODUCTS, QUERY, 5, isAd), shop.displayed(PRODUCTS.slice(0, 4), QUERY, isAd)];
  assert.equal(one.items[0], PRODUCTS[0]);
  assert.deepEqual(one.items.slice(1), byShop.filter((item) => !isAd(item)).slice(0, 4));
  assert.deepEqual(other.items, PRODUCTS.slice(0, 4));
  other.choose(PRODUCTS[0]);
  one.choose(one.items[2]);
  await shop.deliver();
  const sent = posts().map(({ ping: { payload } }) => [payload.place, payload.candidates, payload.pinned]);
  assert.deepEqual(sent, [[1, 4, true], [3, 5, false]]);
  const of = { items: PRODUCTS.slice(0, 4), query: QUERY, chosen: 0, pinned: new Set([0]) };
  assert.deepEqual(posts()[0].ping.payload.update, updateOfList(layout, modelOf(0).model, of));
});

test("a study that explores swaps two neighbours in its share of the lists, and says so", async () => {
  const { shop, posts } = await open({ ingest: shopIngest({}, { spec: { ...SPEC, explore: 0.5 } }) });
  let differ = 0;
  for (let i = 0; i < 200; i += 1) {
    const list = shop.rank(PRODUCTS, QUERY, 20);
    const moved = list.items.filter((item, place) => item !== byShop[place]).length;
    assert.ok(moved === 0 || moved === 2);
    differ += moved / 2;
    list.choose(list.items[0]);
  }
  assert.ok(differ > 70 && differ < 130, `${differ} of 200`); // outside once in 100,000 seeds
  await shop.deliver();
  assert.equal(posts().filter(({ ping }) => ping.payload.swapped).length, differ);
});

test("what an item lacks, or has of another type, is told once of each feature and does not stop ranking", async () => {
  const { shop, troubles } = await open();
  const odd = [
    { shop_score: 1, price: 9, condition: "new", rare: true, brand: "a" },
    { price: null, condition: "broken", rare: 1, brand: "b" },
    { shop_score: Number.NaN, price: 6000, condition: "used", rare: false, brand: 7 },
  ];
  for (let i = 0; i < 3; i += 1) {
    assert.equal(shop.rank(/** @type {any} */ (odd), /** @type {any} */ ({ device: "watch" })).items.length, 3);
  }
  const told = troubles.map(({ code, sentence }) => `${code} ${/feature '([^']+)'/.exec(sentence)?.[1]}`);
  assert.deepEqual(told.sort(), [
    ...["category_unlisted condition", "category_unlisted device", "feature_bounds price", "feature_missing shop_score"],
    ...["feature_type brand", "feature_type rare", "feature_type shop_score"],
  ]);
  for (const { sentence } of troubles) {
    assert.doesNotMatch(sentence, /broken|6000|watch/, "no value of a user is in a sentence");
  }
});

test("every cause of not taking part has its code, and goes when it is over", async () => {
  const answers = /** @type {[string, (ingest: any) => void][]} */ ([
    ["unreachable", (ingest) => (ingest.answer = offline)],
    ["unreachable", (ingest) => (ingest.answer = status(503))],
    ["study_unfit", (ingest) => (ingest.study.pings = "frecency-update")],
    ["study_unfit", (ingest) => (ingest.study.lines[0].training = { algorithm: "local" })],
    ["study_unfit", (ingest) => (ingest.study.lines[0].upload = [{ link: "mask", keep: 0.5 }])],
    ["study_unfit", (ingest) => (ingest.study.lines[0].training = { algorithm: "gradient", personal: { by: "fine_tune", rate: 1 } })],
    ["study_unfit", (ingest) => (ingest.study.lines[0].spec = { ...SPEC, model: "frecency-2018" })],
    ["study_unfit", (ingest) => (ingest.study.lines[0].spec = { ...SPEC, features: [{ kind: "smell", name: "x" }] })],
    ["study_unfit", (ingest) => (ingest.study.lines[0].spec = { ...SPEC, blocks: [] })],
    ["study_unfit", (ingest) => (ingest.study.outcomes = {})],
    ["study_unfit", (ingest) => (ingest.study.outcomes = [null])],
    ["study_unfit", (ingest) => (ingest.study.outcomes = [{ kind: "toString", name: "basket" }])],
    ["study_unfit", (ingest) => (ingest.study.outcomes = [{ kind: "category", name: "way" }])],
    ["study_unfit", (ingest) => (ingest.study.outcomes = [{ kind: "flag", name: "returned", within: 5 }])],
    ["study_unfit", (ingest) => (ingest.study.outcomes = [{ kind: "number", name: "paid", low: 0, high: 1, round: 0 }])],
    ["study_unfit", (ingest) => (ingest.study.lines[0].spec = { ...SPEC, blocks: SPEC.blocks.map((block) => ({ ...block, shape: [...block.shape, ...Array(7).fill(1), 1] })) })],
    ["study_ended", (ingest) => (ingest.study.ended = "2026-01-01T00:00:00Z")],
    ["model_unfit", (ingest) => (ingest.model = { ...modelOf(0), model: [1] })],
    ["model_unfit", (ingest) => (ingest.model = { ...modelOf(0), iteration: -1 })],
  ]);
  for (const [code, spoil] of answers) {
    const ingest = shopIngest();
    spoil(ingest);
    const { shop, codes } = await open({ ingest });
    assert.deepEqual([codes(), shop.trouble?.code], [[code], code], shop.trouble?.sentence);
    const list = shop.rank(PRODUCTS, QUERY, 5);
    assert.equal(list.items.length, 5);
    Object.assign(ingest, shopIngest());
    await shop.fetchModel();
    assert.equal(shop.trouble, null);
    assert.deepEqual(shop.rank(PRODUCTS, QUERY, 5).items, byShop.slice(0, 5));
  }
});

test("a setting that is unknown, missing or of another type is refused at once", () => {
  const settings = { ingest: "https://i.example", study: "shop", storage: memoryStorage() };
  for (const [wrong, name] of /** @type {[any, string][]} */ ([
    [{ Consent: () => false }, "Consent"],
    [{ consent: true }, "consent"],
    [{ ingest: undefined }, "ingest"],
    [{ study: 7 }, "study"],
    [{ labels: ["a"] }, "labels"],
  ])) {
    assert.throws(() => new Ranker({ ...settings, ...wrong }), new RegExp(`the setting '${name}' is`));
  }
});

test("a study that is not there, and no answer at all, are told apart, with what to check", async () => {
  const said = async (/** @type {() => Response} */ answer) =>
    (await open({ ingest: Object.assign(shopIngest(), { answer }) })).shop.trouble?.sentence ?? "";
  assert.match(await said(status(404)), /answered 404; check the study's name/);
  assert.match(await said(offline), /no readable answer; check the address, connect-src and the network/);
  assert.doesNotMatch(await said(status(503)), /check/, "ingest itself is in trouble");
});

test("many lines of many weights are refused before they fill the page's memory", async () => {
  const features = [{ kind: "hashed", name: "brand", buckets: 190_000 }];
  const blocks = [{ name: "brand", shape: [190_000], start: { values: "zeros" } }];
  const spec = { ...SPEC, places: 0, features, blocks, weights: [] };
  const lines = Array.from({ length: 5000 }, (_, n) => ({ name: n ? `line ${n}` : "main", spec, training: { algorithm: "gradient" }, upload: [] }));
  const { shop, codes } = await open({ ingest: shopIngest({ lines }) });
  assert.deepEqual(codes(), ["study_unfit"]);
  assert.match(shop.trouble?.sentence ?? "", /too many weights/);
});

test("a refused ping, and one that is given up, are told", async () => {
  const refused = await open({ ingest: Object.assign(shopIngest(), { submit: status(400) }) });
  refused.shop.rank(PRODUCTS, QUERY, 5).choose(byShop[0]);
  await refused.shop.deliver();
  assert.deepEqual(refused.codes(), ["ping_refused"]);
  const lost = await open({ ingest: Object.assign(shopIngest(), { submit: status(503) }) });
  lost.shop.rank(PRODUCTS, QUERY, 5).choose(byShop[0]);
  await lost.browser.pass(9 * DAY);
  assert.deepEqual(lost.codes(), ["ping_dropped"]);
});

test("a storage that keeps nothing is told, and the page goes on", async () => {
  const storage = watchedStorage();
  storage.fails = true;
  const { shop, codes, posts } = await open({ storage });
  assert.deepEqual(codes(), ["storage"]);
  assert.equal(shop.rank(PRODUCTS, QUERY, 5).choose(byShop[0]), true);
  await shop.deliver();
  assert.equal(posts().length, 1);
});

test("without consent nothing is fetched, kept or sent; it may come later", async () => {
  let agrees = false;
  const storage = watchedStorage();
  const { shop, browser, posts, codes } = await open({ storage, consent: () => agrees });
  const list = shop.rank(PRODUCTS, QUERY, 5);
  assert.deepEqual(list.items, PRODUCTS.slice(0, 5));
  assert.equal(list.choose(PRODUCTS[1]), false);
  assert.deepEqual([browser.requests, storage.written, codes()], [[], [], []]);
  agrees = true;
  shop.rank(PRODUCTS, QUERY, 5);
  await shop.ready;
  assert.equal(shop.rank(PRODUCTS, QUERY, 5).choose(byShop[1]), true);
  await shop.deliver();
  assert.equal(posts().length, 1);
});

test("in a private window nothing is fetched, kept or sent", async () => {
  const storage = watchedStorage();
  const { shop, browser } = await open({ storage, isPrivate: () => true });
  assert.equal(shop.rank(PRODUCTS, QUERY, 5).choose(PRODUCTS[0]), false);
  await shop.deliver();
  assert.deepEqual([browser.requests, storage.written], [[], []]);
});

test("forgetting stops all tabs, also one that has not joined yet, and their lists", async () => {
  const ingest = shopIngest();
  const storage = memoryStorage();
  const waits = /** @type {{ promise: Promise<void>, go: () => void }} */ ({});
  waits.promise = new Promise((go) => (waits.go = () => go(undefined)));
  const browser = fakeBrowser({ seed: 3, answer: async (url, init) => (await waits.promise, ingest.answer(url, init)) });
  const slow = await shopOf({ ingest, storage, browser });
  opened.push(slow);
  await settled();
  const one = await open({ ingest, storage });
  const other = await open({ ingest, storage, seed: 2 });
  const list = other.shop.rank(PRODUCTS, QUERY, 5);
  await one.shop.forget();
  waits.go();
  await slow.shop.ready;
  assert.equal(list.choose(byShop[0]), false);
  assert.equal(slow.shop.arm, null, "what was under way comes to nothing");
  await settled();
  assert.deepEqual([...storage.keys("fedping/")], []);
  assert.deepEqual(other.posts(), []);
  assert.equal(one.shop.rank(PRODUCTS, QUERY, 5).choose(PRODUCTS[0]), false);
  await one.shop.start();
  assert.equal(one.shop.arm, "ranked");
});

test("small updates, personal and private lines work with the parts for them", async () => {
  const small = await open({ ingest: shopIngest({}, { upload: [{ link: "mask", keep: 0.5 }] }), parts: { links } });
  small.shop.rank(PRODUCTS, QUERY, 5).choose(byShop[2]);
  await small.shop.deliver();
  assert.equal(small.posts()[0].ping.payload.update.encoding, "mask");

  const training = { algorithm: "gradient", personal: { by: "fine_tune", rate: 5, steps: 20, frozen: ["brand", "shop_score"], shares: true } };
  const arms = [{ ...shopIngest().study.arms[0], personal: true }];
  const own = await open({ ingest: shopIngest({ arms }, { training }), parts: { personal } });
  for (let i = 0; i < 5; i += 1) {
    own.shop.rank(PRODUCTS, QUERY, 20).choose(PRODUCTS[4]);
    await own.shop.deliver();
  }
  assert.notDeepEqual(own.shop.rank(PRODUCTS, QUERY, 20).items, byShop);
  const first = own.posts()[0].ping.payload;
  const shown = { items: byShop, query: QUERY, chosen: byShop.indexOf(PRODUCTS[4]) };
  assert.deepEqual(first.update, updateOfList(layout, modelOf(0).model, shown), "of the shared model");
  const keptOwn = own.storage.get("fedping/shop/own/main").kept;
  assert.equal(keptOwn.numbers.length, WEIGHTS - 6, "a frozen block is not kept");

  const lines = { privacy: { ...PRIVACY, delay_minutes: 0 }, upload: [{ link: "private" }] };
  const secret = await open({ ingest: shopIngest({ pings: "private-update", outcomes: undefined }, lines), parts: { privacy } });
  assert.ok(secret.shop.guarantee.length > 0);
  assert.equal(secret.shop.rank(PRODUCTS, QUERY, 5).choose(byShop[2]), true);
  await secret.shop.deliver();
  const [{ url, ping }] = secret.posts();
  assert.match(url, /\/submit\/shop\/private-update\/1\//);
  assert.equal(atob(ping.payload.update.payload).length, 4 * (WEIGHTS + 3));
});

test("a study of 'model-update' gets loss and update alone", async () => {
  const { shop, posts, codes } = await open({ ingest: shopIngest({ pings: "model-update" }) });
  shop.rank(PRODUCTS, QUERY, 5).choose(byShop[2], { paid: 3 });
  shop.rank(PRODUCTS, QUERY, 5).choose(null);
  await shop.deliver();
  const [chosen, left, paid] = ["model-update", "model-update", "outcome"].map((type, i) => posts().filter(({ ping }) => ping.type === type)[i % 2].ping);
  assert.deepEqual(Object.keys(chosen.payload).sort(), ["examples", "loss", "model_version", "study_variation", "update"]);
  assert.deepEqual([chosen.payload.examples, left.payload.examples, left.payload.loss, paid.payload.paid], [1, 0, 0, 3]);
  assert.deepEqual(codes(), []);
});

test("a patient page sends when it is idle and not metered, and not when it is left", async () => {
  let rests = false;
  const browser = fakeBrowser({});
  const ingest = shopIngest();
  browser.answer = (url, init) => ingest.answer(url, init);
  /** @type {any} */ (browser.environment).restful = async () => rests;
  const { shop } = await open({ ingest, browser, patient: true });
  shop.rank(PRODUCTS, QUERY, 5).choose(byShop[2]);
  await shop.deliver();
  browser.page.leave();
  assert.deepEqual([browser.posts.length, shop.waiting.length], [0, 1]);
  rests = true;
  await browser.pass(10 * 60_000);
  assert.deepEqual([browser.posts.length, shop.waiting.length], [1, 0]);
});

