// A figure: a drawing that follows its data and its width, words for those who cannot see it, and its numbers as a table.

import { el, fill } from "./dom.js";
import { withMinus } from "./format.js";
import { saveCsv, savePng, saveSvg } from "./saving.js";
import { Stage } from "./stage.js";

/**
 * @typedef {object} FigureParts
 * @property {string} title
 * @property {(data: any) => string} describe the content in a sentence, for screen readers
 * @property {(data: any, width: number, stage: Stage) => Node | Node[]} draw an interactive drawing sets `stage.answers`
 * @property {(data: any) => {head: string[], rows: any[][]}} [table]
 * @property {(data: any) => Promise<any>} [whole] data with all that the drawing leaves out, for a file
 * @property {(data: any) => string} [note] a line below the drawing
 * @property {number} [level] level of the heading, 2 by default
 */

const LEAST_WIDTH = 240;

/** Figures paint themselves before the page is printed: those out of sight too, as wide as a sheet of paper. */
const printed = new Set();
addEventListener("beforeprint", () => {
  document.documentElement.dataset.print = "";
  for (const paint of printed) paint(true);
});
addEventListener("afterprint", () => {
  delete document.documentElement.dataset.print;
  for (const paint of printed) paint(true);
});

const hidden = new Set();
const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) hidden.add(target);
      else if (hidden.delete(target)) target.dispatchEvent(new Event("fedping:seen"));
    }
  },
  { rootMargin: "200px" },
);

/**
 * Make an element a figure. It draws at most once per frame, only while it is near the visible part of the page, and
 * again when its width or the theme changes.
 * @param {HTMLElement} element
 * @param {FigureParts} parts
 * @returns {{update: (data: any) => void}}
 */
export function figure(element, { title, describe, draw, table, whole = async (data) => data, note, level = 2 }) {
  const drawing = el("div", { class: "drawing", role: "img", "aria-label": title });
  const caption = el("figcaption", { hidden: true });
  const stage = new Stage(title, drawing, () => ask());
  stage.name = element.id;
  const figureElement = el("figure", {}, stage.controls, stage.element, caption);
  fill(element, el(`h${level}`, {}, title), figureElement);
  let data;
  let asked = 0;
  let width = 0; // as observed: asking the browser would force a layout of what other figures have just drawn
  let drawn = 0;

  function paint(printing = false) {
    asked = 0;
    if (data === undefined || (hidden.has(element) && printing !== true)) return;
    if (printing === true) width = Math.floor(drawing.clientWidth);
    width ||= Math.floor(drawing.clientWidth);
    if (!width) return; // it is hidden
    drawn = width;
    stage.answers = null;
    fill(drawing, draw(data, Math.max(LEAST_WIDTH, width), stage));
    stage.settle();
    // Plot labels groups that have no role; the whole drawing is one picture with a description.
    for (const part of drawing.querySelectorAll("[aria-label]")) part.removeAttribute("aria-label");
    drawing.setAttribute("aria-label", `${title}. ${describe(data)}`);
    const words = note?.(data) ?? "";
    caption.textContent = words;
    caption.hidden = words === "";
  }
  printed.add(paint);
  const ask = () => {
    asked ||= requestAnimationFrame(paint);
  };

  new ResizeObserver(([entry]) => {
    width = Math.floor(entry.contentRect.width);
    if (width > 0 && width !== drawn) ask();
  }).observe(drawing);
  seen.observe(element);
  element.addEventListener("fedping:seen", ask);
  addEventListener("fedping:theme", ask);
  const numbers = table ? numbersOf(title, table, () => data) : null;
  if (numbers) figureElement.append(numbers.element);
  const ways = { SVG: () => saveSvg(title, figureElement), PNG: () => savePng(title, figureElement) };
  if (table) ways.CSV = async () => saveCsv(title, table(await whole(data)));
  figureElement.append(el("p", { class: "saving" }, Object.entries(ways).map(([kind, go]) =>
    el("button", { type: "button", class: "save", "aria-label": `${title}: save as ${kind}`, onclick: () => data !== undefined && go() }, kind))));

  return {
    update(newData) {
      data = newData;
      numbers?.update();
      ask();
    },
  };
}

const ROWS_AT_MOST = 1000;

/** "The numbers": a table that is made when it is opened. */
function numbersOf(title, table, data) {
  const place = el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": `${title}: the numbers` });
  const element = el("details", {}, el("summary", {}, "The numbers"), place);
  function show() {
    if (!element.open || data() === undefined) return;
    const { head, rows, note } = table(data());
    const shown = rows.slice(-ROWS_AT_MOST);
    fill(
      place,
      note && el("p", { class: "note" }, note),
      rows.length > shown.length && el("p", { class: "note" }, `The last ${ROWS_AT_MOST} of ${rows.length} rows.`),
      el(
        "table",
        {},
        el("caption", { class: "visually-hidden" }, title),
        el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, shown.map((row) => el("tr", {}, row.map(cell)))),
      ),
    );
  }
  element.addEventListener("toggle", show);
  return { element, update: show };
}

const cell = (value) =>
  typeof value === "number" ? el("td", { class: "number" }, plain(value)) : el("td", {}, value ?? "");

const plain = (value) => withMinus(String(Number.isInteger(value) ? value : Number(value.toPrecision(6))));
