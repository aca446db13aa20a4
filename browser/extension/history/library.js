// @ts-check
/**
 * The user's own pages: read from the browser once, stored, and updated with every visit, so that a keystroke needs no
 * request to the browser.
 *
 * The background script may be ended at any time. {@link Library.catchUp} finds missed changes by comparing the stored
 * pages with the browser's.
 *
 * @import { Api } from "../api.js"
 * @import { Page } from "../fedping.js"
 * @import { Entry } from "./entries.js"
 */

import { entryOf, isListed, pageOf, restored } from "./entries.js";
import { PageIndex } from "./page_index.js";
import { Shelf } from "./shelf.js";

/** The maximum number of pages read from a history, newest first. All bookmarks are read in addition. */
export const MOST_PAGES = 10_000;

/** Milliseconds before a visit from which the history is searched for it. */
const MOMENT = 1000;

/** The number of pages that are read or scored at a time, before other work has its turn. */
const SLICE = 500;

export class Library {
  #index = new PageIndex();
  #shelf;
  /** @type {Set<string>} */
  #bookmarks = new Set();
  /** @type {Promise<void> | null} */
  #catchingUp = null;
  #scoring = 0;

  /**
   * @param {object} settings
   * @param {Api} settings.api
   * @param {(pages: Page[]) => ArrayLike<number>} settings.score The scores of pages now.
   */
  constructor({ api, score }) {
    this.api = api;
    this.score = score;
    this.#shelf = new Shelf(api.storage.local);
    /** @type {string | null} The model and day of the stored scores. */
    this.frame = null;
    /** @type {{ done: number, of: number } | null} The progress of reading; null when nothing is being read. */
    this.reading = null;
  }

  get size() {
    return this.#index.size;
  }

