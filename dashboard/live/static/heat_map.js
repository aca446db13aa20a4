// A heat map of names by versions: one canvas with a pixel per cell, axes around it, and values on hover.

import { rgb } from "/static/js/colours.js";
import { el, svg } from "/static/js/dom.js";
import { middleCut, nearest } from "/static/js/points.js";

const LEFT_LEAST = 70;
const TOP = 8;
const BOTTOM = 34;

let colours = null;
addEventListener("fedping:theme", () => (colours = null));

/** Colours between the theme's, as {@link pixel}s; asked of the browser once per theme, since that is slow. */
export function palette() {
  colours ??= mixtures(...["--cold", "--neutral", "--warm", "--accent"].map(rgb));
  return colours;
}

const STEPS = 256;

function mixtures(cold, neutral, warm, accent) {
  const [colder, warmer, stronger] = [cold, warm, accent].map((end) => ramp(neutral, end).map(pixel));
  const at = (colours, share) => colours[Math.round(STEPS * Math.max(0, Math.min(1, share)))];
  return {
    neutral: pixel(neutral),
    /** −1 is cold, 0 neutral, 1 warm. */
    diverging: (share) => (share < 0 ? at(colder, -share) : at(warmer, share)),
    /** 0 is neutral, 1 the accent. */
    sequential: (share) => at(stronger, share),
  };
}

const ramp = (from, to) =>
  Array.from({ length: STEPS + 1 }, (_, step) => from.map((value, k) => value + ((to[k] - value) * step) / STEPS));

/** A colour as a canvas stores it: four bytes, written as one number. */
const pixel = (colour) => new Uint32Array(Uint8ClampedArray.of(...colour, 255).buffer)[0];

/**
 * @param {import("/static/js/stage.js").Stage} stage
 * @param {object} of
 * @param {string[]} of.names one per row
 * @param {number[]} of.versions one per column
 * @param {(row: number, column: number) => number} of.colour from the palette
 * @param {(row: number, column: number) => string} of.words the text of a cell on hover
 * @param {{x: number, words: string}[]} of.marks events of the line
 * @param {number} of.width
 * @param {number | null} [of.chosen] the marked version
 * @param {(version: number) => void} [of.onChoose]
 * @param {(window: [number, number] | null) => void} [of.onZoom] is told of versions that are to be drawn alone; null: all
 * @param {[number, number] | null} [of.zoomed] the versions that are drawn alone
 * @param {[number, number]} of.whole the first and the last version
 * @param {{title: string, width: number, draw: (row: number, top: number, height: number, left: number, width: number)
 *   => Node[]}} [of.beside] a column of drawings to the right
 */
export function heatMap(stage, { names, versions, colour, words, marks, width, chosen = null, onChoose, onZoom, zoomed = null, whole, beside }) {
  const rowHeight = names.length > 40 ? 14 : 17;
  const left = Math.min(width * 0.4, Math.max(LEFT_LEAST, Math.max(...names.map(widthOf)) + 12));
  const right = beside ? beside.width : 12;
  const area = { left, top: TOP, width: Math.max(40, width - left - right), height: rowHeight * names.length };
  const frame = svg(
    "svg",
    { width, height: TOP + area.height + BOTTOM, viewBox: `0 0 ${width} ${TOP + area.height + BOTTOM}` },
    names.map((name, row) =>
      nameText(name, left, left - 8, TOP + (row + 0.5) * rowHeight),
    ),
    axis(versions, area),
    svg("rect", { class: "frame", x: left, y: TOP, width: area.width, height: area.height }),
    beside && names.flatMap((_, row) =>
      beside.draw(row, TOP + row * rowHeight, rowHeight, left + area.width + 14, right - 14),
    ),
  );
  const canvas = painted(names.length, versions.length, colour);
  Object.assign(canvas.style, px({ left, top: TOP, width: area.width, height: area.height }));
  stage.answers = {
    area,
    help: "arrow keys go from cell to cell, Enter chooses the version, plus and minus draw a part larger, 0 draws all",
    ...cells(names, versions, words, marks, area),
    choose: ([, column]) => onChoose(versions[column]),
    ...zooms(versions, area, zoomed, whole, onZoom),
  };
  return el("div", { class: "map" }, frame, canvas, marked(versions, chosen, marks, area, width));
}

