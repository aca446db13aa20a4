// The interactive area of a drawing, which can be pointed at, brushed and reached with the keyboard, and its tips. Its
// elements stay while drawings come and go, so that neither the focus nor the pointer loses its place.

import { el, fill, svg } from "./dom.js";

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const ZOOMS = { "+": 0.5, "=": 0.5, "-": 2 };

/** Pixels: the least width of a brush; less is a click. */
const BRUSHED = 6;

/** Pixels: below a drawing narrower than this, the tip is placed under it. */
const NARROW = 420;

/** Rows of a tip in one column; if there are more, further columns follow. */
const TIP_ROWS = 16;

/**
 * A drawing's answers to the pointer and the keyboard. A place is whatever the drawing defines; it must mean the same
 * in the next drawing.
 * @typedef {object} Answers
 * @property {{left: number, top: number, width: number, height: number}} area in pixels of the drawing
 * @property {(x: number, y: number) => any} at the place at a point of the area
 * @property {(place: any, dx: number, dy: number) => any} step the place next to one (null: the first)
 * @property {(place: any) => (Told | null)} tell null for a place that no longer exists
 * @property {(from: number, to: number) => void} [brushed] a range was chosen, in pixels of the area
 * @property {(place: any, factor: number) => void} [zoomed] a range about a place, `factor` as long, by a key
 * @property {() => void} [all] the way back
 * @property {(place: any) => void} [choose] a click or Enter
 * @property {string} help which keys do what
 */

/**
 * @typedef {object} Told
 * @property {number} x position, in pixels of the area
 * @property {number} [y]
 * @property {string} title
 * @property {{name?: string, value: string, y?: number, key?: Node}[]} rows
 */

export class Stage {
  /** State that a drawing keeps from one drawing to the next, such as what is hidden. */
  kept = {};
  /** The figure's id, for the page's address. */
  name = "";
  /** {@link Answers} of the drawing in progress; null if it has none. */
  answers = null;
  #place = null;
  #pressed = null;

