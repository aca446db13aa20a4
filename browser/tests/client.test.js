// @ts-check
/** A client takes part in a study, keeps its model, reports what it learned, and does nothing where it should not. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, FRECENCY_START, frecency2018, learned, memoryStorage, PageTable, readStudy, registerLink, stagedFor } from "../fedping.js";
import { onLeaving } from "../delivery/leaving.js";
import { DAY, VECTORS, drawPage, fakeBrowser, fakeIngest, offline, seeded, settled, status, watchedStorage } from "./support.js";

const MINUTE = 60_000;
const NOW = 1_800_000_000_000;
const PAGES = Array.from({ length: 12 }, ((draw) => () => drawPage(draw, NOW))(seeded(42)));

/**
 * A client and what is around it. The seed decides its id, and so its arm.
 *
 * @param {{ seed?: number, ingest?: ReturnType<typeof fakeIngest>, [setting: string]: any }} [settings]
 */
function clientIn({ seed = 1, ingest = fakeIngest(), storage = memoryStorage(), ...settings } = {}) {
  const browser = fakeBrowser({ seed, answer: (url, init) => ingest.answer(url, init) });
  const { environment } = browser;
  const client = new Client({ ingest: "https://i.example/", study: "pings", storage, environment, ...settings });
  return { client, browser, ingest, storage };
}

/** A client of an arm. @param {string} arm @param {any} [settings] */
async function clientOf(arm, settings = {}) {
  for (let seed = 1; seed < 100; seed += 1) {
    const probe = clientIn({ ...settings, storage: memoryStorage(), seed });
    await probe.client.start();
    if (probe.client.arm === arm) {
      const made = clientIn({ ...settings, seed });
      await made.client.start();
      return made;
    }
  }
  return assert.fail(`no client of a hundred is in the arm ${arm}`);
}

test("a client enrols, fetches its model without saying who it is, and ranks with it", async () => {
  const { client, browser } = await clientOf("treatment");
  assert.equal(client.version, 3);
  assert.deepEqual(browser.requests.map(({ url }) => url), [
    "https://i.example/models/pings/study.json",
    "https://i.example/models/pings/main/latest.json",
  ]);
  for (const { init } of browser.requests) {
    const { credentials, referrerPolicy, cache, redirect, headers } = init;
    assert.deepEqual({ credentials, referrerPolicy, cache, redirect, headers }, {
      ...{ credentials: "omit", referrerPolicy: "no-referrer", cache: "no-cache", redirect: "error" },
      headers: undefined,
    });
  }
  const expected = frecency2018.scores(VECTORS.pings.model.model, PageTable.of(PAGES, NOW));
  assert.deepEqual(client.scores(PAGES, NOW), expected);
  const shown = client.rank(PAGES, 5, NOW);
  assert.equal(shown.pages.length, 5);
  assert.deepEqual(shown.scores, [...expected].sort((a, b) => b - a).slice(0, 5));
});

test("arms do what the study says: who ranks with the model, who submits, who reports which version", async () => {
  const start = frecency2018.scores(FRECENCY_START, PageTable.of(PAGES, NOW));
  const trained = frecency2018.scores(VECTORS.pings.model.model, PageTable.of(PAGES, NOW));
  const cases = { treatment: [true, true, 3, false], shadow: [false, true, 3, true], control: [false, false, 3, true], plain: [false, false, -1, true] };
  for (const [arm, [applies, submits, version, decays]] of Object.entries(cases)) {
    const { client } = await clientOf(arm);
    const scores = client.scores(PAGES, NOW);
    if (!decays) {
      assert.deepEqual(scores, applies ? trained : start);
    } else {
      scores.forEach((score, page) => assert.ok(score <= start[page]));
    }
    const { payload } = /** @type {any} */ (client.compose(client.rank(PAGES, 6, NOW), { chosen: 2 })).ping;
    assert.equal(payload.study_variation, arm);
    assert.equal(payload.model_version, version);
    assert.equal(Array.isArray(payload.update), submits);
  }
});

