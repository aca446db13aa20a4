// Lines over iterations, rounds or time: the only drawing of lines. It responds to the pointer and to the keyboard: values
// of every line at a place, zooming, hiding, smoothing, and an axis by the clock. Global `Plot` and `d3`.

import { armColour, armDashes, armSymbol } from "./colours.js";
import { el, fill, svg } from "./dom.js";
import { clockTick, number, tick, utc } from "./format.js";
import { options } from "./plots.js";
import { allX, alone, mostOf, nearest, picked, smoothed, thinned, within } from "./points.js";

const RULE_DASHES = ["7 4", "2 3", "8 3 2 3", "1 5"];
/** How many symbols a line carries, from how many lines on a legend has a search, and how many values a tip shows. */
const [SYMBOLS, SEARCHED, TOLD] = [6, 13, 24];
const SMOOTHINGS = [1, 5, 10, 25, 100];
const HELP = "arrow keys move the line that tells the values, plus and minus draw a part larger, 0 draws all";

/** Pixels: the width of a letter in a mark's words, the margins, and the height of the axis' unit above the drawing. */
const [LETTER, AROUND, FOR_UNIT] = [6, 66, 40];

/**
 * @typedef {object} Line
 * @property {string} name
 * @property {number} [place] determines its colour and dashes
 * @property {number[][]} points [x, y]; a null y is a gap
 * @property {number[][][]} [thin] the lines that it is the mean of
 * @property {number[][]} [band] [x, low, high]
 * @property {(x: number) => string} [told] the value at x in words
 */

/**
 * @param {import("./stage.js").Stage} stage
 * @param {object} of
 * @param {Line[]} of.series
 * @param {string} of.x label of the axis, such as "iteration"; ignored if x is time
 * @param {string} of.y
 * @param {number} of.width
 * @param {number} [of.height]
 * @param {boolean} [of.time] whether x is milliseconds since 1970
 * @param {(x: number) => number | undefined} [of.clock] time of x, in ms since 1970: offers an axis by the clock
 * @param {{x: number, at?: number, words: string}[]} [of.marks] events with their place and time
 * @param {{name: string, y: number}[]} [of.rules] dashed lines across, such as baselines
 * @param {string[]} [of.hidden] names of the lines that are hidden at first
 * @param {boolean} [of.zero] whether y starts at zero
 * @param {boolean} [of.log]
 * @param {number} [of.smooth] how many points to average initially; if absent, smoothing is not offered
 * @param {[number, number]} [of.bounds] limits of y, such as 0 and 1 for a share
 * @param {(lines: number[][][]) => [number, number] | null} [of.limits] the range of y while all x are drawn
 * @param {(window: [number, number]) => void} [of.onZoom] is told of a part that is drawn larger
 */
export function lineChart(stage, of) {
  const kept = remembered(stage, of);
  const lines = of.series.map((one, i) => {
    const place = one.place ?? i;
    return { ...one, colour: armColour(place), dashes: armDashes(place) ?? undefined, symbol: armSymbol(place) };
  });
  const rules = (of.rules ?? []).map((rule, i) => ({ ...rule, dashes: RULE_DASHES[i % RULE_DASHES.length] }));
  control(stage, of, lines, rules);
  const clock = of.clock && kept.clock ? of.clock : null;
  const shown = lines.filter(({ name }) => !kept.hidden.has(name)).map((line) => placed(line, of, clock, kept.over));
  const across = rules.filter(({ name }) => !kept.hidden.has(name));
  const whole = d3.extent(shown.flatMap(({ raw }) => raw.map(([x]) => x)));
  const extent = kept.zoom ?? (whole[0] === undefined ? [0, 1] : whole);
  const seen = shown.map((line) => windowed(line, kept.zoom, shown));
  const marks = (of.marks ?? [])
    .map((mark) => ({ ...mark, x: clock ? mark.at : mark.x }))
    .filter(({ x }) => x >= extent[0] && x <= extent[1]);
  const timed = Boolean(of.time || clock);
  const plot = Plot.plot(asPlot(of, { seen, across, marks, extent, timed, zoomed: kept.zoom !== null }));
  stage.answers = answers(stage, of, { shown: seen, across, marks, plot, timed, extent, whole });
  return plot;
}

