// @ts-check
/** A client of a private study: one vector a version and nothing else, up to its cap, under ids that nobody can link. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, enrol, guaranteeInWords, memoryStorage, readStudy } from "../fedping.js";
import { Contributions } from "../delivery/contributions.js";
import { PRIVATE, fieldsOf } from "../disclosure/groups.js";
import { PRIVACY, atMost, drawPage, fakeBrowser, privateIngest, seeded, settled, watchedStorage } from "./support.js";

const MINUTE = 60_000;
const NOW = 1_800_000_000_000;
const PAGES = Array.from({ length: 12 }, ((draw) => () => drawPage(draw, NOW))(seeded(42)));
/** @param {{ ingest?: ReturnType<typeof privateIngest>, storage?: any, seed?: number, [setting: string]: any }} [settings] */
async function started({ ingest = privateIngest(), storage = memoryStorage(), seed = 1, ...more } = {}) {
  const browser = fakeBrowser({ seed, answer: (url, init) => ingest.answer(url, init) });
  const { environment } = browser;
  const client = new Client({ ingest: "https://i.example", study: "pings", storage, environment, ...more });
  await client.start();
  return { client, browser, ingest };
}

/** What a client sends of a choice, when its delay is over. @param {any} made */
async function contribution({ client, browser }) {
  const before = browser.posts.length;
  client.report(client.rank(PAGES, 8, NOW), { chosen: 2 });
  await client.deliver();
  await browser.pass(10 * MINUTE);
  await settled();
  return browser.posts.slice(before).map((/** @type {any} */ { url, init }) => ({ url, ping: JSON.parse(init.body) }));
}

test("a version gets one vector, in a message that has nothing else, after a delay", async () => {
  const { client, browser, ingest } = await started();
  client.report(client.rank(PAGES, 8, NOW), { chosen: 2 });
  client.report(client.rank(PAGES, 8, NOW), { chosen: 1 });
  await client.deliver();
  assert.equal(client.counts.waiting, 1);
  assert.equal(browser.posts.length, 0);
  await browser.pass(10 * MINUTE);
  await settled();
  const [{ url, init }, ...others] = browser.posts;
  assert.equal(others.length, 0);
  assert.match(url, /^https:\/\/i\.example\/submit\/pings\/private-update\/1\/[0-9a-f-]{36}$/);
  const ping = JSON.parse(init.body);
  assert.deepEqual(Object.keys(ping), ["clientId", "type", "payload"]);
  assert.deepEqual(Object.keys(ping.payload), ["model_version", "study_variation", "update"]);
  assert.deepEqual(Object.keys(ping.payload.update), ["encoding", "payload"]);
  assert.equal(atob(ping.payload.update.payload).length, 4 * (22 + 3));
  assert.notEqual(ping.clientId, client.clientId);
  assert.equal(enrol(readStudy(ingest.study, "pings"), ping.clientId)?.name, client.arm);
  const { payload, ...outer } = ping;
  assert.deepEqual(fieldsOf(PRIVATE).map(([name]) => name).sort(), [...Object.keys(outer), ...Object.keys(payload)].sort());
});

test("another version gets another vector, under another id; an older one that comes back gets none", async () => {
  const made = await started();
  const [first] = await contribution(made);
  made.ingest.model.iteration += 1;
  await made.client.fetchModel();
  const [second] = await contribution(made);
  assert.notEqual(first.ping.clientId, second.ping.clientId);
  made.ingest.model.iteration -= 1;
  await made.client.fetchModel();
  assert.deepEqual(await contribution(made), []);
});

test("a page that was closed leaves its message to the next, which waits as long", async () => {
  const storage = memoryStorage();
  const { client } = await started({ storage });
  client.report(client.rank(PAGES, 8, NOW), { chosen: 2 });
  await client.deliver();
  const next = await started({ storage });
  assert.equal(next.browser.posts.length, 0);
  assert.equal(next.client.compose(next.client.rank(PAGES, 8, NOW), { chosen: 2 }), null);
  await next.browser.pass(10 * MINUTE);
  assert.equal(next.browser.posts.length, 1);
});

test("a cap holds for good, also when everything else is forgotten", async () => {
  const storage = memoryStorage();
  const ingest = privateIngest(atMost(2));
  const made = await started({ ingest, storage });
  const sent = [];
  for (let k = 0; k < 4; k += 1) {
    sent.push((await contribution(made)).length);
    ingest.model.iteration += 1;
    await made.client.fetchModel();
  }
  assert.deepEqual(sent, [1, 1, 0, 0]);
  await made.client.forget();
  const again = await started({ ingest, storage, seed: 2 });
  assert.deepEqual(await contribution(again), []);
});

test("a user's own cap holds too", async () => {
  const made = await started({ ingest: privateIngest(atMost(2)), mostContributions: 1 });
  assert.equal((await contribution(made)).length, 1);
  made.ingest.model.iteration += 1;
  await made.client.fetchModel();
  assert.deepEqual(await contribution(made), []);
});

test("what cannot be counted is not sent", async () => {
  const storage = watchedStorage();
  const made = await started({ storage });
  storage.fails = true;
  assert.deepEqual(await contribution(made), []);
});

