// The first things that an operator wants to know.

import { now } from "/static/js/clock.js";
import { el, fill } from "/static/js/dom.js";
import { ago, count, duration, number, sentence, shownTime, signed } from "/static/js/format.js";

const at = (id) => document.getElementById(id);

/** Show the judgement, what to do next, and the numbers. */
export function showHealth(line) {
  showJudgement(line.health);
  const hint = line.trouble ? "" : (line.now?.hint ?? "");
  at("hint").textContent = hint;
  at("hint").hidden = !hint;
  at("held").hidden = !line.now?.held || line.now.declared.simulated;
  if (line.now && line.newest) fill(at("health"), tiles(line));
  const guarantee = line.now?.privacy?.guarantee;
  if (guarantee) {
    at("guarantee").textContent = line.now.declared.simulated
      ? `Guaranteed to real clients: ${guarantee}. This simulation's noise follows from its seed, and protects nobody.`
      : `Guaranteed: ${guarantee}.`;
  }
}

let told = "";

function showJudgement(health) {
  const text = JSON.stringify(health);
  if (text === told) return;
  told = text;
  at("status").dataset.verdict = health.verdict;
  at("verdict").textContent = health.headline;
  fill(at("findings"), health.findings.map(finding));
}

const finding = ({ severity, sentence: words, since }) =>
  el("li", { "data-severity": severity }, ...(since ? outage(words, since) : [words]));

/** What is wrong with a store that can't be read, since when, and what is shown meanwhile. */
export function outage(trouble, since) {
  const when = shownTime(el("time", { datetime: since }), true);
  return [sentence(trouble), " Since ", when, ". Until it can be read, this page shows what it last read; then it goes on by itself."];
}

function tiles(line) {
  const { now: present, lastRound } = line;
  if (present.privacy) return privateTiles(line);
  return [
    tile("Newest version", count(line.newestVersion), published(line)),
    present.health.over.length
      ? tile("Training", "is over", `version ${count(newest.restored)}, the best, is published again`)
      : tile("Rounds come every", duration(line.interval), due(line)),
    landed(line),
    !present.discreet && tile("In the journal", count(present.ingest.pending), "pings of all studies that have not landed yet"),
    present.declared.simulated
      ? tile("Ingest", "none", "pings are simulated")
      : tile("Ingest", INGEST[present.ingest.state], present.discreet ? "" : accepted(present.ingest)),
    ...present.ingest.uploads.map(({ encoding, updates, update_bytes: bytes }) =>
      tile("Bytes of an update", count(Math.round(bytes / updates)), `as ${encoding}; ${count(updates)} have landed since ingest was started`),
    ),
    lastRound && tile("Last round", count(lastRound.clients), `clients, ${count(lastRound.counts.used)} pings used`),
    ...losses(line),
  ];
}

/** The figures of a private line: none that a single ping would change before a round has added noise. */
function privateTiles(line) {
  const { now: present, lastRound } = line;
  const { epsilon, delta, most, releases, rounds, rounds_left: left, noise, local } = present.privacy;
  const around = noise ? `clients, with noise of ± ${count(Math.round(noise))} in each arm` : local ? "clients, each with noise of its own" : "clients";
  const stepped = lastRound?.privacy?.stepped ? "the weights moved" : "the weights stayed as they were";
  return [
    tile("Newest version", count(line.newestVersion), published(line)),
    epsilon !== null && tile("Epsilon spent", number(epsilon, 3), `of ${number(most)}, at delta ${delta.toExponential(1)}`),
    left === null
      ? tile("Rounds", count(releases), "without a limit")
      : tile("Rounds left", left ? count(left) : "exhausted", `of ${count(rounds)}`),
    tile("Rounds come every", duration(line.interval), left === 0 ? "none left" : due(line)),
    tile("Ingest", INGEST[present.ingest.state], present.declared.simulated ? "pings are simulated" : ""),
    lastRound && tile("Last round", `${noise ? "about " : ""}${count(lastRound.clients)}`, `${around}; ${stepped}`),
  ];
}

const INGEST = { running: "running", stopped: "not running", absent: "not running", unknown: "unknown" };

const tile = (name, value, ...small) => el("div", {}, el("dt", {}, name), el("dd", {}, value, el("small", {}, ...small)));

/** The pings of the newest version; the server counts them less often than versions come. */
function landed({ now: present, newestVersion, line }) {
  const clients = `a step needs ${count(line.min_clients)} ${line.min_clients === 1 ? "client" : "clients"}`;
  const name = `Landed for version ${newestVersion}`;
  if (present.newest < newestVersion) return tile(name, "–", `not counted yet; the last count was for version ${count(present.newest)}`);
  return tile(name, count(present.landed.pings), `pings; ${clients}`);
}

/** When the newest version was published; in a simulation by its own clock, to which this moment means nothing. */
function published(line) {
  const { newest, newestVersion, now: present } = line;
  if (newest.version < newestVersion) return `${count(newest.version)} read so far`;
  const time = shownTime(el("time", { datetime: newest.created }));
  if (present.declared.simulated) return el("span", {}, time, ", simulated time");
  time.title = `${time.textContent} (${time.title})`;
  time.textContent = ago(newest.created, now());
  return time;
}

function due(line) {
  const { state, simulated } = line.now.declared;
  if (simulated) return "of simulated time";
  if (state !== "running") return state === "paused" ? "none while the study is paused" : "the study has ended";
  const { longest } = line.line;
  if (longest) return `an iteration lasts up to ${duration(longest)}`;
  const late = line.lateness(now());
  if (late === null) return "known after two rounds";
  if (line.newest.version < line.newestVersion) return "";
  const seconds = line.interval * (1 - late);
  if (seconds >= 0) return `the next is due in ${duration(seconds)}`;
  return late > 2 ? "the next is overdue" : "the next is due now";
}

const accepted = ({ accepted: n, state }) =>
  state === "absent" ? "never ran with this journal" : `${count(n)} pings of all studies since it was started`;

/** The last measured loss of the arms that apply the model, against the first arm that does not in that iteration. */
function losses(line) {
  const control = line.line.arms.find((arm) => !arm.applies && line.loss.get(arm.name).length);
  const there = control && new Map(line.loss.get(control.name));
  return line.line.arms
    .filter((arm) => arm.applies && line.loss.get(arm.name).length)
    .slice(0, 3)
    .map((arm) => {
      const [iteration, loss] = line.loss.get(arm.name).at(-1);
      const against = there?.get(iteration);
      const than = against ? `, ${signed(100 * (loss / against - 1), 3)} % against ${control.name}` : "";
      return tile(`Loss of ${arm.name}`, number(loss), `measured at iteration ${count(iteration)}${than}`);
    });
}