/** The reader's choices so far. */
function remembered({ kept }, of) {
  kept.hidden ??= new Set(of.hidden ?? []);
  kept.zoom ??= null;
  kept.clock ??= false;
  kept.over ??= of.smooth ?? 1;
  return kept;
}

/** A line as drawn: [x of the drawing, y, x]; `raw` as measured, `smooth` if requested. */
function placed(line, of, clock, over) {
  const usable = (y) => (y === null || (of.log && y <= 0) ? null : y);
  const at = (x) => (clock ? (clock(x) ?? NaN) : x);
  const put = (points) => points.map(([x, y]) => [at(x), usable(y), x]).filter(([x, y]) => y === null || !Number.isNaN(x));
  const raw = put(line.points);
  return {
    ...line,
    raw,
    smooth: over > 1 ? put(smoothed(line.points, over)) : null,
    thin: (line.thin ?? []).map(put),
    band: (line.band ?? []).map(([x, low, high]) => (low === null ? [at(x), null, null] : [at(x), ...inside([low, high], of).map(usable)])),
  };
}

/** An interval within possible values: no share is below 0 or above 1. */
const inside = (values, { bounds }) => (bounds ? values.map((y) => Math.max(bounds[0], Math.min(bounds[1], y))) : values);

/** The drawn part of a line, in as many points as can be distinguished. */
function windowed(line, zoom, all) {
  const most = mostOf(all.reduce((sum, { thin }) => sum + thin.length + 1, 0));
  const cut = (points) => (zoom ? within(points, zoom) : points);
  const band = cut(line.band);
  const step = Math.ceil(band.length / 600) || 1;
  return {
    ...line,
    raw: thinned(cut(line.raw), most),
    smooth: line.smooth && thinned(cut(line.smooth), most),
    thin: line.thin.map((points) => thinned(cut(points), most)),
    band: band.filter((_, i) => i % step === 0 || i === band.length - 1),
    all: cut(line.raw),
  };
}