  /** Load the stored pages. */
  async open() {
    const { entries, frame } = await this.#shelf.load();
    entries.forEach((entry) => this.#index.put(entry));
    this.#bookmarks = new Set(entries.filter(({ bookmarked }) => bookmarked).map(({ url }) => url));
    this.#index.reorder();
    this.frame = frame;
  }

  /**
   * The first pages, by their stored scores, that match the typed text.
   *
   * @param {string} typed
   * @param {number} most
   */
  matching(typed, most) {
    return this.#index.matching(typed, most).map(pageOf);
  }

  /**
   * Score all pages again, a slice at a time.
   *
   * @param {string} frame The model and day of the scores.
   */
  async rescore(frame) {
    const turn = (this.#scoring += 1);
    const { entries } = this.#index;
    for (let from = 0; from < entries.length; from += SLICE) {
      this.#scoreThese(entries.slice(from, from + SLICE));
      await pause();
      if (turn !== this.#scoring) {
        return; // another rescoring has begun in the meantime
      }
    }
    this.#index.reorder();
    this.frame = frame;
    await this.#shelf.saveScores(this.#index.entries, frame);
  }

  /**
   * Handle a visit to a page. Chromium also reports pages that only redirected to others, which its history doesn't
   * list.
   *
   * @param {{ url: string, title?: string, visitCount?: number, typedCount?: number, lastVisitTime: number }} item
   */
  async visited(item) {
    if (!isListed(item.url)) {
      return;
    }
    const startTime = item.lastVisitTime - MOMENT;
    const just = await this.api.history.search({ text: "", startTime, maxResults: SLICE });
    const listed = just.find((/** @type {any} */ each) => each.url === item.url);
    if (listed || this.#index.get(item.url)) {
      await this.#keep(await this.#read([{ ...item, ...listed, typedCount: item.typedCount ?? listed?.typedCount }]));
    }
  }

  /**
   * Handle removed history: pages that are gone, or have lost visits.
   *
   * @param {{ allHistory: boolean, urls?: string[] }} removed
   */
  async removed({ allHistory, urls = [] }) {
    const gone = allHistory ? this.#index.entries.map(({ url }) => url) : urls.filter((url) => this.#index.get(url));
    const left = await Promise.all(gone.map((url) => this.#afterRemoval(url, allHistory)));
    left.filter((entry) => entry !== null).forEach((entry) => this.#index.put(entry));
    this.#index.remove(gone.filter((_, i) => left[i] === null));
    await this.#keep(
      left.filter((entry) => entry !== null),
      gone,
    );
  }

  /** Handle changed bookmarks. */
  async bookmarksChanged() {
    const titles = await this.#readBookmarks();
    const changed = this.#index.entries.filter((entry) => entry.bookmarked !== titles.has(entry.url));
    const fresh = [...titles.keys()].filter((url) => isNew(this.#index.get(url), titles.get(url) ?? ""));
    const gone = changed.filter(({ url, visits }) => !titles.has(url) && visits.length === 0).map(({ url }) => url);
    this.#index.remove(gone);
    const marked = changed
      .filter(({ url }) => this.#index.get(url))
      .map((entry) => ({ ...entry, bookmarked: !entry.bookmarked }));
    await this.#keep([...marked, ...fresh.map((url) => unvisited(url, titles.get(url) ?? ""))], gone);
  }

  /** Compare the stored pages with the browser's, and read the differences. A second call waits for the first. */
  catchUp() {
    this.#catchingUp ??= this.#compare().finally(() => {
      this.#catchingUp = this.reading = null;
    });
    return this.#catchingUp;
  }

  /**
   * Read the changes of pages visited since a moment. A page's title is often not known yet at its visit.
   *
   * @param {number} since Milliseconds since 1970.
   */
  async lookAgain(since) {
    const items = await this.api.history.search({ text: "", startTime: since, maxResults: SLICE });
    await this.#readAll(items.filter((/** @type {any} */ item) => this.#differs(item)));
  }

  async #compare() {
    await this.bookmarksChanged();
    const items = await this.api.history.search({ text: "", startTime: 0, maxResults: MOST_PAGES });
    const there = new Set(items.map((/** @type {any} */ item) => item.url));
    const missing = this.#index.entries.filter(({ url, visits }) => visits.length > 0 && !there.has(url));
    await this.#lost(missing, items.length < MOST_PAGES);
    await this.#readAll(items.filter((/** @type {any} */ item) => this.#differs(item)));
  }

  /**
   * Handle pages that are missing from the history as read. If only a part was read, bookmarks may have older visits.
   *
   * @param {Entry[]} missing
   * @param {boolean} isAll
   */
  async #lost(missing, isAll) {
    const gone = missing.filter(({ bookmarked }) => !bookmarked).map(({ url }) => url);
    this.#index.remove(gone);
    const marks = missing
      .filter(({ bookmarked }) => bookmarked && isAll)
      .map(({ url, title }) => unvisited(url, title));
    await this.#keep(marks, gone);
  }

  /** @param {any} item */
  #differs(item) {
    return isListed(item.url) && differs(item, this.#index.get(item.url));
  }

  /** @param {any[]} items */
  async #readAll(items) {
    for (let from = 0; from < items.length; from += SLICE) {
      this.reading = { done: from, of: items.length };
      await this.#keep(await this.#read(items.slice(from, from + SLICE)));
    }
  }

  /**
   * Read the current data of pages from the browser.
   *
   * @param {any[]} items
   * @returns {Promise<Entry[]>}
   */
  #read(items) {
    return Promise.all(
      items.map(async (item) => {
        const visits = await this.api.history.getVisits({ url: item.url });
        return entryOf(item, visits, this.#bookmarks.has(item.url), this.#index.get(item.url));
      }),
    );
  }

  /**
   * The entry of a page after visits were removed; null if the page is gone.
   *
   * @param {string} url
   * @param {boolean} all Whether the whole history was removed.
   */
  async #afterRemoval(url, all) {
    const before = /** @type {Entry} */ (this.#index.get(url));
    const visits = all ? [] : await this.api.history.getVisits({ url });
    if (visits.length > 0) {
      return entryOf({ url, title: before.title, visitCount: visits.length }, visits, before.bookmarked, before);
    }
    return before.bookmarked ? unvisited(url, before.title) : null;
  }

  /** @returns {Promise<Map<string, string>>} The titles of all bookmarks by their addresses. */
  async #readBookmarks() {
    /** @type {Map<string, string>} */
    const titles = new Map();
    const pending = await this.api.bookmarks.getTree();
    while (pending.length > 0) {
      const { url, title, children = [] } = pending.pop();
      pending.push(...children);
      if (isListed(url)) {
        titles.set(url, title ?? "");
      }
    }
    this.#bookmarks = new Set(titles.keys());
    return titles;
  }

  /**
   * Score pages, list them, and store the parts that contain them.
   *
   * @param {Entry[]} entries
   * @param {string[]} [gone] Other addresses whose parts have changed.
   */
  async #keep(entries, gone = []) {
    this.#scoreThese(entries);
    entries.filter(isWorthListing).forEach((entry) => this.#index.put(entry));
    this.#index.remove(entries.filter((entry) => !isWorthListing(entry)).map(({ url }) => url));
    this.#index.reorder();
    await this.#shelf.save(this.#index.entries, [...gone, ...entries.map(({ url }) => url)]);
  }

  /** @param {Entry[]} entries */
  #scoreThese(entries) {
    const scores = this.score(entries);
    entries.forEach((entry, i) => (entry.score = scores[i]));
  }
}

/**
 * Whether a page was visited or is bookmarked, and so is listed. Firefox's history has downloads without a counted
 * visit.
 *
 * @param {Entry} entry
 */
function isWorthListing({ visitCount, bookmarked }) {
  return visitCount > 0 || bookmarked;
}

/**
 * The entry of a bookmark that was never visited.
 *
 * @param {string} url
 * @param {string} title
 */
function unvisited(url, title) {
  return { ...restored([url, title, 0, 0, 0, []]), bookmarked: true };
}

/**
 * Whether a bookmark must be listed again: it is new, or it was never visited and its title has changed.
 *
 * @param {Entry | undefined} entry
 * @param {string} title
 */
function isNew(entry, title) {
  return entry === undefined || (entry.visits.length === 0 && entry.title !== title);
}

/**
 * Whether the browser's data of a page differ from its entry.
 *
 * @param {any} item
 * @param {Entry | undefined} entry
 */
function differs({ title, visitCount, lastVisitTime }, entry) {
  const same =
    entry?.visitCount === visitCount && entry?.lastVisit === lastVisitTime && (!title || title === entry?.title);
  return !same;
}

/** Let other work have its turn. */
function pause() {
  return new Promise((resolve) => setTimeout(resolve, 0));
}
