// @ts-check
/** Lines of shares whose clients prove their votes: what bits a vector is, and what is sent of it. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, memoryStorage, privacyTrouble, readStudy } from "../fedping.js";
import { toHex } from "../study/bytes.js";
import { bitsOf, helperSeeds, lossWeights, provenShare } from "../study/sharing/votes.js";
import { PRIVACY, drawPage, fakeBrowser, helperOf, offline, seeded, settled, sharedIngest } from "./support.js";

const NOW = 1_800_000_000_000;
const PAGES = Array.from({ length: 12 }, ((draw) => () => drawPage(draw, NOW))(seeded(42)));
const METRIC = 75;
/** Bits of 22 signs: 44, of a loss up to 75: 7, of the top choice: 1. */
const BITS = 52;
/** 52 bits and three proofs of 31 numbers, a blind, and the two parts of the public share. */
const LEADER = 8 * (BITS + 3 * 31) + 32 + 64;
const SEALED = 64 + 48;

/** An ingest with an offer, changed as is said, of a helper that counts who proves its votes. @param {any} [changed] @param {any} [privacy] */
async function offered(changed = {}, privacy = {}) {
  const helper = await helperOf({ proofs: true });
  const ingest = sharedIngest(helper, privacy);
  ingest.study.lines[0].offer = await helper.offer(changed);
  return ingest;
}

/** @param {any} ingest */
async function started(ingest) {
  const browser = fakeBrowser({ seed: 1, answer: (url, init) => ingest.answer(url, init) });
  const { environment } = browser;
  const client = new Client({ ingest: "https://i.example", study: "pings", storage: memoryStorage(), environment });
  await client.start();
  return { client, browser };
}

/** @param {any} made @param {number} [chosen] */
async function contribution({ client, browser }, chosen = 2) {
  const reported = client.report(client.rank(PAGES, 8, NOW), { chosen });
  await client.deliver();
  await browser.pass(600_000);
  await settled();
  return { reported, posts: browser.posts };
}

/** @param {any} ping */
function payloadOf(ping) {
  return Uint8Array.from(atob(ping.payload.update.payload), (letter) => letter.charCodeAt(0));
}

test("the bits of a loss tell every loss up to the largest, and none above it", () => {
  for (const metric of [1, 2, 3, 62, 64, 75, 1000]) {
    const weights = lossWeights(metric);
    assert.equal(weights.reduce((sum, weight) => sum + weight, 0), metric);
    for (let loss = 0; loss <= metric; loss += 1) {
      const bits = bitsOf([metric, loss, 0], metric);
      assert.equal(bits.length, weights.length + 1);
      assert.ok(bits.every((bit) => bit === 0 || bit === 1));
      assert.equal(weights.reduce((sum, weight, k) => sum + weight * bits[k], 0), loss);
    }
  }
});

test("a vector is ups, downs, its loss and its top choice", () => {
  assert.deepEqual(bitsOf([64, 0, -64, METRIC, 38 + 9, METRIC], METRIC), [1, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1]);
  assert.deepEqual(bitsOf([0, 0, 0, METRIC, 0, 0], METRIC), new Array(14).fill(0));
});

test("one message of a proven vector is sent, as long as all others of the line", async () => {
  const ingest = await offered();
  for (const chosen of [0, 5]) {
    const made = await started(ingest);
    assert.equal(made.client.trouble, null);
    const shown = /** @type {any} */ (made.client.compose(made.client.rank(PAGES, 8, NOW), { chosen }));
    const { reported, posts } = await contribution(made, chosen);
    assert.equal(posts.length, 1);
    const ping = JSON.parse(posts[0].init.body);
    assert.deepEqual(ping, shown.ping, "it was shown as it is sent");
    assert.equal(payloadOf(ping).length, 8 + LEADER + SEALED);
    assert.equal(reported.vector.length, 25);
    assert.equal(reported.vector[24], chosen === 0 ? METRIC : 0);
  }
});

test("what failed is sent again with the same bytes", async () => {
  const ingest = await offered();
  const made = await started(ingest);
  ingest.submit = offline;
  await contribution(made);
  await made.browser.pass(3_600_000);
  ingest.submit = () => new Response("{}");
  await made.browser.pass(3_600_000);
  await settled();
  assert.ok(made.browser.posts.length >= 2);
  assert.equal(new Set(made.browser.posts.map(({ url, init }) => url + init.body)).size, 1);
  assert.equal(made.client.counts.accepted, 1);
});

test("a proof belongs to its ping, and to nothing else", () => {
  const draw = seeded(7);
  const seed = draw.bytes(32);
  const to = { study: "s", line: "main", version: 3, arm: "a", documentId: "6a1f0c62-57f5-4b0e-9d1c-2f6c0f2b9c11", metric: METRIC };
  const vector = [...Array.from({ length: 22 }, () => 64 * draw.whole(-1, 1)), METRIC, 12, 0];
  const others = [
    { study: "t" }, { line: "other" }, { version: 4 }, { arm: "b" }, { documentId: "6a1f0c62-57f5-4b0e-9d1c-2f6c0f2b9c12" },
  ];
  const shares = [to, ...others.map((other) => ({ ...to, ...other }))].map((each) => toHex(provenShare(vector, seed, each)));
  assert.equal(new Set(shares).size, 6);
  assert.equal(new Set(shares.map((share) => share.slice(-128))).size, 6, "nor is the public share another's");
  assert.ok(shares.every((share) => share.length === 2 * LEADER));
  assert.equal(helperSeeds(seed).length, 64);
  assert.notEqual(toHex(helperSeeds(seed)), toHex(helperSeeds(draw.bytes(32))));
});

const UNFIT = {
  "without proofs": [{ proofs: false, metric: 0 }, /whether clients prove/],
  "of other metrics": [{ metric: 74 }, /proofs of other metrics/],
  "that does not say of which metrics": [{ metric: undefined }, /proofs of other metrics/],
};

for (const [what, [changed, said]] of Object.entries(UNFIT)) {
  test(`a client that is to prove its votes sends nothing for an offer ${what}, and says why`, async () => {
    const made = await started(await offered(changed));
    assert.match(String(made.client.trouble), /** @type {RegExp} */ (said));
    assert.deepEqual((await contribution(made)).posts, []);
  });
}

test("what is no vote is not to be proven, and a study that asks for it is refused", async () => {
  const local = { mechanism: "one-sign", epsilon: 1 };
  for (const privacy of [{ local, central: null }, { contribution: { by: "norm", norm: 1 } }]) {
    const ingest = await offered({}, privacy);
    assert.throws(() => readStudy(ingest.study, "pings"), /asks for proofs without votes/);
    assert.equal((await started(ingest)).client.arm, null);
  }
});

test("a link that says other metrics than follow from the settings is refused", async () => {
  const { study } = await offered();
  const [line] = study.lines;
  assert.equal(privacyTrouble({ ...PRIVACY, shared: line.privacy.shared }, line.spec), null);
  for (const metric of [0, 74, undefined]) {
    const upload = [{ ...line.upload[0], metric }];
    assert.throws(() => readStudy({ ...study, lines: [{ ...line, upload }] }, "pings"), /disagree on how shares are made/);
  }
});