test("a staged version goes to those whose id says so, of arms that apply the model, until the stage is over", async () => {
  const ingest = fakeIngest();
  const [line, share] = ["main", 0.5];
  const staged = { iteration: 4, share };
  ingest.model = { ...ingest.model, staged };
  ingest.staged = { ...VECTORS.pings.model, iteration: 4 };
  const versions = new Map();
  for (let seed = 1; seed < 60; seed += 1) {
    const { client, browser } = clientIn({ ingest, seed });
    await client.start();
    const study = readStudy(ingest.study, "pings");
    const arm = study.arms.find(({ name }) => name === client.arm);
    const first = Boolean(arm?.applies) && stagedFor("pings", line, staged, client.clientId ?? "");
    if (arm?.line) {
      assert.equal(client.version, first ? 4 : 3);
      assert.equal(browser.requests.some(({ url }) => url.endsWith("/main/staged-4.json")), first);
      versions.set(client.version, { client, seed });
    }
  }
  assert.deepEqual([...versions.keys()].sort(), [3, 4]);
  const { client } = /** @type {any} */ (versions.get(4));
  ingest.staged = null;
  await client.refresh();
  assert.equal(client.version, 3, "what does not come is not waited for");
  ingest.model = { ...VECTORS.pings.model, iteration: 5 };
  await client.refresh();
  assert.equal(client.version, 5);
});

test("the next page finds the staged version that was kept, and asks nobody", async () => {
  const ingest = fakeIngest();
  ingest.model = { ...ingest.model, staged: { iteration: 4, share: 0.999 } };
  ingest.staged = { ...VECTORS.pings.model, iteration: 4 };
  const { storage } = await clientOf("treatment", { ingest, storage: memoryStorage() });
  const again = clientIn({ ingest, storage });
  await again.client.recall();
  assert.equal(again.client.version, 4);
  assert.equal(again.browser.requests.length, 0);
});

test("a client that no share covers ranks as the product does, and sends nothing", async () => {
  const ingest = fakeIngest();
  ingest.study.arms = ingest.study.arms.slice(0, 1).map((/** @type {any} */ arm) => ({ ...arm, share: 1e-9 }));
  const { client, browser } = clientIn({ ingest });
  await client.start();
  assert.equal(client.arm, null);
  assert.deepEqual(client.scores(PAGES, NOW), frecency2018.scores(FRECENCY_START, PageTable.of(PAGES, NOW)));
  assert.equal(client.report(client.rank(PAGES), { chosen: 0 }), null);
  await settled();
  assert.equal(browser.requests.length, 1);
});

test("a client that reads that the study has ended leaves it: it ranks as the product does, and sends nothing", async () => {
  const ingest = fakeIngest();
  const { client, browser } = await clientOf("treatment", { ingest });
  ingest.study.ended = "2026-01-01T00:00:00.000+00:00";
  await client.refresh();
  assert.equal(client.arm, null);
  assert.deepEqual(client.scores(PAGES, NOW), frecency2018.scores(FRECENCY_START, PageTable.of(PAGES, NOW)));
  assert.equal(client.report(client.rank(PAGES), { chosen: 0 }), null);
  await settled();
  assert.equal(browser.posts.length, 0);
  delete ingest.study.ended;
  await client.refresh();
  assert.equal(client.arm, "treatment", "a study that goes on has its clients back");
});

test("a report is one ping, the same as was composed, with an id of its own", async () => {
  const { client, browser } = await clientOf("treatment");
  const shown = client.rank(PAGES, 8, NOW);
  const sent = [0, 3, -1].map((chosen) => client.report(shown, { chosen, charactersTyped: 3, style: "history" }));
  await settled();
  assert.equal(browser.posts.length, 3);
  for (const [i, { url, init }] of browser.posts.entries()) {
    assert.equal(url, `https://i.example/submit/pings/frecency-update/1/${sent[i]?.documentId}`);
    assert.deepEqual(JSON.parse(init.body), sent[i]?.ping);
  }
  assert.equal(new Set(sent.map((each) => each?.documentId)).size, 3);
  const nothing = sent[2]?.ping.payload;
  assert.deepEqual(sent.map((each) => each?.ping.payload.selected_style), ["history", "history", ""]);
  assert.equal(nothing?.loss, 0);
  assert.ok(nothing?.update.every((/** @type {number} */ number) => number === 0));
  assert.deepEqual(client.counts, { accepted: 3, refused: 0, dropped: 0, waiting: 0 });
});

test("a ping carries the product's ticket for the client's id, once there is one", async () => {
  /** @type {string | null} */
  let given = null;
  const { client } = await clientOf("treatment", { ticket: () => given });
  const composed = () => /** @type {any} */ (client.compose(client.rank(PAGES, 5, NOW), { chosen: 1 })).ping;
  assert.ok(!("ticket" in composed()));
  given = `key.1900000000.${client.clientId}`;
  assert.deepEqual({ ticket: composed().ticket, clientId: composed().clientId }, { ticket: given, clientId: client.clientId });
  const { client: without } = await clientOf("treatment");
  assert.ok(!("ticket" in /** @type {any} */ (without.compose(without.rank(PAGES, 5, NOW), { chosen: 1 })).ping));
});

