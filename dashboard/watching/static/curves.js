// The drawings of the laboratory: a metric over the rounds, and final values side by side.

import { armColour } from "/static/js/colours.js";
import { el } from "/static/js/dom.js";
import { number, tick } from "/static/js/format.js";
import { lineChart } from "/static/js/line_chart.js";
import { options } from "/static/js/plots.js";
import { mostOf, shortened } from "/static/js/points.js";
import { boundsOf, bySeed, lastOf, limitsLate, overSeeds } from "./series.js";

const WRITTEN = { auc: "AUC", f1: "F1", mse: "MSE", rmse: "RMSE", mae: "MAE", r2: "R²" };

/** A metric's name as people write it, as in "AUC" or "F1 of 3"; the same as in reports. */
export function metricName(metric) {
  const [head, ...rest] = metric.split("_");
  return [WRITTEN[head] ?? head, ...rest].join(" ");
}

const SPLITS = {
  train: "clients as they train", validation: "validation examples", test: "test examples",
  central: "shared model, mean of clients", personal: "clients' own models, mean of clients",
  personal_worst: "clients' own models, worst tenth", gain: "clients' own models less the shared one",
  personal_validation: "clients' own models, validation examples",
  local: "test, mean of clients", local_worst: "test, worst tenth of clients",
  newcomers: "test, mean of clients that never train",
  trained: "test, clients' own models before merging", trained_worst: "the same, worst tenth of clients",
  others: "test of all others, clients' own models", nodes: "test, nodes' own models",
  nodes_worst: "the same, worst tenth of nodes", graph: "the graph, and how far apart the nodes are",
  attack: "the attack's own figures",
};
export const splitName = (split) => SPLITS[split] ?? split;

/**
 * @typedef {object} Curve
 * @property {string} name
 * @property {boolean} baseline drawn as a line across, at its last value
 * @property {import("./series.js").Run[]} runs
 */

const known = new WeakMap();

/** The drawn form of some data, computed once for the drawing and its words. */
function prepared(data) {
  if (!known.has(data)) known.set(data, worked(data));
  return known.get(data);
}

const before = new Map();

/** The mean and band of a variant, computed again only when a point has come; arrays of points only grow. */
function meanAndBand(name, runs, quantiles) {
  const last = before.get(name);
  const same =
    last?.runs.length === runs.length && runs.every(({ y }, i) => y === last.runs[i].y && y.length === last.runs[i].length);
  if (same) return last.found;
  const merged = bySeed(runs).filter(({ x }) => x.length);
  const found = { runs: merged, ...overSeeds(merged, quantiles) };
  before.set(name, { runs: runs.map(({ y }) => ({ y, length: y.length })), found });
  return found;
}

/**
 * @param {{curves: Curve[], quantiles: number[], split: string, metric: string, log: boolean, zoom: boolean}} data
 */
function worked({ curves, quantiles }) {
  const trained = curves.filter((curve) => !curve.baseline);
  const lines = trained.map((curve, place) => ({ name: curve.name, place, ...meanAndBand(curve.name, curve.runs, quantiles) }));
  const rules = curves
    .filter((curve) => curve.baseline)
    .map((curve) => ({ name: curve.name, y: mean(bySeed(curve.runs).map(lastOf)) }))
    .filter(({ y }) => y !== null);
  return { lines, rules };
}

function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

/** The parts of the figure of a metric over the rounds, for `figure`. */
export const curvesFigure = (title) => ({ title, draw, describe, table, note });

function draw(data, width, stage) {
  const { lines, rules } = prepared(data);
  const there = lines.filter(({ x }) => x.length);
  if (!there.length) return el("p", { class: "muted" }, "Nothing is measured yet.");
  return lineChart(stage, {
    series: there.map(drawnOf),
    rules: rules.map(({ name, y }) => ({ name: `${name} (baseline)`, y })),
    x: "round",
    y: `${metricName(data.metric)}, ${splitName(data.split)}`,
    log: data.log,
    smooth: 1,
    bounds: data.split === "gain" ? undefined : (boundsOf(data.metric) ?? undefined),
    limits: data.zoom ? (points) => limitsLate(points, data.log) : undefined,
    width,
    height: Math.round(Math.min(420, Math.max(240, width * 0.42))),
  });
}

/** A variant as a line: its mean over the seeds, with the seeds and the band behind it. */
function drawnOf({ name, place, x, mean: middle, half, runs }) {
  const at = new Map(x.map((round, i) => [round, i]));
  return {
    name,
    place,
    points: x.map((round, i) => [round, middle[i]]),
    thin: runs.length > 1 ? runs.map((run) => run.x.map((round, i) => [round, run.y[i]])) : [],
    band: runs.length > 1 ? x.map((round, i) => (half[i] === null ? [round, null, null] : [round, middle[i] - half[i], middle[i] + half[i]])) : [],
    told: (round) => told(middle[at.get(round)], half[at.get(round)]),
  };
}

const told = (value, half) => (value === null ? "–" : number(value) + (half === null || half === undefined ? "" : ` ± ${number(half, 2)}`));

function describe(data) {
  const { lines, rules } = prepared(data);
  const words = lines
    .filter(({ x }) => x.length)
    .map(({ name, x, mean: middle, half, seeds }) => {
      const counted = seeds.at(-1) === 1 ? "1 seed" : `${seeds.at(-1)} seeds`;
      return `${name} after round ${x.at(-1)}: ${told(middle.at(-1), half.at(-1))} (${counted})`;
    });
  const across = rules.map(({ name, y }) => `baseline ${name}: ${number(y)}`);
  return [...words, ...across].join("; ") || "Nothing is measured yet";
}

