// @ts-check
/**
 * Pages of a history with their visits, and the same data as columns of numbers, from which scores are computed.
 *
 * Times are milliseconds since 1970, as `Date.now()` and the history interfaces of browsers give them.
 *
 * @typedef {object} Visit
 * @property {number} time The time of the visit, milliseconds since 1970.
 * @property {number} type One of {@link VisitType}; any other number is an unknown type.
 * @property {number | null} [originType] The type of the visit that this one came from; null if unknown. Used only
 *   for the target of a redirect.
 * @property {number} [onward] Whether this visit itself redirected to another page, one of {@link Onward}.
 *
 * @typedef {object} Page
 * @property {readonly Visit[]} [visits] All visits, or at least the ten newest of any type, in any order.
 * @property {number} [visitCount] The number of visits, without embeds, downloads, framed links and reloads.
 * @property {boolean} [typed] Whether its address was ever typed.
 * @property {boolean} [bookmarked] Whether it has a bookmark.
 * @property {boolean} [isQuery] Whether its address starts with `place:`.
 */

/** The number of newest visits that a score uses. */
export const MAX_SAMPLED = 10;

const MILLISECONDS_PER_DAY = 86_400_000;

/** The type of a visit, with Firefox's numbers. The types 5 and 6 are the *targets* of redirects. */
export const VisitType = Object.freeze({
  UNKNOWN: 0,
  LINK: 1,
  TYPED: 2,
  BOOKMARK: 3,
  EMBED: 4,
  PERM_REDIRECT: 5,
  TEMP_REDIRECT: 6,
  DOWNLOAD: 7,
  FRAMED_LINK: 8,
  RELOAD: 9,
});

/** Whether a visit was redirected onward, and how. */
export const Onward = Object.freeze({ NO: 0, PERMANENTLY: 1, TEMPORARILY: 2 });

/** The value of an origin's type if it is unknown. */
export const ORIGIN_NOT_KNOWN = -1;

/**
 * The sample that a score uses: the ten newest visits, newest first; visits of the same time in the order given.
 *
 * @param {readonly Visit[]} visits
 * @returns {readonly Visit[]}
 */
export function newest(visits) {
  return inOrder(visits) ? visits.slice(0, MAX_SAMPLED) : sorted(visits).slice(0, MAX_SAMPLED);
}

/** @param {readonly Visit[]} visits */
function inOrder(visits) {
  return visits.every((visit, i) => i === 0 || visit.time <= visits[i - 1].time);
}

/** @param {readonly Visit[]} visits */
function sorted(visits) {
  return [...visits].sort((a, b) => b.time - a.time);
}

/**
 * The whole days elapsed since a moment, rounded down: 4 days means less than 5 × 86,400 seconds.
 *
 * @param {number} time
 * @param {number} now
 */
export function ageInDays(time, now) {
  return Math.floor((now - time) / MILLISECONDS_PER_DAY);
}

/**
 * P pages as columns. The sampled visits of page p are at p × 10 and after, newest first; cells beyond them are never
 * read.
 */
export class PageTable {
  /** @param {number} length P, the number of pages. */
  constructor(length) {
    this.length = length;
    /** Whole days since each visit. */
    this.age = new Float64Array(length * MAX_SAMPLED);
    /** Each visit's own type, 0 for an unknown one. */
    this.type = new Uint8Array(length * MAX_SAMPLED);
    /** The type of the visit that each came from, 0 for an unknown type, -1 for an unknown origin. */
    this.originType = new Int8Array(length * MAX_SAMPLED);
    /** Whether each visit redirected onward. */
    this.onward = new Uint8Array(length * MAX_SAMPLED);
    /** The number of sampled visits of each page, 0 to 10. */
    this.sampled = new Uint8Array(length);
    this.visitCount = new Float64Array(length);
    this.typed = new Uint8Array(length);
    this.bookmarked = new Uint8Array(length);
    this.isQuery = new Uint8Array(length);
  }

  /**
   * The pages as a table, with ages as of `now`.
   *
   * @param {readonly Page[]} pages
   * @param {number} now Milliseconds since 1970.
   */
  static of(pages, now) {
    const table = new PageTable(pages.length);
    pages.forEach((page, row) => table.#write(row, page, now));
    return table;
  }

  /**
   * @param {number} row
   * @param {Page} page
   * @param {number} now
   */
  #write(row, page, now) {
    const sample = newest(page.visits ?? []);
    this.sampled[row] = sample.length;
    this.visitCount[row] = page.visitCount ?? 0;
    this.typed[row] = page.typed ? 1 : 0;
    this.bookmarked[row] = page.bookmarked ? 1 : 0;
    this.isQuery[row] = page.isQuery ? 1 : 0;
    let cell = row * MAX_SAMPLED;
    for (const visit of sample) {
      const origin = visit.originType ?? null;
      this.age[cell] = ageInDays(visit.time, now);
      this.type[cell] = knownType(visit.type);
      this.originType[cell] = origin === null ? ORIGIN_NOT_KNOWN : knownType(origin);
      this.onward[cell] = visit.onward ?? Onward.NO;
      cell += 1;
    }
  }
}

/**
 * The number of a visit type; 0 for unknown numbers.
 *
 * @param {number} number
 */
function knownType(number) {
  return number >= VisitType.LINK && number <= VisitType.RELOAD ? number : VisitType.UNKNOWN;
}
