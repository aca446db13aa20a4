// @ts-check
/** A client of a line of shares: what it sends two servers can read together and neither alone, and only on their terms. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Client, guaranteeInWords, memoryStorage, privacyTrouble, readStudy } from "../fedping.js";
import { fromHex, toHex } from "../study/bytes.js";
import { shake128, turboShake128 } from "../study/sharing/keccak.js";
import { seal } from "../study/sharing/sealing.js";
import { leaderShare, maskOf } from "../study/sharing/shares.js";
import { pairOf } from "./parity.js";
import { PRIVACY, drawPage, fakeBrowser, helperOf, offline, privateIngest, seeded, settled, sharedIngest, status } from "./support.js";

const MINUTE = 60_000;
const NOW = 1_800_000_000_000;
const PAGES = Array.from({ length: 12 }, ((draw) => () => drawPage(draw, NOW))(seeded(42)));
const PAYLOAD = 8 + 8 * 25 + 32 + 48;

/** @param {{ ingest: any, storage?: any, seed?: number, [setting: string]: any }} settings */
async function started({ ingest, storage = memoryStorage(), seed = 1, ...more }) {
  const browser = fakeBrowser({ seed, answer: (url, init) => ingest.answer(url, init) });
  const { environment } = browser;
  /** @type {string[]} */
  const noticed = [];
  const notice = (/** @type {string} */ what) => void noticed.push(what);
  const client = new Client({ ingest: "https://i.example", study: "pings", storage, environment, notice, ...more });
  await client.start();
  return { client, browser, ingest, storage, noticed };
}

/** An ingest whose helper has made its offer, changed as is said. @param {any} [changed] */
async function offered(changed = {}) {
  const helper = await helperOf();
  const ingest = sharedIngest(helper);
  ingest.study.lines[0].offer = await helper.offer(changed);
  return { helper, ingest };
}

/** What a client sends of a choice, when its delay is over. @param {any} made */
async function contribution({ client, browser }) {
  const before = browser.posts.length;
  const reported = client.report(client.rank(PAGES, 8, NOW), { chosen: 2 });
  await client.deliver();
  await browser.pass(10 * MINUTE);
  await settled();
  return { reported, posts: browser.posts.slice(before) };
}

/** @param {any} ping */
function payloadOf(ping) {
  return Uint8Array.from(atob(ping.payload.update.payload), (letter) => letter.charCodeAt(0));
}

/** Call something, and give every 32 bytes that it drew from the platform. @param {() => Promise<any>} work */
async function drawing(work) {
  const drawn = /** @type {Uint8Array[]} */ ([]);
  const real = crypto.getRandomValues;
  crypto.getRandomValues = /** @type {any} */ (
    (/** @type {Uint8Array} */ bytes) => {
      real.call(crypto, bytes);
      drawn.push(bytes.slice());
      return bytes;
    }
  );
  try {
    await work();
  } finally {
    crypto.getRandomValues = real;
  }
  return drawn.filter(({ length }) => length === 32);
}

test("SHAKE128 is node's, at every edge of its blocks", () => {
  for (const size of [0, 1, 47, 166, 167, 168, 169, 335, 336, 337, 1000]) {
    const message = Uint8Array.from({ length: size }, (_, i) => (7 * i) & 255);
    for (const length of [1, 32, 167, 168, 169, 1000]) {
      const expected = createHash("shake128", { outputLength: length }).update(message).digest("hex");
      assert.equal(toHex(shake128(message, length)), expected, `${size} bytes make ${length}`);
    }
  }
});

test("TurboSHAKE128 is that of RFC 9861, in one piece or in several", () => {
  const nothing = new Uint8Array(0);
  const first = "1e415f1c5983aff2169217277d17bb538cd945a397ddec541f1ce41af2c1b74c";
  assert.equal(toHex(turboShake128(nothing, 0x1f)(32)), first);
  const whole = turboShake128(nothing, 0x1f)(1000);
  const next = turboShake128(nothing, 0x1f);
  const pieces = [1, 31, 136, 1, 168, 663].map((length) => toHex(next(length)));
  assert.equal(pieces.join(""), toHex(whole));
  assert.notEqual(toHex(turboShake128(nothing, 0x01)(32)), first);
});

