// Runs drawn: any two of the chosen settings and metrics against each other, and all of them as parallel coordinates.

import { figure } from "/static/js/figures.js";
import { count, number, tick } from "/static/js/format.js";
import { getJSON } from "/static/js/http.js";
import { options } from "/static/js/plots.js";

const at = (id) => document.getElementById(id);
const { axes, query } = JSON.parse(at("drawn").textContent);
const named = new Map([...at("x").options].map((option) => [option.value, option.textContent.trim()]));

const isNumeric = (points, axis) => points.every(({ values }) => values[axis] === null || typeof values[axis] === "number");
const known = (points, ...places) => points.filter(({ values }) => places.every((place) => values[place] !== null));
const called = ({ title, runs }) => (runs > 1 ? `${title} (${runs} runs)` : title);
const shownValue = (value) => (typeof value === "number" ? number(value) : (value ?? "–"));
const words = (point) => [called(point), ...axes.map((axis, place) => `${named.get(axis)}: ${shownValue(point.values[place])}`)].join("\n");

const table = ({ points }) => ({
  head: ["run", "runs", ...axes.map((axis) => named.get(axis))],
  rows: points.map(({ title, runs, values }) => [title, runs, ...values]),
});
const note = ({ points, rows }) => (rows > points.length ? `The first ${count(points.length)} of ${count(rows)} rows, in the order of the list.` : "");

const MOST_TICKS = 12;

/** Ticks of an axis: of numbers a few, of texts some. */
function scale(points, place, log) {
  if (isNumeric(points, place)) {
    const positive = points.every(({ values }) => values[place] > 0);
    return { type: log && positive ? "log" : "linear", tickFormat: (value) => tick(value), nice: true, grid: true };
  }
  const domain = [...new Set(points.map(({ values }) => String(values[place])))].sort();
  const every = Math.ceil(domain.length / MOST_TICKS);
  return { type: "point", domain, tickFormat: (text, k) => (k % every ? "" : shortName(text, 14)), grid: domain.length <= MOST_TICKS };
}

const scatter = figure(at("scatter"), {
  title: "Two against each other",
  describe: ({ points, x, y }) => `${named.get(axes[y])} by ${named.get(axes[x])} of ${known(points, x, y).length} rows`,
  draw: ({ points, x, y, log }, width) => {
    const drawn = known(points, x, y);
    if (!drawn.length) return document.createTextNode("No run has both.");
    const value = (place) => (point) => (isNumeric(drawn, place) ? point.values[place] : String(point.values[place]));
    return Plot.plot({
      ...options(width, Math.max(260, Math.min(460, width * 0.5))),
      marginLeft: 70,
      marginBottom: 42,
      x: { ...scale(drawn, x, log), label: named.get(axes[x]), labelAnchor: "center" },
      y: { ...scale(drawn, y, false), label: named.get(axes[y]) },
      marks: [
        Plot.dot(drawn, { x: value(x), y: value(y), r: 4, fill: "var(--accent)", fillOpacity: 0.55, stroke: "var(--accent)" }),
        Plot.tip(drawn, Plot.pointer({ x: value(x), y: value(y), title: words, fill: "var(--paper)", stroke: "var(--edge)" })),
      ],
    });
  },
  table,
  note,
});

/** The position of each value between 0 and 1 on its axis, and what stands at both ends. */
function axisOf(points, place) {
  const values = known(points, place).map((point) => point.values[place]);
  if (isNumeric(points, place)) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return { position: (value) => (high > low ? (value - low) / (high - low) : 0.5), ends: [number(low), number(high)] };
  }
  const texts = [...new Set(values.map(String))].sort();
  return { position: (value) => (texts.length > 1 ? texts.indexOf(String(value)) / (texts.length - 1) : 0.5), ends: [texts[0], texts.at(-1)] };
}

const shortName = (name, most) => (name.length > most ? `…${name.slice(1 - most)}` : name);

const parallel = figure(at("parallel"), {
  title: "All axes together",
  describe: ({ points }) => `${points.length} rows as lines through ${axes.map((axis) => named.get(axis)).join(", ")}`,
  draw: ({ points }, width) => {
    const drawn = known(points, ...axes.keys());
    if (axes.length < 2 || !drawn.length) return document.createTextNode("This takes two axes, and a run with a value on each.");
    const scales = axes.map((_, place) => axisOf(drawn, place));
    const last = axes.length - 1;
    const lines = drawn.flatMap((point, z) =>
      axes.map((_, place) => ({ z, x: place, y: scales[place].position(point.values[place]), of: scales[last].position(point.values[last]), point })),
    );
    const ends = axes.flatMap((_, place) => scales[place].ends.map((text, y) => ({ x: place, y, text })));
    const most = Math.max(8, Math.floor(width / axes.length / 7));
    return Plot.plot({
      ...options(width, 340),
      marginTop: 40,
      marginLeft: 80,
      marginRight: 70,
      marginBottom: 24,
      x: { type: "linear", domain: [0, last], axis: null },
      y: { domain: [0, 1], axis: null },
      color: { type: "linear", domain: [0, 1], range: ["var(--faint)", "var(--accent)"], interpolate: (a, b) => (t) => `color-mix(in oklab, ${b} ${Math.round(100 * t)}%, ${a})` },
      marks: [
        Plot.line(lines, { x: "x", y: "y", z: "z", stroke: "of", strokeWidth: 1.4, strokeOpacity: drawn.length > 200 ? 0.45 : 0.8 }),
        Plot.ruleX(axes.map((_, place) => place), { stroke: "var(--edge)" }),
        Plot.text(axes.map((axis, x) => ({ x, axis })), { x: "x", frameAnchor: "top", dy: -30, text: ({ axis }) => shortName(named.get(axis), most), fontWeight: 650 }),
        ...[[0, 11], [1, -9]].map(([end, dy]) =>
          Plot.text(ends.filter(({ y }) => y === end), { x: "x", y: "y", text: ({ text }) => shortName(String(text), most), dy, fill: "var(--ink)", stroke: "var(--paper)", strokeWidth: 4 }),
        ),
        Plot.tip(lines, Plot.pointer({ x: "x", y: "y", title: ({ point }) => words(point), fill: "var(--paper)", stroke: "var(--edge)" })),
      ],
    });
  },
  table,
  note,
});

let data = null;

function draw() {
  if (!data) return;
  const [x, y] = [at("x"), at("y")].map(({ value }) => axes.indexOf(value));
  scatter.update({ ...data, x, y, log: at("log").checked });
  parallel.update(data);
}

async function load() {
  const asked = new URLSearchParams(query);
  for (const axis of axes) asked.append("axis", axis);
  try {
    data = await getJSON(`/runs/points.json?${asked}`);
    draw();
  } catch (error) {
    at("problem").textContent = error.message;
    at("problem").hidden = false;
  }
}

for (const id of ["x", "y", "log"]) at(id).addEventListener("change", draw);
load();
