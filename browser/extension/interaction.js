// @ts-check
/**
 * The observations of one search, from its beginning to the choice: counts and times. Besides scores, only these are
 * reported. Plain data inside, so that it outlives a background script.
 *
 * @import { Observed } from "./fedping.js"
 *
 * @typedef {object} State
 * @property {number} began Milliseconds, by any clock that goes on evenly.
 * @property {number | null} keys How many keys were pressed, Enter excluded; null where this cannot be seen.
 * @property {Record<string, [number, number | null]>} first When each page was first shown, and after how many keys.
 */

export class Interaction {
  /** @param {State} state */
  constructor(state) {
    this.state = state;
  }

  /**
   * @param {number} now
   * @param {boolean} seesKeys
   */
  static begin(now, seesKeys) {
    return new Interaction({ began: now, keys: seesKeys ? 0 : null, first: {} });
  }

  key() {
    this.state.keys = (this.state.keys ?? 0) + 1;
  }

  /**
   * Pages are shown.
   *
   * @param {readonly { url: string }[]} pages
   * @param {number} now
   */
  saw(pages, now) {
    for (const { url } of pages) {
      this.state.first[url] ??= [now - this.state.began, this.state.keys];
    }
  }

  /**
   * What is reported of a choice.
   *
   * @param {object} choice
   * @param {readonly { url: string, bookmarked?: boolean }[]} choice.pages In displayed order.
   * @param {number} choice.chosen
   * @param {string} choice.typed
   * @param {boolean} choice.enter
   * @param {number} choice.otherLines Lines above the pages that are none themselves.
   * @param {number} now
   * @returns {Observed}
   */
  chose({ pages, chosen, typed, enter, otherLines }, now) {
    const { url, bookmarked } = pages[chosen];
    const [at, keys] = this.state.first[url] ?? [-1, null];
    return {
      chosen,
      suggestions: pages.length + otherLines,
      rank: chosen + otherLines,
      charactersTyped: [...typed].length,
      keysPressed: this.state.keys ?? 0,
      keysAtFirstEntry: keys ?? -1,
      milliseconds: Math.max(0, now - this.state.began),
      millisecondsAtFirstEntry: Math.max(-1, at),
      style: bookmarked ? "bookmark" : "history",
      sameAsSearch: typed.trim() === url,
      enter,
    };
  }
}
