// The results of a study: effects as dots with whiskers, exposure over time, and the progress of a count.

import { remember } from "/static/js/address.js";
import { now } from "/static/js/clock.js";
import { el, fill } from "/static/js/dom.js";
import { figure } from "/static/js/figures.js";
import { count, duration, signed } from "/static/js/format.js";
import { getJSON } from "/static/js/http.js";
import { lineChart } from "/static/js/line_chart.js";
import { followNotes, timedTable, timeMarks } from "/static/js/notes.js";
import { intervals } from "/static/js/plots.js";
import { shortened } from "/static/js/points.js";
import { savable } from "/static/js/saving.js";
import { follow } from "/static/js/stream.js";

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const HOURS_AT_MOST = 96;

/** The words below and above no difference, by which of them is better; a metric may have neither. */
const SIDES = { less: ["better", "worse"], more: ["worse", "better"] };
const SCALES = {
  lift: { zero: 0, none: "0", head: "lift, %" },
  difference: { zero: 0, none: "0", head: "difference" },
  ranks: { zero: 50, none: "50 %", head: "larger in, %" },
};
const PATIENCE_MS = 200;

/** Letters of an arm's name below an axis. */
const MOST_LETTERS = 20;

/** What an address says of the view, beside the question. */
const VIEW = ["scale", "find", "arms", "effect"];

/** Lines with bands that can still be told apart. */
const LINES_AT_FIRST = 2;

/** The notes of the study, and what draws the charts over time again when there are others. */
let notes = [];
const timely = [];

const source = document.getElementById("view");
const counting = document.getElementById("counting");
const viewing = document.getElementById("viewing");

function draw(found) {
  const state = { scale: found.scale };
  const cards = found.effects.map((one) => effect(document.querySelector(`[data-metric="${CSS.escape(one.key)}"]`), one, found, state));
  for (const card of document.querySelectorAll("[data-metric]")) {
    soFar(card.querySelector(".so-far"), card.dataset.metric, found);
    overTime(card.querySelector(".over-time"), card.dataset.metric, found);
  }
  for (const card of document.querySelectorAll("[data-segment]")) {
    segment(card.querySelector(".effect"), found.segments[Number(card.dataset.segment)], found);
  }
  for (const card of document.querySelectorAll("[data-in-study]")) {
    segment(card.querySelector(".effect"), found.in_study[Number(card.dataset.inStudy)], found);
  }
  exposure(document.getElementById("exposure"), found);
  traffic(document.getElementById("traffic"), found);
  follows(state, cards);
}

/** The page's controls: a scale for all effects, and a search for arms; both stay in the address. */
function follows(state, cards) {
  if (!viewing) return;
  let waiting = 0;
  viewing.addEventListener("submit", (event) => event.preventDefault());
  viewing.addEventListener("change", ({ target }) => {
    if (target.name !== "scale") return;
    state.scale = target.value;
    remember("scale", target.value);
    for (const card of cards) card.show();
  });
  viewing.elements.find?.addEventListener("input", ({ target }) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      remember("find", target.value.trim());
      for (const card of cards) card.find(target.value.trim());
    }, PATIENCE_MS);
  });
}