  /**
   * @param {string} title title of the figure
   * @param {HTMLElement} drawing
   * @param {() => void} again redraws
   */
  constructor(title, drawing, again) {
    this.again = again;
    this.controls = el("div", { class: "controls", hidden: true });
    this.over = el("div", { class: "over", tabindex: "0", role: "application", hidden: true });
    this.marks = svg("svg", { "aria-hidden": "true" });
    this.brush = el("div", { class: "brush", hidden: true });
    this.tip = el("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.spoken = el("p", { class: "visually-hidden", role: "status" });
    this.over.append(this.marks, this.brush);
    this.title = title;
    this.element = el("div", { class: "stage" }, drawing, this.over, this.tip, this.spoken);
    this.#listen();
  }

  /** Move everything to where the latest drawing has it. */
  settle() {
    const { answers } = this;
    this.over.hidden = answers === null;
    if (answers === null) return this.#leave();
    const { left, top, width, height } = answers.area;
    Object.assign(this.over.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    this.over.classList.toggle("brushes", Boolean(answers.brushed));
    this.over.setAttribute("aria-label", `${this.title}: ${answers.help}`);
    if (this.#place !== null) this.#show(this.#place, false);
  }

  #listen() {
    const point = (event) => {
      const box = this.over.getBoundingClientRect();
      const inside = (value, most) => Math.max(0, Math.min(most, value));
      return [inside(event.clientX - box.left, box.width), inside(event.clientY - box.top, box.height)];
    };
    this.over.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.#pressed = point(event);
      if (event.pointerType !== "touch") this.over.setPointerCapture(event.pointerId);
    });
    this.over.addEventListener("pointermove", (event) => {
      const [x, y] = point(event);
      if (this.#brushes(event)) this.#showBrush(this.#pressed[0], x);
      this.#show(this.answers.at(x, y), false);
    });
    this.over.addEventListener("pointerup", (event) => {
      const [x, y] = point(event);
      const from = this.#pressed?.[0];
      const brushes = this.#brushes(event);
      this.#pressed = null;
      this.brush.hidden = true;
      if (from === undefined) return;
      if (brushes && Math.abs(x - from) >= BRUSHED) this.answers.brushed(Math.min(from, x), Math.max(from, x));
      else {
        this.#show(this.answers.at(x, y), false);
        this.answers.choose?.(this.#place);
      }
    });
    this.over.addEventListener("pointerleave", () => this.#pressed === null && this.#leave());
    this.over.addEventListener("pointercancel", () => {
      this.#pressed = null;
      this.brush.hidden = true;
    });
    this.over.addEventListener("dblclick", () => this.answers.all?.());
    this.over.addEventListener("blur", () => this.#leave());
    this.over.addEventListener("keydown", (event) => this.#key(event));
  }

  #brushes = (event) => this.#pressed !== null && Boolean(this.answers.brushed) && event.pointerType !== "touch";

  #key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const answers = this.answers;
    const { key } = event;
    const go = STEPS[key];
    if (go) {
      const [dx, dy] = event.shiftKey ? go.map((by) => 10 * by) : go;
      this.#show(answers.step(this.#place, dx, dy), true);
    } else if (key === "Home" || key === "End") this.#show(answers.step(this.#place, key === "Home" ? -Infinity : Infinity, 0), true);
    else if (key in ZOOMS && answers.zoomed) answers.zoomed(this.#place ?? answers.step(null, 0, 0), ZOOMS[key]);
    else if (key === "0" && answers.all) answers.all();
    else if (key === "Enter" && answers.choose && this.#place !== null) answers.choose(this.#place);
    else if (key === "Escape" && !this.tip.hidden) this.#leave();
    else return;
    event.preventDefault();
  }

  #leave() {
    this.#place = null;
    this.tip.hidden = true;
    fill(this.marks);
  }

  #showBrush(from, to) {
    this.brush.hidden = Math.abs(to - from) < BRUSHED;
    Object.assign(this.brush.style, { left: `${Math.min(from, to)}px`, width: `${Math.abs(to - from)}px` });
  }

  #show(place, aloud) {
    const told = place === null ? null : this.answers.tell(place);
    if (told === null) return this.#leave();
    this.#place = place;
    const { area } = this.answers;
    fill(
      this.marks,
      svg("line", { class: "cross", x1: told.x, x2: told.x, y1: 0, y2: area.height }),
      told.y !== undefined && svg("line", { class: "cross", x1: 0, x2: area.width, y1: told.y, y2: told.y }),
      told.rows.filter(({ y }) => y !== undefined && y >= 0 && y <= area.height).map(({ y }) => svg("circle", { cx: told.x, cy: y, r: 3.2 })),
    );
    const rows = el("div", { class: "rows" }, told.rows.map((row) =>
      el("p", {}, row.key, row.name && el("span", { class: "name" }, row.name), el("span", { class: "value" }, row.value))));
    rows.style.gridTemplateRows = `repeat(${Math.min(TIP_ROWS, Math.max(1, told.rows.length))}, auto)`;
    fill(this.tip, el("p", { class: "where" }, told.title), rows);
    this.tip.hidden = false;
    this.#putTip(told, area);
    if (aloud) this.spoken.textContent = [told.title, ...told.rows.map(({ name, value }) => (name ? `${name} ${value}` : value))].join("; ");
  }

  /** Place the tip next to the pointer, on the side with more space; below a narrow drawing, which it would hide. */
  #putTip({ x, y }, area) {
    const whole = this.element.clientWidth;
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    if (whole < NARROW) {
      Object.assign(this.tip.style, { left: "0px", top: `${area.top + area.height + 36}px` });
      return;
    }
    const at = area.left + x;
    const right = at + 14 + width <= whole || at < whole / 2;
    const left = right ? at + 14 : at - 14 - width;
    const top = y === undefined ? area.top : area.top + y + 14;
    this.tip.style.left = `${Math.max(0, Math.min(whole - width, left))}px`;
    this.tip.style.top = `${y !== undefined && top + height > area.top + area.height ? area.top + y - 14 - height : top}px`;
  }
}
