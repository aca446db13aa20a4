// The weights: their changes, learning rates, and how stable the signs of the updates were.

import { el, fill, svg } from "/static/js/dom.js";
import { count, number, percent, signed } from "/static/js/format.js";

import { heatMap, nameText, palette } from "../heat_map.js";
import { brushing, columns, lineOfIterations, measured, NO_ROUND, rounds, view, waiting } from "./common.js";

/** From this many standard errors a sign is stable. */
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
  draw(line, width, stage) {
    if (line.rows.length < 2) return waiting(NO_ROUND);
    const { names, start } = line.line.weights;
    const colours = palette();
    const rows = columns(line, stage);
    const limits = names.map((_, k) => rows.reduce((most, row) => Math.max(most, Math.abs(row.change[k])), 0));
    const common = Math.max(...limits);
    const share = (value, limit) => (limit ? Math.sign(value) * Math.sqrt(Math.abs(value) / limit) : 0);
    const shown = line.rows.find((row) => row.version === view.chosen) ?? line.newest;
    const parts = {
      ...brushing(line, stage),
      names,
      versions: rows.map((row) => row.version),
      colour: (k, j) => colours.diverging(share(rows[j].change[k], view.oneScale ? common : limits[k])),
      words: (k, j) =>
        `${signed(rows[j].change[k])} from ${number(start[k])} to ${number(start[k] + rows[j].change[k])}`,
      marks: line.marks,
      chosen: view.chosen,
      onChoose: view.onChoose,
    };
    const bars = { width: width < NARROW ? width * 0.55 : Math.max(260, width * 0.32), draw: bar(shown, start, common) };
    shows(
      stage,
      "lower", el("i", { class: "diverging" }), "higher than in version 0",
      el("span", {}, `· the bars: version ${shown.version}`),
    );
    if (width >= NARROW) return heatMap(stage, { ...parts, width, beside: bars });
    return [heatMap(stage, { ...parts, width }), barsAlone(names, bars, width)];
  },
  note(line) {
    const { names, of, chosen_at } = line.line.weights;
    const scale = "Colours and bars scale with the square root of the change.";
    if (chosen_at === null) return `${scale} To see where a version came from, click on it or choose it below.`;
    return `${scale} The model has ${count(of)} weights; these ${names.length} had changed most by version ${chosen_at}, in units of their first step sizes.`;
  },
  table: (line) => ({
    head: ["version", ...line.line.weights.names],
    rows: line.rows.map((row) => [row.version, ...row.change]),
  }),
};

/** The legend of a heat map's colours, above it, and the way back from a part that is drawn larger. */
function shows(stage, ...words) {
  stage.controls.hidden = false;
  const back = el("button", { type: "button", class: "small", onclick: () => {
    stage.answers.all();
    stage.over.focus(); // the button no longer exists
  } }, "Show all versions");
  fill(stage.controls, el("p", { class: "scale" }, ...words), stage.kept.window && el("p", { class: "tools" }, back));
}

/** A bar for the change, and the resulting value. */
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
        nameText(name, left, left - 6, (k + 0.5) * height),
        ...bars.draw(k, k * height, height, left, width - left),
      ]),
    ),
  );
}

/** One display of a link of the line's chain, such as learning rates (`shown`: name, words, whether per weight). */
export const link = (shown) => ({
  title: shown.name === "rate" ? "Learning rates" : `Optimizer: ${shown.name}`,
  describe(line) {
    const last = line.newest.links[shown.name].filter((value) => value !== null);
    if (!last.length) return "None yet";
    if (!shown.by_weight) return `${number(last[0])} at version ${line.newest.version}`;
    return `at version ${line.newest.version} from ${number(Math.min(...last))} to ${number(Math.max(...last))}`;
  },
  draw(line, width, stage) {
    if (!shown.by_weight) {
      const points = line.shared.get(shown.name);
      if (!points.length) return waiting(NO_ROUND);
      const series = [{ name: shown.name, points: measured(line, points, 0) }];
      return lineOfIterations(line, stage, { series, x: "version", clock: (version) => line.times.get(version), y: shown.name, width });
    }
    if (line.rows.length < 2) return waiting(NO_ROUND);
    const { names } = line.line.weights;
    const rows = columns(line, stage);
    const values = rows.map((row) => row.links[shown.name]);
    const last = line.newest.links[shown.name];
    const { colour, low, high, kind } = scale(values);
    shows(stage, number(low, 3), el("i", { class: kind }), number(high, 3));
    return heatMap(stage, {
      ...brushing(line, stage),
      names,
      versions: rows.map((row) => row.version),
      colour: (k, j) => colour(values[j][k]),
      words: (k, j) => number(values[j][k]),
      marks: line.marks,
      chosen: view.chosen,
      onChoose: view.onChoose,
      width,
      beside: { width: 62, draw: besideText((k) => number(last[k], 3)) },
    });
  },
  note: (line) =>
    shown.by_weight
      ? `${shown.words}; beside it the newest. Colours by the ${hasSigns(line, shown) ? "square root of the size" : "logarithm"}.`
      : `${shown.words}.`,
  table: (line) => ({
    head: shown.by_weight ? ["version", ...line.line.weights.names] : ["version", shown.name],
    rows: line.rows.map((row) => [row.version, ...row.links[shown.name]]),
  }),
});

