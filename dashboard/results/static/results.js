// The results of a study: effects as dots with whiskers, exposure over time, and the progress of a count.

import { now } from "/static/js/clock.js";
import { fill } from "/static/js/dom.js";
import { figure } from "/static/js/figures.js";
import { count, duration, signed } from "/static/js/format.js";
import { lineChart } from "/static/js/line_chart.js";
import { intervals } from "/static/js/plots.js";
import { follow } from "/static/js/stream.js";

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const HOURS_AT_MOST = 96;

/** The words below and above no difference, by which of them is better; a metric may have neither. */
const SIDES = { less: ["better", "worse"], more: ["worse", "better"] };
const source = document.getElementById("document");
const counting = document.getElementById("counting");
function draw(found) {
  for (const card of document.querySelectorAll("[data-metric]")) {
    effect(card.querySelector(".effect"), card.dataset.metric, found);
    overTime(card.querySelector(".over-time"), card.dataset.metric, found);
  }
  for (const card of document.querySelectorAll("[data-segment]")) {
    segment(card.querySelector(".effect"), found.segments[Number(card.dataset.segment)], found);
  }
  for (const card of document.querySelectorAll("[data-in-study]")) {
    segment(card.querySelector(".effect"), found.in_study.effects[Number(card.dataset.inStudy)], found);
  }
  exposure(document.getElementById("exposure"), found);
  traffic(document.getElementById("traffic"), found);
}

/** The differences of one metric: all pairs on one axis, with the interval that decides. */
function effect(element, name, found) {
  const metric = found.metrics[name];
  const rows = found.comparisons.filter((one) => one.metric === name).map((one) => ({
    ...deciding(one),
    name: `${one.pair[0]} − ${one.pair[1]}`,
    sure: one.finding !== "inconclusive",
    pair: one.pair,
    said: `${effectWords(one)}${one.finding === "inconclusive" ? "" : `  ${sign(one, metric)}`}`,
  }));
  const [left, right] = SIDES[metric.better] ?? ["less", "more"];
  const zero = found.interim ? 0 : 50;
  const x = found.interim ? "difference at any look" : "pairs of users in which the first has the larger value, %";
  figure(element, {
    level: 3,
    title: metric.title[0].toUpperCase() + metric.title.slice(1),
    describe: () => rows.map(spoken).join(" "),
    draw: (_, width) => intervals({ rows, x, left, right, zero, width }),
    note: () =>
      `The ${Number((100 * rows[0].confidence).toPrecision(4))} % intervals decide: a dot is filled if its interval leaves out ` +
      (found.interim ? "0, and they hold at every look. " : "50 %, and hollow if not. ") +
      `Beside each: the difference of means${winsorised(found)}, first minus second, and the same in percent of the second.`,
    table: () => ({
      head: ["first", "second", found.interim ? "difference" : "larger in, %", "low", "high", "difference of means", "in percent", "finding"],
      rows: rows.map((row) => [...row.pair, row.value, row.low, row.high, row.difference, row.percent, row.sure ? "shown" : "inconclusive"]),
    }),
  }).update(found);
}

/** What is to be said of differences of means: in a study with tails they are winsorised. */
const winsorised = (found) => {
  const tails = found.comparisons[0]?.per_client.tails;
  return tails ? ` (winsorised at ${Number((100 * tails).toPrecision(3))} % of the clients at either end)` : "";
};

const between = (pair) => `${pair[0]} − ${pair[1]}`;

