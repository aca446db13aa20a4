// @ts-check
/** A shop whose study a fake ingest publishes, for tests of what a product puts on its page. */

import { Ranker } from "../ranker.js";
import { memoryStorage } from "../delivery/storage.js";
import { fakeBrowser, settled } from "./support.js";

const STEP = { start: 0.1, min: 1e-6, max: 50 };
const single = (/** @type {string} */ name, start = 0) => ({ name, start, step: STEP, kind: "coefficient", integer: false });
const block = (/** @type {string} */ name, /** @type {number[]} */ shape) => ({
  ...{ name, shape, start: { values: "zeros" }, step: STEP, kind: "coefficient", integer: false },
});

export const SPEC = {
  ...{ name: "shop", model: "features", settings: {}, loss: "softmax", margin: 10, epsilon: 1, places: 3, hidden: 0, explore: 0 },
  gradient: "analytic",
  features: [
    { kind: "number", name: "shop_score", start: 1 },
    { kind: "number", name: "price", low: 0, high: 5000, log: true, center: 3.5, spread: 1.2, missing: true },
    { kind: "category", name: "condition", values: ["new", "used"] },
    { kind: "flag", name: "rare" },
    { kind: "hashed", name: "brand", buckets: 5 },
    { kind: "category", name: "device", on: "query", values: ["phone", "desktop"] },
    { kind: "cross", name: "device.price", of: ["device", "price"] },
  ],
  weights: [
    single("shop_score", 1),
    ...["price", "price:missing", "condition=new", "condition=used", "rare", "place 2", "place 3"].map((name) => single(name)),
  ],
  blocks: [block("brand", [5]), block("device.price", [2, 2])],
  constraints: [{ constraint: "non_negative", weights: ["brand"] }],
};
export const WEIGHTS = 17;

export const OUTCOMES = [
  { kind: "flag", name: "basket" },
  { kind: "number", name: "seconds", low: 0, high: 600, round: 0.5 },
  { kind: "category", name: "way", values: ["click", "key"] },
  { kind: "number", name: "paid", low: 0, high: 500, round: 0.01, within: "48h", linked: true },
  { kind: "flag", name: "returned", within: "14d" },
];

const ARM = { name: "ranked", share: 1, line: "main", applies: true, submits: true, decays: false, personal: false };

/** A model document. @param {number} iteration @param {Record<number, number>} [changed] Weights by place. */
export function modelOf(iteration, changed = {}) {
  const model = Array.from({ length: WEIGHTS }, (_, k) => changed[k] ?? (k === 0 ? 1 : 0));
  return { model, iteration, study: "shop", line: "main", names: [], spec_digest: "", created: "", parent: iteration - 1 };
}

/** What an ingest answers that has a shop's study. @param {any} [study] @param {any} [line] */
export function shopIngest(study = {}, line = {}) {
  const main = { name: "main", spec: SPEC, training: { algorithm: "gradient" }, upload: [], ...line };
  const ingest = {
    model: /** @type {any} */ (modelOf(0)),
    study: /** @type {any} */ ({ name: "shop", pings: "list-update", arms: [ARM], lines: [main], outcomes: OUTCOMES, ...study }),
    submit: (/** @type {string} */ _url, /** @type {any} */ _init) => new Response('{"accepted":1,"rejected":[]}'),
    answer: (/** @type {string} */ url, /** @type {any} */ init) =>
      init.method === "POST" ? ingest.submit(url, init) : Response.json(url.endsWith("study.json") ? ingest.study : ingest.model),
  };
  return ingest;
}

export const PRODUCTS = Array.from({ length: 20 }, (_, i) => ({
  ...{ id: i, shop_score: (i * 7) % 20, price: 5 + 13 * i, condition: i % 3 ? "new" : "used", rare: i % 5 === 0, brand: `brand ${i % 7}` },
}));
export const QUERY = { device: "phone" };

/** A shop's page with a ranker on it. @param {any} [settings] */
export async function shopOf({ ingest = shopIngest(), storage = memoryStorage(), seed = 1, address = "https://i.example/", browser, ...settings } = {}) {
  const around = browser ?? fakeBrowser({ seed, answer: (url, init) => ingest.answer(url, init) });
  /** @type {any[]} */
  const troubles = [];
  const shop = new Ranker({
    ...{ ingest: address, study: "shop", storage, environment: around.environment },
    ...{ onTrouble: (/** @type {any} */ trouble) => void troubles.push(trouble), ...settings },
  });
  const posts = () => around.posts.map((/** @type {any} */ each) => ({ url: each.url, ping: JSON.parse(each.init.body) }));
  return { shop, browser: around, ingest, storage, troubles, posts, codes: () => troubles.map(({ code }) => code) };
}

/** The same, once the model is there. @param {any} [settings] */
export async function openShop(settings = {}) {
  const made = await shopOf(settings);
  await made.shop.ready;
  await settled();
  return made;
}