function asPlot(of, { seen, across, marks, extent, timed, zoomed }) {
  const domain = domainOf(of, seen, across, extent, zoomed);
  const clip = zoomed || Boolean(of.limits) || seen.some(({ band }) => band.length > 0);
  const x = timed ? { x: ([at]) => new Date(at) } : { x: "0" };
  const happened = { x: (mark) => (timed ? new Date(mark.x) : mark.x) };
  const opacity = Math.min(0.15, 0.36 / Math.max(1, seen.length)); // so that many overlapping bands do not hide the lines
  const line = (points, look) => Plot.lineY(points, { ...x, y: "1", clip, ...look });
  const drawn = seen.flatMap(({ raw, smooth, thin, band, colour, dashes, symbol }) => {
    const behind = smooth !== null || thin.length > 1;
    const look = { stroke: colour, strokeDasharray: dashes };
    return [
      band.some(([, low]) => low !== null) && Plot.areaY(band, { ...x, y1: "1", y2: "2", fill: colour, fillOpacity: opacity, clip }),
      ...thin.map((points) => line(points, { stroke: colour, strokeWidth: 0.9, strokeOpacity: 0.45 })),
      line(raw, { ...look, strokeWidth: smooth ? 0.9 : behind ? 2.4 : 1.8, strokeOpacity: smooth ? 0.55 : 1 }),
      smooth && line(smooth, { ...look, strokeWidth: 2.4 }),
      Plot.dot(alone(raw), { ...x, y: "1", fill: colour, r: 2.6, clip }),
      symbol && Plot.dot(marked(smooth ?? raw), { ...x, y: "1", symbol, fill: colour, stroke: "var(--paper)", strokeWidth: 0.7, r: 4, clip }),
    ];
  });
  const ticks = Math.max(2, Math.min(8, Math.round(of.width / 90)));
  const span = extent[1] - extent[0];
  const word = (value) => (Number.isInteger(value) ? number(value, 9) : "");
  return {
    ...options(of.width, of.height),
    ...(timed ? { marginBottom: 50 } : {}), // ticks may have two lines, above the axis' unit
    x: {
      type: timed ? "utc" : "linear", ticks, label: timed ? "time (UTC)" : of.x,
      domain: span > 0 ? extent.map((at) => (timed ? new Date(at) : at)) : undefined,
      tickFormat: timed ? clockTick(span) : word,
    },
    y: { label: of.y, grid: true, type: of.log ? "log" : "linear", domain, nice: !of.log, ticks: of.log ? powers(domain) : 6, tickFormat: (v) => (of.log && v >= 1e5 ? v.toExponential().replace("+", "") : tick(v)) },
    marks: [
      ...across.map(({ y, dashes }) => Plot.ruleY([y], { stroke: "var(--soft)", strokeDasharray: dashes, clip })),
      ...drawn.filter(Boolean),
      Plot.ruleX(marks, { ...happened, stroke: "var(--ink)", strokeWidth: 1, strokeDasharray: "1.5 3" }),
      ...["start", "end"].map((textAnchor) =>
        Plot.text(named(marks, extent, of.width).filter((mark) => mark.anchor === textAnchor), {
          ...happened, text: "words", textAnchor, frameAnchor: "top", dy: -8, fontSize: 11, fill: "var(--soft)",
        })),
    ],
  };
}

/** The points of a line that carry its symbol. */
function marked(points) {
  const known = points.filter(([, y]) => y !== null);
  return picked(known.length, SYMBOLS).map((i) => known[i]);
}

/** The ticks of a logarithmic axis: of more than two decades the powers of ten alone, six at most; else about six. */
function powers(domain) {
  const [low, high] = domain.map(Math.log10);
  if (high - low < 2) return 6;
  const within = d3.range(Math.ceil(low), Math.floor(high) + 1);
  const step = Math.ceil(within.length / 6);
  return within.filter((power) => power % step === 0).map((power) => 10 ** power);
}

/** The marks whose words fit above the drawing, from the newest back, each on the side with more room. */
function named(marks, [from, to], width) {
  const pixel = (width - AROUND) / (to - from || 1);
  const taken = [];
  return marks.toReversed().flatMap((mark) => {
    const at = (mark.x - from) * pixel;
    const length = mark.words.length * LETTER;
    const anchor = at * 2 > width ? "end" : "start";
    const [left, right] = anchor === "end" ? [at - length, at] : [at, at + length];
    if (left < FOR_UNIT || taken.some(([start, end]) => left < end && right > start)) return [];
    taken.push([left - LETTER, right + LETTER]);
    return [{ ...mark, anchor }];
  });
}

/** The range of y: all of the lines, and bands up to as much again on either side, since few seeds make them huge. */
function domainOf(of, seen, across, extent, zoomed) {
  const usable = (y) => y !== null && Number.isFinite(y) && (!of.log || y > 0);
  const within = ([x]) => x >= extent[0] && x <= extent[1];
  const lines = seen.flatMap(({ raw, thin }) => [raw, ...thin]);
  const measured = (zoomed ? null : of.limits?.(lines)) ?? lines.flatMap((points) => points.filter(within).map(([, y]) => y));
  const known = [...measured, ...(zoomed ? [] : across.map(({ y }) => y))].filter(usable);
  if (!known.length) return of.bounds ?? [of.log ? 0.1 : 0, 1];
  let [low, high] = d3.extent(known);
  const span = high - low || Math.abs(high) * 0.05;
  const bands = seen.flatMap(({ band }) => band.filter(within).flatMap(([, from, to]) => [from, to])).filter(usable);
  low = Math.min(low, Math.max(low - span, d3.min(bands) ?? low));
  high = Math.max(high, Math.min(high + span, d3.max(bands) ?? high));
  if (of.log) return [(low > 0 ? low : d3.min(known)) / 1.1, high * 1.1];
  if (of.zero && !zoomed) [low, high] = [Math.min(0, low), Math.max(0, high)];
  const margin = (high - low) * 0.04 || Math.abs(high) * 0.05 || 0.5;
  const wide = [of.zero && low === 0 ? 0 : low - margin, high + margin];
  return of.bounds ? inside(wide, of) : wide;
}