/** The cell pointed at: a place is [row, column]. */
function cells(names, versions, words, marks, { width, height }) {
  const [wide, high] = [width / versions.length, height / names.length];
  const within = (value, of) => Math.max(0, Math.min(of - 1, value));
  const place = (row, column) => [within(row, names.length), within(column, versions.length)];
  return {
    at: (x, y) => place(Math.floor(y / high), Math.floor(x / wide)),
    step: (from, dx, dy) => (from === null ? [0, versions.length - 1] : place(from[0] + dy, from[1] + dx)),
    tell([row, column]) {
      if (row >= names.length || column >= versions.length) return null;
      const here = marks.filter(({ x }) => versions[nearest(versions, x)] === versions[column]).map((mark) => ({ value: mark.words }));
      return {
        x: (column + 0.5) * wide, y: (row + 0.5) * high,
        title: `${names[row]}, version ${versions[column]}`, rows: [{ value: words(row, column) }, ...here],
      };
    },
  };
}

/** Parts drawn larger: by marking them, and with the keyboard. */
function zooms(versions, { width }, zoomed, whole, onZoom) {
  const column = (pixel) => Math.max(0, Math.min(versions.length - 1, Math.floor((pixel / width) * versions.length)));
  return {
    brushed: (from, to) => onZoom([versions[column(from)], versions[column(to)]]),
    zoomed([, at], factor) {
      const [first, last] = zoomed ?? whole;
      const length = Math.max(2, Math.round((last - first) * factor));
      if (length >= whole[1] - whole[0]) return onZoom(null);
      const from = Math.max(whole[0], Math.min(whole[1] - length, versions[at] - Math.round(length / 2)));
      onZoom([from, from + length]);
    },
    all: () => onZoom(null),
  };
}

function painted(rows, columns, colour) {
  const canvas = el("canvas", { width: Math.max(1, columns), height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let row = 0, at = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++, at++) pixels[at] = colour(row, column);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Lines above the canvas: through the chosen version, and at events. */
function marked(versions, chosen, marks, area, width) {
  const at = (version) => area.left + ((nearest(versions, version) + 0.5) / versions.length) * area.width;
  const within = (version) => version >= versions[0] && version <= versions.at(-1);
  const line = (version, kind) =>
    svg("line", { class: kind, x1: at(version), x2: at(version), y1: area.top - 4, y2: area.top + area.height + 4 });
  return svg(
    "svg",
    { width, height: area.top + area.height + 6, class: "over-map" },
    marks.filter(({ x }) => within(x)).map(({ x }) => line(x, "happened")),
    chosen !== null && within(chosen) && line(chosen, "chosen"),
  );
}

function axis(versions, { left, top, width, height }) {
  const ticks = d3.ticks(versions[0], Math.max(versions.at(-1), versions[0] + 1), Math.max(2, Math.round(width / 80)));
  const base = top + height;
  return [
    ticks
      .filter((tick) => Number.isInteger(tick) && tick <= versions.at(-1))
      .flatMap((tick) => {
        const x = left + ((nearest(versions, tick) + 0.5) / versions.length) * width;
        return [
          svg("line", { class: "tick", x1: x, x2: x, y1: base, y2: base + 4 }),
          svg("text", { x, y: base + 15, "text-anchor": "middle" }, String(tick)),
        ];
      }),
    svg("text", { class: "soft", x: left + width, y: base + 29, "text-anchor": "end" }, "version →"),
  ].flat();
}

/** A name that ends at a place, cut in the middle if it is wider than there is room, and whole on hover. */
export function nameText(name, room, x, y) {
  const text = fitted(name, room - 10);
  return svg("text", { x, y, dy: "0.35em", "text-anchor": "end" }, text, text !== name && svg("title", {}, name));
}

const ruler = el("canvas").getContext("2d");
const widths = new Map();

/** The width of a name as `.map text` draws it, in pixels: letters of other scripts are up to twice as wide. */
function widthOf(name) {
  ruler.font = '11.5px system-ui, -apple-system, "Segoe UI", sans-serif';
  if (widths.size > 5000) widths.clear();
  if (!widths.has(name)) widths.set(name, ruler.measureText(name).width);
  return widths.get(name);
}

function fitted(name, pixels) {
  let most = [...name].length;
  if (widthOf(name) <= pixels) return name;
  let [low, high] = [1, most];
  while (low < high) {
    most = (low + high + 1) >> 1;
    if (widthOf(middleCut(name, most)) <= pixels) low = most;
    else high = most - 1;
  }
  return middleCut(name, low);
}

const px = (numbers) => Object.fromEntries(Object.entries(numbers).map(([key, value]) => [key, `${value}px`]));
