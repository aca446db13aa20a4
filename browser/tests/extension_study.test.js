// @ts-check
/** Taking part: nothing before consent, what was shown is what is sent, and no end of the background script loses it. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { notReached, outcome } from "../extension/consent.js";
import { Interaction } from "../extension/interaction.js";
import { DISCLOSURES, LISTS, PAGES, PRIVATE, SHARED, UNUSED, disclosureOf, fieldsOf, inShort, lists, valuesOf } from "../disclosure/groups.js";
import {
  hostPattern,
  readSettings,
  serverAddress,
  studyName,
  takesPart,
  withConsent,
  withStudy,
} from "../extension/taking_part/settings.js";
import { installed } from "./extension_support.js";
import { atMost, fakeIngest, helperOf, privateIngest, settled, sharedIngest } from "./support.js";

const HOUR = 3_600_000;
const INGEST = "https://ingest.example.org";

/** @param {object} [settings] */
async function withPages(settings) {
  const extension = installed(settings);
  const now = extension.browser.environment.now();
  for (let i = 0; i < 12; i += 1) {
    const visits = Array.from(
      { length: 1 + i },
      (_, k) => /** @type {[number, string]} */ ([now - k * i * 5 * HOUR, k % 3 ? "link" : "typed"]),
    );
    extension.api.visit(`https://example.org/${i}`, { title: `Page ${i}`, visits });
  }
  await extension.worker.started();
  return extension;
}

/** @param {any} extension @param {number} place */
async function choose(extension, place, typed = "page") {
  const { listed } = await extension.search(typed);
  const interaction = Interaction.begin(0, true);
  interaction.saw(listed.pages, 5);
  const observed = interaction.chose({ pages: listed.pages, chosen: place, typed, enter: true, otherLines: 0 }, 20);
  const choice = JSON.parse(
    JSON.stringify({ listed: { ...listed, scores: [...listed.scores] }, observed, url: listed.pages[place].url }),
  );
  await extension.ask({ ask: "chose", choice, disposition: "currentTab" });
  await settled();
  return { listed, url: choice.url };
}

/** @param {any} extension */
const keptOfStudy = (extension) =>
  [...extension.api.storage.local.kept.keys()].filter((key) => key.startsWith("fedping/") || key === "schedule");

test("without a server, without consent, after declining, and switched off nothing is asked for, kept or sent", async () => {
  const extension = await withPages();
  const silent = async (/** @type {string} */ why) => {
    await choose(extension, 1);
    await extension.worker.alarm({ name: "model" });
    await extension.worker.alarm({ name: "deliver" });
    await extension.browser.pass(3 * HOUR);
    assert.equal(extension.browser.requests.length, 0, why);
    assert.deepEqual(keptOfStudy(extension), [], why);
    assert.equal((await extension.search("page")).listed.study, "", why);
  };
  await silent("no server");
  await assert.rejects(extension.ask({ ask: "consent", agreed: true }), /no study to agree to/);
  await silent("agreed, but to no study");
  await extension.ask({ ask: "consent", agreed: false });
  await extension.ask({ ask: "study", ingest: INGEST, study: "pings" });
  await silent("declined");
  await extension.ask({ ask: "on", on: false });
  await extension.ask({ ask: "consent", agreed: true });
  await silent("switched off");
  extension.reborn();
  await silent("switched off, and awakened");
});

test("a choice is sent as the module computes it for the list that was shown", async () => {
  const extension = await withPages();
  await extension.takePart();
  const { listed, url } = await choose(extension, 2);
  assert.deepEqual(extension.api.shown.opened, [url]);
  const [post] = extension.browser.posts;
  assert.ok(post.url.startsWith(`${INGEST}/submit/pings/frecency-update/1/`));
  const { payload } = JSON.parse(post.init.body);
  const client = /** @type {any} */ (extension.worker.participation.client);
  const { study: _, ...shown } = listed;
  const expected = client.compose(shown, { chosen: 2 }).ping.payload;
  for (const name of ["update", "loss", "frecency_scores", "model_version", "study_variation"]) {
    assert.deepEqual(payload[name], expected[name], name);
  }
  assert.deepEqual([payload.num_chars_typed, payload.rank_selected, payload.time_end_interaction], [4, 2, 20]);
  const told = JSON.stringify(post);
  assert.ok(!told.includes("example.org/2") && !told.includes("Page"));
});

