// @ts-check
/** What tests put in place of a browser and of ingest: a clock that they turn, seeded numbers, answers that they choose. */

import { readFileSync } from "node:fs";
import { memoryStorage } from "../fedping.js";
import { joined, toHex, utf8 } from "../study/bytes.js";
import { sha256Bytes } from "../study/sha256.js";
import { TOPICS } from "./parity.js";

/** What the files of docs/conformance say, by topic. */
export const VECTORS = Object.fromEntries(
  TOPICS.map((topic) => {
    const file = new URL(`../../docs/conformance/${topic}.json`, import.meta.url);
    return [topic, JSON.parse(readFileSync(file, "utf8"))];
  }),
);
export const DAY = 86_400_000;

/**
 * Numbers that look random and are the same in every run (mulberry32).
 *
 * @param {number} seed
 */
export function seeded(seed) {
  let state = seed >>> 0;
  const fraction = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const whole = (/** @type {number} */ least, /** @type {number} */ largest) =>
    least + Math.floor(fraction() * (largest - least + 1));
  return { fraction, whole, bytes: (/** @type {number} */ count) => Uint8Array.from({ length: count }, () => whole(0, 255)) };
}

/** @param {ReturnType<typeof seeded>} draw @param {number} now @returns {import("../models/pages.js").Page} */
export function drawPage(draw, now) {
  const visits = Array.from({ length: draw.whole(0, 13) }, () => ({
    time: now - draw.whole(-2 * DAY, 200 * DAY),
    type: draw.whole(-1, 11),
    originType: draw.fraction() < 0.5 ? null : draw.whole(0, 9),
    onward: draw.whole(0, 2),
  }));
  const flags = { typed: draw.fraction() < 0.5, bookmarked: draw.fraction() < 0.5, isQuery: draw.fraction() < 0.1 };
  return { visits, visitCount: draw.whole(0, 40), ...flags };
}

/**
 * A browser that is a few variables. Time passes when `pass` is called, and timers then run.
 *
 * @param {object} [settings]
 * @param {(url: string, init: any) => any} [settings.answer] What `fetch` gives: a `Response`, or a promise; or it throws.
 * @param {number} [settings.seed]
 * @param {boolean} [settings.keepalive]
 * @param {boolean | null} [settings.beacons] What `sendBeacon` returns; null if there is none.
 */
export function fakeBrowser({ answer = () => new Response(null, { status: 200 }), ...settings } = {}) {
  const { seed = 1, keepalive = true, beacons = null } = settings;
  /** @type {{ url: string, init: any }[]} */
  const requests = [];
  /** @type {{ url: string, body: Blob }[]} */
  const sentBeacons = [];
  /** @type {Map<number, { at: number, action: () => void }>} */
  const timers = new Map();
  const page = { leave: () => {}, back: () => {}, listening: false };
  let time = 1_800_000_000_000;
  let timer = 0;
  const browser = {
    answer,
    requests,
    beacons: sentBeacons,
    timers,
    page,
    /** The submissions among the requests. */
    get posts() {
      return requests.filter(({ init }) => init.method === "POST");
    },
    /** @param {number} milliseconds */
    async pass(milliseconds) {
      const end = time + milliseconds;
      await settled();
      for (;;) {
        const due = [...timers].filter(([, { at }]) => at <= end).sort(([, a], [, b]) => a.at - b.at)[0];
        if (due === undefined) {
          break;
        }
        timers.delete(due[0]);
        time = Math.max(time, due[1].at);
        due[1].action();
        await settled();
      }
      time = end;
    },
    environment: {
      fetch: /** @type {any} */ (
        async (/** @type {string} */ url, /** @type {any} */ init) => {
          requests.push({ url, init });
          return browser.answer(url, init);
        }
      ),
      now: () => time,
      setTimeout: (/** @type {() => void} */ action, /** @type {number} */ milliseconds) => {
        timers.set((timer += 1), { at: time + milliseconds, action });
        return timer;
      },
      clearTimeout: (/** @type {number} */ which) => void timers.delete(which),
      randomBytes: seeded(seed).bytes,
      keepalive,
      sendBeacon:
        beacons === null
          ? null
          : (/** @type {string} */ url, /** @type {Blob} */ body) => {
              sentBeacons.push({ url, body });
              return beacons;
            },
      onLeaving: (/** @type {() => void} */ leave, /** @type {() => void} */ back) => {
        Object.assign(page, { leave, back, listening: true });
        return () => void (page.listening = false);
      },
    },
  };
  return browser;
}

