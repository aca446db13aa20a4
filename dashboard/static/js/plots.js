// The drawings that several pages have, on Observable Plot. Global `Plot` and `d3` are loaded by the page.

import { armColour, armDashes } from "./colours.js";
import { el, svg } from "./dom.js";
import { number } from "./format.js";

/** What all plots have in common; a narrow page gets fewer ticks. */
export const options = (width, height = Math.round(Math.min(300, Math.max(200, width * 0.42)))) => ({
  className: "plot",
  width,
  height,
  marginTop: 22,
  marginLeft: 52,
  marginBottom: 34,
  marginRight: 14,
});

/** Names with their line, above a plot: colour and dashes, so that colour is never alone. */
export function legend(series) {
  return el(
    "ul",
    { class: "legend", "aria-hidden": "true" },
    series.map(({ name, colour, dashes }, place) =>
      el(
        "li",
        {},
        svg(
          "svg",
          { width: 22, height: 8 },
          svg("line", {
            x1: 0, x2: 22, y1: 4, y2: 4, "stroke-width": 2.5,
            stroke: colour ?? armColour(place), "stroke-dasharray": dashes ?? armDashes(place),
          }),
        ),
        name,
      ),
    ),
  );
}

/**
 * Lines by name over x: the raw line always, thin if there is a smooth one beside it; a band where there is one.
 * @param {object} of
 * @param {{name: string, points: number[][], smooth?: number[][], band?: number[][], colour?: string, dashes?: string}[]}
 *   of.series points [x, y]; band [x, low, high]; null y is a gap
 * @param {string} of.x words of the axis
 * @param {string} of.y
 * @param {boolean} [of.log]
 * @param {boolean} [of.zero] whether y begins at zero
 * @param {{name: string, y: number}[]} [of.rules] dashed lines across, such as baselines
 * @param {number} of.width
 */
export function linePlot({ series, x, y, log = false, zero = false, rules = [], width, height }) {
  const look = (one, place) => ({
    stroke: one.colour ?? armColour(place),
    strokeDasharray: one.dashes ?? armDashes(place) ?? undefined,
  });
  const usable = (points) => (log ? points.map(([at, v]) => [at, v > 0 ? v : null]) : points);
  const marks = series.flatMap((one, place) => {
    const colour = one.colour ?? armColour(place);
    const band = one.band && Plot.areaY(one.band, { x: "0", y1: "1", y2: "2", fill: colour, fillOpacity: 0.16 });
    const raw = Plot.lineY(usable(one.points), {
      x: "0", y: "1", ...look(one, place),
      strokeWidth: one.smooth ? 1 : 1.8, strokeOpacity: one.smooth ? 0.6 : 1,
    });
    const smooth = one.smooth && Plot.lineY(usable(one.smooth), { x: "0", y: "1", ...look(one, place), strokeWidth: 2.4 });
    const single = one.points.length === 1 && Plot.dot(one.points, { x: "0", y: "1", fill: colour, r: 3 });
    return [band, raw, smooth, single].filter(Boolean);
  });
  const across = rules.map((rule) =>
    Plot.ruleY([rule.y], { stroke: rule.colour ?? "var(--soft)", strokeDasharray: "4 3" }),
  );
  const plot = Plot.plot({
    ...options(width, height),
    x: { label: x, tickFormat: whole },
    y: { label: y, grid: true, type: log ? "log" : "linear", zero: zero && !log, nice: !log, tickFormat: (v) => number(v, 3) },
    marks: [...across, ...marks],
  });
  return series.length > 1 ? [legend(series), plot] : [plot];
}

const whole = (value) => (Number.isInteger(value) ? String(value) : "");

/**
 * Effects with their intervals: a dot and a whisker each, on one axis with the line of no effect.
 * @param {object} of
 * @param {{name: string, value: number, low: number, high: number, colour?: string}[]} of.rows
 * @param {string} of.x words of the axis
 * @param {number} of.width
 */
export function intervals({ rows, x, width }) {
  const left = Math.min(width * 0.42, 12 + 6.6 * Math.max(...rows.map((row) => row.name.length)));
  return Plot.plot({
    ...options(width, 56 + 30 * rows.length),
    marginLeft: left,
    x: { label: x, grid: true, nice: true, tickFormat: (v) => number(v, 3) },
    y: { label: null, domain: rows.map((row) => row.name), tickSize: 0, type: "band" },
    marks: [
      Plot.ruleX([0], { stroke: "var(--soft)", strokeDasharray: "4 3" }),
      Plot.ruleY(rows, { y: "name", x1: "low", x2: "high", stroke: (row) => row.colour ?? "var(--ink)", strokeWidth: 2 }),
      Plot.dot(rows, { y: "name", x: "value", fill: (row) => row.colour ?? "var(--ink)", r: 4.5 }),
    ],
  });
}