function note(data) {
  const { lines, rules } = prepared(data);
  const most = Math.max(0, ...lines.map(({ runs }) => runs.length));
  if (!most) return "";
  const words = [
    most > 1
      ? "Thin lines are single seeds, the thick line is their mean, and the band is the 95 % t interval of the mean over the seeds so far. The band is cut off at impossible values, and far from the lines."
      : "One seed, so there is no band.",
  ];
  if (most > 1 && lines.some(({ runs }) => runs.length === 1)) words.push("Of some there is one seed, and no band.");
  if (rules.length) words.push("Dashed across: the baselines.");
  const drawn = mostOf(lines.reduce((sum, { runs }) => sum + runs.length + 1, 0));
  if (lines.some(({ x }) => x.length > drawn)) {
    words.push(`Drawn are ${number(drawn)} points a line at most, the least and the greatest of every stretch; a part that is drawn larger has more.`);
  }
  if (data.zoom) words.push("The scale is that of all but the first tenth of the rounds.");
  if (data.log) words.push("Values of 0 and below are not on a log scale.");
  return words.join(" ");
}

function table({ curves, metric, split }) {
  const rows = curves.flatMap(({ name, runs }) =>
    runs.flatMap(({ seed, fold, x, y }) => x.map((round, i) => [name, String(seed), fold === null ? "" : String(fold), round, y[i]])),
  );
  return { head: ["variant", "seed", "fold", "round", `${metric} (${split})`], rows };
}

/**
 * Final values side by side: a dot and the interval of the mean.
 * @param {{name: string, place: number, baseline: boolean, final: {mean: number | null, half: number | null, seeds: number} | null}[]} rows
 */
export function finalsPlot(rows, metric, x, width) {
  const known = rows.filter(({ final }) => final && final.mean !== null);
  if (!known.length) return el("p", { class: "muted" }, "Nothing is finished yet.");
  return dots(known.map(({ name, place, baseline, final }) => ({ name, colour: baseline ? "var(--soft)" : armColour(place), ...final })), x, width, false, boundsOf(metric) ?? undefined);
}

/** Differences with their intervals, and the line of no difference. */
export const differencesPlot = (rows, x, width) => dots(rows, x, width, true);

/** Letters of a name beside its dot. */
const NAME_MOST = 26;

function dots(rows, x, width, zero, [least, most] = [-Infinity, Infinity]) {
  const short = shortened(rows.map(({ name }) => name), NAME_MOST);
  const names = new Map(rows.map(({ name }, i) => [name, short[i]]));
  const left = Math.min(width * 0.45, 14 + 6.7 * Math.max(...[...names.values()].map((name) => name.length)));
  const ranged = rows.map((row) => ({ ...row, low: Math.max(least, row.mean - (row.half ?? 0)), high: Math.min(most, row.mean + (row.half ?? 0)) }));
  return Plot.plot({
    ...options(width, 60 + 30 * rows.length),
    marginLeft: left,
    x: { label: x, grid: true, nice: true, ticks: Math.max(2, Math.floor((width - left) / 90)), tickFormat: (v) => tick(v, 4) },
    y: { label: null, domain: rows.map(({ name }) => name), tickSize: 0, type: "band", tickFormat: (name) => names.get(name) },
    marks: [
      zero && Plot.ruleX([0], { stroke: "var(--soft)", strokeDasharray: "4 3" }),
      Plot.ruleY(ranged, { y: "name", x1: "low", x2: "high", stroke: "colour", strokeWidth: 2 }),
      Plot.dot(ranged, {
        y: "name", x: "mean", r: 4.5, strokeWidth: 2, stroke: "colour",
        fill: (row) => (zero && !row.better ? "var(--paper)" : row.colour),
      }),
    ].filter(Boolean),
    color: { type: "identity" },
  });
}

/** A table of means and intervals, for "The numbers". */
export const dotsTable = (rows) => ({
  head: ["variant", "mean", "half the interval", "seeds"],
  rows: rows.map(({ name, mean: middle, half, seeds }) => [name, middle, half, seeds]),
});

/** The choice of a metric and of its split: fills two selects, and updates them when there is more to choose from. */
export function chooser(metricSelect, splitSelect, chosen, onChoice) {
  let kinds = [];
  const known = new Set();
  function show() {
    const metrics = [...new Set(kinds.map(([, metric]) => metric))];
    const splits = kinds.filter(([, metric]) => metric === chosen.metric).map(([split]) => split);
    fillSelect(metricSelect, metrics, chosen.metric, metricName);
    fillSelect(splitSelect, splits, chosen.split, splitName);
  }
  metricSelect.addEventListener("change", () => {
    const metric = metricSelect.value;
    const splits = kinds.filter(([, other]) => other === metric).map(([split]) => split);
    const split = splits.includes(chosen.split) ? chosen.split : splits.includes("test") ? "test" : splits[0];
    choose(split, metric);
  });
  splitSelect.addEventListener("change", () => choose(splitSelect.value, chosen.metric));
  function choose(split, metric) {
    Object.assign(chosen, { split, metric });
    show();
    onChoice();
  }
  return {
    add(more) {
      const fresh = more.filter((kind) => !known.has(kind.join("/")));
      for (const kind of fresh) known.add(kind.join("/"));
      kinds = [...kinds, ...fresh];
      if (fresh.length || !metricSelect.options.length) show();
    },
  };
}

function fillSelect(select, values, chosen, words) {
  const there = values.includes(chosen) ? values : [chosen, ...values];
  select.replaceChildren(...there.map((value) => el("option", { value, selected: value === chosen }, words(value))));
}