test("tabs that count at the same time let one contribution through", async () => {
  const kept = new Map();
  const storage = /** @type {any} */ ({
    get: async (/** @type {string} */ key) => kept.get(key),
    set: async (/** @type {string} */ key, /** @type {any} */ value) => void kept.set(key, value),
  });
  let last = Promise.resolve();
  const locks = { request: (/** @type {string} */ _, /** @type {() => any} */ work) => (last = last.then(work)) };
  const real = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  Object.defineProperty(globalThis, "navigator", { value: { locks }, configurable: true });
  try {
    for (const versions of [
      [3, 3],
      [3, 4],
    ]) {
      for (let turns = 0; turns < 8; turns += 1) {
        kept.clear();
        const tabs = versions.map(() => new Contributions({ storage, prefix: "s/" }));
        const first = tabs[0].take("main", versions[0], 1);
        for (let turn = 0; turn < turns; turn += 1) {
          await null;
        }
        const allowed = await Promise.all([first, tabs[1].take("main", versions[1], 1)]);
        assert.equal(allowed.filter(Boolean).length, 1, `of versions ${versions}, ${turns} turns apart`);
      }
    }
  } finally {
    Reflect.deleteProperty(globalThis, "navigator");
    if (real !== undefined) {
      Object.defineProperty(globalThis, "navigator", real);
    }
  }
});

test("nothing is sent without a choice, and the metrics alone where an arm does not submit", async () => {
  const { client, browser } = await started();
  assert.equal(client.report(client.rank(PAGES, 8, NOW), { chosen: -1 }), null);
  assert.equal(browser.posts.length, 0);
  for (let seed = 1; seed < 50; seed += 1) {
    const made = await started({ seed });
    if (made.client.arm === "control") {
      const [{ ping }] = await contribution(made);
      const bytes = Uint8Array.from(atob(ping.payload.update.payload), (letter) => letter.charCodeAt(0));
      assert.ok(bytes.slice(0, 88).every((byte) => byte === 0));
      assert.ok(bytes.slice(88).some((byte) => byte !== 0));
      return;
    }
  }
  assert.fail("no client is in the control");
});

test("a client with noise of its own tells one sign, and no metrics", async () => {
  const made = await started({ ingest: privateIngest({ central: null, local: { mechanism: "one-sign", epsilon: 1 } }) });
  const [{ ping }] = await contribution(made);
  const bytes = Uint8Array.from(atob(ping.payload.update.payload), (letter) => letter.charCodeAt(0));
  const numbers = [...new Int32Array(bytes.buffer)];
  assert.deepEqual(numbers.slice(0, 22).map(Math.abs).sort((a, b) => b - a).slice(0, 2), [64, 0]);
  assert.deepEqual(numbers.slice(23), [0, 0]);
});

test("the guarantee is said in words", async () => {
  const { client } = await started({ ingest: privateIngest({ contributions: 5 }) });
  const said = client.guarantee.join(" ");
  for (const part of ["ε = 1,", "48 rounds", "2.7 times", "trust the operator", "5 in all", "10 minutes", "counts as another person"]) {
    assert.ok(said.includes(part), part);
  }
  const own = guaranteeInWords(/** @type {any} */ ({ ...PRIVACY, central: null, local: { mechanism: "one-sign", epsilon: 3 } }));
  assert.match(own[0], /20 times as likely.*need not trust anyone/);
});

const UNKNOWN = {
  "a setting that it does not know": [{ padding: 7 }, /'padding', which this client does not know/],
  "noise that it does not know": [{ local: { mechanism: "laplace", epsilon: 1 } }, /noise that this client does not know/],
  "noise with another setting": [{ local: { mechanism: "one-sign", epsilon: 1, zero: "up" } }, /noise that this/],
  "another contribution": [{ contribution: { by: "median" } }, /contribution that this client does not know/],
  "no bound": [{ contribution: { by: "norm", norm: 0 } }, /how long a contribution may be/],
  "nobody that protects": [{ central: null }, /protects nobody/],
  "a weight that is not there": [{ left_out: ["nothing"] }, /leaves out unknown weights/],
  "one sign of clipped updates": [
    { local: { mechanism: "one-sign", epsilon: 1 }, contribution: { by: "norm", norm: 1 } },
    /one sign of contributions other than signs/,
  ],
};

for (const [what, [privacy, said]] of Object.entries(UNKNOWN)) {
  test(`a client takes no part in a line with ${what}`, () => {
    assert.throws(() => readStudy(privateIngest(privacy).study, "pings"), /** @type {RegExp} */ (said));
  });
}

test("a client takes no part in a study that is private in parts only", () => {
  const { study } = privateIngest();
  assert.throws(() => readStudy({ ...study, pings: "frecency-update" }, "pings"), TypeError);
  const [line] = study.lines;
  assert.throws(() => readStudy({ ...study, lines: [{ ...line, privacy: undefined }] }, "pings"), TypeError);
  assert.throws(() => readStudy({ ...study, lines: [{ ...line, upload: [] }] }, "pings"), /does not send vectors/);
  const arms = [...study.arms, { ...study.arms[1], name: "plain", line: null }];
  assert.throws(() => readStudy({ ...study, arms }, "pings"), /follows no line/);
});