test("Firefox posts without CORS and only where it may reach the server; Chromium posts with it", async () => {
  const chromium = await withPages();
  await chromium.takePart();
  await choose(chromium, 0);
  assert.equal(chromium.browser.posts[0].init.mode, "cors");

  const firefox = await withPages({ firefox: true });
  firefox.api.shown.permissions.data_collection = new Set(["browsingActivity", "technicalAndInteraction"]);
  await firefox.takePart();
  await choose(firefox, 0);
  assert.equal(firefox.browser.requests.length, 0);
  assert.ok((await firefox.ask({ ask: "state" })).lacksPermission);
  firefox.api.shown.permissions.origins.add(`${INGEST}/*`);
  await firefox.worker.permissionsChanged();
  await choose(firefox, 0);
  assert.equal(firefox.browser.posts[0].init.mode, "no-cors");
  firefox.api.shown.permissions.origins.clear();
  await firefox.worker.permissionsChanged();
  assert.deepEqual(keptOfStudy(firefox), []);
});

test("what Firefox's own settings forbid is withdrawn", async () => {
  const extension = await withPages({ firefox: true });
  extension.api.shown.permissions.origins.add(`${INGEST}/*`);
  extension.api.shown.permissions.data_collection = new Set(["browsingActivity", "technicalAndInteraction"]);
  await extension.takePart();
  assert.ok((await extension.ask({ ask: "state" })).takesPart);
  extension.api.shown.permissions.data_collection.clear();
  await extension.reborn().permissionsChanged();
  assert.equal((await extension.ask({ ask: "state" })).consent, "declined");
  assert.deepEqual(keptOfStudy(extension), []);
});

test("a choice in the address bar is understood by a background script that was ended since", async () => {
  const extension = await withPages();
  await extension.takePart();
  await extension.worker.omnibox.begin();
  const lines = await extension.worker.omnibox.changed("pa");
  await settled();
  await extension.browser.pass(1500);
  extension.reborn();
  await extension.worker.entered(lines[1].content, "currentTab");
  await settled();
  const { payload } = JSON.parse(extension.browser.posts[0].init.body);
  assert.equal(lines.length, 5);
  assert.deepEqual(
    [
      payload.rank_selected,
      payload.num_suggestions_displayed,
      payload.bookmark_and_history_rank_selected,
      payload.frecency_scores.length,
    ],
    [2, 6, 1, 5],
  );
  assert.deepEqual([payload.num_chars_typed, payload.num_key_down_events, payload.time_end_interaction], [2, 0, 1500]);
  assert.deepEqual(extension.api.shown.opened, [lines[1].content]);
  await extension.worker.entered(lines[1].content, "currentTab"); // which was of the search before
  assert.equal(extension.browser.posts.length, 1);
});

test("words that are none of the lines open the search page, without being in its address", async () => {
  const extension = await withPages();
  await extension.takePart();
  await extension.worker.omnibox.begin();
  await extension.worker.omnibox.changed("secret words");
  await extension.worker.entered("secret words", "currentTab");
  assert.deepEqual(extension.api.shown.opened, ["chrome-extension://id/search/search.html"]);
  assert.deepEqual(await extension.api.storage.session.get("search/typed"), { "search/typed": "secret words" });
  assert.equal(extension.browser.posts.length, 0);
});

test("descriptions in Chromium are valid markup whatever a title has in it", async () => {
  const extension = installed();
  extension.api.visit("https://example.org/?a=1&b=2", { title: "<b> & \"'\u0000\uD800" });
  await extension.worker.started();
  const [{ description }] = await extension.worker.omnibox.changed("b");
  assert.equal(description, "&#60;b&#62; &#38; &#34;&#39;\uFFFD <url>example.org/?a=1&#38;b=2</url>");
});

test("pings that nobody took survive the background script, and an alarm sends them", async () => {
  const ingest = fakeIngest();
  const extension = await withPages({ ingest });
  await extension.takePart();
  ingest.submit = () => new Response(null, { status: 503 });
  await choose(extension, 0);
  assert.ok(extension.api.shown.alarms.has("deliver"));
  extension.reborn();
  assert.equal((await extension.ask({ ask: "state" })).waiting, 1);
  ingest.submit = () => new Response("{}");
  await extension.browser.pass(HOUR);
  await extension.worker.alarm({ name: "deliver" });
  const ids = extension.browser.posts.map(({ url }) => url);
  assert.equal(ids.length, 2);
  assert.equal(new Set(ids).size, 1);
  assert.deepEqual(
    keptOfStudy(extension).filter((key) => key.includes("queue")),
    [],
  );
});