/** Returns when everything that does not wait for a timer has happened. */
export async function settled() {
  for (let i = 0; i < 30; i += 1) {
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/**
 * A storage that remembers what was done to it, and may be made to fail.
 */
export function watchedStorage() {
  const inner = memoryStorage();
  const watched = {
    fails: false,
    /** @type {string[]} */
    written: [],
    get: (/** @type {string} */ key) => guarded(() => inner.get(key)),
    set: (/** @type {string} */ key, /** @type {any} */ value) =>
      guarded(() => {
        watched.written.push(key);
        return inner.set(key, value);
      }),
    remove: (/** @type {string} */ key) => guarded(() => inner.remove(key)),
    keys: (/** @type {string} */ prefix) => guarded(() => inner.keys(prefix)),
  };
  const guarded = (/** @type {() => any} */ action) => {
    if (watched.fails) {
      throw new DOMException("no room", "QuotaExceededError");
    }
    return action();
  };
  return watched;
}

/**
 * What an ingest answers that has the study and the model of the vectors.
 *
 * @param {(url: string, init: any) => any} [submit] The answer to pings.
 */
export function fakeIngest(submit = () => new Response('{"accepted":1,"rejected":[]}')) {
  const { study, model } = VECTORS.pings;
  const ingest = {
    submit,
    model: { ...model },
    /** @type {any} The version that is staged; null if none is. */
    staged: null,
    study: structuredClone(study),
    answer: (/** @type {string} */ url, /** @type {any} */ init) => {
      if (init.method === "POST") {
        return ingest.submit(url, init);
      }
      if (url.includes("/staged-")) {
        const there = ingest.staged && url.endsWith(`/staged-${ingest.staged.iteration}.json`);
        return there ? Response.json(ingest.staged) : new Response("{}", { status: 404 });
      }
      return Response.json(url.endsWith("study.json") ? ingest.study : ingest.model);
    },
  };
  return ingest;
}

/** @param {number} status @param {Record<string, string>} [headers] */
export function status(status, headers = {}) {
  return () => new Response('{"error":"no"}', { status, headers });
}

/** What `fetch` does when no answer comes. */
export function offline() {
  throw new TypeError("Failed to fetch");
}

const CENTRAL = { epsilon: 1, delta: 1e-6, rounds: 48, population: 100_000, sampling: 1, noise_multiplier: 4.2, dead_zone: 0.5 };
/** What is published of a private line. */
export const PRIVACY = {
  central: CENTRAL,
  local: null,
  contribution: { by: "signs" },
  loss: [0, 100],
  left_out: [],
  contributions: null,
  delay_minutes: 10,
};

/**
 * Settings of a line to which a client may contribute so often, in as many rounds: to each version, until it has.
 *
 * @param {number} contributions
 */
export const atMost = (contributions) => ({ contributions, central: { ...PRIVACY.central, rounds: contributions } });

/** An ingest with a private study. @param {any} [privacy] */
export function privateIngest(privacy = {}) {
  const ingest = fakeIngest();
  ingest.study.pings = "private-update";
  ingest.study.lines[0].privacy = { ...PRIVACY, ...privacy };
  ingest.study.lines[0].upload = [{ link: "private" }];
  ingest.study.arms = ["treatment", "control"].map((name) => ({
    ...{ name, share: 0.5, line: "main", applies: true, decays: false },
    submits: name === "treatment",
  }));
  return ingest;
}

/** A helper of a line of shares, whose keys are drawn anew: what it says of itself, signed. */
export async function helperOf(/** @type {any} */ privacy = {}) {
  const signing = /** @type {CryptoKeyPair} */ (await crypto.subtle.generateKey("Ed25519", true, ["sign", "verify"]));
  const sealing = /** @type {CryptoKeyPair} */ (await crypto.subtle.generateKey("X25519", true, ["deriveBits"]));
  const raw = async (/** @type {CryptoKey} */ key) => toHex(new Uint8Array(await crypto.subtle.exportKey("raw", key)));
  const [helper, key] = [await raw(signing.publicKey), await raw(sealing.publicKey)];
  const shared = { helper, min_batch: 100, seal: "x25519", proofs: false, ...privacy };
  const terms = {
    ...{ helper, leader: "11".repeat(32), study: "pings", line: "main", arms: ["treatment", "control"], numbers: 25 },
    ...{ sigma: SIGMA, min_batch: 100, seal: "x25519", key, made: "2026-07-01T00:00:00Z", format: 1 },
    ...{ proofs: shared.proofs, metric: metricWith(shared) },
  };
  /** An offer of these terms, changed as is said. @param {any} [changed] */
  const offer = async (changed = {}) => {
    const text = JSON.stringify({ ...terms, ...changed });
    const digest = sha256Bytes(utf8(text));
    const signature = await crypto.subtle.sign("Ed25519", signing.privateKey, joined(utf8("fedping offer v1\n"), digest));
    return { terms: text, signature: toHex(new Uint8Array(signature)) };
  };
  return { shared, offer };
}

/** The largest number of a metric of {@link PRIVACY}, a quarter of the norm of 22 signs, as proofs need it. @param {any} shared */
function metricWith({ proofs }) {
  return proofs ? 75 : 0;
}

/** The noise of {@link PRIVACY} for 22 signs: 4.2 times the norm of a vector, 64² · 22 + 3 · 75² in the square. */
export const SIGMA = 4.2 * Math.sqrt(64 ** 2 * 22 + 3 * 75 ** 2);

/** An ingest with a study of two servers. @param {Awaited<ReturnType<typeof helperOf>>} helper @param {any} [privacy] */
export function sharedIngest({ shared }, privacy = {}) {
  const ingest = privateIngest({ shared, ...privacy });
  ingest.study.lines[0].upload = [{ link: "shared", seal: shared.seal, proofs: shared.proofs, metric: metricWith(shared) }];
  return ingest;
}