test("what is sealed is what RFC 9180 seals", async () => {
  const file = new URL("vectors_rfc9180.json", import.meta.url);
  const given = JSON.parse(readFileSync(file, "utf8"));
  const [bound, pair] = [fromHex(given.aad), await pairOf(fromHex(given.skEm), fromHex(given.pkEm))];
  const sealed = await seal(fromHex(given.pkRm), fromHex(given.pt), fromHex(given.info), { bound, pair });
  assert.equal(toHex(sealed), given.enc + given.ct);
});

test("the two shares of a vector add up to it, whatever its signs", () => {
  const vector = [0, 1, -1, 64, -64, 2 ** 24, -(2 ** 24), 2 ** 32, -(2 ** 32) - 1, 2 ** 53 - 1, -(2 ** 53)];
  for (let seed = 0; seed < 50; seed += 1) {
    const drawn = seeded(seed).bytes(32);
    const mask = new BigUint64Array(maskOf(drawn, vector.length).buffer);
    const share = new BigUint64Array(leaderShare(vector, drawn).buffer);
    assert.deepEqual(Array.from(share, (word, k) => Number(BigInt.asIntN(64, word + mask[k]))), vector);
  }
});

test("a version gets one message of two shares, after a delay, and its vector is what was told", async () => {
  const { ingest } = await offered();
  const made = /** @type {any} */ ({});
  const seeds = await drawing(async () => Object.assign(made, await started({ ingest })));
  assert.equal(made.client.trouble, null);
  const composed = made.client.compose(made.client.rank(PAGES, 8, NOW), { chosen: 2 });
  const { reported, posts } = await contribution(made);
  assert.equal(posts.length, 1);
  const [{ url, init }] = posts;
  assert.match(url, /^https:\/\/i\.example\/submit\/pings\/private-update\/1\/[0-9a-f-]{36}$/);
  assert.equal(url.split("/").at(-1), composed.documentId, "it was shown as it is sent");
  const ping = JSON.parse(init.body);
  assert.deepEqual(ping, composed.ping);
  assert.deepEqual(Object.keys(ping.payload), ["model_version", "study_variation", "update"]);
  assert.equal(ping.payload.update.encoding, "shared");
  const payload = payloadOf(ping);
  assert.equal(payload.length, PAYLOAD);
  const terms = createHash("sha256").update(ingest.study.lines[0].offer.terms).digest("hex");
  assert.equal(toHex(payload.slice(0, 8)), terms.slice(0, 16));
  const leader = toHex(payload.slice(8, 8 + 200));
  assert.equal(seeds.filter((seed) => toHex(leaderShare(reported.vector, seed)) === leader).length, 1);
  assert.equal(reported.vector.length, 25);
  assert.equal((await contribution(made)).posts.length, 0, "once a version");
});

test("another version gets another seed", async () => {
  const { ingest } = await offered();
  const made = await started({ ingest });
  const [first] = (await contribution(made)).posts;
  ingest.model.iteration += 1;
  await made.client.fetchModel();
  const [second] = (await contribution(made)).posts;
  const [one, other] = [first, second].map(({ init }) => payloadOf(JSON.parse(init.body)));
  assert.equal(toHex(one.slice(0, 8)), toHex(other.slice(0, 8)));
  assert.ok(Array.from({ length: 25 }, (_, k) => 8 + 8 * k).every((at) => toHex(one.slice(at, at + 8)) !== toHex(other.slice(at, at + 8))));
});