test("models are asked for by alarms: jittered, later and later, and not at each awakening", async () => {
  const ingest = fakeIngest();
  const extension = await withPages({ ingest });
  await extension.takePart();
  const { alarms } = extension.api.shown;
  const after = () => (alarms.get("model").when - extension.browser.environment.now()) / 60_000;
  assert.ok(after() >= 22.5 && after() <= 37.5);
  const asked = extension.browser.requests.length;
  for (let i = 0; i < 5; i += 1) {
    extension.reborn();
    await extension.search("page");
    await settled();
  }
  assert.equal(extension.browser.requests.length, asked);
  ingest.answer = () => new Response(null, { status: 500 });
  /** @type {number[]} */
  const waits = [];
  for (let i = 0; i < 4; i += 1) {
    await extension.reborn().alarm({ name: "model" });
    waits.push(after());
  }
  waits.forEach((wait, i) => assert.ok(wait >= 2 ** i / 2 && wait <= 2 ** i, String(waits)));
  ingest.answer = () => new Response(null, { status: 503, headers: { "Retry-After": "7200" } });
  await extension.worker.alarm({ name: "model" });
  assert.ok(after() >= 120);
  alarms.clear(); // the browser was started anew
  await extension.reborn().started();
  assert.ok(after() >= 119);
});

test("a new version ranks at once, and the kept scores follow", async () => {
  const ingest = fakeIngest();
  const extension = await withPages({ ingest });
  ingest.study.arms = [{ ...ingest.study.arms[0], share: 1, applies: true, submits: true, decays: false }];
  await extension.takePart();
  const before = (await extension.search("page")).listed;
  ingest.model = {
    ...ingest.model,
    iteration: ingest.model.iteration + 1,
    model: ingest.model.model.map((/** @type {number} */ weight, /** @type {number} */ k) =>
      k === 12 ? 0 : weight + 1,
    ),
  };
  await extension.worker.alarm({ name: "model" });
  const after = (await extension.search("page")).listed;
  assert.equal(after.held.version, before.held.version + 1);
  assert.notDeepEqual([...after.scores], [...before.scores]);
  assert.equal(extension.worker.library.frame, extension.worker.participation.frame);
});

test("an arm that does not apply the model ranks by the start values", async () => {
  const ingest = fakeIngest();
  const extension = await withPages({ ingest });
  const start = (await extension.search("page")).listed;
  ingest.study.arms = [{ ...ingest.study.arms[0], share: 1, applies: false, submits: true, decays: false }];
  ingest.model = { ...ingest.model, model: ingest.model.model.map(() => 1) };
  await extension.takePart();
  const { listed } = await extension.search("page");
  assert.deepEqual([...listed.scores], [...start.scores]);
  assert.equal(listed.role.arm.name, ingest.study.arms[0].name);
});

test("switching off and withdrawing delete the id, the model and what waits; agreeing again draws another id", async () => {
  const ingest = fakeIngest(() => new Response(null, { status: 503 }));
  const extension = await withPages({ ingest });
  await extension.takePart();
  await choose(extension, 0);
  const [first] = (await extension.ask({ ask: "waiting" })).map((/** @type {any} */ each) => each.ping.clientId);
  for (const decision of [
    { ask: "on", on: false },
    { ask: "consent", agreed: false },
  ]) {
    await extension.ask(decision);
    await extension.browser.pass(24 * HOUR);
    assert.deepEqual(keptOfStudy(extension), []);
    assert.deepEqual(
      ["model", "deliver"].filter((name) => extension.api.shown.alarms.has(name)),
      [],
    );
    await extension.ask({ ask: "on", on: true });
    await extension.ask({ ask: "consent", agreed: true });
  }
  await extension.browser.pass(HOUR);
  await choose(extension, 0);
  const [second] = (await extension.ask({ ask: "waiting" })).map((/** @type {any} */ each) => each.ping.clientId);
  assert.ok(first && second && first !== second);
});

