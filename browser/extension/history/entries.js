// @ts-check
/**
 * Pages of the user's history and bookmarks, with the data for ranking and searching, and their stored form.
 *
 * @import { Page } from "../fedping.js"
 *
 * @typedef {object} Entry
 * @property {string} url
 * @property {string} title
 * @property {{ time: number, type: number }[]} visits At most the ten newest, newest first.
 * @property {number} visitCount
 * @property {boolean} typed
 * @property {boolean} bookmarked
 * @property {number} lastVisit Milliseconds since 1970; 0 for none.
 * @property {string} text The text that is searched.
 * @property {number} score The stored score; {@link UNSCORED} without one.
 *
 * @typedef {[string, string, number, number, number, number[]]} Kept
 */

import { MAX_SAMPLED, VisitType } from "../fedping.js";
import { searchText } from "./words.js";

/** The score of a page that has not been scored yet. It sorts last. */
export const UNSCORED = -Infinity;

const LONGEST_ADDRESS = 2000;
const TYPED = 1;
const BOOKMARKED = 2;

/**
 * The browsers' names for kinds of visits. All other names (`generated`, `form_submit`, `auto_toplevel`, ...) count as
 * links, because the address was not typed. They include redirects and downloads, which no browser reports to an
 * extension.
 */
const TYPES = new Map([
  ["typed", VisitType.TYPED],
  ["auto_bookmark", VisitType.BOOKMARK],
  ["auto_subframe", VisitType.EMBED],
  ["manual_subframe", VisitType.FRAMED_LINK],
  ["reload", VisitType.RELOAD],
]);

/**
 * Whether a page may be listed: an extension can open its address, and it is not a script.
 *
 * @param {string | undefined} url
 * @returns {url is string}
 */
export function isListed(url) {
  return typeof url === "string" && url.length <= LONGEST_ADDRESS && /^https?:\/\//.test(url);
}

/**
 * The number of a kind of visit.
 *
 * @param {string} transition
 */
export function visitType(transition) {
  return TYPES.get(transition) ?? VisitType.LINK;
}

/**
 * A page as the browser reports it.
 *
 * @param {{ url: string, title?: string, visitCount?: number, typedCount?: number, lastVisitTime?: number }} item
 * @param {{ visitTime?: number, transition: string }[]} visits
 * @param {boolean} bookmarked
 * @param {Entry} [before] The page's entry so far.
 * @returns {Entry}
 */
export function entryOf(item, visits, bookmarked, before) {
  const newest = visits
    .map(({ visitTime = 0, transition }) => ({ time: visitTime, type: visitType(transition) }))
    .sort((a, b) => b.time - a.time)
    .slice(0, MAX_SAMPLED);
  // Firefox gives the number of times an address was typed only at the moment of a visit.
  const typed =
    (item.typedCount ?? 0) > 0 || newest.some(({ type }) => type === VisitType.TYPED) || before?.typed === true;
  const title = item.title || before?.title || "";
  return {
    url: item.url,
    title,
    visits: newest,
    visitCount: item.visitCount ?? newest.length,
    typed,
    bookmarked,
    lastVisit: item.lastVisitTime ?? newest[0]?.time ?? 0,
    text: searchText(title, item.url),
    score: UNSCORED,
  };
}

/**
 * An entry's page, as the model scores it and as a list of results shows it.
 *
 * @param {Entry} entry
 * @returns {Page & { url: string, title: string }}
 */
export function pageOf({ url, title, visits, visitCount, typed, bookmarked }) {
  return { url, title, visits, visitCount, typed, bookmarked };
}

/**
 * @param {Entry} entry
 * @returns {Kept}
 */
export function kept({ url, title, visits, visitCount, typed, bookmarked, lastVisit }) {
  const flags = (typed ? TYPED : 0) | (bookmarked ? BOOKMARKED : 0);
  return [url, title, visitCount, flags, lastVisit, visits.flatMap(({ time, type }) => [time, type])];
}

/**
 * @param {Kept} kept
 * @param {number} [score]
 * @returns {Entry}
 */
export function restored([url, title, visitCount, flags, lastVisit, numbers], score = UNSCORED) {
  const visits = Array.from({ length: numbers.length / 2 }, (_, i) => ({
    time: numbers[2 * i],
    type: numbers[2 * i + 1],
  }));
  const [typed, bookmarked] = [(flags & TYPED) !== 0, (flags & BOOKMARKED) !== 0];
  return { url, title, visits, visitCount, typed, bookmarked, lastVisit, text: searchText(title, url), score };
}