test("what was ranked before the client took part is not told of", async () => {
  const { client: early } = clientIn();
  const before = early.rank(PAGES, 5, NOW);
  const { client, browser } = await clientOf("treatment");
  assert.equal(client.report(before, { chosen: 1 }), null);
  await settled();
  assert.equal(browser.posts.length, 0);
});

test("a list may be ranked by scores that the product has kept", async () => {
  const { client } = await clientOf("treatment");
  const ranked = client.rank(PAGES, 5, NOW);
  const kept = client.scores(PAGES, NOW);
  const shown = client.shown(ranked.pages, ranked.pages.map((page) => kept[PAGES.indexOf(/** @type {any} */ (page))]), NOW);
  assert.deepEqual(client.compose(shown, { chosen: 2 })?.ping, client.compose(ranked, { chosen: 2 })?.ping);
});

test("a choice among other suggestions counts as nothing learned, and still as a selection", async () => {
  const { client } = await clientOf("treatment");
  const composed = client.compose(client.rank(PAGES, 4, NOW), { chosen: -1, rank: 2, suggestions: 7, style: "search" });
  const payload = /** @type {any} */ (composed).ping.payload;
  assert.equal(payload.rank_selected, 2);
  assert.equal(payload.bookmark_and_history_rank_selected, -1);
  assert.equal(payload.num_suggestions_displayed, 7);
  assert.equal(payload.loss, 0);
  assert.ok(payload.update.every((/** @type {number} */ number) => number === 0));
});

test("a ping tells of the version that ranked, also when a newer one has come since", async () => {
  const { client, ingest } = await clientOf("treatment");
  const shown = client.rank(PAGES, 6, NOW);
  const before = client.compose(shown, { chosen: 1 });
  ingest.model = { ...ingest.model, iteration: 4, model: ingest.model.model.map((/** @type {number} */ w) => w + 5) };
  assert.ok(await client.fetchModel());
  assert.equal(client.version, 4);
  const after = client.compose(shown, { chosen: 1 });
  assert.deepEqual(after?.ping, before?.ping);
  assert.equal(client.compose(client.rank(PAGES, 6, NOW), { chosen: 1 })?.ping.payload.model_version, 4);
});

test("who chooses the moments himself recalls what is kept without asking anybody, and hears when to ask again", async () => {
  const storage = watchedStorage();
  const first = clientIn({ storage });
  assert.equal(await first.client.recall(), -Infinity);
  assert.equal(first.browser.requests.length, 0);
  assert.deepEqual(await first.client.refresh(), { ok: true });
  const second = clientIn({ storage });
  assert.equal(await second.client.recall(), second.browser.environment.now());
  assert.deepEqual([second.client.version, second.client.arm], [first.client.version, first.client.arm]);
  assert.equal(second.browser.requests.length, 0);
  second.browser.answer = () => new Response(null, { status: 503, headers: { "Retry-After": "600" } });
  assert.deepEqual(await second.client.refresh(), { ok: false, retryAfter: 600 });
  assert.equal(second.browser.timers.size, 0);
});

test("in a private window nothing is fetched, kept or sent, and pages are ranked all the same", async () => {
  const storage = watchedStorage();
  const { client, browser } = clientIn({ isPrivate: () => true, storage });
  await client.start();
  assert.equal(client.report(client.rank(PAGES), { chosen: 0 }), null);
  assert.equal(client.compose(client.rank(PAGES), { chosen: 0 }), null);
  assert.equal(await client.fetchModel(), false);
  assert.equal(await client.recall(), -Infinity);
  await client.deliver();
  await browser.pass(DAY);
  assert.equal(browser.requests.length, 0);
  assert.deepEqual(storage.written, []);
  assert.equal(browser.page.listening, false);
});

test("a client may serve private windows beside others: what happens in them is not told", async () => {
  let inPrivate = false;
  const { client, browser } = await clientOf("treatment", { isPrivate: () => inPrivate });
  const composed = /** @type {any} */ (client.compose(client.rank(PAGES), { chosen: 0 }));
  inPrivate = true;
  assert.equal(client.compose(client.rank(PAGES), { chosen: 0 }), null);
  assert.equal(client.send(composed), false);
  await browser.pass(DAY);
  assert.equal(browser.requests.length, 2);
});

