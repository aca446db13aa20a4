// @ts-check
/** What stays with a client of a personal arm: it ranks, it is found again, nothing of it is sent, and it can be forgotten. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, memoryStorage, readStudy } from "../fedping.js";
import { descentOf, ranked } from "../study/learning.js";
import { begun, personalWeights, trained } from "../study/personal/personal.js";
import { drawPage, fakeBrowser, fakeIngest, seeded, settled, watchedStorage } from "./support.js";

const NOW = 1_800_000_000_000;
const PAGES = Array.from({ length: 30 }, ((draw) => () => drawPage(draw, NOW))(seeded(42)));
const FINE_TUNE = { by: "fine_tune", rate: 0.5, steps: 2, frozen: ["firstBucketCutoff"], shares: true };
const VECTOR = { by: "vector", rate: 0.5, on: ["linkVisitBonus", "typedVisitBonus"] };
const KEY = "fedping/pings/own/main";
const OBSERVED = { chosen: 4, charactersTyped: 3 };

/** An ingest whose only arm is personal. @param {any} [personal] @param {any} [arm] */
function personalIngest(personal = FINE_TUNE, arm = {}) {
  const ingest = fakeIngest();
  ingest.study.lines[0].training = { algorithm: "gradient", personal };
  ingest.study.arms = [
    { ...{ name: "personalized", share: 1, line: "main", applies: true, submits: true, decays: false, personal: true }, ...arm },
  ];
  return ingest;
}

/** @param {any} [settings] */
async function started({ ingest = personalIngest(), storage = memoryStorage(), seed = 1, ...settings } = {}) {
  const browser = fakeBrowser({ seed, answer: (url, init) => ingest.answer(url, init) });
  /** @type {string[]} */
  const noticed = [];
  const client = new Client({
    ...{ ingest: "https://i.example/", study: "pings", storage, environment: browser.environment },
    ...{ notice: (/** @type {string} */ what) => void noticed.push(what), ...settings },
  });
  await client.start();
  return { client, browser, ingest, storage, noticed };
}

/** @param {Client} client */
async function choose(client, times = 1, chosen = 4) {
  for (let i = 0; i < times; i += 1) {
    await client.learn(client.rank(PAGES, 10, NOW), chosen);
  }
}

test("a client ranks by the shared model, learns from its choices, and ranks by its own after a reload too", async () => {
  const { client, storage, ingest } = await started();
  assert.deepEqual(client.rank(PAGES, 10, NOW), client.rankShared(PAGES, 10, NOW));
  assert.deepEqual(client.personal, { trained: 0, weights: [] });
  const shown = client.rank(PAGES, 10, NOW);
  assert.notEqual(client.report(shown, OBSERVED), null);
  await settled();
  await choose(client, 5);
  const { trained: times, weights } = /** @type {any} */ (client.personal);
  assert.equal(times, 6);
  assert.ok(weights.length > 0);
  assert.ok(weights.every((/** @type {any} */ each) => each.own !== each.shared && each.name !== "firstBucketCutoff"));
  const list = client.rank(PAGES, 10, NOW);
  assert.notDeepEqual(list.pages, client.rankShared(PAGES, 10, NOW).pages);
  client.stop();
  const { client: again } = await started({ storage, ingest, seed: 2 });
  assert.deepEqual(again.rank(PAGES, 10, NOW), list);
  assert.deepEqual(again.personal, client.personal);
});

test("without a personal arm nothing is kept, and an arm that is none any more loses what it had", async () => {
  const ingest = personalIngest(FINE_TUNE);
  const { client, storage } = await started({ ingest });
  await choose(client);
  assert.notEqual(storage.get(KEY), undefined);
  ingest.study.arms[0].personal = false;
  await client.fetchModel();
  assert.equal(client.personal, null);
  assert.equal(storage.get(KEY), undefined);
  await choose(client);
  assert.deepEqual(storage.keys("fedping/pings/own/"), []);
});

test("pings and requests are the same to the byte, whatever stays with the client, but for the place of the choice", async () => {
  const ingest = personalIngest();
  const draw = seeded(7);
  /** @type {Set<string>} */
  const told = new Set();
  /** @type {Set<string>} */
  const lists = new Set();
  for (let i = 0; i < 200; i += 1) {
    const storage = memoryStorage();
    const { client, browser, noticed } = await started({ ingest, storage });
    if (i > 0) {
      await choose(client);
      const kept = /** @type {any} */ (storage.get(KEY));
      kept.kept = { ...kept.kept, trained: draw.whole(1, 99), numbers: kept.kept.numbers.map(() => draw.fraction() * 900) };
      storage.set(KEY, kept);
      await client.recall();
    }
    lists.add(JSON.stringify(client.scores(PAGES, NOW)));
    const shown = client.rank(PAGES.slice(0, 10), 10, NOW);
    const chosen = shown.pages.indexOf(PAGES[4]);
    const { ping } = /** @type {any} */ (client.compose(shown, { ...OBSERVED, chosen }));
    assert.deepEqual(ping.payload.frecency_scores, client.rankShared(PAGES.slice(0, 10), 10, NOW).scores);
    assert.equal(ping.payload.rank_selected, chosen);
    Object.assign(ping.payload, { rank_selected: 0, bookmark_and_history_rank_selected: 0 });
    client.send({ documentId: "the same", ping });
    await client.deliver();
    told.add(JSON.stringify([ping, browser.requests.map(({ url, init }) => [url, init.body ?? null]), noticed]));
  }
  assert.equal(lists.size, 200);
  assert.equal(told.size, 1);
});

