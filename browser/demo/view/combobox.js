// @ts-check
/**
 * The box to type into and its suggestions, after ARIA's combobox pattern: the focus stays in the box, arrow keys move
 * through the suggestions, Enter or a click chooses one, Escape closes the list.
 *
 * @import { Remembered } from "../history.js"
 * @import { Shown } from "../../study/learning.js"
 * @import { Observed } from "../../study/ping.js"
 *
 * @typedef {(shown: Shown, observed: Observed) => void} OnChoice
 */

import { inWords } from "../history.js";
import { counted, el, told } from "./dom.js";

/** The observations that are reported with a choice, counted from the moment the box got the focus. */
class Interaction {
  constructor() {
    this.began = performance.now();
    this.keys = 0;
    /** @type {Map<string, { keys: number, milliseconds: number }>} When each page first appeared, by address. */
    this.seen = new Map();
  }

  get milliseconds() {
    return performance.now() - this.began;
  }

  /** @param {readonly Remembered[]} pages */
  see(pages) {
    for (const { url } of pages) {
      if (!this.seen.has(url)) {
        this.seen.set(url, { keys: this.keys, milliseconds: this.milliseconds });
      }
    }
  }
}

export class Combobox {
  /** @type {Shown | null} */
  #shown = null;
  #active = -1;
  #interaction = new Interaction();

  /**
   * @param {object} settings
   * @param {HTMLInputElement} settings.input
   * @param {HTMLElement} settings.list
   * @param {HTMLElement} settings.said The element whose text screen readers read out.
   * @param {(typed: string) => Shown} settings.rank
   * @param {OnChoice} settings.onChoice
   */
  constructor({ input, list, said, rank, onChoice }) {
    this.input = input;
    this.list = list;
    this.said = said;
    this.rank = rank;
    this.onChoice = onChoice;
    input.addEventListener("focus", () => this.#begin());
    input.addEventListener("click", () => this.open());
    input.addEventListener("blur", () => this.close());
    input.addEventListener("input", () => this.open());
    input.addEventListener("keydown", (event) => this.#onKey(event));
    // Otherwise the box would lose the focus, which closes the list under the pointer.
    list.addEventListener("mousedown", (event) => event.preventDefault());
    list.addEventListener("click", (event) => this.#onClick(event));
  }

  get isOpen() {
    return this.#shown !== null;
  }

  /** Put a text into the box and show the matching pages. @param {string} text */
  type(text) {
    this.input.focus();
    this.input.value = text;
    this.open();
  }

  /** Rank the suggestions again, and show them. */
  open() {
    this.#shown = this.rank(this.input.value);
    const pages = /** @type {readonly Remembered[]} */ (this.#shown.pages);
    this.#interaction.see(pages);
    this.list.replaceChildren(...pages.map((page, place) => this.#option(page, place)));
    this.list.hidden = pages.length === 0;
    this.input.setAttribute("aria-expanded", String(pages.length > 0));
    this.#activate(this.input.value.trim() === "" ? -1 : Math.min(0, pages.length - 1));
    this.said.textContent = pages.length > 0 ? counted(pages.length, "suggestion") : "No page of this history fits.";
  }

  close() {
    this.#shown = null;
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.#activate(-1);
  }

  /** Rank the open list again, under a new model. */
  refresh() {
    if (this.isOpen) {
      this.open();
    }
  }

  #begin() {
    this.#interaction = new Interaction();
    this.open();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key !== "Enter" && !event.isComposing) {
      this.#interaction.keys += 1;
    }
    const count = this.#shown?.pages.length ?? 0;
    /** @type {Record<string, () => void>} */
    const actions = {
      ArrowDown: () => (this.isOpen ? this.#activate((this.#active + 1) % Math.max(1, count)) : this.open()),
      ArrowUp: () => (this.isOpen ? this.#activate(this.#active > 0 ? this.#active - 1 : count - 1) : this.open()),
      Enter: () => this.#choose(this.#active, true),
      Escape: () => (this.isOpen ? this.close() : (this.input.value = "")),
    };
    const action = event.isComposing || event.ctrlKey || event.metaKey || event.altKey ? undefined : actions[event.key];
    if (action !== undefined) {
      event.preventDefault();
      action();
    }
  }

  /** @param {MouseEvent} event */
  #onClick(event) {
    const option = event.target instanceof Element ? event.target.closest("[role=option]") : null;
    this.#choose(option === null ? -1 : [...this.list.children].indexOf(option), false);
  }

  /**
   * @param {number} place
   * @param {boolean} enter
   */
  #choose(place, enter) {
    const shown = this.#shown;
    if (shown === null || place < 0 || place >= shown.pages.length) {
      return;
    }
    const { keys, milliseconds, seen } = this.#interaction;
    const page = /** @type {Remembered} */ (shown.pages[place]);
    const first = seen.get(page.url);
    const typed = this.input.value.trim();
    this.close();
    this.#interaction = new Interaction();
    this.onChoice(shown, {
      chosen: place,
      charactersTyped: typed.length,
      keysPressed: keys,
      keysAtFirstEntry: first?.keys,
      milliseconds,
      millisecondsAtFirstEntry: first?.milliseconds,
      style: page.bookmarked ? "bookmark" : "history",
      sameAsSearch: typed === page.url,
      enter,
    });
  }

  /** @param {number} place */
  #activate(place) {
    this.#active = place;
    for (const [i, option] of [...this.list.children].entries()) {
      option.setAttribute("aria-selected", String(i === place));
    }
    if (place >= 0 && this.list.children[place]) {
      this.input.setAttribute("aria-activedescendant", this.list.children[place].id);
      this.list.children[place].scrollIntoView({ block: "nearest" });
    } else {
      this.input.removeAttribute("aria-activedescendant");
    }
  }

  /**
   * @param {Remembered} page
   * @param {number} place
   */
  #option(page, place) {
    const { scores, now } = /** @type {Shown} */ (this.#shown);
    return el(
      "li",
      { role: "option", id: `suggestion-${place}`, "aria-selected": "false", "data-url": page.url },
      el("span", { class: "title" }, page.title),
      el("span", { class: "why" }, inWords(page, now)),
      el("span", { class: "score" }, told(scores[place]), el("span", { class: "unit" }, " points")),
    );
  }
}