test("without consent a ping can be looked at, but is neither sent nor kept; withdrawn, nothing more is sent", async () => {
  let consent = false;
  const storage = memoryStorage();
  const { client, browser, ingest } = await clientOf("treatment", { hasConsent: () => consent, storage });
  const shown = client.rank(PAGES, 6, NOW);
  const composed = /** @type {any} */ (client.compose(shown, { chosen: 1 }));
  assert.equal(client.send(composed), false);
  assert.equal(client.report(shown, { chosen: 1 }), null);
  assert.deepEqual(client.waiting, []);
  consent = true;
  ingest.submit = offline;
  assert.equal(client.send(composed), true);
  await settled();
  assert.deepEqual(client.waiting, [composed]);
  consent = false;
  ingest.submit = status(200);
  await browser.pass(DAY);
  browser.page.leave();
  assert.equal(browser.posts.length, 1);
});

test("forgetting leaves nothing behind, and the next start is somebody else", async () => {
  const { client, browser, storage, ingest } = await clientOf("treatment");
  ingest.submit = offline;
  const first = client.report(client.rank(PAGES), { chosen: 0 });
  await settled();
  await client.forget();
  assert.deepEqual(storage.keys(""), []);
  await browser.pass(DAY);
  assert.equal(browser.posts.length, 1);
  await client.start();
  await settled();
  const again = client.compose(client.rank(PAGES), { chosen: 0 });
  assert.notEqual(again?.ping.clientId ?? "", first?.ping.clientId);
});

test("a tab stops when another one forgets: it posts no more, and writes nothing back", async () => {
  for (const wrapped of [(/** @type {any} */ storage) => storage, inTime]) {
    for (const then of ["reports", "passes", "fetches", "leaves", "retries"]) {
      const storage = memoryStorage();
      const first = await clientOf("treatment", { storage: wrapped(storage) });
      const other = clientIn({ storage: wrapped(storage), seed: 78, ingest: first.ingest });
      await other.client.start();
      assert.equal(other.client.clientId, first.client.clientId);
      if (then === "leaves" || then === "retries") {
        first.ingest.submit = offline;
        other.client.report(other.client.rank(PAGES), { chosen: 0 });
        await settled();
      }
      const posted = other.browser.posts.length;
      await first.client.forget();
      assert.deepEqual(storage.keys(""), [], then);
      first.ingest.submit = status(200);
      if (then === "reports") {
        other.client.report(other.client.rank(PAGES), { chosen: 0 });
        await other.client.deliver();
      } else if (then === "fetches") {
        assert.equal(await other.client.fetchModel(), false);
        assert.equal(await other.client.fetchModel(), false, "not as somebody new either, unless it is started");
      } else if (then === "leaves") {
        other.browser.page.leave();
      }
      await settled();
      await other.browser.pass(3 * DAY);
      assert.deepEqual(storage.keys(""), [], then);
      if (then !== "leaves" || wrapped !== inTime) { // a page that goes cannot wait for its storage
        assert.equal(other.browser.posts.length, posted, then);
      }
      if (then !== "leaves") {
        assert.deepEqual([other.client.arm, other.client.clientId, other.client.waiting], [null, null, []], then);
      }
    }
  }
});

/** The same storage, whose answers come later. @param {import("../client.js").Settings["storage"]} storage */
function inTime(storage) {
  const later = (/** @type {(...given: any[]) => any} */ does) => async (/** @type {any[]} */ ...given) => does(...given);
  return { get: later(storage.get), set: later(storage.set), remove: later(storage.remove), keys: later(storage.keys) };
}

test("a fetch that was under way when another tab forgot does not bring the membership back", async () => {
  const storage = memoryStorage();
  const first = await clientOf("treatment", { storage });
  const other = clientIn({ storage, seed: 78, ingest: first.ingest });
  await other.client.start();
  /** @type {() => void} */
  let answer = () => {};
  for (const page of ["study.json", "latest.json"]) {
    await first.client.start();
    await other.client.start();
    other.browser.answer = (url, init) =>
      new Promise((resolve) => {
        const given = () => resolve(first.ingest.answer(url, init));
        url.endsWith(page) ? (answer = given) : given();
      });
    const fetching = other.client.fetchModel();
    await settled();
    await first.client.forget();
    answer();
    assert.equal(await fetching, false);
    assert.deepEqual(storage.keys(""), [], page);
  }
});