test("what is switched off while requests are under way breaks them off and keeps nothing of them", async () => {
  const ingest = fakeIngest();
  const extension = await withPages({ ingest });
  await extension.ask({ ask: "study", ingest: INGEST, study: "pings" });
  /** @type {AbortSignal[]} */
  const signals = [];
  ingest.answer = (_, init) =>
    new Promise((_, reject) => {
      signals.push(init.signal);
      init.signal.addEventListener("abort", () => reject(new DOMException("", "AbortError")));
    });
  const agreeing = extension.ask({ ask: "consent", agreed: true });
  await settled();
  assert.equal(signals.length, 1);
  await extension.worker.participation.change({ ...extension.worker.participation.settings, on: false });
  await agreeing;
  assert.ok(signals[0].aborted);
  assert.deepEqual(keptOfStudy(extension), []);
});

test("consent is for one study, and for none before it is set", async () => {
  const none = { ingest: "", study: "", on: true, consent: /** @type {const} */ ("unasked"), consentFor: "" };
  assert.throws(() => withConsent(none, true), /no study to agree to/);
  const first = withConsent(withStudy(none, INGEST, "one"), true);
  assert.ok(takesPart(first));
  const old = { get: async () => ({ settings: { ...none, consent: "given" } }) };
  assert.ok(!takesPart(withStudy(await readSettings(old), INGEST, "one")), "as it was kept before");
  assert.ok(takesPart(withStudy(first, INGEST, "one")));
  for (const [ingest, study] of [
    [INGEST, "two"],
    ["https://other.org", "one"],
  ]) {
    const other = withStudy(first, ingest, study);
    assert.ok(!takesPart(other));
    assert.equal(other.consent, "unasked");
    assert.ok(takesPart(withConsent(other, true)));
  }
  assert.ok(!takesPart(withStudy(first, "", "")));
  assert.ok(!takesPart(withStudy(withStudy(first, "", ""), INGEST, "two")));
  assert.ok(!takesPart(withStudy(withConsent(first, false), INGEST, "two")));
});

test("addresses that pings would leave the machine from unencrypted are refused", () => {
  assert.equal(serverAddress(" https://Telemetry.example.org/in/ "), "https://telemetry.example.org/in");
  assert.equal(serverAddress("http://127.0.0.1:8000/"), "http://127.0.0.1:8000");
  assert.equal(hostPattern("http://127.0.0.1:8000"), "http://127.0.0.1/*");
  assert.equal(serverAddress("  "), "");
  for (const bad of [
    "http://example.org",
    "example.org",
    "ftp://a.org",
    "https://me:pw@a.org",
    "https://a.org/?x=1",
    "https://a.org/#x",
  ]) {
    assert.throws(() => serverAddress(bad), RangeError, bad);
  }
  assert.equal(studyName(" a-1 "), "a-1");
  assert.throws(() => studyName("a/b"), RangeError);
});

const SCHEMAS = /** @type {const} */ ([["ping", PAGES], ["list-ping", LISTS], ["private-ping", PRIVATE], ["private-ping", SHARED]]);

/** The fields of a schema's messages, without the one that holds the payload. @param {string} name */
function fieldsOfSchema(name) {
  const { $defs } = JSON.parse(readFileSync(new URL(`../../docs/schema/${name}.json`, import.meta.url), "utf8"));
  const payload = $defs[$defs.Ping.properties.payload.$ref.split("/").pop()];
  return [...Object.keys($defs.Ping.properties), ...Object.keys(payload.properties)].filter((field) => field !== "payload");
}

test("every field of every schema is in one group, with words, or is named as one that is never sent", () => {
  for (const [schema, disclosure] of SCHEMAS) {
    const listed = fieldsOf(disclosure).map(([name]) => name);
    const ofSchema = fieldsOfSchema(schema);
    assert.equal(new Set(listed).size, listed.length, `${schema}: a field is in two groups`);
    assert.deepEqual(listed.filter((name) => !ofSchema.includes(name)), [], `${schema}: no such field`);
    assert.deepEqual(ofSchema.filter((name) => !listed.includes(name) && !(name in UNUSED)), [], `${schema}: fields without words`);
    assert.ok(fieldsOf(disclosure).every(([, meaning]) => meaning.length > 20), schema);
    assert.ok(disclosure.groups.every(({ title, says }) => title.length > 5 && says.length > 20), schema);
    assert.ok(disclosure.risk.endsWith(".") && disclosure.never.length > 3, schema);
  }
});

