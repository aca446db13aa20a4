// The common options of all plots, and effects with their intervals, on Observable Plot. The page loads global `Plot`
// and `d3`.

import { tick } from "./format.js";
import { shortened } from "./points.js";

/** The common options of all plots; a narrow page gets fewer ticks. */
export const options = (width, height = Math.round(Math.min(300, Math.max(200, width * 0.42)))) => ({
  className: "plot",
  width,
  height,
  marginTop: 22,
  marginLeft: 52,
  marginBottom: 34,
  marginRight: 14,
});

const NARROW = 520;

/** Pixels: the width of a letter; and the letters of a name that are always kept. */
const LETTER = 6.6;
const FEWEST_LETTERS = 12;
const HALO = { fill: "var(--ink)", stroke: "var(--paper)", strokeWidth: 7, strokeLinejoin: "round" };

/**
 * Effects with their intervals: a dot and a whisker each, on one axis with the line of no effect.
 *
 * A dot is filled if the effect is `sure` (or if that is not given), and hollow otherwise; null means that nothing is
 * decided, and gives a tick. A bound of null is open: the whisker ends in an arrow at the edge. On a narrow page, names
 * are above their whiskers instead of next to them.
 * @param {object} of
 * @param {{name: string, value: number, low: number | null, high: number | null, sure?: boolean | null, colour?: string,
 *   said?: string}[]} of.rows ``said`` is written at the dot instead of its value
 * @param {string} of.x label of the axis
 * @param {string} [of.left] words left of the line of no effect, such as "better"
 * @param {string} [of.right]
 * @param {number} [of.zero] position of no effect
 * @param {number} of.width
 */
export function intervals({ rows: given, x, left, right, zero = 0, width }) {
  const narrow = width < NARROW;
  const domain = reach(given, zero);
  const longest = Math.max(...given.map((row) => row.said?.length ?? 8));
  const stacked = narrow && LETTER * Math.max(...given.map((row) => row.name.length + (row.said?.length ?? 8) + 4)) > width;
  const letters = narrow ? width / LETTER - (stacked ? 2 : longest + 3) : (width * 0.36) / LETTER;
  const names = shortened(given.map((row) => row.name), Math.max(FEWEST_LETTERS, Math.floor(letters)));
  const rows = given.map((row, i) => ({ ...row, name: names[i] }));
  const ends = rows.map((row) => ({ ...row, from: row.low ?? domain[0], to: row.high ?? domain[1] }));
  const colour = (row) => row.colour ?? "var(--ink)";
  const beside = Math.min(width * 0.4, 18 + 6.6 * Math.max(...rows.map((row) => row.name.length)));
  const ticks = Math.max(3, Math.min(7, Math.round(width / 90)));
  const value = (row) => row.said ?? signedTo(row.value, domain);
  const open = (side, edge, text) =>
    Plot.text(ends.filter((row) => row[side] === null), { y: "name", x: edge, text: () => text, fill: colour, fontSize: 14 });
  const side = (words, anchor, dx) =>
    words && Plot.text([words], { x: zero, frameAnchor: "top", textAnchor: anchor, dx, dy: stacked ? -34 : -16, fill: "var(--soft)", text: (w) => w });
  return Plot.plot({
    ...options(width, 66 + (stacked ? 18 : 0) + (stacked ? 66 : narrow ? 50 : 42) * rows.length),
    marginTop: stacked ? 46 : 28,
    marginLeft: narrow ? 8 : beside,
    marginRight: 12,
    marginBottom: 38,
    x: { domain },
    y: { label: null, domain: rows.map((row) => row.name), tickSize: 0, type: "band", axis: null },
    marks: [
      Plot.axisX({ label: x, labelAnchor: "center", labelArrow: "none", tickSize: 4, tickFormat: (v) => tick(v), ticks }),
      !narrow && Plot.axisY({ label: null, tickSize: 0, lineWidth: beside / 11 }),
      Plot.gridX({ ticks, strokeOpacity: 0.12 }),
      Plot.ruleX([zero], { stroke: "var(--soft)", strokeWidth: 1.5 }),
      side(left && `← ${left}`, "end", -7),
      side(right && `${right} →`, "start", 7),
      Plot.ruleY(ends, { y: "name", x1: "from", x2: "to", stroke: colour, strokeWidth: 2.4 }),
      open("low", domain[0], "◂"),
      open("high", domain[1], "▸"),
      Plot.tickX(ends.filter((row) => row.sure === null), { y: "name", x: "value", stroke: colour, strokeWidth: 3, inset: 14 }),
      Plot.dot(ends.filter((row) => row.sure !== null), {
        y: "name", x: "value", r: 5.5, strokeWidth: 2, stroke: colour,
        fill: (row) => (row.sure === false ? "var(--paper)" : colour(row)),
      }),
      narrow && Plot.text(ends, { y: "name", frameAnchor: "left", textAnchor: "start", dy: stacked ? -33 : -17, text: "name", fontSize: 12, ...HALO }),
      narrow
        ? Plot.text(ends, { y: "name", frameAnchor: "right", textAnchor: "end", dy: -17, text: value, fontWeight: 600, fontSize: 12, ...HALO })
        : anchors(ends, value, domain, width - beside).map(([textAnchor, some]) =>
            Plot.text(some, { y: "name", x: "value", dy: -14, text: value, textAnchor, fontWeight: 600, fontSize: 12, ...HALO })),
    ].flat().filter(Boolean),
  });
}

/** The rows by where the words at their dots are anchored, so that none is cut at an edge of the drawing. */
function anchors(rows, words, [low, high], pixels) {
  const groups = { start: [], middle: [], end: [] };
  for (const row of rows) {
    const at = ((row.value - low) / (high - low)) * pixels;
    const half = (words(row).length * LETTER) / 2;
    groups[at < half ? "start" : at > pixels - half ? "end" : "middle"].push(row);
  }
  return Object.entries(groups);
}

/** The range of the axis: all finite values, the line of no effect, and room for words on both sides of it. */
function reach(rows, zero) {
  const all = [zero, ...rows.flatMap((row) => [row.value, row.low, row.high])].filter((v) => v != null && Number.isFinite(v));
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const span = high - low || Math.abs(zero) || 1;
  return [Math.min(low - 0.05 * span, zero - 0.2 * span), Math.max(high + 0.05 * span, zero + 0.2 * span)];
}

/** A value with its sign and as many decimal places as the axis can distinguish. */
function signedTo(value, [low, high]) {
  const places = Math.max(0, Math.min(6, 3 - Math.floor(Math.log10(high - low)) - 1));
  const text = Math.abs(value).toFixed(places);
  return (Number(text) === 0 ? "" : value < 0 ? "−" : "+") + text;
}