const hasSigns = (line, shown) => line.rows.some((row) => row.links[shown.name].some((value) => value < 0));

/** Colours of values: by their logarithm if they are all positive, otherwise by sign and size. */
function scale(values) {
  const colours = palette();
  let [low, high, largest, negative] = [Infinity, -Infinity, 0, false];
  for (const row of values) {
    for (const value of row) {
      if (value === null) continue;
      negative ||= value < 0;
      largest = Math.max(largest, Math.abs(value));
      if (value > 0) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
  }
  if (negative) {
    const colour = (value) => colours.diverging(Math.sign(value) * Math.sqrt(Math.abs(value) / largest));
    return { colour, low: -largest, high: largest, kind: "diverging" };
  }
  if (!(low <= high)) [low, high] = [1, 1];
  const [from, to] = [Math.log(low), Math.log(high)];
  const share = (value) => (to > from ? (Math.log(value) - from) / (to - from) : 0.5);
  const colour = (value) => (value > 0 ? colours.sequential(0.08 + 0.92 * share(value)) : colours.neutral);
  return { colour, low, high, kind: "sequential" };
}

const besideText = (words) => (k, top, height, left, width) => [
  svg("text", { x: left + width, y: top + height / 2, dy: "0.35em", "text-anchor": "end" }, words(k)),
];

export const stable = {
  title: "Stability of the signs",
  describe(line) {
    const last = line.stable.at(-1);
    return last ? `${percent(last[1] / 100, 0)} of the mean update's signs were stable at iteration ${last[0]}` : NO_ROUND;
  },
  draw(line, width, stage) {
    if (!line.stable.length) return waiting(NO_ROUND);
    const series = [{ name: "stable signs, %", points: measured(line, line.stable) }];
    return lineOfIterations(line, stage, { series, y: "stable signs, %", bounds: [0, 100], width, height: 150 });
  },
  note: (line) =>
    line.line.private
      ? `A sign is stable if the noisy sum is at least ${STABLE_FROM} standard deviations of its noise from 0. Standard errors are of the noise alone. Where few signs are stable, noise moves the weights.`
      : `A sign is stable if the mean update is ${STABLE_FROM} standard errors from 0, or if every update is 0. RProp uses only signs: where few are stable, longer iterations help more than additional ones.`,
  table: (line) => ({ head: ["iteration", "stable, %"], rows: line.stable }),
};

export const signs = {
  title: "Mean update: standard errors from 0",
  level: 3,
  describe: (line) => (line.lastRound ? `at version ${line.lastRound.version}, by weight; the numbers are in the table` : NO_ROUND),
  draw(line, width, stage) {
    if (!line.stable.length) return waiting(NO_ROUND);
    const { names } = line.line.weights;
    const rows = columns(line, stage, rounds(line));
    const colours = palette();
    const last = line.lastRound.away;
    shows(stage, "−4", el("i", { class: "diverging" }), "+4 standard errors from 0");
    return heatMap(stage, {
      ...brushing(line, stage),
      names,
      versions: rows.map((row) => row.version),
      colour: (k, j) => colours.diverging((rows[j].away[k] ?? 0) / 4),
      words: (k, j) => away(rows[j].away[k]),
      marks: line.marks,
      chosen: view.chosen,
      onChoose: view.onChoose,
      width,
      beside: { width: 62, draw: besideText((k) => (last[k] === null ? "–" : signed(last[k], 2))) },
    });
  },
  table: (line) => ({
    head: ["iteration", ...line.line.weights.names],
    rows: rounds(line).map((row) => [row.version - 1, ...(row.away ?? [])]),
  }),
};

const away = (value) => (value === null ? "no update" : `${signed(value, 3)} standard errors from 0`);
