// What became of the weights: their changes, learning rates, and how stable the signs of the updates were.

import { el, svg } from "/static/js/dom.js";
import { count, number, percent, signed } from "/static/js/format.js";
import { linePlot } from "/static/js/plots.js";

import { cut, heatMap, palette } from "../heat_map.js";
import { NO_ROUND, rounds, view, waiting } from "./common.js";

/** From how many standard errors on a sign is stable. */
const STABLE_FROM = 2;

const NARROW = 560;

export const weights = {
  title: "Weights: change from version 0",
  describe(line) {
    const { names, start } = line.line.weights;
    const change = line.newest.change;
    const most = names
      .map((name, k) => [name, change[k], start[k]])
      .filter(([, by]) => by !== 0)
      .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))
      .slice(0, 3)
      .map(([name, by, from]) => `${name} ${signed(by)} to ${number(from + by)}`);
    return most.length ? `Changed most by version ${line.newest.version}: ${most.join("; ")}` : "No weight has changed yet";
  },
  draw(line, width) {
    if (line.rows.length < 2) return waiting(NO_ROUND);
    const { names, start } = line.line.weights;
    const colours = palette();
    const rows = line.rows;
    const limits = names.map((_, k) => rows.reduce((most, row) => Math.max(most, Math.abs(row.change[k])), 0));
    const common = Math.max(...limits);
    const share = (value, limit) => (limit ? Math.sign(value) * Math.sqrt(Math.abs(value) / limit) : 0);
    const shown = rows.find((row) => row.version === view.chosen) ?? line.newest;
    const parts = {
      names,
      versions: rows.map((row) => row.version),
      colour: (k, j) => colours.diverging(share(rows[j].change[k], view.oneScale ? common : limits[k])),
      words: (k, j) =>
        `${names[k]}, version ${rows[j].version}: ${signed(rows[j].change[k])} from ${number(start[k])} to ${number(start[k] + rows[j].change[k])}`,
      chosen: view.chosen,
      onChoose: view.onChoose,
    };
    const bars = { width: width < NARROW ? width * 0.55 : Math.max(260, width * 0.32), draw: bar(shown, start, common) };
    const head = el(
      "p",
      { class: "scale" },
      "lower", el("i", { class: "diverging" }), "higher than in version 0",
      el("span", {}, `· the bars: version ${shown.version}`),
    );
    if (width >= NARROW) return [head, ...heatMap({ ...parts, width, beside: bars })];
    return [head, ...heatMap({ ...parts, width }), barsAlone(names, bars, width)];
  },
  note(line) {
    const { names, of, chosen_at } = line.line.weights;
    const scale = "Colours and bars grow with the square root of the change.";
    if (chosen_at === null) return `${scale} Click on a version, or choose one below, to see where it came from.`;
    return `${scale} The model has ${count(of)} weights; these are the ${names.length} that had changed most, in their first step sizes, by version ${chosen_at}.`;
  },
  table: (line) => ({
    head: ["version", ...line.line.weights.names],
    rows: line.rows.map((row) => [row.version, ...row.change]),
  }),
};

/** A bar of the change, and the value that it led to. */
const bar = (row, start, limit) => (k, top, height, left, width) => {
  const change = row.change[k];
  const texts = 104;
  const half = Math.max(10, (width - texts) / 2);
  const zero = left + half;
  const length = limit ? Math.sqrt(Math.abs(change) / limit) * half : 0;
  return [
    svg("rect", {
      x: change < 0 ? zero - length : zero, y: top + 3, width: length, height: height - 6,
      fill: change < 0 ? "var(--cold)" : "var(--warm)",
    }),
    svg("line", { class: "zero", x1: zero, x2: zero, y1: top, y2: top + height }),
    svg("text", { x: zero + half + 46, y: top + height / 2, dy: "0.35em", "text-anchor": "end" }, change ? signed(change, 3) : "0"),
    svg("text", { class: "soft", x: zero + half + texts, y: top + height / 2, dy: "0.35em", "text-anchor": "end" }, `→ ${number(start[k] + change, 4)}`),
  ];
};

function barsAlone(names, bars, width) {
  const height = 17;
  const left = Math.round(width * 0.4);
  return el(
    "div",
    { class: "map" },
    svg(
      "svg",
      { width, height: height * names.length + 6 },
      names.flatMap((name, k) => [
        svg("text", { x: left - 6, y: (k + 0.5) * height, dy: "0.35em", "text-anchor": "end" }, cut(name, left)),
        ...bars.draw(k, k * height, height, left, width - left),
      ]),
    ),
  );
}