/** The responses to the pointer. Places are x of the drawing. */
function answers(stage, of, { shown, across, marks, plot, timed, extent, whole }) {
  const { kept } = stage;
  const [scaleX, scaleY] = [plot.scale("x"), plot.scale("y")];
  const left = scaleX.range[0];
  const top = Math.min(...scaleY.range);
  const area = { left, top, width: scaleX.range[1] - left, height: Math.max(...scaleY.range) - top };
  const inWindow = (x) => x >= extent[0] && x <= extent[1];
  const xs = allX(shown.map(({ all }) => all)).filter(inWindow);
  if (!xs.length) return null;
  const across_x = (x) => scaleX.apply(timed ? new Date(x) : x) - left;
  const pixels = xs.map(across_x);
  const back = (pixel) => Number(scaleX.invert(pixel + left));
  const values = shown.map(({ all, smooth }) => ({ at: new Map(all.map((p) => [p[0], p])), smooth: smooth && new Map(smooth.map((p) => [p[0], p[1]])) }));
  const zoom = (window) => {
    kept.zoom = window;
    stage.again();
    if (window) of.onZoom?.(window);
  };

  function tell(place) {
    const x = xs[nearest(xs, place)];
    const rows = shown.map((line, i) => {
      const [, y, of_x] = values[i].at.get(x) ?? [x, null, null];
      const mean = values[i].smooth?.get(x);
      const words = y === null ? "–" : (line.told?.(of_x) ?? number(y, 5)) + (mean == null ? "" : ` (mean of ${kept.over}: ${number(mean, 5)})`);
      return { name: line.name, value: words, order: y, y: y === null ? undefined : scaleY.apply(y) - top, key: swatch(line) };
    });
    rows.push(...across.map((rule) => ({ name: rule.name, value: number(rule.y, 5), order: rule.y, key: swatch(rule) })));
    rows.sort((a, b) => (b.order ?? -Infinity) - (a.order ?? -Infinity));
    const more = rows.length - TOLD;
    if (more > 0) rows.splice(TOLD / 2, more, { value: `… ${more} more between them …` });
    const here = marks.filter((mark) => xs[nearest(xs, mark.x)] === x).map(({ words }) => ({ value: words }));
    const known = values.map(({ at }) => at.get(x)).filter(Boolean);
    return { x: across_x(x), title: whereWords(of, timed, x, known), rows: [...rows, ...here] };
  }

  return {
    area,
    help: HELP,
    at: (pixel) => xs[nearest(pixels, pixel)],
    step(place, dx) {
      const i = place === null ? xs.length - 1 : nearest(xs, place) + dx;
      return xs[Math.max(0, Math.min(xs.length - 1, i))];
    },
    tell,
    brushed: (from, to) => zoom([back(from), back(to)]),
    zoomed(place, factor) {
      const length = (extent[1] - extent[0]) * factor;
      if (length >= whole[1] - whole[0]) return zoom(null);
      const from = Math.max(whole[0], Math.min(whole[1] - length, place - length / 2));
      zoom([from, from + length]);
    },
    all: () => zoom(null),
  };
}

