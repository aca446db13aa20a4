// @ts-check
/**
 * The observations of one search, from its beginning to the choice: counts and times. Only these and the scores are
 * reported. The state is plain data, so that it can be stored when the background script ends.
 *
 * @import { Observed } from "./fedping.js"
 *
 * @typedef {object} State
 * @property {number} began The start, in milliseconds of a steady clock.
 * @property {number | null} keys The number of keys pressed, Enter excluded; null where the extension can't count them.
 * @property {Record<string, [number, number | null]>} first For each page, the time when it was first shown, and the
 *   number of keys pressed before.
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
   * Note pages that are shown.
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
   * The observations to report with a choice.
   *
   * @param {object} choice
   * @param {readonly { url: string, bookmarked?: boolean }[]} choice.pages In displayed order.
   * @param {number} choice.chosen
   * @param {string} choice.typed
   * @param {boolean} choice.enter
   * @param {number} choice.otherLines The number of lines above the pages that aren't pages.
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