export const rates = {
  title: "Learning rates",
  describe(line) {
    const last = line.newest.rate.filter((value) => value !== null);
    if (!last.length) return "None yet";
    if (!line.line.rate.by_weight) return `${number(last[0])} at version ${line.newest.version}`;
    return `at version ${line.newest.version} from ${number(Math.min(...last))} to ${number(Math.max(...last))}`;
  },
  draw(line, width) {
    if (!line.line.rate.by_weight) {
      if (!line.rate.length) return waiting(NO_ROUND);
      return linePlot({ series: [{ name: "rate", points: line.rate }], x: "version", y: "rate", zero: true, width });
    }
    if (line.rows.length < 2) return waiting(NO_ROUND);
    const { names } = line.line.weights;
    const rows = line.rows;
    const colours = palette();
    const [low, high] = logRange(rows);
    const share = (value) => (high > low ? (Math.log(value) - low) / (high - low) : 0.5);
    const last = line.newest.rate;
    return [
      el("p", { class: "scale" }, number(Math.exp(low), 3), el("i", { class: "sequential" }), number(Math.exp(high), 3)),
      ...heatMap({
        names,
        versions: rows.map((row) => row.version),
        colour: (k, j) => (rows[j].rate[k] > 0 ? colours.sequential(0.08 + 0.92 * share(rows[j].rate[k])) : colours.neutral),
        words: (k, j) => `${names[k]}, version ${rows[j].version}: ${number(rows[j].rate[k])}`,
        chosen: view.chosen,
        onChoose: view.onChoose,
        width,
        beside: { width: 62, draw: besideText((k) => number(last[k], 3)) },
      }),
    ];
  },
  note: (line) => `${line.line.rate.words}${line.line.rate.by_weight ? "; beside it the newest. Colours by the logarithm" : ""}.`,
  table: (line) => ({
    head: line.line.rate.by_weight ? ["version", ...line.line.weights.names] : ["version", "rate"],
    rows: line.rows.map((row) => [row.version, ...row.rate]),
  }),
};

function logRange(rows) {
  let [low, high] = [Infinity, -Infinity];
  for (const row of rows) {
    for (const value of row.rate) {
      if (!(value > 0)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return low <= high ? [Math.log(low), Math.log(high)] : [0, 0];
}

const besideText = (words) => (k, top, height, left, width) => [
  svg("text", { x: left + width, y: top + height / 2, dy: "0.35em", "text-anchor": "end" }, words(k)),
];

export const signs = {
  title: "Stability of the signs",
  describe(line) {
    const last = line.stable.at(-1);
    return last ? `${percent(last[1] / 100, 0)} of the mean update's signs were stable at iteration ${last[0]}` : NO_ROUND;
  },
  draw(line, width) {
    if (!line.stable.length) return waiting(NO_ROUND);
    const { names } = line.line.weights;
    const rows = rounds(line);
    const colours = palette();
    const last = rows.at(-1).away;
    return [
      ...linePlot({ series: [{ name: "stable", points: line.stable }], x: "iteration", y: "stable signs, %", zero: true, width, height: 150 }),
      el("p", { class: "scale" }, "−4", el("i", { class: "diverging" }), "+4 standard errors from 0"),
      ...heatMap({
        names,
        versions: rows.map((row) => row.version),
        colour: (k, j) => colours.diverging((rows[j].away[k] ?? 0) / 4),
        words: (k, j) => `${names[k]}, version ${rows[j].version}: ${away(rows[j].away[k])}`,
        chosen: view.chosen,
        onChoose: view.onChoose,
        width,
        beside: { width: 62, draw: besideText((k) => (last[k] === null ? "–" : signed(last[k], 2))) },
      }),
    ];
  },
  note: () =>
    `A sign is stable if the mean update is ${STABLE_FROM} standard errors from 0, or if every update is 0. RProp uses nothing but signs: where few are stable, longer iterations help more than more of them.`,
  table: (line) => ({
    head: ["iteration", "stable, %", ...line.line.weights.names],
    rows: rounds(line).map((row) => [row.version - 1, 100 * row.stable, ...row.away]),
  }),
};

const away = (value) => (value === null ? "no update" : `${signed(value, 3)} standard errors from 0`);