test("a field that is sent and has no words is noticed", async () => {
  const extension = await withPages();
  await extension.takePart();
  await choose(extension, 2);
  const sent = JSON.parse(extension.browser.posts[0].init.body);
  assert.equal(disclosureOf(sent), PAGES);
  assert.ok(lists(PAGES, sent));
  assert.deepEqual(Object.keys(valuesOf(sent)).sort(), fieldsOf(PAGES).map(([name]) => name).sort());
  assert.ok(!lists(PAGES, { ...sent, payload: { ...sent.payload, city: "Berlin" } }));
  assert.ok(!lists(PAGES, { ...sent, ticket: "a" }), "the extension has no tickets, and does not list them");
});

test("each group has its example in the values of a message, and none of them in its technical names", async () => {
  const extension = await withPages();
  await extension.takePart();
  await choose(extension, 2);
  const [{ init }] = extension.browser.posts;
  const values = valuesOf(JSON.parse(init.body));
  const examples = (/** @type {any} */ of) => PAGES.groups.map(({ example }) => example(of));
  assert.deepEqual(examples(values), [
    `number ${values.clientId.slice(0, 8)}…, group “${values.study_variation}”`,
    `ranking version ${values.model_version}, “fedping-extension-1”`,
    "the 3rd of 10 pages, from your history",
    "4 characters, 0 keys, Enter",
    "0 s, the page first shown after 0 s",
    examples(values)[5],
    examples(values)[6],
  ]);
  assert.match(examples(values)[5], /^scores [\d,.]+(; [\d,.]+){9}; distance [\d,.]+$/);
  assert.match(examples(values)[6], /^\d+ of 22 weights up, \d+ down$|^none of 22 weights should change$|^none: /);
  const bar = { ...values, num_key_down_events_at_selecteds_first_entry: -1, selected_url_was_same_as_search_string: 1, selected_style: "bookmark", update: null, time_end_interaction: 61_234 };
  assert.deepEqual([examples(bar)[2], examples(bar)[3], examples(bar)[6]], ["the 3rd of 10 pages, a bookmark", "4 characters, keys not counted, Enter, the whole address", "none: your group sends no update"]);
  assert.match(examples(bar)[4], /^61\.2 s, /);
  const standIn = valuesOf((await (await withPages()).ask({ ask: "preview" })).ping);
  assert.equal(PAGES.groups[0].example(standIn), "number and group are drawn once you take part");
  assert.equal(PAGES.groups[1].example(standIn), "no version of the ranking yet, “fedping-extension-1”");
});

test("the example is the last message to this study, if it still has the same fields", async () => {
  const extension = await withPages();
  const last = async () => (await extension.ask({ ask: "preview" })).last;
  assert.equal(await last(), null);
  await extension.takePart();
  await choose(extension, 2);
  const body = JSON.parse(extension.browser.posts[0].init.body);
  assert.deepEqual((await last()).ping, body);
  await choose(extension, 1);
  assert.deepEqual((await last()).ping, JSON.parse(extension.browser.posts[1].init.body));
  const [newest, ...older] = await extension.ask({ ask: "sent" });
  const odd = { ...newest, body: JSON.stringify({ ...body, payload: { ...body.payload, city: "Berlin" } }) };
  await extension.api.storage.local.set({ sent: [odd, ...older] });
  assert.equal(await last(), null, "an older extension sent other fields");
  await extension.ask({ ask: "forget sent" });
  await choose(extension, 1);
  assert.notEqual(await last(), null);
  await extension.ask({ ask: "study", ingest: INGEST, study: "other" });
  assert.equal(await last(), null, "of another study");
});