test("a tab that another one has forgotten leaves what a new client keeps, and joins when it is started", async () => {
  const storage = memoryStorage();
  const first = await clientOf("treatment", { storage });
  const other = clientIn({ storage, seed: 78, ingest: first.ingest });
  await other.client.start();
  const forgotten = other.client.clientId;
  await first.client.forget();
  await first.client.start();
  const kept = Object.fromEntries(storage.keys("").map((key) => [key, storage.get(key)]));
  assert.notEqual(first.client.clientId, forgotten);
  assert.equal(other.client.report(other.client.rank(PAGES), { chosen: 0 }), null);
  await other.browser.pass(DAY);
  assert.equal(other.browser.posts.length, 0);
  assert.deepEqual(Object.fromEntries(storage.keys("").map((key) => [key, storage.get(key)])), kept);
  await other.client.start();
  assert.equal(other.client.clientId, first.client.clientId);
});

test("a storage that fails for a while is not taken for one that was forgotten", async () => {
  const storage = watchedStorage();
  const { client, browser } = await clientOf("treatment", { storage });
  storage.fails = true;
  assert.notEqual(client.report(client.rank(PAGES), { chosen: 0 }), null);
  await client.deliver();
  assert.equal(browser.posts.length, 1);
});

test("the next page is the same client with the same model, and does not fetch again so soon", async () => {
  const storage = memoryStorage();
  const first = await clientOf("treatment", { storage });
  const next = clientIn({ storage, seed: 77 });
  await next.browser.pass(first.browser.environment.now() - NOW);
  await next.client.start();
  assert.equal(next.browser.requests.length, 0);
  assert.equal(next.client.version, 3);
  const compose = (/** @type {Client} */ client) => client.compose(client.rank(PAGES, 5, NOW), { chosen: 1 })?.ping;
  assert.deepEqual(compose(next.client), compose(first.client));
});

test("tabs share what they fetch", async () => {
  const storage = memoryStorage();
  const first = await clientOf("treatment", { storage });
  const other = clientIn({ storage, seed: 78, ingest: first.ingest });
  await other.client.start();
  first.ingest.model = { ...first.ingest.model, iteration: 5 };
  await first.browser.pass(20 * MINUTE);
  await first.client.fetchModel();
  await other.browser.pass(38 * MINUTE); // it looks within 30 and 37.5 minutes, and finds what is 10 or 17 minutes old
  assert.equal(other.client.version, 5);
  assert.equal(other.browser.requests.length, 0);
});

test("a study that is another one now takes nothing from the model of the line that was followed", async () => {
  const storage = memoryStorage();
  const first = await clientOf("treatment", { storage });
  const lines = first.ingest.study.lines;
  const renamed = { ...lines[0], name: "second" };
  const arms = first.ingest.study.arms.map((/** @type {any} */ arm) => ({ ...arm, line: "second" }));
  first.ingest.study = { ...first.ingest.study, lines: [...lines, renamed], arms };
  first.browser.answer = (url, init) => (url.includes("/second/") ? offline() : first.ingest.answer(url, init));
  assert.equal(await first.client.fetchModel(), false);
  assert.equal(first.client.version, -1);
  const kept = await storage.get("fedping/pings/membership");
  await storage.set("fedping/pings/membership", { ...kept, study: first.ingest.study });
  const next = clientIn({ storage, seed: 9, ingest: first.ingest });
  next.browser.answer = offline;
  await next.client.start();
  assert.equal(next.client.version, -1);
  assert.notEqual(next.client.arm, null);
});

test("models are asked for at moments of one's own, about as often as was set", async () => {
  /** @type {Set<number>} */
  const moments = new Set();
  for (let seed = 1; seed <= 20; seed += 1) {
    const { client, browser } = clientIn({ seed, everyMinutes: 30 });
    await client.start();
    const before = browser.requests.length;
    await browser.pass(50 * 30 * MINUTE);
    const turns = (browser.requests.length - before) / before; // a turn is one request more for arms with a line
    assert.ok(turns > 44 && turns < 57, `${turns}`);
    await browser.pass(30 * MINUTE);
    moments.add(Math.round([...browser.timers.values()][0].at / MINUTE));
    client.stop();
    assert.equal(browser.timers.size, 0);
  }
  assert.ok(moments.size > 10);
});