/** The effects of one metric on the scale chosen: pairs on one axis, each with its interval; below them the same in words. */
function effect(card, first, found, state) {
  const list = card.querySelector(".findings");
  const more = card.querySelector(".more");
  const none = card.querySelector(".none");
  let { rows, found: number } = first;
  let sought = viewing?.elements.find?.value.trim() ?? "";
  let asked = 0;
  const scale = () => (first.scales.includes(state.scale) ? state.scale : first.scales[0]);
  const seconds = () => new Set(rows.map(({ pair }) => pair[1]));
  const heading = () => first.title[0].toUpperCase() + first.title.slice(1);
  const [left, right] = SIDES[first.better] ?? ["less", "more"];

  const drawn = figure(card.querySelector(".effect"), {
    level: 3,
    title: heading(),
    describe: () => rows.map((row) => `${row.pair.join(" against ")}: ${aloud(row.scales[scale()])}`).join(" "),
    draw: (_, width) => {
      const only = seconds().size === 1 ? [...seconds()][0] : null;
      const shown = rows.map((row) => whisker(row, scale(), only)).filter(({ value }) => value !== null);
      if (!shown.length) return document.createTextNode(rows.length ? "No arm has a number on this scale." : "");
      return intervals({ rows: shown, x: axis(scale(), only, found), left, right, zero: SCALES[scale()].zero, width });
    },
    note: () => first.conditions[scale()] + (rows.length ? ` A dot is filled if its interval leaves out ${SCALES[scale()].none}.` : ""),
    table: () => ({
      head: ["first", "second", SCALES[scale()].head, "low", "high", "finding"],
      rows: rows.map(({ pair, scales }) => {
        const { value, low, high, tag } = scales[scale()];
        return [...pair, value, low, high, tag.replace(/^\S+ /, "")];
      }),
    }),
  });

  function show() {
    drawn.update(rows);
    fill(list, rows.map((row) => {
      const { tag, tone, sentence } = row.scales[scale()];
      return el("li", {}, el("span", { class: `tag ${found.reliable ? tone : ""}` }, tag), " ", sentence);
    }));
    none.hidden = rows.length > 0;
    fill(none, `No arm's name has “${sought}” in it.`);
    more.hidden = rows.length >= number;
    fill(more.querySelector("span"), `${rows.length} of ${count(number)}${first.total > rows.length ? ", those that matter first" : ""}`);
  }

  async function ask(from) {
    asked += 1;
    const mine = asked;
    const address = new URL(viewing.dataset.effects, location.href);
    address.searchParams.set("metric", first.key);
    address.searchParams.set("find", sought);
    address.searchParams.set("from", String(from));
    const button = more.querySelector("button");
    button.disabled = true;
    try {
      const answer = await getJSON(address);
      if (mine !== asked) return;
      rows = from ? [...rows, ...answer.rows] : answer.rows.slice(0, found.few);
      number = answer.found;
      show();
    } catch (error) {
      more.hidden = false;
      fill(more.querySelector("span"), `The rows cannot be loaded: ${error.message}`);
    } finally {
      if (mine === asked) button.disabled = false;
    }
  }

  more.querySelector("button").addEventListener("click", () => ask(rows.length));
  show();
  return {
    show,
    find(text) {
      if (text === sought) return;
      sought = text;
      ask(0);
    },
  };
}

function whisker({ pair, scales }, scale, only) {
  const { value, low, high, sure, text, tag } = scales[scale];
  const open = sure === null; // there is no interval: a tick, and no whisker
  return {
    name: only === null ? `${pair[0]} − ${pair[1]}` : pair[0],
    value,
    low: open ? value : low,
    high: open ? value : high,
    sure,
    said: sure ? `${text}  ${tag}` : text,
  };
}

function axis(scale, only, found) {
  const against = only === null ? "the second arm" : shortened([only], MOST_LETTERS)[0];
  if (scale === "lift") return `lift over ${against}, %`;
  if (scale === "ranks") return `larger than of ${against}, % of pairs of clients`;
  return found.interim ? `difference from ${against} at any look` : `difference of means from ${against}`;
}

const aloud = ({ text, tag }) => `${text.replaceAll("−", "minus ")}, ${tag.replace(/^\S+ /, "")}.`;

const between = (pair) => `${pair[0]} − ${pair[1]}`;

/** The effect of an interim look by the end of each part of the time: the last point is the look itself. */
function soFar(element, name, found) {
  const rows = (found.over_time.so_far ?? []).filter((one) => one.metric === name && one.until_ms.length);
  if (!element || !rows.length) return;
  curves(element, rows, "until_ms", {
    title: "So far",
    y: "difference at any look",
    note: "Over all clients that had arrived by then, by their first values. The intervals hold at every look; the last is this look.",
  });
}