test("the newest choice says what became of it, or why nothing is sent of it", async () => {
  const ingest = fakeIngest();
  const extension = await withPages({ ingest });
  const became = async () => {
    await choose(extension, 1);
    const { at, isSent, words } = (await extension.ask({ ask: "state" })).newest;
    assert.equal(at, extension.browser.environment.now());
    return [isSent, words];
  };
  assert.equal((await extension.ask({ ask: "state" })).newest, null);
  assert.deepEqual(await became(), [false, "was not sent: no study is set"]);
  await extension.ask({ ask: "study", ingest: INGEST, study: "pings" });
  assert.deepEqual(await became(), [false, "was not sent: you have not agreed to the study"]);
  const { listed: before } = await extension.search("page");
  const { answer } = ingest;
  ingest.answer = () => new Response(null, { status: 404 });
  await extension.ask({ ask: "consent", agreed: true });
  await settled();
  assert.deepEqual(await became(), [false, "was not sent: the study's server has not answered yet"]);
  ingest.answer = answer;
  await extension.ask({ ask: "fetch" });
  await extension.ask({ ask: "chose", choice: { listed: before, observed: { chosen: 0 }, url: "https://example.org/1" }, disposition: "currentTab" });
  assert.match((await extension.ask({ ask: "state" })).newest.words, /its list was shown before you took part/);
  assert.equal(extension.browser.posts.length, 0);
  assert.deepEqual(await became(), [true, "was sent"]);
  ingest.submit = () => new Response(null, { status: 503 });
  assert.deepEqual(await became(), [true, "has not arrived yet, and is sent again"]);
  await extension.ask({ ask: "on", on: false });
  assert.deepEqual(await became(), [false, "was not sent: the extension is switched off"]);
  assert.deepEqual([...extension.api.storage.session.kept.keys()], ["newest choice"]);
  await extension.ask({ ask: "forget sent" });
  assert.equal((await extension.ask({ ask: "state" })).newest, null);
});