test("a client that cannot fetch goes on with what it has, and asks again later and later", async () => {
  const { client, browser, ingest } = clientIn();
  browser.answer = offline;
  await client.start();
  assert.equal(client.arm, null);
  assert.deepEqual(client.scores(PAGES, NOW), frecency2018.scores(FRECENCY_START, PageTable.of(PAGES, NOW)));
  await browser.pass(20_000);
  const soon = browser.requests.length;
  assert.ok(soon >= 2 && soon <= 5, `${soon}`);
  await browser.pass(10 * 3_600_000);
  assert.ok(browser.requests.length < soon + 30);
  browser.answer = ingest.answer;
  await browser.pass(2 * 3_600_000);
  assert.notEqual(client.arm, null);
});

const BAD_STUDIES = {
  "another study": (/** @type {any} */ s) => ({ ...s, name: "other" }),
  "pings of another type": (/** @type {any} */ s) => ({ ...s, pings: "model-update" }),
  "no arms": (/** @type {any} */ s) => ({ ...s, arms: undefined }),
  "an arm without a share": (/** @type {any} */ s) => ({ ...s, arms: [{ ...s.arms[0], share: null }] }),
  "an arm of no line": (/** @type {any} */ s) => ({ ...s, arms: [{ ...s.arms[0], line: "none" }] }),
  "a model that is not known": (/** @type {any} */ s) => withSpec(s, { model: "net" }),
  "too few weights": (/** @type {any} */ s) => withSpec(s, { weights: s.lines[0].spec.weights.slice(1) }),
  "weights in blocks": (/** @type {any} */ s) => withSpec(s, { weights: [] }),
  "a weight that is no number": (/** @type {any} */ s) => withSpec(s, { weights: s.lines[0].spec.weights.map(() => ({ name: "a", start: "1" })) }),
  "no margin": (/** @type {any} */ s) => withSpec(s, { margin: undefined }),
  "local training": (/** @type {any} */ s) => ({ ...s, lines: [{ ...s.lines[0], training: { algorithm: "local" } }] }),
  "a page of a hotel's network": () => "<html>",
  nothing: () => null,
};

/** @param {any} study @param {any} change */
function withSpec(study, change) {
  const [line] = study.lines;
  return { ...study, lines: [{ ...line, spec: { ...line.spec, ...change } }] };
}

for (const [name, made] of Object.entries(BAD_STUDIES)) {
  test(`a study with ${name} is as good as none`, async () => {
    const ingest = fakeIngest();
    ingest.study = made(ingest.study);
    const { client } = clientIn({ ingest });
    await client.start();
    assert.equal(client.arm, null);
    assert.equal(client.report(client.rank(PAGES), { chosen: 0 }), null);
  });
}

const BAD_MODELS = {
  "other names": (/** @type {any} */ m) => ({ ...m, names: [...m.names].reverse() }),
  "a weight too few": (/** @type {any} */ m) => ({ ...m, model: m.model.slice(1) }),
  "a weight that is null": (/** @type {any} */ m) => ({ ...m, model: [null, ...m.model.slice(1)] }),
  "a weight beyond all bounds": (/** @type {any} */ m) => ({ ...m, model: [1e31, ...m.model.slice(1)] }),
  "no number": (/** @type {any} */ m) => ({ ...m, iteration: undefined }),
};

for (const [name, made] of Object.entries(BAD_MODELS)) {
  test(`a model with ${name} is not taken`, async () => {
    const { client, ingest } = await clientOf("treatment");
    ingest.model = made({ ...ingest.model, iteration: 9 });
    assert.equal(await client.fetchModel(), false);
    assert.equal(client.version, 3);
  });
}

test("a line that wants signs gets signs", async () => {
  const ingest = fakeIngest();
  ingest.study.lines[0].training = { algorithm: "gradient", batch: null, sign: true };
  const { client } = await clientOf("treatment", { ingest });
  const update = client.compose(client.rank(PAGES, 12, NOW), { chosen: 11 })?.ping.payload.update;
  assert.ok(update.some((/** @type {number} */ number) => number !== 0));
  assert.ok(update.every((/** @type {number} */ number) => [-1, 0, 1].includes(number)));
});

