// Saving what a page shows: a figure as SVG or PNG, with its title, its legend and its note, and a table as CSV.

import { csv } from "./csv.js";
import { el, svg } from "./dom.js";

/** What a drawing takes from the page's style sheets, and a file has to bring with it. */
const STYLES = [
  "fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap",
  "opacity", "font-size", "font-weight", "font-variant", "text-anchor", "paint-order", "visibility", "display",
];
const FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif";

/** A canvas has a pixel for each cell, which is drawn as large as the page does. */
const CELLS = { preserveAspectRatio: "none", "image-rendering": "pixelated" };

/** Pixels: margin, height of a line of text, width of a letter, and how much finer a PNG is. */
const [MARGIN, LINE, LETTER, FINER] = [16, 20, 6.4, 2];

/** A title as a file's name. */
export const fileName = (title, kind) => `${title.toLowerCase().normalize("NFKD").replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "figure"}.${kind}`;

/** Have the browser save a file. */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

export const saveCsv = (title, table) => save(new Blob([csv(table)], { type: "text/csv" }), fileName(title, "csv"));

/** Save a figure (its element, as `figure` makes it) as SVG. */
export function saveSvg(title, figureElement) {
  save(new Blob([asText(picture(title, figureElement))], { type: "image/svg+xml" }), fileName(title, "svg"));
}

/** Save a figure as PNG. */
export async function savePng(title, figureElement) {
  const whole = picture(title, figureElement);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(asText(whole))}`;
  await image.decode();
  const canvas = el("canvas", { width: FINER * whole.width.baseVal.value, height: FINER * whole.height.baseVal.value });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => save(blob, fileName(title, "png")), "image/png");
}

const asText = (element) => new XMLSerializer().serializeToString(element);

/** A figure as one SVG that needs no style sheet. */
function picture(title, figureElement) {
  const drawing = figureElement.querySelector(".drawing");
  const box = drawing.getBoundingClientRect();
  const width = Math.ceil(box.width) + 2 * MARGIN;
  const colours = new Colours();
  const page = getComputedStyle(figureElement);
  const soft = colours.plain(getComputedStyle(figureElement.querySelector("figcaption")).color);
  const ink = colours.plain(page.color);
  const parts = [];
  let y = MARGIN + LINE;
  const text = (words, x, attributes) => parts.push(svg("text", { x, y, fill: ink, "font-size": 13, ...attributes }, words));

  text(title, MARGIN, { "font-size": 16, "font-weight": 650 });
  y += LINE * 0.5;
  let x = width;
  for (const key of figureElement.querySelectorAll(".legend button.key")) {
    if (key.getAttribute("aria-pressed") === "false") continue;
    const needs = 44 + key.textContent.length * LETTER;
    if (x + needs > width - MARGIN) [x, y] = [MARGIN, y + LINE];
    const swatch = styled(key.querySelector("svg"), colours);
    swatch.setAttribute("x", x);
    swatch.setAttribute("y", y - 10);
    parts.push(swatch);
    text(key.textContent, x + 30);
    x += needs;
  }
  y += LINE * 0.6;
  for (const shape of drawing.querySelectorAll("svg, canvas")) {
    if (shape.parentElement.closest("svg")) continue;
    const at = shape.getBoundingClientRect();
    const place = { x: MARGIN + at.left - box.left, y: y + at.top - box.top, width: at.width, height: at.height };
    parts.push(shape instanceof HTMLCanvasElement ? svg("image", { ...place, ...CELLS, href: shape.toDataURL() }) : put(styled(shape, colours), place));
  }
  y += box.height + LINE;
  const caption = figureElement.querySelector("figcaption");
  for (const line of lines(caption.hidden ? "" : caption.textContent, (width - 2 * MARGIN) / LETTER)) {
    text(line, MARGIN, { fill: soft, "font-size": 12 });
    y += LINE;
  }
  const height = Math.ceil(y);
  const paper = colours.plain(getComputedStyle(figureElement.closest(".card") ?? document.body).backgroundColor);
  return svg(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT, role: "img" },
    svg("title", {}, drawing.getAttribute("aria-label")),
    svg("rect", { width, height, fill: paper }),
    parts,
  );
}

function put(shape, place) {
  for (const [name, value] of Object.entries(place)) shape.setAttribute(name, value);
  shape.setAttribute("overflow", "visible");
  return shape;
}

/** A copy of an SVG in which each element has the styles that it is drawn with. */
function styled(original, colours) {
  const copy = original.cloneNode(true);
  const [from, to] = [[original, ...original.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    to[i].removeAttribute("class");
    to[i].removeAttribute("style");
    for (const name of STYLES) {
      const value = style.getPropertyValue(name);
      if (value) to[i].setAttribute(name, name === "fill" || name === "stroke" ? colours.plain(value) : value);
    }
  });
  for (const sheet of copy.querySelectorAll("style")) sheet.remove();
  return copy;
}

/** Colours as every program reads them: rgb(…) in the place of color-mix and the like. */
class Colours {
  #known = new Map();
  #context = el("canvas", { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });

  plain(colour) {
    if (colour === "none" || colour.startsWith("rgb(") || colour.startsWith("url(")) return colour;
    if (!this.#known.has(colour)) {
      this.#context.clearRect(0, 0, 1, 1);
      this.#context.fillStyle = colour;
      this.#context.fillRect(0, 0, 1, 1);
      const [red, green, blue, alpha] = this.#context.getImageData(0, 0, 1, 1).data;
      this.#known.set(colour, alpha === 255 ? `rgb(${red}, ${green}, ${blue})` : `rgba(${red}, ${green}, ${blue}, ${(alpha / 255).toFixed(3)})`);
    }
    return this.#known.get(colour);
  }
}

/** Words in lines of so many letters at most. */
function lines(words, letters) {
  const found = [""];
  for (const word of words.split(/\s+/).filter(Boolean)) {
    const line = found.at(-1);
    if (line && line.length + word.length + 1 > letters) found.push(word);
    else found[found.length - 1] = line ? `${line} ${word}` : word;
  }
  return found[0] ? found : [];
}

/** Give a table of the page a button that saves it as CSV. */
export function savable(table, title) {
  const read = (row) => [...row.cells].map((cell) => cell.textContent.trim().replaceAll("−", "-"));
  const button = el("button", { type: "button", class: "save", "aria-label": `${title}: save as CSV`, onclick: () => {
    saveCsv(title, { head: read(table.tHead.rows[0]), rows: [...table.tBodies].flatMap((body) => [...body.rows].map(read)) });
  } }, "CSV");
  table.parentElement.after(el("p", { class: "saving" }, button));
}
