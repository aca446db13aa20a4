// @ts-check
/** A form that completes itself predicts, keeps its examples until there are enough, and sends an update alone. */

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { memoryStorage } from "../delivery/storage.js";
import { formOf, learnedOf } from "../predicting/models.js";
import { Predictor } from "../predictor.js";
import { privacy } from "../private.js";
import { PRIVACY, fakeBrowser, seeded, settled } from "./support.js";

const STEP = { start: 0.1, min: 1e-6, max: 50 };
const block = (/** @type {string} */ name, /** @type {number[]} */ shape, start = {}) => ({
  ...{ name, shape, start: { values: "zeros", ...start }, step: STEP, kind: "coefficient", integer: false },
});
const LOGISTIC = {
  ...{ name: "form", model: "logistic-regression", settings: { features: 3, classes: 3, l2: 0.1 }, margin: 10, epsilon: 1, weights: [] },
  blocks: [block("coefficients", [3, 3]), block("intercept", [3])],
};
const NETWORK = {
  ...{ name: "form", model: "network", settings: { features: 2, classes: 2, hidden: "3, 4" }, margin: 10, epsilon: 1, weights: [] },
  blocks: [
    ...[block("W1", [2, 3], { values: "normal", seed: 1, scale: 1 }), block("b1", [3])],
    ...[block("W2", [3, 4], { values: "normal", seed: 1, scale: 1 }), block("b2", [4])],
    ...[block("W3", [4, 2], { values: "uniform", seed: 1, scale: 1 }), block("b3", [2])],
  ],
};

/** @type {Predictor<any, any>[]} */
const opened = [];
afterEach(() => opened.splice(0).forEach((each) => each.stop()));

/** @param {any} [settings] */
async function formOn({ spec = LOGISTIC, line = {}, study = {}, m = 12, weights = Array.from({ length: m }, (_, k) => k / 10), ...settings } = {}) {
  const arms = [{ name: "a", share: 1, line: "main", applies: true, submits: true, decays: false }];
  const published = { name: "form", pings: "model-update", arms, lines: [{ name: "main", spec, training: { algorithm: "gradient", batch: 4 }, ...line }], ...study };
  const document = { model: weights, iteration: 3, names: [] };
  const answer = (/** @type {string} */ url, /** @type {any} */ init) =>
    init.method === "POST" ? new Response("{}") : Response.json(url.endsWith("study.json") ? published : document);
  const browser = fakeBrowser({ answer });
  /** @type {string[]} */
  const codes = [];
  const storage = memoryStorage();
  const form = new Predictor({
    ...{ ingest: "https://i.example", study: "form", storage, environment: browser.environment },
    ...{ onTrouble: (/** @type {any} */ { code }) => void codes.push(code), ...settings },
  });
  opened.push(form);
  await form.ready;
  await settled();
  return { form, browser, codes, storage, weights, pings: () => browser.posts.map(({ init }) => JSON.parse(init.body)) };
}

test("it predicts the likeliest class by its name, from numbers or from fields", async () => {
  const { form } = await formOn({ labels: ["home", "work", "else"], fields: ["a", "b", "c"] });
  const found = form.predict([1, 0, 2]);
  assert.equal(found?.label, "else");
  assert.equal(found?.version, 3);
  assert.ok(Math.abs(/** @type {any} */ (found).probabilities.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b) - 1) < 1e-12);
  assert.deepEqual(form.predict({ a: 1, b: 0, c: 2 }), found);
});

test("examples wait on the device until the study's batch, and the ping has their number and an update alone", async () => {
  const { form, pings, storage, weights } = await formOn({ labels: ["home", "work", "else"] });
  const draw = seeded(7);
  const examples = Array.from({ length: 6 }, () => ({ x: [draw.fraction(), draw.fraction(), draw.fraction()], y: draw.whole(0, 2) }));
  for (const { x, y } of examples.slice(0, 3)) {
    assert.equal(form.learn(x, ["home", "work", "else"][y]), true);
  }
  await form.deliver();
  assert.deepEqual([pings(), storage.get("fedping/form/examples").length], [[], 3]);
  for (const { x, y } of examples.slice(3)) {
    form.learn(x, ["home", "work", "else"][y]);
  }
  await form.deliver();
  const [{ type, payload }] = pings();
  const { loss, update } = learnedOf(formOf(/** @type {any} */ (LOGISTIC)), weights, examples.slice(0, 4));
  assert.equal(type, "model-update");
  assert.deepEqual(payload, { model_version: 3, study_variation: "a", update, loss, examples: 4 });
  assert.equal(storage.get("fedping/form/examples").length, 2);
  await form.forget();
  assert.deepEqual(storage.keys("fedping/"), []);
  assert.equal(form.learn(examples[0].x, "home"), false);
});

test("an update leads down the loss: a small step along it lowers it by its square", () => {
  const draw = seeded(9);
  for (const [spec, count] of /** @type {const} */ ([[LOGISTIC, 3], [NETWORK, 2], [{ ...LOGISTIC, model: "linear-regression", settings: { features: 2, l2: 0.3 } }, 2]])) {
    const form = formOf(/** @type {any} */ (spec));
    const weights = Array.from({ length: form.m }, () => draw.fraction() - 0.5);
    const examples = Array.from({ length: 5 }, () => ({ x: Array.from({ length: count }, draw.fraction), y: draw.whole(0, 1) }));
    const { loss, update } = learnedOf(form, weights, examples);
    const step = 1e-6;
    const moved = learnedOf(form, weights.map((weight, k) => weight + step * update[k]), examples).loss;
    const squares = update.reduce((sum, each) => sum + each * each, 0);
    assert.ok(Math.abs((loss - moved) / step / squares - 1) < 1e-3, spec.model);
  }
});

test("what is no example is told and left out", async () => {
  const { form, codes, pings } = await formOn();
  assert.equal(form.predict([1, 2]), null);
  assert.equal(form.predict([1, Number.NaN, 2]), null);
  form.learn([1, 2, 3], 7);
  form.learn([1, 2, 3], 0.5);
  form.learn([1, 2], 0);
  await form.deliver();
  assert.deepEqual(codes, Array(5).fill("example_unfit"));
  assert.deepEqual(pings(), []);
});

test("a network starts at the study's numbers, and a study of another model is told", async () => {
  const { form } = await formOn({ spec: NETWORK, m: 36 });
  assert.ok(form.predict([1, 2])?.label === 0 || form.predict([1, 2])?.label === 1);
  const odd = await formOn({ spec: { ...NETWORK, settings: { features: 2, classes: 2, hidden: 5 } }, m: 36 });
  assert.deepEqual([odd.codes, odd.form.predict([1, 2])], [["study_unfit"], null]);
  const lists = await formOn({ study: { pings: "list-update" } });
  assert.deepEqual(lists.codes, ["study_unfit"]);
});

test("in a private line, a batch is a vector", async () => {
  const line = { privacy: { ...PRIVACY, delay_minutes: 0 }, upload: [{ link: "private" }] };
  const { form, pings } = await formOn({ line, study: { pings: "private-update" }, parts: { privacy } });
  for (let i = 0; i < 4; i += 1) {
    form.learn([1, 2, i], i % 3);
  }
  await form.deliver();
  assert.equal(atob(pings()[0].payload.update.payload).length, 4 * (12 + 3));
});