test("a line with the link 'sign' gets the signs as bits", async () => {
  for (const [zero, bits] of /** @type {const} */ ([["up", 1], ["abstain", 2]])) {
    const ingest = fakeIngest();
    ingest.study.lines[0].upload = [{ link: "sign", zero }];
    const { client } = await clientOf("treatment", { ingest });
    const shown = client.rank(PAGES, 12, NOW);
    const { update: numbers } = learned(shown, 11);
    const { encoding, payload } = client.compose(shown, { chosen: 11 })?.ping.payload.update;
    assert.equal(encoding, "sign");
    const bytes = Uint8Array.from(atob(payload), (letter) => letter.charCodeAt(0));
    assert.equal(bytes.length, Math.ceil((bits * 22) / 8));
    const bit = (/** @type {number} */ k) => (bytes[k >> 3] >> (k & 7)) & 1;
    for (const [k, number] of numbers?.entries() ?? []) {
      assert.deepEqual(bits === 1 ? [bit(k)] : [bit(2 * k), bit(2 * k + 1)], bits === 1 ? [Number(number >= 0)] : [Number(number > 0), Number(number < 0)]);
    }
  }
});

const BAD_LINKS = {
  "no list": { link: "sign" },
  "a link that nobody has": [{ link: "rotate" }],
  "a link that was not registered here": [{ link: "own", name: "elsewhere", settings: {} }],
  "something after the signs": [{ link: "sign", zero: "up" }, { link: "dense" }],
  "signs of another kind": [{ link: "sign", zero: "down" }],
  "a link named as what every object has": [{ link: "constructor" }],
  "an encoding that browsers do not have": [{ link: "eden", bits: 1 }],
  "a low rank": [{ link: "low-rank", rank: 2, fixed: "outputs" }],
  "levels of nine bits": [{ link: "levels", bits: 9, rotate: false }],
  "levels that rotate in words": [{ link: "levels", bits: 2, rotate: "yes" }],
  "a mask that keeps nothing": [{ link: "mask", keep: 0, draw: "blocks" }],
  "a mask that keeps more than there is": [{ link: "mask", keep: 1.5, draw: "blocks" }],
  "a mask of coins": [{ link: "mask", keep: 0.5, draw: "independent" }],
  "a mask, then signs": [{ link: "mask", keep: 0.5, draw: "blocks" }, { link: "signs", zero: "abstain" }],
  "a mask, then levels that rotate": [{ link: "mask", keep: 0.5, draw: "blocks" }, { link: "levels", bits: 2, rotate: true }],
  "a mask, then levels of nine bits": [{ link: "mask", keep: 0.5, draw: "blocks" }, { link: "levels", bits: 9 }],
  "two links after a mask": [{ link: "mask", keep: 0.5 }, { link: "float32" }, { link: "float32" }],
  "steps without a size": [{ link: "steps", size: null, step: null }],
  "steps of two sizes": [{ link: "steps", size: 1, step: 1 }],
  "steps of no length": [{ link: "steps", size: null, step: -1 }],
  "a rotation by half a seed": [{ link: "rotation", seed: 0.5 }],
  "a rotation after the levels": [{ link: "levels", bits: 2 }, { link: "rotation", seed: 1 }],
};

for (const [name, upload] of Object.entries(BAD_LINKS)) {
  test(`a line with ${name} is told of in a sentence`, () => {
    const { study } = fakeIngest();
    study.lines[0].upload = upload;
    assert.throws(() => readStudy(study, study.name), { name: "TypeError", message: /^the line 'main' cannot be trained here: / });
  });
}

test("links that a product registers are gone through in their order, the last one encodes", async () => {
  registerLink("halved", { transform: (_, update) => update.map((number) => number / 2) });
  registerLink("whole-bytes", {
    encode: ({ scale }, update) => Uint8Array.from(update, (number) => Math.max(0, Math.min(255, 128 + Math.round(scale * number)))),
  });
  const ingest = fakeIngest();
  const own = { link: "own", name: "whole-bytes", settings: { scale: 1 } };
  ingest.study.lines[0].upload = [{ link: "own", name: "halved", settings: {} }, own];
  const { client } = await clientOf("treatment", { ingest });
  const shown = client.rank(PAGES, 12, NOW);
  const sent = client.compose(shown, { chosen: 11 })?.ping.payload.update;
  const { update } = learned(shown, 11);
  const expected = update?.map((number) => Math.max(0, Math.min(255, 128 + Math.round(number / 2))));
  assert.deepEqual(sent, { encoding: "whole-bytes", payload: btoa(String.fromCharCode(...(expected ?? []))) });
  assert.throws(() => registerLink("neither", {}), TypeError);
});