test("two messages under one mask are never sent", async () => {
  const { ingest } = await offered();
  const { client, browser } = await started({ ingest });
  const [one, other] = [1, 2].map((chosen) => /** @type {any} */ (client.compose(client.rank(PAGES, 8, NOW), { chosen })));
  assert.equal(one.documentId, other.documentId);
  assert.equal(client.send(one), true);
  assert.equal(client.send(other), false);
  assert.equal(client.compose(client.rank(PAGES, 8, NOW), { chosen: 3 }), null);
  await client.deliver();
  await browser.pass(10 * MINUTE);
  await settled();
  assert.deepEqual(browser.posts.map(({ init }) => JSON.parse(init.body)), [one.ping]);
});

test("what failed is sent again with the same bytes, also by the next page", async () => {
  const { ingest } = await offered();
  ingest.submit = offline;
  const made = await started({ ingest });
  await contribution(made);
  made.client.stop();
  ingest.submit = status(503);
  const next = await started({ ingest, storage: made.storage, seed: 2 });
  await next.browser.pass(3_600_000);
  ingest.submit = () => new Response("{}");
  await next.browser.pass(3 * 3_600_000);
  await settled();
  const posts = [...made.browser.posts, ...next.browser.posts];
  assert.ok(posts.length >= 3);
  assert.equal(new Set(posts.map(({ url, init }) => url + init.body)).size, 1);
  assert.equal(next.client.counts.waiting, 0);
});

test("without an offer nothing is sent until one comes with the study", async () => {
  const { helper, ingest } = await offered();
  const { offer } = ingest.study.lines[0];
  delete ingest.study.lines[0].offer;
  const made = await started({ ingest });
  assert.match(String(made.client.trouble), /line 'main' of study 'pings' has no offer of its helper yet/);
  assert.deepEqual(made.noticed, [`nothing is sent: ${made.client.trouble}`]);
  assert.deepEqual((await contribution(made)).posts, []);
  assert.equal(made.client.arm !== null, true);
  ingest.study.lines[0].offer = offer;
  await made.client.fetchModel();
  assert.equal(made.client.trouble, null);
  assert.equal((await contribution(made)).posts.length, 1);
  ingest.study.lines[0].offer = await helper.offer({ made: "2026-08-01T00:00:00Z" });
  ingest.model.iteration += 1;
  await made.client.fetchModel();
  const [{ init }] = (await contribution(made)).posts;
  const terms = createHash("sha256").update(ingest.study.lines[0].offer.terms).digest("hex");
  assert.equal(toHex(payloadOf(JSON.parse(init.body)).slice(0, 8)), terms.slice(0, 16), "the new key of a helper is taken");
});

