// @ts-check
/** What a real browser does with the module: the vectors, a study over HTTP, a page that is left, a benchmark. */

import { Client, webStorage } from "../fedping.js";
import { measure } from "../benchmarks/measure.js";
import { sha256 } from "../study/sha256.js";
import { TOPICS, checkParity, checkSharing, pageOf, same } from "./parity.js";

const asked = new URLSearchParams(location.search);

/** @param {string} step @param {() => any} work */
async function tell(step, work) {
  let what;
  try {
    what = { value: await work() };
  } catch (error) {
    what = { error: String(/** @type {any} */ (error)?.stack ?? error) };
  }
  await fetch("/told", { method: "POST", body: JSON.stringify({ step, ...what }) });
}

async function vectors() {
  const read = async (/** @type {string} */ topic) => [topic, await (await fetch(`/conformance/${topic}.json`)).json()];
  return Object.fromEntries(await Promise.all(TOPICS.map(read)));
}

async function parity() {
  const given = await vectors();
  const comparisons = [...checkParity(given)];
  for await (const comparison of checkSharing(given)) {
    comparisons.push(comparison);
  }
  const wrong = comparisons.filter(({ got, expected }) => !same(got, expected)).map(({ name }) => name);
  return { compared: comparisons.length, wrong };
}

/** The module's own SHA-256 is the browser's. */
async function digest() {
  for (const text of Array.from({ length: 200 }, (_, length) => "a".repeat(length % 7) + "é語😀\n".repeat(length))) {
    const bytes = new DataView(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
    const words = Array.from({ length: 8 }, (_, i) => bytes.getUint32(4 * i));
    if (!same(words, Array.from(sha256(text)))) {
      return text;
    }
  }
  return "the same";
}

function newClient() {
  const settings = { ingest: asked.get("ingest") ?? "", study: "pings", storage: webStorage(localStorage) };
  return new Client({ ...settings, mode: /** @type {any} */ (asked.get("mode")) });
}

/** @param {Client} client */
async function report(client) {
  const { pages, now } = (await vectors()).pages;
  const shown = client.rank(pages.map(pageOf), 6, now);
  return () => client.report(shown, { chosen: 2, charactersTyped: 3 });
}

async function takePart() {
  document.cookie = "who=somebody";
  const client = newClient();
  await client.start();
  const send = await report(client);
  const sent = [send(), send(), send()];
  await client.deliver();
  client.stop();
  return { arm: client.arm, version: client.version, counts: client.counts, sent };
}

/** Report at the moment of leaving, when there is no time for an answer. */
async function leave() {
  const client = newClient();
  await client.start();
  const send = await report(client);
  addEventListener("pagehide", () => send());
  await fetch("/told", { method: "POST", body: JSON.stringify({ step: "leaving", value: client.arm }) });
  location.href = "about:blank";
}

await tell("parity", parity);
await tell("digest", digest);
await tell("benchmark", measure);
if (asked.has("ingest")) {
  await tell("part", takePart);
  await leave();
}
