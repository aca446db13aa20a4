// @ts-check
/**
 * All pages in the order of their kept scores, so that a search can stop as soon as it has found enough.
 *
 * @import { Entry } from "./entries.js"
 */

import { needlesOf } from "./words.js";

export class PageIndex {
  /** @type {Map<string, Entry>} */
  #entries = new Map();
  /** @type {Entry[]} */
  #order = [];
  #sorted = true;

  get size() {
    return this.#entries.size;
  }

  /** @returns {Entry[]} */
  get entries() {
    return [...this.#entries.values()];
  }

  /** @param {string} url */
  get(url) {
    return this.#entries.get(url);
  }

  /**
   * Add a page, or put it in place of what was known of it.
   *
   * @param {Entry} entry
   */
  put(entry) {
    const before = this.#entries.get(entry.url);
    this.#entries.set(entry.url, entry); // which keeps the place of one that is there
    if (before === undefined) {
      this.#order.push(entry);
    } else {
      this.#order[this.#order.indexOf(before)] = entry;
    }
    this.#sorted = false;
  }

  /** @param {Iterable<string>} urls */
  remove(urls) {
    const gone = new Set([...urls].filter((url) => this.#entries.delete(url)));
    if (gone.size > 0) {
      this.#order = this.#order.filter((entry) => !gone.has(entry.url));
    }
  }

  /** Scores have changed. */
  reorder() {
    this.#sorted = false;
    this.#sort();
  }

  /**
   * The first pages, by their kept scores, in which every word typed begins a word; all match nothing typed.
   *
   * @param {string} typed
   * @param {number} most
   * @returns {Entry[]}
   */
  matching(typed, most) {
    this.#sort();
    const needles = needlesOf(typed);
    /** @type {Entry[]} */
    const matches = [];
    if (needles.length === 0 && typed.trim() !== "") {
      return matches; // only signs, which no page is found by
    }
    for (const entry of this.#order) {
      if (needles.every((needle) => entry.text.includes(needle)) && matches.push(entry) === most) {
        break;
      }
    }
    return matches;
  }

  #sort() {
    if (!this.#sorted) {
      this.#order.sort(bestFirst);
      this.#sorted = true;
    }
  }
}

/**
 * The highest score first; of equal ones, what was visited last; of those, by address, so that the order is always the
 * same. What has no score yet is last.
 *
 * @param {Entry} a
 * @param {Entry} b
 */
function bestFirst(a, b) {
  return b.score - a.score || b.lastVisit - a.lastVisit || (a.url < b.url ? -1 : 1);
}
