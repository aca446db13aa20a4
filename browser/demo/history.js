// @ts-check
/**
 * An invented person's history: pages with visits of the last half year, generated from one seed.
 *
 * @import { Page, Visit } from "../models/pages.js"
 * @import { Draw } from "./random.js"
 *
 * @typedef {Page & { url: string, title: string, text: string, visits: readonly Visit[], visitCount: number }}
 *   Remembered A page of the history; `text` is what is searched.
 */

import { Onward, VisitType } from "../models/pages.js";
import { seedOf, seeded } from "./random.js";
import { PLACES } from "./sites.js";

const DAY = 86_400_000;
const MOST_VISITS = 30;

/** The most frequent kind of visit of a page. */
const WAYS = [VisitType.LINK, VisitType.LINK, VisitType.LINK, VisitType.TYPED, VisitType.TYPED, VisitType.BOOKMARK];
const OTHER_WAYS = [VisitType.LINK, VisitType.LINK, VisitType.TYPED, VisitType.RELOAD, VisitType.TEMP_REDIRECT];

/** The times of visits: the maximum age of the newest in days, and the days over which the others are spread. */
const TIMES = [
  { spread: 10, newest: 2 },
  { spread: 40, newest: 10 },
  { spread: 60, newest: 90 },
  { spread: 170, newest: 10 },
];

/** The fraction of all places that a person knows. */
const KNOWN = 0.85;
const MOSTLY = 0.8;
const BOOKMARKED = 0.12;
const NEVER_VISITED = 0.03;

/**
 * The history generated from a seed, as of a moment: a few hundred pages.
 *
 * @param {string} seed
 * @param {number} now Milliseconds since 1970.
 * @returns {Remembered[]}
 */
export function madeHistory(seed, now) {
  const draw = seeded(seedOf(`history/${seed}`));
  return PLACES.filter(() => draw.fraction() < KNOWN).map((place) => remembered(draw, place, now));
}

/**
 * @param {Draw} draw
 * @param {{ url: string, title: string }} place
 * @param {number} now
 */
function remembered(draw, place, now) {
  const never = draw.fraction() < NEVER_VISITED;
  const all = never ? [] : visitsOf(draw, now);
  const text = `${place.title} ${place.url.slice("https://".length)}`.toLowerCase();
  return {
    ...place,
    text,
    visits: all.slice(0, 10),
    visitCount: all.filter(({ type }) => type !== VisitType.RELOAD).length,
    typed: all.some(({ type }) => type === VisitType.TYPED),
    bookmarked: never || all.some(({ type }) => type === VisitType.BOOKMARK) || draw.fraction() < BOOKMARKED,
  };
}

/**
 * The visits of a page, newest first.
 *
 * @param {Draw} draw
 * @param {number} now
 * @returns {Visit[]}
 */
function visitsOf(draw, now) {
  const { spread, newest } = draw.one(TIMES);
  const way = draw.one(WAYS);
  const count = 1 + Math.floor(MOST_VISITS * skewed(draw) * draw.fraction());
  const last = newest * draw.fraction();
  const ages = Array.from({ length: count }, (_, k) => last + (k === 0 ? 0 : spread * skewed(draw)));
  return ages.sort((a, b) => a - b).map((age) => visit(draw, way, Math.floor(now - age * DAY)));
}

/**
 * A random number in [0, 1), small ones more often.
 *
 * @param {Draw} draw
 */
function skewed(draw) {
  const drawn = draw.fraction();
  return drawn * drawn;
}

/**
 * @param {Draw} draw
 * @param {number} way
 * @param {number} time
 * @returns {Visit}
 */
function visit(draw, way, time) {
  const type = draw.fraction() < MOSTLY ? way : draw.one(OTHER_WAYS);
  return type === VisitType.TEMP_REDIRECT
    ? { time, type, originType: VisitType.LINK, onward: Onward.NO }
    : { time, type, onward: Onward.NO };
}

/**
 * The pages that match the typed text: each of its words occurs in their title or address.
 *
 * @template {{ text: string }} P
 * @param {readonly P[]} pages
 * @param {string} typed
 */
export function matching(pages, typed) {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  return pages.filter(({ text }) => words.every((word) => text.includes(word)));
}

const NAMED = [
  [VisitType.TYPED, "typed"],
  [VisitType.LINK, "link"],
  [VisitType.BOOKMARK, "bookmark"],
];

/**
 * The input of a page's score, in a few words: "typed 3, link 1 of 12 visits; last 2 days ago".
 *
 * @param {Remembered} page
 * @param {number} now
 */
export function inWords({ visits, visitCount, bookmarked }, now) {
  if (visits.length === 0) {
    return bookmarked ? "bookmarked, never visited" : "never visited";
  }
  const days = Math.floor((now - visits[0].time) / DAY);
  const last = days === 0 ? "today" : days === 1 ? "yesterday" : `${days} days ago`;
  const kinds = NAMED.map(([type, name]) => [visits.filter((each) => each.type === type).length, name]);
  const told = kinds.filter(([count]) => Number(count) > 0).map(([count, name]) => `${count}× ${name}`);
  const sampled = told.join(", ") || "other kinds";
  const more = visitCount > visits.length ? ` of ${visitCount} visits` : "";
  return `${sampled}${more}; last ${last}${bookmarked ? "; bookmarked" : ""}`;
}