test("an update that a link makes too large to travel costs the ping, and nothing else", async () => {
  registerLink("huge", { transform: (_, update) => update.map(() => Infinity) });
  for (const encoded of [[], [{ link: "steps", size: 1, step: null }]]) {
    const ingest = fakeIngest();
    ingest.study.lines[0].upload = [{ link: "own", name: "huge", settings: {} }, ...encoded];
    const { client } = await clientOf("treatment", { ingest });
    assert.equal(client.report(client.rank(PAGES, 12, NOW), { chosen: 11 }), null);
  }
});

test("what was drawn for a ping stays with it: every attempt sends the same bytes, from another page too", async () => {
  const storage = memoryStorage();
  const ingest = fakeIngest();
  ingest.study.lines[0].upload = [{ link: "mask", keep: 0.5, draw: "blocks" }, { link: "steps", size: 1, step: null }];
  ingest.submit = () => new Response(null, { status: 503 });
  const { client, browser } = await clientOf("treatment", { ingest, storage });
  const shown = client.rank(PAGES, 12, NOW);
  const sent = client.report(shown, { chosen: 11 });
  const again = client.compose(shown, { chosen: 11 });
  assert.equal(sent?.ping.payload.update.encoding, "mask-steps");
  assert.notEqual(sent?.ping.payload.update.payload, again?.ping.payload.update.payload);
  await browser.pass(DAY);
  client.stop();
  const next = clientIn({ ingest, storage });
  await next.client.start();
  await next.browser.pass(2 * DAY); // its clock begins where the first one's did
  const posts = [...browser.posts, ...next.browser.posts];
  assert.ok(browser.posts.length > 1 && next.browser.posts.length > 0);
  assert.equal(new Set(posts.map(({ url }) => url)).size, 1);
  assert.deepEqual(new Set(posts.map(({ init }) => init.body)), new Set([JSON.stringify(sent?.ping)]));
});

test("numbers that cannot be meant are told to the product at once", async () => {
  const { client } = await clientOf("treatment");
  const shown = client.rank(PAGES, 4, NOW);
  const wrong = [
    ...[{ chosen: 4 }, { chosen: -2 }, { chosen: 0.5 }, { chosen: 1, rank: -1 }, { chosen: 0, charactersTyped: -1 }],
    ...[{ chosen: 0, keysPressed: 1.5 }, { chosen: 0, milliseconds: NaN }, { chosen: 0, style: "x".repeat(65) }],
    ...[{ chosen: 0, suggestions: 2 ** 31 }],
  ];
  for (const observed of wrong) {
    assert.throws(() => client.compose(shown, observed), RangeError, JSON.stringify(observed));
  }
});

test("weights so large that a loss cannot travel cost the ping, and nothing else", async () => {
  const { client, ingest } = await clientOf("treatment");
  ingest.model = { ...ingest.model, iteration: 4, model: ingest.model.model.map(() => 1e29) };
  assert.ok(await client.fetchModel());
  assert.equal(client.report(client.rank(PAGES, 12, NOW), { chosen: 11 }), null);
});

test("a hidden page sends what waits, and stops listening when it is told to", () => {
  /** @type {string[]} */
  const seen = [];
  const page = Object.assign(new EventTarget(), { visibilityState: "visible" });
  const window = new EventTarget();
  const stop = onLeaving(page, window, () => seen.push("leave"), () => seen.push("back"));
  page.visibilityState = "hidden";
  page.dispatchEvent(new Event("visibilitychange"));
  page.visibilityState = "visible";
  page.dispatchEvent(new Event("visibilitychange"));
  window.dispatchEvent(new Event("pagehide"));
  stop();
  window.dispatchEvent(new Event("pagehide"));
  page.dispatchEvent(new Event("visibilitychange"));
  assert.deepEqual(seen, ["leave", "back", "leave"]);
});

test("a ping that was reported in a page's last moment is sent by the next page, once, with the same id", async () => {
  const storage = memoryStorage();
  const { client, ingest } = await clientOf("treatment", { storage });
  ingest.submit = () => new Promise(() => {}); // the tab is closed before an answer comes
  const sent = client.report(client.rank(PAGES, 5, NOW), { chosen: 2 });
  const next = clientIn({ storage, seed: 5 });
  await next.client.start();
  await settled();
  assert.deepEqual(next.browser.posts.map(({ url }) => url.split("/").at(-1)), [sent?.documentId]);
  assert.deepEqual(JSON.parse(next.browser.posts[0].init.body), sent?.ping);
});
