// Choosing a version, and its lineage.

import { el, fill } from "/static/js/dom.js";
import { count, number, shownTime, signed } from "/static/js/format.js";
import { getJSON } from "/static/js/http.js";

const at = (id) => document.getElementById(id);
const WAIT_MS = 120;

/**
 * @param {(version: number) => void} onChoose is told every version that is chosen, or becomes the newest meanwhile
 * @returns {{choose: (version: number) => void, grown: (newest: number) => void, chosen: () => number | null}}
 */
export function lineage(onChoose) {
  const [field, slider] = [at("version-number"), at("version-slider")];
  let newest = null;
  let chosen = null;
  let follows = true;
  let timer = 0;
  let failed = false;

  function choose(version) {
    if (newest === null) return;
    const wanted = Math.max(0, Math.min(newest, Math.round(version)));
    follows = wanted === newest;
    if (wanted === chosen) return;
    chosen = wanted;
    slider.value = String(chosen);
    if (document.activeElement !== field) field.value = String(chosen);
    at("version-back").hidden = chosen === newest;
    at("version-back").textContent = `Roll back to version ${chosen} …`;
    onChoose(chosen);
    clearTimeout(timer);
    timer = setTimeout(show, WAIT_MS, chosen);
  }

  async function show(version) {
    try {
      const found = await getJSON(`versions/${version}.json`);
      if (version !== chosen) return;
      failed = false;
      fill(at("version-is"), told(found));
    } catch (error) {
      if (version !== chosen) return;
      failed = true;
      fill(at("version-is"), el("p", { class: "alarm" }, error.message));
    }
  }

  slider.addEventListener("input", () => choose(Number(slider.value)));
  field.addEventListener("input", () => field.value !== "" && choose(Number(field.value)));
  field.addEventListener("blur", () => (field.value = String(chosen)));
  at("version-newest").addEventListener("click", () => choose(newest));
  return {
    choose,
    chosen: () => chosen,
    grown(number) {
      if (failed) show(chosen); // there is word from the server again
      if (number === newest) return;
      newest = number;
      field.max = slider.max = String(newest);
      if (follows || chosen > newest) choose(newest);
      at("version-back").hidden = chosen === newest;
    },
  };
}

function told(found) {
  const digest = (text) => (text ? el("code", { title: text }, text.slice(0, 16)) : "–");
  const files = found.files;
  const facts = [
    el(
      "dl",
      { class: "facts" },
      fact("Version", String(found.version)),
      fact("Origin", found.made_by),
      found.alarms.length ? fact("Held for", found.alarms.join("; ")) : [],
      fact("Published", shownTime(el("time", { datetime: found.created }))),
      fact("Parent", found.parent === null ? "none" : [`version ${found.parent}, digest `, digest(found.parent_digest)]),
      fact("Digest", digest(found.digest)),
      found.privacy ? released(found.privacy) : fact("From", found.clients === null ? "no ping" : `${count(found.pings)} pings of ${count(found.clients)} clients`),
      found.ages.length ? fact("Pings by age", found.ages.map((n, age) => `${age}: ${count(n)}`).join(", ")) : [],
      fact("Settings", ["digest ", digest(found.config_digest)]),
      fact("Code", found.code_version),
    ),
    found.counts.length > 0 && section("What became of every ping", plainTable(["outcome", "pings", "meaning"], found.counts.map(({ reason, pings, words }) => [reason, pings, words]))),
    Object.keys(found.arms).length > 0 && section("Arms", armsTable(found.arms)),
    files.count > 0 && section(`Landed files: ${count(files.count)}, with ${count(files.rows)} rows`, filesTable(files)),
  ].filter(Boolean);
  if (!found.changes) return facts;
  const title = `What it changed: ${count(found.changes.count)} of ${count(found.changes.of)} weights`;
  const changes = section(title, changesTable(found.changes, "before", "after"), true);
  return el("div", { class: "two" }, el("div", {}, facts), changes);
}

/** What a private round has released. */
const released = ({ sigma, noise_multiplier: times, sampling, releases, epsilon, delta, accountant, stepped, shared }) => [
  ...(shared ? fact("With the helper", `${shared.helper.slice(0, 16)}…${shared.refused ? `, which could not use the shares of ${count(shared.refused)} clients` : ""}`) : []),
  ...fact("Released", `sums by arm${sigma ? `, with noise of ${number(times)} times what one client adds at most${shared ? ", by each of two servers" : ""}` : shared ? " of two servers" : " of what clients had added noise to"}${sampling < 1 ? `; ${number(100 * sampling)} % of the clients counted` : ""}`),
  ...(epsilon === null ? [] : fact("Spent so far", `epsilon ${number(epsilon, 3)} at delta ${delta.toExponential(1)} by ${count(releases)} ${releases === 1 ? "round" : "rounds"} (${accountant})`)),
  ...fact("Step", stepped ? "the weights moved" : "the weights stayed as they were"),
];

const fact = (name, value) => [el("dt", {}, name), el("dd", {}, ...[value].flat())];

const section = (title, table, open = false) =>
  el("details", { open }, el("summary", {}, title), el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": title }, table));

/** The weights that differ between two versions, as a table. */
export function changesTable(changes, old, after) {
  const rows = changes.largest.map((one) => [one.name, number(one.old, 6), number(one.new, 6), signed(one.change, 6)]);
  const more = changes.count - rows.length;
  return [
    rows.length ? plainTable(["weight", old, after, "change"], rows, 1) : el("p", { class: "muted" }, "No published weight differs."),
    more > 0 && el("p", { class: "note" }, `These changed most, in their first step sizes; ${count(more)} more differ.`),
  ].filter(Boolean);
}

function armsTable(arms) {
  const firm = Object.values(arms).some((arm) => arm.winsorised);
  return plainTable(
    ["arm", "pings", "examples", "loss", "selected rank", ...(firm ? ["winsorised loss", "winsorised rank"] : [])],
    Object.entries(arms).map(([name, arm]) => [
      ...[name, arm.pings, arm.examples, number(arm.loss), number(arm.rank_selected)],
      ...(firm ? [number(arm.winsorised?.loss), number(arm.winsorised?.rank_selected)] : []),
    ]),
    1,
  );
}

function filesTable(files) {
  const rows = files.first.map(({ path, rows: n, age }) => [path, n, age ?? 0]);
  const more = files.count - rows.length;
  return [
    plainTable(["file below the landing folder", "rows", "age"], rows),
    more > 0 && el("p", { class: "note" }, `And ${count(more)} more; all are in the version's document.`),
  ].filter(Boolean);
}

/** Rows under heads; numbers, and everything from column `numeric` on, are right-aligned. */
function plainTable(head, rows, numeric = Infinity) {
  const right = (cell, k) => typeof cell === "number" || k >= numeric;
  const first = rows[0] ?? [];
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, head.map((name, k) => el("th", { scope: "col", class: right(first[k], k) ? "number" : null }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, k) =>
      el("td", { class: right(cell, k) ? "number" : null }, typeof cell === "number" ? count(cell) : cell)))),
    ),
  );
}
