// A heat map of names by versions: one canvas with a pixel a cell, and axes around it.

import { rgb } from "/static/js/colours.js";
import { el, svg } from "/static/js/dom.js";

const LEFT_LEAST = 70;
const LETTER = 6.6;
const TOP = 8;
const BOTTOM = 34;

let colours = null;
addEventListener("fedping:theme", () => (colours = null));

/** Colours between the theme's, as {@link pixel}s; asked of the browser once a theme, for it works out all styles for that. */
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

/** A colour as a canvas keeps it: four bytes, which are written as one number. */
const pixel = (colour) => new Uint32Array(Uint8ClampedArray.of(...colour, 255).buffer)[0];

/**
 * @param {object} of
 * @param {string[]} of.names a row each
 * @param {number[]} of.versions a column each
 * @param {(row: number, column: number) => number} of.colour of the palette
 * @param {(row: number, column: number) => string} of.words what a cell says when it is pointed at
 * @param {number} of.width
 * @param {number | null} [of.chosen] the version that is marked
 * @param {(version: number) => void} [of.onChoose]
 * @param {{title: string, width: number, draw: (row: number, top: number, height: number, left: number, width: number)
 *   => Node[]}} [of.beside] a column of drawings to the right
 */
export function heatMap({ names, versions, colour, words, width, chosen = null, onChoose, beside }) {
  const rowHeight = names.length > 40 ? 14 : 17;
  const longest = Math.max(...names.map((name) => name.length));
  const left = Math.min(width * 0.4, Math.max(LEFT_LEAST, longest * LETTER + 10));
  const right = beside ? beside.width : 12;
  const area = { left, top: TOP, width: Math.max(40, width - left - right), height: rowHeight * names.length };
  const frame = svg(
    "svg",
    { width, height: TOP + area.height + BOTTOM, viewBox: `0 0 ${width} ${TOP + area.height + BOTTOM}` },
    names.map((name, row) =>
      svg("text", { x: left - 8, y: TOP + (row + 0.5) * rowHeight, dy: "0.35em", "text-anchor": "end" }, cut(name, left)),
    ),
    axis(versions, area),
    svg("rect", { class: "frame", x: left, y: TOP, width: area.width, height: area.height }),
    beside && names.flatMap((_, row) =>
      beside.draw(row, TOP + row * rowHeight, rowHeight, left + area.width + 14, right - 14),
    ),
  );
  const canvas = painted(names.length, versions.length, colour);
  Object.assign(canvas.style, px({ left, top: TOP, width: area.width, height: area.height }));
  const readout = el("p", { class: "readout" });
  point(canvas, names.length, versions, words, readout, onChoose);
  return [el("div", { class: "map" }, frame, canvas, mark(versions, chosen, area, width)), readout];
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

function point(canvas, rows, versions, words, readout, onChoose) {
  const cell = (event) => {
    const box = canvas.getBoundingClientRect();
    const within = (share, of) => Math.max(0, Math.min(of - 1, Math.floor(share * of)));
    return [
      within((event.clientY - box.top) / box.height, rows),
      within((event.clientX - box.left) / box.width, versions.length),
    ];
  };
  canvas.addEventListener("pointermove", (event) => (readout.textContent = words(...cell(event))));
  canvas.addEventListener("pointerleave", () => (readout.textContent = ""));
  if (onChoose) canvas.addEventListener("click", (event) => onChoose(versions[cell(event)[1]]));
}

/** A line through the chosen version, above the canvas. */
function mark(versions, chosen, area, width) {
  const place = versions.indexOf(chosen);
  if (place < 0) return null;
  const x = area.left + ((place + 0.5) / versions.length) * area.width;
  const over = svg(
    "svg",
    { width, height: area.top + area.height + 6, class: "over" },
    svg("line", { class: "chosen", x1: x, x2: x, y1: area.top - 4, y2: area.top + area.height + 4 }),
  );
  Object.assign(over.style, { position: "absolute", left: "0", top: "0", pointerEvents: "none" });
  return over;
}

function axis(versions, { left, top, width, height }) {
  const ticks = d3.ticks(versions[0], Math.max(versions.at(-1), versions[0] + 1), Math.max(2, Math.round(width / 80)));
  const base = top + height;
  return [
    ticks
      .filter((tick) => Number.isInteger(tick) && versions.includes(tick))
      .flatMap((tick) => {
        const x = left + ((versions.indexOf(tick) + 0.5) / versions.length) * width;
        return [
          svg("line", { class: "tick", x1: x, x2: x, y1: base, y2: base + 4 }),
          svg("text", { x, y: base + 15, "text-anchor": "middle" }, String(tick)),
        ];
      }),
    svg("text", { class: "soft", x: left + width, y: base + 29, "text-anchor": "end" }, "version →"),
  ].flat();
}

/** A name that fits into so many pixels. */
export const cut = (name, left) => {
  const most = Math.floor((left - 8) / LETTER);
  return name.length > most ? `${name.slice(0, most - 1)}…` : name;
};

const px = (numbers) => Object.fromEntries(Object.entries(numbers).map(([key, value]) => [key, `${value}px`]));