test("a private study's second choice for a version says why it is not sent", async () => {
  const extension = await withPages({ ingest: privateIngest(atMost(3)) });
  await extension.takePart();
  await choose(extension, 1);
  const newest = async () => (await extension.ask({ ask: "state" })).newest.words;
  assert.equal(await newest(), "waits for a random time before it is sent, as the study promises");
  await choose(extension, 0);
  assert.match(await newest(), /one message for each version of the ranking, and has this one's/);
});

test("what would be sent has every field explained, and is what the ping would be", async () => {
  const extension = await withPages();
  const standIn = await extension.ask({ ask: "preview" });
  await extension.takePart();
  const real = await extension.ask({ ask: "preview" });
  assert.deepEqual([standIn.drawn, real.drawn], [false, true]);
  for (const { ping } of [standIn, real]) {
    const { payload, ...outer } = ping;
    assert.deepEqual(fieldsOf(PAGES).map(([name]) => name).sort(), [...Object.keys(outer), ...Object.keys(payload)].sort());
    assert.equal(payload.frecency_scores.length, 10);
  }
  const client = /** @type {any} */ (extension.worker.participation.client);
  assert.equal(real.ping.clientId, JSON.parse(extension.api.storage.local.kept.get("fedping/pings/client") ?? ""));
  assert.equal(real.ping.payload.study_variation, client.arm);
  assert.equal(extension.browser.posts.length, 0);
});

test("what would be sent is shown as it travels, with how much of the update that tells", async () => {
  const ingest = fakeIngest();
  ingest.study.lines[0].upload = [{ link: "mask", keep: 0.5, draw: "blocks" }, { link: "steps", size: 1, step: null }];
  ingest.study.arms = ingest.study.arms.map((/** @type {any} */ arm) => ({ ...arm, line: "main", submits: true }));
  const extension = await withPages({ ingest });
  await extension.takePart();
  const { ping } = await extension.ask({ ask: "preview" });
  const { update } = ping.payload;
  assert.equal(update.encoding, "mask-steps");
  assert.equal(inShort(update), "27 bytes, a random selection of weights, rounded at random");
  assert.equal(inShort({ encoding: "signs", payload: "yHB5ynY=" }), "5 bytes, only whether each weight should rise or fall");
  assert.equal(inShort({ encoding: "float32", payload: "AAAAAA==" }), "4 bytes");
  assert.equal(inShort([0, 2]), "0, 2");
});

test("what came of agreeing is said as it is", async () => {
  const ingest = fakeIngest();
  const extension = await withPages({ ingest });
  const agreed = async () => outcome(await extension.ask({ ask: "consent", agreed: true }));
  const { answer } = ingest;
  ingest.answer = () => new Response(null, { status: 404 });
  await extension.ask({ ask: "study", ingest: INGEST, study: "pings" });
  assert.match(await agreed(), /has not answered, doesn't know this study/);
  ingest.answer = answer;
  await extension.ask({ ask: "fetch" });
  assert.match(await agreed(), /You take part in the study “pings”/);
  await extension.ask({ ask: "on", on: false });
  assert.match(await agreed(), /switched off/);
  assert.match(outcome(await extension.ask({ ask: "consent", agreed: false })), /You do not take part/);
});

test("nothing is reported of a list that was ranked for another study", async () => {
  const extension = await withPages();
  await extension.takePart();
  const { listed } = await extension.search("page");
  const choice = {
    listed: { ...listed, study: `${INGEST} other` },
    observed: { chosen: 0 },
    url: "https://example.org/1",
  };
  await extension.ask({ ask: "chose", choice, disposition: "currentTab" });
  await settled();
  assert.equal(extension.browser.posts.length, 0);
  assert.deepEqual(extension.api.shown.opened, ["https://example.org/1"]);
});

test("what was sent can be read until the user deletes it, each message once with its answer", async () => {
  const ingest = fakeIngest();
  const extension = await withPages({ ingest });
  const sent = () => extension.ask({ ask: "sent" });
  assert.deepEqual(await sent(), []);
  await extension.takePart();
  await choose(extension, 0);
  ingest.submit = () => new Response(null, { status: 503 });
  await choose(extension, 1);
  const [second, first] = await sent();
  const posts = extension.browser.posts;
  assert.deepEqual([first.address, first.body, first.answer], [posts[0].url, posts[0].init.body, "accepted"]);
  assert.deepEqual([second.times, second.answer], [1, "not accepted (status 503)"]);
  ingest.submit = () => Promise.reject(new TypeError("no network"));
  await extension.browser.pass(HOUR);
  await extension.worker.alarm({ name: "deliver" });
  const [again, ...others] = await sent();
  const tried = extension.browser.posts.filter(({ url }) => url === second.address).length;
  assert.ok(tried > 1 && again.at > second.at);
  assert.deepEqual(again, { ...second, at: again.at, times: tried, answer: "no answer; it may have arrived" });
  assert.deepEqual(others, [first]);
  await extension.ask({ ask: "consent", agreed: false });
  extension.reborn();
  assert.equal((await sent()).length, 2, "it outlives the consent");
  await extension.ask({ ask: "forget sent" });
  assert.deepEqual(await sent(), []);
  assert.equal(extension.api.storage.local.kept.has("sent"), false);
});

test("a private study is promised in words, shown as it is sent, and contributed to once, also by one who declined", async () => {
  const extension = await withPages({ ingest: privateIngest(atMost(1)) });
  await extension.takePart();
  const { guarantee, ping, address } = await extension.ask({ ask: "preview" });
  assert.match(guarantee.join(" "), /ε = 1, δ = 0\.000001.*and 1 in all/);
  assert.match(address, /\/submit\/pings\/private-update\/1\//);
  const { payload, ...outer } = ping;
  assert.deepEqual(fieldsOf(PRIVATE).map(([name]) => name).sort(), [...Object.keys(outer), ...Object.keys(payload)].sort());
  assert.equal((await extension.ask({ ask: "preview" })).kind, "private");
  await choose(extension, 1);
  await choose(extension, 0);
  assert.equal((await extension.worker.participation.waiting()).length, 1);
  assert.equal((await extension.ask({ ask: "preview" })).ping, null);
  extension.reborn();
  await extension.worker.ready();
  await extension.browser.pass(HOUR);
  await extension.worker.alarm({ name: "deliver" });
  await settled();
  const [{ url, init }, ...others] = extension.browser.posts;
  assert.equal(others.length, 0);
  assert.match(url, /private-update/);
  assert.deepEqual(Object.keys(JSON.parse(init.body).payload), ["model_version", "study_variation", "update"]);
  await extension.ask({ ask: "consent", agreed: false });
  assert.deepEqual(keptOfStudy(extension), ["fedping/pings/contributed/main"]);
  await extension.takePart();
  await choose(extension, 1);
  assert.equal((await extension.worker.participation.waiting()).length, 0);
});

test("a study of two servers is promised in words, shown with what it hides, and sent as it was shown", async () => {
  const helper = await helperOf();
  const ingest = sharedIngest(helper);
  const extension = await withPages({ ingest });
  await extension.takePart();
  const waiting = await extension.ask({ ask: "preview" });
  assert.equal(waiting.ping, null);
  assert.match(waiting.trouble, /no offer of its helper yet/);
  assert.match((await extension.ask({ ask: "state" })).trouble, /no offer of its helper yet/);
  ingest.study.lines[0].offer = await helper.offer();
  assert.equal((await extension.ask({ ask: "fetch" })).trouble, null);
  const { guarantee, ping, address, told } = await extension.ask({ ask: "preview" });
  assert.match(guarantee.join(" "), /second server.*the helper, which someone else runs/);
  assert.equal(ping.payload.update.encoding, "shared");
  assert.match(inShort(ping.payload.update), /^288 bytes, in two parts, of which either alone is noise$/);
  const { payload, ...outer } = ping;
  assert.deepEqual(fieldsOf(SHARED).map(([name]) => name).sort(), [...Object.keys(outer), ...Object.keys(payload)].sort());
  assert.equal(DISCLOSURES[/** @type {"shared"} */ ((await extension.ask({ ask: "preview" })).kind)], SHARED);
  assert.equal(disclosureOf(ping), SHARED);
  const names = ingest.study.lines[0].spec.weights.map((/** @type {any} */ weight) => weight.name);
  assert.ok([...told.up, ...told.down].every((name) => names.includes(name)));
  assert.ok(told.choice.loss >= 0 && told.choice.loss <= 1);
  extension.reborn();
  await choose(extension, 1);
  assert.equal((await extension.ask({ ask: "preview" })).ping, null, "once a version");
  extension.reborn();
  await extension.worker.ready();
  await extension.browser.pass(HOUR);
  await extension.worker.alarm({ name: "deliver" });
  await settled();
  const [{ url, init }, ...others] = extension.browser.posts;
  assert.equal(others.length, 0);
  assert.match(url, /private-update/);
  assert.notEqual(url, address, "another page of the background script seals anew");
  assert.equal(JSON.parse(init.body).payload.update.encoding, "shared");
  const [{ body }] = await extension.ask({ ask: "sent" });
  assert.equal(body, init.body);
});

test("a study that this browser cannot take part in is told with the reason", async () => {
  const extension = await withPages({ ingest: sharedIngest(await helperOf({ seal: "mlkem768-x25519" })) });
  await extension.takePart();
  const state = await extension.ask({ ask: "state" });
  assert.equal(state.arm, null);
  assert.match(notReached(state), /can't take part for now: .*sealed by 'mlkem768-x25519', which no browser can do yet/);
  assert.match(notReached({ trouble: null }), /The server has not answered/);
});

test("in a personal arm the extension learns for itself, shows what, survives its end, and forgets on demand or on declining", async () => {
  const ingest = fakeIngest();
  ingest.study.lines[0].training = { algorithm: "gradient", personal: { by: "fine_tune", rate: 0.5, steps: 2 } };
  ingest.study.arms = [{ name: "personalized", share: 1, line: "main", applies: true, submits: true, decays: false, personal: true }];
  const extension = await withPages({ ingest });
  await extension.takePart();
  assert.deepEqual((await extension.ask({ ask: "state" })).personal, { trained: 0, weights: [] });
  const bodies = () => extension.browser.posts.map(({ init }) => init.body).join();
  await choose(extension, 4);
  await choose(extension, 6);
  const { personal } = await extension.ask({ ask: "state" });
  assert.equal(personal.trained, 2);
  assert.ok(personal.weights.length > 0);
  extension.reborn();
  assert.deepEqual((await extension.ask({ ask: "state" })).personal, personal);
  for (const { own } of personal.weights.filter((/** @type {any} */ each) => !Number.isInteger(each.own))) {
    assert.ok(!bodies().includes(String(own)));
  }
  const { arm } = await extension.ask({ ask: "state" });
  const forgotten = await extension.ask({ ask: "forget personal" });
  assert.deepEqual([forgotten.personal, forgotten.arm, forgotten.takesPart], [{ trained: 0, weights: [] }, arm, true]);
  assert.ok(!keptOfStudy(extension).some((key) => key.includes("/own/")));
  await choose(extension, 4);
  assert.ok(keptOfStudy(extension).some((key) => key.includes("/own/")));
  await extension.ask({ ask: "consent", agreed: false });
  assert.deepEqual(keptOfStudy(extension), []);
  assert.equal((await extension.ask({ ask: "state" })).personal, null);
});
