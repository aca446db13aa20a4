// @ts-check
/** Tables with a bar in each row. The numbers are next to the bars, so that the table is readable without the bars. */

import { counted, el } from "./dom.js";

/** The number of rows shown at first; smaller ones are folded. */
const MOST_ROWS = 8;

/**
 * A table of signed numbers with bars to either side of a middle line.
 *
 * @param {object} settings
 * @param {string} settings.caption
 * @param {readonly string[]} settings.head
 * @param {readonly { cells: readonly string[], value: number }[]} settings.rows The cells, the last of which is next to
 *   the bar, and the number that the bar shows.
 */
export function barTable({ caption, head, rows }) {
  const largest = Math.max(...rows.map(({ value }) => Math.abs(value)), Number.MIN_VALUE);
  const part = (/** @type {typeof rows} */ some) => some.map((row) => barRow(row, largest));
  const table = tableOf(caption, [...head, null], part(rows.slice(0, MOST_ROWS)), "bars");
  if (rows.length <= MOST_ROWS) {
    return table;
  }
  const rest = tableOf(`${caption}: the smaller ones`, [...head, null], part(rows.slice(MOST_ROWS)), "bars", true);
  return el("div", {}, table, el("details", {}, el("summary", {}, counted(rows.length - MOST_ROWS, "smaller one")), rest));
}

/**
 * @param {string} caption
 * @param {readonly (string | null)[]} head
 * @param {readonly HTMLElement[]} rows
 * @param {string} [kind]
 * @param {boolean} [quiet] Whether the caption is only for screen readers.
 */
export function tableOf(caption, head, rows, kind = "", quiet = false) {
  const cells = head.map((text) => (text === null ? el("td", {}) : el("th", { scope: "col" }, text)));
  return el(
    "table",
    { class: kind || null },
    el("caption", { class: quiet ? "visually-hidden" : null }, caption),
    el("thead", {}, el("tr", {}, ...cells)),
    el("tbody", {}, ...rows),
  );
}

/**
 * @param {{ cells: readonly string[], value: number }} row
 * @param {number} largest
 */
function barRow({ cells: [first, ...others], value }, largest) {
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, ...breakable(first)),
    ...others.map((text) => el("td", { class: "number" }, text)),
    el("td", { class: "bar" }, bar(value, largest)),
  );
}

/**
 * A name that may break before a capital letter.
 *
 * @param {string} name
 */
function breakable(name) {
  return name.split(/(?=[A-Z])/).flatMap((part, i) => (i === 0 ? [part] : [el("wbr"), part]));
}

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {number} value
 * @param {number} largest
 */
function bar(value, largest) {
  const svg = document.createElementNS(SVG, "svg");
  const length = Math.max(1, (49 * Math.abs(value)) / largest);
  for (const [name, text] of [["viewBox", "0 0 100 10"], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]]) {
    svg.setAttribute(name, text);
  }
  svg.append(
    rectangle({ x: value > 0 ? 50 : 50 - length, y: 1, width: length, height: 8, class: value > 0 ? "more" : "less" }),
    rectangle({ x: 49.75, y: 0, width: 0.5, height: 10, class: "middle" }),
  );
  return svg;
}

/** @param {Record<string, string | number>} attributes */
function rectangle(attributes) {
  const shape = document.createElementNS(SVG, "rect");
  for (const [name, value] of Object.entries(attributes)) {
    shape.setAttribute(name, String(value));
  }
  return shape;
}