test("what a client sends is computed at the shared weights: another in a plain arm sends the same of the same list", async () => {
  const personal = await started();
  const plain = await started({ ingest: personalIngest(FINE_TUNE, { personal: false }) });
  await choose(personal.client, 3);
  const pages = personal.client.rank(PAGES, 10, NOW).pages;
  const [mine, theirs] = [personal.client, plain.client].map((client) => {
    const shown = client.rankShared(pages, 10, NOW);
    return /** @type {any} */ (client.compose(shown, OBSERVED)).ping.payload;
  });
  assert.deepEqual(mine, theirs);
});

test("a client that does not share sends no update from that version on; one with a vector every second time", async () => {
  const silent = await started({ ingest: personalIngest({ ...FINE_TUNE, shares: false }) });
  const later = await started({ ingest: personalIngest({ ...FINE_TUNE, shares: false, from_version: 4 }) });
  const updates = async (/** @type {Client} */ client) => {
    const found = [];
    for (let i = 0; i < 6; i += 1) {
      const ping = /** @type {any} */ (client.report(client.rank(PAGES, 10, NOW), OBSERVED));
      found.push(ping.ping.payload.update !== null);
      await settled();
    }
    return found;
  };
  assert.deepEqual(await updates(silent.client), Array(6).fill(false));
  assert.deepEqual(await updates(later.client), Array(6).fill(true), "version 3 is held");
  assert.deepEqual(later.client.personal, { trained: 0, weights: [] });
  const firsts = new Set();
  for (let seed = 1; seed < 12; seed += 1) {
    const found = await updates((await started({ ingest: personalIngest(VECTOR), seed })).client);
    assert.deepEqual(found, found.map((_, i) => found[0] === (i % 2 === 0)));
    firsts.add(found[0]);
  }
  assert.equal(firsts.size, 2, "who begins with which is drawn");
});

test("forgetting begins afresh and goes on taking part; what was under way does not bring it back", async () => {
  const { client, storage } = await started();
  await choose(client, 3);
  const { clientId } = client;
  const learning = client.learn(client.rank(PAGES, 10, NOW), 4);
  await client.forgetPersonal();
  await learning;
  assert.equal(storage.get(KEY), undefined);
  assert.deepEqual(client.rank(PAGES, 10, NOW), client.rankShared(PAGES, 10, NOW));
  assert.equal(client.clientId, clientId);
  await choose(client);
  assert.equal(client.personal?.trained, 1);
});

test("it is gone when the client forgets, when the study ends, and when consent is withdrawn", async () => {
  const first = await started();
  await choose(first.client);
  await first.client.forget();
  assert.deepEqual(first.storage.keys("fedping/"), []);

  const second = await started();
  await choose(second.client);
  second.ingest.study.ended = "2018-07-20T00:00:00Z";
  await second.client.fetchModel();
  assert.equal(second.storage.get(KEY), undefined);
  assert.equal(second.client.personal, null);

  let agreed = true;
  const third = await started({ hasConsent: () => agreed });
  await choose(third.client);
  assert.notEqual(third.storage.get(KEY), undefined);
  agreed = false;
  await choose(third.client);
  assert.equal(third.storage.get(KEY), undefined);
});

test("other settings, another spec and damaged values begin afresh, which is said in a sentence without any number", async () => {
  const spoilt = [
    (/** @type {any} */ value) => ({ ...value, kept: { ...value.kept, numbers: value.kept.numbers.slice(1) } }),
    (/** @type {any} */ value) => ({ ...value, kept: { ...value.kept, numbers: value.kept.numbers.map(() => null) } }),
    (/** @type {any} */ value) => ({ ...value, kept: { ...value.kept, trained: -1 } }),
    () => "what is this",
    () => null,
    () => ({ digest: "of another", kept: 1 }),
  ];
  for (const spoil of spoilt) {
    const { client, storage, ingest } = await started();
    await choose(client, 2);
    storage.set(KEY, spoil(storage.get(KEY)));
    const again = await started({ storage, ingest });
    assert.deepEqual(again.client.personal, { trained: 0, weights: [] });
    assert.match(again.noticed.join(), /^the personal model of line 'main' is (damaged|of other settings); it starts again$/);
    await choose(again.client);
    assert.equal(again.client.personal?.trained, 1);
  }
  const changes = [
    (/** @type {any} */ line) => void (line.training.personal = { ...FINE_TUNE, rate: 0.25 }),
    (/** @type {any} */ line) => void (line.spec.margin = 20),
  ];
  for (const change of changes) {
    const { client, storage, ingest } = await started();
    await choose(client, 2);
    change(ingest.study.lines[0]);
    await client.fetchModel();
    assert.deepEqual(client.personal, { trained: 0, weights: [] });
    assert.equal(storage.get(KEY), undefined);
  }
  const { client, storage, ingest, noticed } = await started();
  await choose(client, 2);
  ingest.model.iteration += 1;
  ingest.study.lines[0].spec = Object.fromEntries(Object.entries(ingest.study.lines[0].spec).reverse());
  await client.fetchModel();
  assert.equal(client.personal?.trained, 2, "a new version, and keys in another order, are no other model");
  assert.deepEqual(noticed, []);
  assert.notEqual(storage.get(KEY), undefined);
});

