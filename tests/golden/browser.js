// @ts-check
/**
 * A client of a page, over what an earlier page has kept: `node browser.js MODULE FOLDER begin|go-on`.
 *
 * FOLDER has `study.json` and `model.json` as a server gives them, and `storage.json`, what `localStorage` keeps. The first page
 * (`begin`) hands over one ping and keeps two; a page of the next day (`go-on`) prints what it finds, sends and leaves.
 */

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [module, folder, step] = process.argv.slice(2);
const { Client, webStorage } = await import(pathToFileURL(module).href);
const kept = new Map(Object.entries(step === "begin" ? {} : JSON.parse(readFileSync(join(folder, "storage.json"), "utf8"))));
const area = {
  get length() {
    return kept.size;
  },
  key: (/** @type {number} */ i) => [...kept.keys()][i] ?? null,
  getItem: (/** @type {string} */ key) => kept.get(key) ?? null,
  setItem: (/** @type {string} */ key, /** @type {string} */ value) => void kept.set(key, value),
  removeItem: (/** @type {string} */ key) => void kept.delete(key),
};

const DAY = 86_400_000;
const NOW = 1_800_000_000_000 + (step === "begin" ? 0 : DAY);
let state = step === "begin" ? 7 : 11;
const byte = () => ((state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0) >>> 16) & 255;

/** @type {{ url: string, body: string }[]} */
const posts = [];
let offline = false;
const environment = {
  fetch: async (/** @type {string} */ url, /** @type {any} */ init) => {
    if (init?.method === "POST") {
      if (offline) {
        throw new TypeError("Failed to fetch");
      }
      posts.push({ url: new URL(url).pathname, body: JSON.parse(init.body) });
      return new Response('{"accepted":1,"rejected":[]}');
    }
    return new Response(readFileSync(join(folder, url.endsWith("study.json") ? "study.json" : "model.json")));
  },
  now: () => NOW,
  setTimeout: () => 1,
  clearTimeout: () => {},
  randomBytes: (/** @type {number} */ count) => Uint8Array.from({ length: count }, byte),
  keepalive: true,
  sendBeacon: null,
  onLeaving: () => () => {},
};

const settled = async () => {
  for (let i = 0; i < 50; i += 1) {
    await new Promise((resolve) => setImmediate(resolve));
  }
};
const pages = [0, 1, 2, 3, 4].map((n) => ({
  visits: [0, 1, 2].map((k) => ({ time: 1_800_000_000_000 - (n + 1) * (k + 2) * DAY, type: 1 + ((n + k) % 3), originType: null, onward: 0 })),
  visitCount: 3 + n,
  typed: n % 2 === 0,
  bookmarked: n === 3,
  isQuery: false,
}));
const study = JSON.parse(readFileSync(join(folder, "study.json"), "utf8"));
const client = new Client({ ingest: "https://i.example", study: study.name, storage: webStorage(area), environment });
const choose = async (/** @type {number} */ chosen) => {
  client.report(client.rank(pages, 5), { chosen, typed: 3, keyDowns: 4, keyDownsAtFirst: 2, started: 0, ended: 900, first: 300 });
  await client.deliver();
  await settled();
};
const told = () => ({ arm: client.arm, id: client.clientId, version: client.version, personal: client.personal, counts: client.counts });

await client.start();
await settled();
if (step === "begin") {
  await choose(2);
  offline = true;
  await choose(1);
  await choose(3);
  client.stop();
  writeFileSync(join(folder, "storage.json"), JSON.stringify(Object.fromEntries([...kept].sort())));
} else {
  await client.deliver();
  await settled();
  /** @type {Record<string, any>} */
  const found = { found: told(), handedOver: [...posts], scores: [...client.scores(pages)], shared: client.rankShared(pages).scores };
  await choose(4);
  Object.assign(found, { after: told(), posts: posts.slice(found.handedOver.length), keys: [...kept.keys()].sort() });
  await client.forget();
  await settled();
  found.left = [...kept.keys()].sort();
  console.log(JSON.stringify(found));
}
process.exit(0);