/** The difference of means in each part of the time, with a line per pair and its interval as a band. */
function overTime(element, name, found) {
  const { hours, effects } = found.over_time;
  const rows = effects.filter((one) => one.metric === name && one.from_ms.length);
  if (!element || !rows.length) return;
  curves(element, rows, "from_ms", {
    title: { 1: "Hour by hour", 24: "Day by day", 168: "Week by week" }[hours] ?? `Every ${duration(3600 * hours)}`,
    y: "difference of means",
    note: `Over the clients of each ${hours === 1 ? "hour" : `${hours} hours`}, with 95 % intervals, which decide nothing${found.trimmed ? `; means ${found.trimmed}` : ""}.`,
  });
}

/** Lines of difference over time, a pair each; of several, the first few are drawn until others are chosen. */
function curves(element, rows, at, { title, y, note }) {
  const series = rows.map((one) => ({
    name: between(one.pair),
    points: one[at].map((time, i) => [time, one.value[i]]),
    band: one[at].map((time, i) => [time, one.low[i], one.high[i]]).filter(([, low, high]) => low !== null && high !== null),
  }));
  const hidden = series.length > LINES_AT_FIRST ? series.slice(LINES_AT_FIRST).map((one) => one.name) : [];
  overTheClock(element, {
    level: 4,
    title,
    describe: () => rows.map((one) => `${between(one.pair)}: from ${told(one.value[0])} to ${told(one.value.at(-1))}.`).join(" "),
    draw: (_, width, stage) =>
      lineChart(stage, { series, hidden, time: true, marks: timeMarks(notes), y, rules: [{ name: "no difference", y: 0 }], width }),
    note: () => `${note} Times are UTC.${hidden.length ? " Choose other lines in the legend." : ""}`,
    table: () => ({
      head: ["time (UTC)", "first", "second", "difference", "low", "high", "in percent"],
      rows: rows.flatMap((one) =>
        one[at].map((time, i) => [minute(time), ...one.pair, one.value[i], one.low[i], one.high[i], one.percent[i]]),
      ),
    }),
  }, rows);
}

/** A figure over time, on which and in whose table the notes are. */
function overTheClock(element, parts, data) {
  const made = figure(element, { ...parts, table: () => timedTable(parts.table(), notes) });
  timely.push(() => made.update(data));
  made.update(data);
}

const minute = (at) => new Date(at).toISOString().slice(0, 16).replace("T", " ");

/** One comparison in the groups of a segment, or in parts of the clients' time, without dots, since these intervals decide nothing. */
function segment(element, one, found) {
  const metric = found.metrics[one.metric];
  const rows = one.groups.map(({ group, n, difference, percent }) => ({
    ...difference, name: group, n, percent, sure: null,
    said: signed(difference.value, 3) + (percent === null ? "" : ` (${signed(percent, 3)} %)`),
  }));
  const [left, right] = SIDES[metric.better] ?? ["less", "more"];
  figure(element, {
    level: 3,
    title: `${metric.title[0].toUpperCase()}${metric.title.slice(1)} by ${one.segment}, ${between(one.pair)}`,
    describe: () => rows.map((row) => `${row.name}: ${row.said.replace("−", "minus ")}.`).join(" "),
    note: () => (found.trimmed ? `Means are ${found.trimmed}.` : ""),
    draw: (_, width) => (rows.length ? intervals({ rows, x: "difference of means", left, right, width }) : document.createTextNode("No group has clients of both arms.")),
    table: () => ({
      head: ["group", `clients of ${one.pair[0]}`, `clients of ${one.pair[1]}`, "difference", "low", "high", "in percent"],
      rows: rows.map((row) => [row.name, ...row.n, row.value, row.low, row.high, row.percent]),
    }),
  }).update(found);
}