const UNFIT = {
  "another study": [{ study: "rings" }, /it is for another study/],
  "another line": [{ line: "side" }, /it is for another line/],
  "one arm of two": [{ arms: ["treatment"] }, /it is for other arms/],
  "an arm more": [{ arms: ["treatment", "control", "third"] }, /it is for other arms/],
  "another length": [{ numbers: 26 }, /another number of weights/],
  "less noise": [{ sigma: 1000 }, /less noise than the study promises/],
  "no noise said": [{ sigma: null }, /less noise than the study promises/],
  "no promise": [{ promise: null }, /for another guarantee/],
  "a promise of more rounds": [
    { promise: { epsilon: 1, delta: 1e-6, rounds: 49, contributions: null, noise_multiplier: 4.2 } },
    /for another guarantee/,
  ],
  "smaller batches": [{ min_batch: 99 }, /fewer clients/],
  proofs: [{ proofs: true, metric: 75 }, /whether clients prove/],
  "a metric without proofs": [{ metric: 75 }, /proofs of other metrics/],
  "another seal": [{ seal: "mlkem768-x25519" }, /its key is of another kind/],
  "a key too long": [{ key: "00".repeat(33) }, /its key is of another kind/],
  "another helper's name": [{ helper: "22".repeat(32) }, /names another helper/],
  "another format": [{ format: 2 }, /another format/],
  "a key that agrees on nothing": [{ key: "00".repeat(32) }, /its key can't be used to seal/],
};

for (const [what, [changed, said]] of Object.entries(UNFIT)) {
  test(`a client sends nothing for an offer with ${what}, and says why`, async () => {
    const { ingest } = await offered(changed);
    const made = await started({ ingest });
    assert.match(String(made.client.trouble), /** @type {RegExp} */ (said));
    assert.equal(made.noticed.length, 1);
    assert.deepEqual((await contribution(made)).posts, []);
    assert.equal(made.client.version, ingest.model.iteration, "it ranks as its arm does");
  });
}

test("more noise and larger batches than were asked for are as good", async () => {
  const { ingest } = await offered({ sigma: 1e6, min_batch: 1000, arms: ["control", "treatment"], more: 7 });
  const made = await started({ ingest });
  assert.equal(made.client.trouble, null);
  assert.equal((await contribution(made)).posts.length, 1);
});

test("an offer that is not signed by the helper is none", async () => {
  const { ingest } = await offered();
  const [line] = ingest.study.lines;
  const other = await (await helperOf()).offer();
  const { terms, signature } = line.offer;
  const flipped = (signature.startsWith("0") ? "1" : "0") + signature.slice(1);
  const forged = [other, { terms: `${terms} `, signature }, { terms, signature: flipped }, { terms, signature: "" }, { terms: 7 }, null, "no"];
  for (const offer of forged) {
    line.offer = offer;
    const made = await started({ ingest });
    assert.match(String(made.client.trouble), /not signed by the helper [0-9a-f]{16}…, which the study names/);
    assert.deepEqual((await contribution(made)).posts, []);
  }
});

for (const [what, change] of /** @type {[string, (privacy: any) => void][]} */ ([
  ["another helper", (privacy) => (privacy.shared.helper = "0".repeat(64))],
  ["no helper", (privacy) => delete privacy.shared],
  ["smaller batches", (privacy) => (privacy.shared.min_batch = 2)],
  ["less noise", (privacy) => (privacy.central.noise_multiplier /= 2)],
])) {
  test(`a study with ${what} than when a browser joined it gets nothing from it until it joins again`, async () => {
    const { ingest } = await offered();
    const storage = memoryStorage();
    assert.equal((await contribution(await started({ ingest, storage }))).posts.length, 1);
    const before = structuredClone(ingest.study);
    const [line] = ingest.study.lines;
    change(line.privacy);
    if (!line.privacy.shared) {
      line.upload = [{ link: "private" }];
    }
    const made = await started({ ingest, storage, seed: 2 });
    await made.client.refresh();
    assert.match(String(made.client.trouble), /has changed its promise since this browser joined/);
    assert.deepEqual(made.client.guarantee, (await started({ ingest: Object.assign(ingest, { study: before }), storage })).client.guarantee);
  });
}

test("with the noise of its own a client splits the noisy vector, and an offer of no noise will do", async () => {
  const helper = await helperOf();
  const ingest = sharedIngest(helper, { central: null, local: { mechanism: "one-sign", epsilon: 1 } });
  ingest.study.lines[0].offer = await helper.offer({ sigma: 0, promise: null });
  const { reported } = await contribution(await started({ ingest }));
  assert.deepEqual(reported.vector.slice(0, 22).map(Math.abs).sort((/** @type {number} */ a, /** @type {number} */ b) => b - a).slice(0, 2), [64, 0]);
});

test("a browser without the curves takes no part, and says so", async () => {
  const { ingest } = await offered();
  const real = crypto.subtle.generateKey;
  for (const missing of ["X25519", "Ed25519"]) {
    crypto.subtle.generateKey = /** @type {any} */ (
      (/** @type {any} */ algorithm, /** @type {any[]} */ ...more) =>
        (algorithm.name ?? algorithm) === missing
          ? Promise.reject(new DOMException("no such algorithm", "NotSupportedError"))
          : /** @type {any} */ (real).call(crypto.subtle, algorithm, ...more)
    );
    try {
      const made = await started({ ingest });
      assert.equal(made.client.arm, null);
      assert.match(String(made.client.trouble), /needs X25519 and Ed25519 for its two servers, which this browser lacks/);
      assert.deepEqual((await contribution(made)).posts, []);
      made.client.stop();
    } finally {
      crypto.subtle.generateKey = real;
    }
  }
});

const REFUSED = {
  "a seal that no browser has": [{ seal: "mlkem768-x25519" }, /sealed by 'mlkem768-x25519', which no browser can do yet/],
  "proofs or not": [{ proofs: "maybe" }, /does not say whether clients prove what they send/],
  "a setting that it does not know": [{ threshold: 3 }, /settings of two servers that this client does not know/],
  "a helper without a name": [{ helper: "me" }, /name its helper properly/],
  "sums of one client": [{ min_batch: 1 }, /the number of clients in a sum/],
};

for (const [what, [changed, said]] of Object.entries(REFUSED)) {
  test(`a client takes no part in a line of shares with ${what}`, async () => {
    const ingest = sharedIngest(await helperOf(changed));
    assert.throws(() => readStudy(ingest.study, "pings"), /** @type {RegExp} */ (said));
    const made = await started({ ingest });
    assert.equal(made.client.arm, null);
    assert.match(String(made.client.trouble), /** @type {RegExp} */ (said));
  });
}

test("a line of shares sends nothing else, and no other line sends shares", async () => {
  const { study } = sharedIngest(await helperOf());
  const [line] = study.lines;
  assert.throws(() => readStudy({ ...study, lines: [{ ...line, upload: [{ link: "private" }] }] }, "pings"), /does not send shares/);
  for (const other of [{ proofs: true, metric: 75 }, { metric: 75 }, { seal: "mlkem768-x25519" }]) {
    const upload = [{ ...line.upload[0], ...other }];
    assert.throws(() => readStudy({ ...study, lines: [{ ...line, upload }] }, "pings"), /disagree on how shares are made/);
  }
  const plain = privateIngest().study;
  assert.throws(() => readStudy({ ...plain, lines: [{ ...plain.lines[0], upload: line.upload }] }, "pings"), /does not send vectors/);
  const spec = /** @type {any} */ (line.spec);
  const central = { ...PRIVACY.central, noise_multiplier: null };
  assert.match(String(privacyTrouble({ ...line.privacy, central }, spec)), /does not give its servers' noise/);
  assert.match(String(privacyTrouble({ ...line.privacy, central: { ...PRIVACY.central, sampling: 0.5 } }, spec)), /coin/);
  assert.equal(privacyTrouble({ ...PRIVACY, shared: null }, spec), null);
});

test("what a study of two servers promises is said in words", async () => {
  const helper = await helperOf();
  const { client } = await started({ ingest: sharedIngest(helper) });
  const said = client.guarantee.join(" ");
  for (const part of [
    "Either alone is noise",
    "someone else runs",
    "100 browsers or more",
    "the two do not work together",
    helper.shared.helper.slice(0, 16),
    "For this you trust one of the two",
  ]) {
    assert.ok(said.includes(part), part);
  }
  const exact = guaranteeInWords(/** @type {any} */ ({ ...PRIVACY, central: null, shared: helper.shared })).join(" ");
  assert.match(exact, /No noise is added/);
  assert.doesNotMatch(exact, /proof/);
  const proven = guaranteeInWords(/** @type {any} */ ({ ...PRIVACY, shared: { ...helper.shared, proofs: true } })).join(" ");
  assert.match(proven, /a proof that it contains only votes\. The two servers check it together and learn nothing else from it/);
  assert.doesNotMatch(exact, /ε/);
});