test("tabs that learn at once leave a whole model, and a tab takes up what another has learned or forgotten", async () => {
  const one = await started();
  const { storage, ingest } = one;
  const other = await started({ storage, ingest });
  await Promise.all([choose(one.client, 5), choose(other.client, 5, 2)]);
  const { kept } = /** @type {any} */ (storage.get(KEY));
  assert.ok(kept.numbers.every(Number.isFinite) && kept.trained >= 5);
  await choose(one.client);
  assert.equal(one.client.personal?.trained, kept.trained + 1);
  await one.client.forgetPersonal();
  await choose(other.client);
  assert.equal(other.client.personal?.trained, 1);
});

test("a storage that fails costs what was to be kept, and no page", async () => {
  const storage = watchedStorage();
  const { client } = await started({ storage });
  storage.fails = true;
  await choose(client, 3);
  await client.forgetPersonal();
  assert.equal(client.rank(PAGES, 10, NOW).pages.length, 10);
});

test("in a private window nothing is read, kept or learned", async () => {
  const storage = watchedStorage();
  const { client } = await started({ storage, isPrivate: () => true });
  await choose(client, 3);
  assert.deepEqual(storage.written, []);
  assert.equal(client.personal, null);
});

test("what this client cannot do is refused in a sentence", () => {
  /** @type {[any, RegExp][]} */
  const cases = [
    [{ by: "expert", private_rate: 1, gate_rate: 1 }, /personal models are by 'expert', which this client does not have/],
    [{ by: "partly_local", local: ["b"], rate: 1 }, /by 'partly_local'/],
    [{ by: "reconstruct", local: ["b"], rate: 1 }, /by 'reconstruct'/],
    [{ ...FINE_TUNE, optimizer: { optimizer: "adam" } }, /step by the optimizer 'adam'/],
    [{ ...FINE_TUNE, frozen: ["nobody"] }, /name 'nobody' in 'frozen', which is not a weight/],
    [{ ...FINE_TUNE, rate: null }, /steps that this client cannot take/],
    [{ ...VECTOR, in_step: true }, /trained in step/],
    [{ ...VECTOR, size: 3 }, /a vector of 3 for 2 weights/],
    [{ ...VECTOR, basis: "other" }, /the basis 'other'/],
  ];
  for (const [personal, why] of cases) {
    const { study } = personalIngest(personal);
    assert.throws(() => readStudy(study, "pings"), why);
  }
  const local = personalIngest().study;
  local.lines[0].training.algorithm = "local";
  assert.throws(() => readStudy(local, "pings"), /not trained by gradients/);
  const bound = personalIngest().study;
  bound.lines[0].spec.constraints = [{ constraint: "below_a_million" }];
  assert.throws(() => readStudy(bound, "pings"), /'below_a_million', which this client cannot hold/);
  assert.ok(readStudy(personalIngest(VECTOR).study, "pings"));
});

test("v moves by the transposed basis: a random U leads the loss down, and frozen weights stay for good", () => {
  const { study } = personalIngest({ by: "vector", rate: 0.002, basis: "random", size: 3, on: ["linkVisitBonus", "typedVisitBonus", "bookmarkVisitBonus"] });
  const { spec, training } = study.lines[0];
  const held = { version: 3, weights: spec.weights.map((/** @type {any} */ { start }) => start) };
  const role = { arm: study.arms[0], spec, sign: false, upload: [], privacy: null, personal: training.personal };
  const shown = ranked(role, held, PAGES, NOW, 10);
  let kept = begun(training.personal, spec, () => 0);
  const descents = [];
  for (let i = 0; i < 40; i += 1) {
    kept = trained(training.personal, spec, held, kept, descentOf(shown, 6));
    descents.push(personalWeights(training.personal, spec, held, kept));
  }
  const own = descents[39];
  const changed = spec.weights.flatMap(({ name }, k) => (own[k] === held.weights[k] ? [] : [name]));
  assert.ok(changed.length > 0 && changed.every((name) => training.personal.on.includes(name)), String(changed));
  const gradient = descentOf(shown, 6)(Float64Array.from(held.weights));
  const first = descents[0].reduce((sum, each, k) => sum + gradient[k] * (each - held.weights[k]), 0);
  assert.ok(first > 0, "the first step is along the descent");
});