const told = (value) => value.toFixed(3).replace("-", "minus ");

/** An arm's columns by hour, or by day (UTC) if there are too many hours to distinguish. */
function byTime(arm, step) {
  const sums = new Map();
  arm.from_ms.forEach((at, i) => {
    const start = Math.floor(at / step) * step;
    const sum = sums.get(start) ?? { pings: 0, exposed: 0 };
    sums.set(start, { pings: sum.pings + arm.pings[i], exposed: sum.exposed + arm.newly_exposed[i] });
  });
  return sums;
}

function stepOf(found) {
  const hours = Object.values(found.arms).flatMap((arm) => arm.by_hour.from_ms);
  const [first, last] = [Math.min(...hours), Math.max(...hours)];
  return { first, last, step: (last - first) / HOUR_MS > HOURS_AT_MOST ? DAY_MS : HOUR_MS };
}

function exposure(element, found) {
  const { first, last, step } = stepOf(found);
  const who = found.pings === "model-update" ? "clients with an example" : "clients with a selection";
  const series = Object.entries(found.arms).map(([name, arm]) => {
    let sum = 0;
    const begin = Math.floor(first / step) * step;
    const points = [[begin, 0]];
    const sums = byTime(arm.by_hour, step);
    for (let at = begin; at <= last; at += step) {
      sum += sums.get(at)?.exposed ?? 0;
      points.push([at + step, sum]);
    }
    return { name, points };
  });
  overTheClock(element, {
    level: 3,
    title: "Exposed clients so far",
    describe: () => Object.entries(found.arms).map(([name, arm]) => `${name}: ${count(arm.exposed)}.`).join(" "),
    draw: (_, width, stage) => lineChart(stage, { series, time: true, marks: timeMarks(notes), y: who, zero: true, width }),
    note: () =>
      `By the end of each ${words(step)}: ${who} until then; UTC.${ofArms(found)}`,
    table: () => table(series, "clients"),
  }, found);
}

function traffic(element, found) {
  const { first, last, step } = stepOf(found);
  const series = Object.entries(found.arms).map(([name, arm]) => {
    const sums = byTime(arm.by_hour, step);
    const points = [];
    for (let at = Math.floor(first / step) * step; at <= last; at += step) points.push([at, sums.get(at)?.pings ?? 0]);
    return { name, points };
  });
  overTheClock(element, {
    level: 3,
    title: `Pings by ${words(step)}`,
    describe: () => Object.entries(found.arms).map(([name, arm]) => `${name}: ${count(arm.pings)} pings.`).join(" "),
    draw: (_, width, stage) => lineChart(stage, { series, time: true, marks: timeMarks(notes), y: "pings", zero: true, width }),
    note: () => `By the time of receipt, UTC; each document once.${ofArms(found)}`,
    table: () => table(series, "pings"),
  }, found);
}

/** What to say where some arms are not drawn. */
function ofArms(found) {
  const drawn = Object.keys(found.arms).length;
  return drawn < found.all_arms ? ` ${drawn} of ${found.all_arms} arms: those of the effects that matter first.` : "";
}

const words = (step) => (step === HOUR_MS ? "hour" : "day");

const table = (series, unit) => ({
  head: ["time (UTC)", ...series.map((one) => `${one.name}, ${unit}`)],
  rows: series[0].points.map(([at], i) => [
    minute(at),
    ...series.map((one) => one.points[i][1]),
  ]),
});