/** The difference of means in each part of the time, with a line per pair and its interval as a band. */
function overTime(element, name, found) {
  if (!element) return;
  const { hours, effects } = found.over_time;
  const rows = effects.filter((one) => one.metric === name && one.from_ms.length);
  if (!rows.length) return;
  const series = rows.map((one) => ({
    name: between(one.pair),
    points: one.from_ms.map((at, i) => [at, one.value[i]]),
    band: one.from_ms.map((at, i) => [at, one.low[i], one.high[i]]).filter(([, low, high]) => low !== null && high !== null),
  }));
  figure(element, {
    level: 4,
    title: "Over time",
    describe: () => rows.map((one) => `${between(one.pair)}: from ${told(one.value[0])} to ${told(one.value.at(-1))}.`).join(" "),
    draw: (_, width, stage) =>
      lineChart(stage, { series, time: true, y: "difference of means", rules: [{ name: "no difference", y: 0 }], width }),
    note: () => `Over the clients of each ${hours === 1 ? "hour" : `${hours} hours`}, with 95 % intervals, which decide nothing; UTC.`,
    table: () => ({
      head: ["time (UTC)", "arms", "difference", "low", "high", "in percent"],
      rows: rows.flatMap((one) =>
        one.from_ms.map((at, i) => [
          new Date(at).toISOString().slice(0, 16).replace("T", " "), between(one.pair), one.value[i], one.low[i], one.high[i], one.percent[i],
        ]),
      ),
    }),
  }).update(found);
}

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
    draw: (_, width) => (rows.length ? intervals({ rows, x: "difference of means", left, right, width }) : document.createTextNode("No group has clients of both arms.")),
    table: () => ({
      head: ["group", `clients of ${one.pair[0]}`, `clients of ${one.pair[1]}`, "difference", "low", "high", "in percent"],
      rows: rows.map((row) => [row.name, ...row.n, row.value, row.low, row.high, row.percent]),
    }),
  }).update(found);
}

/**
 * The deciding estimate with its interval: the difference at any look, or how often the first arm has the larger value,
 * in percent.
 * Older documents do not have the interval of the rank test.
 */
function deciding(one) {
  const { difference: means } = one.per_client;
  const base = one.per_client.means[1];
  const beside = { difference: means.value, percent: one.percent ?? (base ? (100 * means.value) / Math.abs(base) : null) };
  if (one.anytime_valid) return { ...one.anytime_valid, ...beside, difference: one.anytime_valid.value };
  const { value, low, high, confidence } = one.decides ?? one.per_client.superiority;
  return { value: 100 * value, low: 100 * low, high: 100 * high, confidence, ...beside };
}

const effectWords = (one) => {
  const { difference, percent } = deciding(one);
  return signed(difference, 3) + (percent === null ? "" : ` (${signed(percent, 3)} %)`);
};

function sign(one, metric) {
  if (metric.better === null) return "● differs";
  return one.worse ? "▼ worse" : "▲ better";
}

function spoken({ pair, value, low, high, sure, said }) {
  const bounds = low === null ? "with no bound yet" : `between ${told(low)} and ${told(high)}`;
  return `${pair[0]} against ${pair[1]}: ${told(value)}, ${bounds}; ${said.replace("−", "minus ")}.${sure ? "" : " Inconclusive."}`;
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
  figure(element, {
    level: 3,
    title: "Exposed clients so far",
    describe: () => Object.entries(found.arms).map(([name, arm]) => `${name}: ${count(arm.exposed)}.`).join(" "),
    draw: (_, width, stage) => lineChart(stage, { series, time: true, y: who, zero: true, width }),
    note: () =>
      `By the end of each ${words(step)}: ${who} until then in the window (${found.window}); UTC.`,
    table: () => table(series, "clients"),
  }).update(found);
}

function traffic(element, found) {
  const { first, last, step } = stepOf(found);
  const series = Object.entries(found.arms).map(([name, arm]) => {
    const sums = byTime(arm.by_hour, step);
    const points = [];
    for (let at = Math.floor(first / step) * step; at <= last; at += step) points.push([at, sums.get(at)?.pings ?? 0]);
    return { name, points };
  });
  figure(element, {
    level: 3,
    title: `Pings by ${words(step)}`,
    describe: () => Object.entries(found.arms).map(([name, arm]) => `${name}: ${count(arm.pings)} pings.`).join(" "),
    draw: (_, width, stage) => lineChart(stage, { series, time: true, y: "pings", zero: true, width }),
    note: () => "By the time of receipt, UTC; each document once.",
    table: () => table(series, "pings"),
  }).update(found);
}

const words = (step) => (step === HOUR_MS ? "hour" : "day");

const table = (series, unit) => ({
  head: ["time (UTC)", ...series.map((one) => `${one.name}, ${unit}`)],
  rows: series[0].points.map(([at], i) => [
    new Date(at).toISOString().slice(0, 16).replace("T", " "),
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

if (source) draw(JSON.parse(source.textContent));
if (!counting.dataset.idle) watch(counting);
interimFields();