function whereWords(of, timed, x, known) {
  if (of.time) return utc(x);
  const [[, , round] = []] = known;
  const when = timed ? x : of.clock?.(round);
  return `${of.x} ${number(round, 9)}${when === undefined ? "" : `, ${utc(when)}`}`;
}

const SHAPES = { square: "symbolSquare", triangle: "symbolTriangle", circle: "symbolCircle", diamond: "symbolDiamond", star: "symbolStar", cross: "symbolCross", wye: "symbolWye" };

const swatch = ({ colour = "var(--soft)", dashes, symbol }) =>
  svg("svg", { width: 26, height: 10, "aria-hidden": "true" },
    svg("line", { x1: 0, x2: 26, y1: 5, y2: 5, "stroke-width": 2.5, stroke: colour, "stroke-dasharray": dashes }),
    symbol && svg("path", { d: d3.symbol(d3[SHAPES[symbol]], 36)(), transform: "translate(13 5)", fill: colour, stroke: "var(--paper)", "stroke-width": 0.7 }));

/** The legend, whose names show and hide their lines, and the choices beside it; made again only for other lines. */
function control(stage, of, lines, rules) {
  const { kept, controls } = stage;
  const all = [...lines, ...rules];
  const key = JSON.stringify([all.map(({ name, place }) => [name, place]), Boolean(of.clock), of.smooth === undefined]);
  if (kept.key !== key) {
    kept.key = key;
    kept.show = made(stage, of, all);
  }
  controls.hidden = false;
  kept.show();
}

function made(stage, of, all) {
  const { kept, controls } = stage;
  all = [...all.filter(({ name }) => !kept.hidden.has(name)), ...all.filter(({ name }) => kept.hidden.has(name))];
  const changed = (change) => () => {
    change();
    stage.again();
  };
  const buttons = all.map((line) => {
    const toggle = changed(() => (kept.hidden.has(line.name) ? kept.hidden.delete(line.name) : kept.hidden.add(line.name)));
    return el("button", { type: "button", class: "key", title: `Show or hide ${line.name}`, onclick: toggle }, swatch(line), line.name);
  });
  const names = all.map(({ name }) => name);
  const items = buttons.map((button) => el("li", {}, button));
  const find = el("input", { type: "search", "aria-label": `Find one of ${all.length} lines`, placeholder: `Find one of ${all.length} lines`, oninput: () => {
    const wanted = find.value.trim().toLowerCase();
    items.forEach((item, i) => (item.hidden = !names[i].toLowerCase().includes(wanted)));
  } });
  const every = el("button", { type: "button", class: "small", onclick: changed(() => {
    const none = kept.hidden.size === 0;
    kept.hidden = new Set(none ? names : []);
  }) });
  const back = el("button", { type: "button", class: "small", onclick: () => {
    kept.zoom = null;
    stage.again();
    stage.over.focus(); // the button no longer exists
  } }, `Show all ${of.time ? "times" : `${of.x}s`}`);
  const clock = el("input", { type: "checkbox", onchange: changed(() => {
    kept.clock = clock.checked;
    kept.zoom = null;
  }) });
  const over = el("select", { onchange: changed(() => (kept.over = Number(over.value))) },
    SMOOTHINGS.map((n) => el("option", { value: n }, n === 1 ? "as measured" : `mean of the last ${n}`)));
  fill(
    controls,
    all.length >= SEARCHED && el("p", { class: "tools finding" }, find, every),
    all.length > 1 && el("ul", { class: "legend" }, items, all.length > 3 && all.length < SEARCHED && el("li", {}, every)),
    el("p", { class: "tools" },
      of.smooth !== undefined && el("label", { class: "inline" }, "Lines", over),
      of.clock && el("label", { class: "inline" }, clock, "by the clock"),
      back),
  );
  return () => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(!kept.hidden.has(names[i]))));
    every.textContent = kept.hidden.size ? "Show all" : "Hide all";
    back.hidden = kept.zoom === null;
    over.value = String(kept.over);
    clock.checked = kept.clock;
  };
}