/** Show the progress of a count; the page is reloaded when it is over. */
function watch(card) {
  const { feed, shown, latest, state, usual, pinned } = card.dataset;
  const began = { at: null };
  const following = follow(feed, {
    onChange({ newest, landed_since: since }) {
      const over = newest && !["waiting", "running"].includes(newest.state);
      const changed = newest && (newest.id !== latest || (over && newest.state !== state));
      if (changed && !(pinned && over && newest.id === latest)) {
        following.stop();
        location.reload();
        return;
      }
      if (newest && !over) progress(newest);
      if (since && shown) landed(since);
    },
  });

  function progress(newest) {
    began.at = newest.started ? Date.parse(newest.started) : null;
    const ahead = newest.ahead === 1 ? "one count is" : `${newest.ahead} counts are`;
    const doing = newest.state === "waiting" ? `Waiting in the queue${newest.ahead ? `: ${ahead} ahead` : ""}` : sentence(newest.said);
    fill(document.getElementById("doing"), doing || "Starting");
  }

  function landed({ pings, complete }) {
    const place = document.getElementById("since");
    if (!place) return;
    const text = pings
      ? `${complete ? "" : "More than "}${pings === 1 ? "1 ping" : `${count(pings)} pings`} arrived since this count.`
      : "No new pings since this count.";
    if (place.textContent.trim() !== text) fill(place, text);
    document.getElementById("again").classList.toggle("primary", pings > 0);
  }

  setInterval(() => {
    const place = document.getElementById("elapsed");
    if (!place || began.at === null) return;
    const last = usual ? `; the last count took ${duration(Number(usual))}` : "";
    place.textContent = `${duration(Math.max(1, (now() - began.at) / 1000))}${last}`;
  }, 1000);
}

const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) : "");

/** The planned clients are those of an interim look: the field is only shown for one. */
function interimFields() {
  const box = document.getElementById("interim");
  const planned = document.getElementById("planned-clients");
  if (!box || !planned) return;
  const show = () => {
    planned.disabled = !box.checked;
  };
  box.addEventListener("change", show);
  show();
}

/** Every table of results can be saved. */
function tables() {
  for (const table of document.querySelectorAll("main .card .wide > table")) {
    if (!table.closest("figure") && table.tHead) savable(table, table.parentElement.getAttribute("aria-label"));
  }
}

/** A tick chooses pairs; a search hides the boxes of other arms, and two buttons tick those that it leaves. */
function pairFields() {
  const boxes = document.getElementById("pairs");
  if (!boxes) return;
  boxes.addEventListener("change", () => {
    document.querySelector("[name=compared][value=chosen]").checked = true;
  });
  document.getElementById("find-pair")?.addEventListener("input", ({ target }) => {
    const wanted = target.value.trim().toLowerCase();
    for (const label of boxes.children) label.hidden = !label.textContent.toLowerCase().includes(wanted);
  });
  for (const button of document.querySelectorAll("[data-tick]")) {
    button.addEventListener("click", () => {
      for (const box of boxes.querySelectorAll("label:not([hidden]) input")) box.checked = Boolean(button.dataset.tick);
      boxes.dispatchEvent(new Event("change"));
    });
  }
  document.querySelector("[name=against]").addEventListener("change", () => {
    document.querySelector("[name=compared][value=against]").checked = true;
  });
}

/** Other arms in parts, or another effect of interest: the page is asked again, at the same place, with the same view. */
function viewForms() {
  const parts = document.getElementById("for-whom");
  for (const form of [parts, document.getElementById("power")]) {
    form?.addEventListener("submit", () => {
      for (const [name, value] of new URL(location.href).searchParams) {
        if (VIEW.includes(name) && !form.querySelector(`[name=${name}]:not([type=hidden])`)) setHidden(form, name, value);
      }
    });
  }
  parts?.addEventListener("change", () => parts.requestSubmit());
}

function setHidden(form, name, value) {
  const field = form.querySelector(`input[name=${name}]`) ?? form.appendChild(el("input", { type: "hidden", name }));
  field.value = value;
}

if (source) draw(JSON.parse(source.textContent));
if (!counting.dataset.idle) watch(counting);
interimFields();
pairFields();
viewForms();
tables();
followNotes((found) => {
  notes = found;
  for (const again of timely) again();
});
