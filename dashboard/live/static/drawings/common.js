// Shared parts of the Live page's figures.

import { recalled, remember } from "/static/js/address.js";
import { el } from "/static/js/dom.js";
import { lineChart } from "/static/js/line_chart.js";
import { iterationMarks } from "/static/js/notes.js";
import { gapped, nearest } from "/static/js/points.js";

/** The version being viewed, if it is not the newest; whether all weights share one colour scale. */
export const view = { chosen: null, oneScale: false, onChoose: () => {}, need: () => {} };

/** The text where there is nothing to draw. */
export const waiting = (words) => [el("p", { class: "muted" }, words)];
export const NO_ROUND = "There is no round yet; the first one makes version 1.";

/** The rows of versions made by rounds. */
export const rounds = (line) => line.rows.filter((row) => row.clients !== null);

/** Points by iteration (or version), with a gap wherever there was no measurement, but not where versions were left out. */
export const measured = (line, points, before = 1) => gapped(points, (x, next) => line.joins(x + before, next + before));

/** Lines over a line's iterations or versions, with marks for its events, and the clock of its versions. */
export function lineOfIterations(line, stage, of) {
  const { kept } = stage;
  const onZoom = (window) => view.need(...around(line.rows, window, kept.clock ? ({ version }) => line.times.get(version) : ({ version }) => version - (of.x === "version" ? 0 : 1)));
  if (kept.zoom === undefined) {
    const part = partOf(recalled(zoomName(stage)));
    Object.assign(kept, { zoom: part?.range ?? null, clock: part?.clock ?? false });
    if (part) onZoom(part.range);
  }
  remember(zoomName(stage), textOf(kept.zoom, kept.clock));
  return lineChart(stage, {
    x: "iteration", zero: true, marks: [...line.marks, ...iterationMarks(line.notes, line.line.line, line.times)].sort((a, b) => a.x - b.x), clock: (iteration) => line.times.get(iteration + 1),
    onZoom,
    ...of,
  });
}

/** The name of a figure's part in the address. */
const zoomName = (stage) => `zoom-${stage.name}`;

/** A part of an axis as the address has it: "3..40", or with a "t" for times; empty for the whole. */
const textOf = (range, clock = false) => (range ? `${range.map((x) => Number(x.toFixed(2))).join("..")}${clock ? "t" : ""}` : "");

/** A part of an axis from the address; null for anything else. */
function partOf(text) {
  const found = /^(-?\d{1,15}(?:\.\d{1,2})?)\.\.(-?\d{1,15}(?:\.\d{1,2})?)(t?)$/.exec(text ?? "");
  if (!found || !(Number(found[1]) < Number(found[2]))) return null;
  return { range: [Number(found[1]), Number(found[2])], clock: found[3] === "t" };
}

/** The versions on either side of a part of an axis. */
function around(rows, [from, to], at) {
  const [first, after] = [rows.findLastIndex((row) => at(row) <= from), rows.findIndex((row) => at(row) >= to)];
  return [rows[Math.max(0, first)].version, (after < 0 ? rows.at(-1) : rows[after]).version];
}

/** The most columns of a heat map. */
const COLUMNS = 400;

/** The rows that are the columns of a heat map: all of the part that is drawn, or evenly spaced ones. */
export function columns(line, stage, all = line.rows) {
  const window = windowOf(stage);
  const rows = window ? all.filter(({ version }) => version >= window[0] && version <= window[1]) : all;
  if (!rows.length) return all;
  const [first, last] = [rows[0].version, rows.at(-1).version];
  if (rows.length <= COLUMNS && !line.lacks(first, last)) return rows;
  const most = Math.min(COLUMNS, rows.length, line.line.most);
  const versions = rows.map(({ version }) => version);
  const near = Array.from({ length: most }, (_, k) => nearest(versions, first + ((last - first) * k) / Math.max(1, most - 1)));
  return [...new Set(near)].map((i) => rows[i]);
}

/** The versions that a heat map draws alone, at first those in the address; null for all. */
function windowOf({ kept, name }) {
  if (kept.window === undefined) {
    const part = partOf(recalled(zoomName({ name })));
    kept.window = part && !part.clock ? part.range.map(Math.round) : null;
    if (kept.window) view.need(...kept.window);
  }
  return kept.window;
}

/** What a heat map of some versions does when a part is marked, and its way back. */
export function brushing(line, stage) {
  const { kept } = stage;
  const zoomed = windowOf(stage);
  remember(zoomName(stage), textOf(zoomed));
  const zoom = (window) => {
    kept.window = window;
    stage.again();
    if (window) view.need(...window);
  };
  return { zoomed, whole: [line.rows[0].version, line.newest.version], onZoom: zoom };
}
