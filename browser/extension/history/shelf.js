// @ts-check
/**
 * Pages and their scores in extension storage, in parts, so that a visit rewrites little.
 *
 * Scores are stored separately, so that a new model doesn't rewrite the pages. A background script may be ended between
 * the two writes; then a part's pages and scores differ in length, and its pages are scored again.
 *
 * @import { Entry } from "./entries.js"
 */

import { UNSCORED, kept, restored } from "./entries.js";

const PARTS = 128;
/** The number of parts read at a time, so that other work doesn't wait long: about 300 pages of 10,000. */
const AT_ONCE = 4;
const PAGES = "pages/";
const SCORES = "scores/";
const FRAME = "scores/of";

const NAMES = Array.from({ length: PARTS }, (_, part) => part);

export class Shelf {
  /** @param {{ get(keys: any): Promise<any>, set(items: any): Promise<void>, remove(keys: any): Promise<void> }} area */
  constructor(area) {
    this.area = area;
  }

  /**
   * All pages, with their scores if stored, and the model and day of the scores.
   *
   * @returns {Promise<{ entries: Entry[], frame: string | null }>}
   */
  async load() {
    const entries = [];
    for (let from = 0; from < PARTS; from += AT_ONCE) {
      entries.push(...(await this.#loadParts(NAMES.slice(from, from + AT_ONCE))));
    }
    return { entries, frame: (await this.area.get(FRAME))[FRAME] ?? null };
  }

  /**
   * @param {number[]} parts
   * @returns {Promise<Entry[]>}
   */
  async #loadParts(parts) {
    const all = await this.area.get(parts.flatMap((part) => [PAGES + part, SCORES + part]));
    return parts.flatMap((part) => {
      const pages = all[PAGES + part] ?? [];
      const scores = all[SCORES + part] ?? [];
      const known = pages.length === scores.length;
      const scoreOf = (/** @type {number} */ i) => (known ? (scores[i] ?? UNSCORED) : UNSCORED);
      return pages.map((/** @type {any} */ page, /** @type {number} */ i) => restored(page, scoreOf(i)));
    });
  }

  /**
   * Store the parts that contain changed pages.
   *
   * @param {readonly Entry[]} entries All pages.
   * @param {Iterable<string>} changed The addresses of changed and removed pages.
   */
  async save(entries, changed) {
    const parts = new Set([...changed].map(partOf));
    if (parts.size > 0) {
      const shares = sharesOf(entries, parts);
      await this.area.set(Object.fromEntries([...pagesOf(shares), ...scoresOf(shares)]));
    }
  }

  /**
   * Store the scores of all pages.
   *
   * @param {readonly Entry[]} entries All pages.
   * @param {string} frame The model and day of the scores.
   */
  async saveScores(entries, frame) {
    const shares = sharesOf(entries, new Set(NAMES));
    await this.area.set({ ...Object.fromEntries(scoresOf(shares)), [FRAME]: frame });
  }

  /** Forget all pages. */
  async clear() {
    await this.area.remove([FRAME, ...NAMES.flatMap((part) => [PAGES + part, SCORES + part])]);
  }
}

/**
 * @param {readonly Entry[]} entries
 * @param {Set<number>} parts
 */
function sharesOf(entries, parts) {
  /** @type {Map<number, Entry[]>} */
  const shares = new Map([...parts].map((part) => [part, []]));
  for (const entry of entries) {
    shares.get(partOf(entry.url))?.push(entry);
  }
  return shares;
}

/** @param {Map<number, Entry[]>} shares */
function pagesOf(shares) {
  return [...shares].map(([part, entries]) => [PAGES + part, entries.map(kept)]);
}

/**
 * The scores of each part as stored. A page without a score has null, because JSON has no infinity.
 *
 * @param {Map<number, Entry[]>} shares
 */
function scoresOf(shares) {
  return [...shares].map(([part, entries]) => [
    SCORES + part,
    entries.map(({ score }) => (score === UNSCORED ? null : score)),
  ]);
}

/**
 * The part that a page is in (FNV-1a).
 *
 * @param {string} url
 */
function partOf(url) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < url.length; i += 1) {
    hash = Math.imul(hash ^ url.charCodeAt(i), 0x01000193);
  }
  return (hash >>> 0) % PARTS;
}
