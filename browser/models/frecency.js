// @ts-check
/**
 * The ranking model of the first study: the full frecency of Firefox in 2018, with its 22 weights.
 *
 * The points of a visit depend only on its kind and the bucket of its age, so a table is computed once. Points are
 * summed, newest visit first, and scaled in single precision, as the browser did.
 */

import { MAX_SAMPLED, ORIGIN_NOT_KNOWN, Onward, VisitType } from "./pages.js";

/** @import { PageTable } from "./pages.js" */

/** The weights' names, in the order of the wire. */
export const FRECENCY_NAMES = Object.freeze([
  "firstBucketCutoff",
  "secondBucketCutoff",
  "thirdBucketCutoff",
  "fourthBucketCutoff",
  "firstBucketWeight",
  "secondBucketWeight",
  "thirdBucketWeight",
  "fourthBucketWeight",
  "defaultBucketWeight",
  "embedVisitBonus",
  "framedLinkVisitBonus",
  "linkVisitBonus",
  "typedVisitBonus",
  "bookmarkVisitBonus",
  "downloadVisitBonus",
  "permRedirectVisitBonus",
  "tempRedirectVisitBonus",
  "redirectSourceVisitBonus",
  "defaultVisitBonus",
  "unvisitedBookmarkBonus",
  "unvisitedTypedBonus",
  "reloadVisitBonus",
]);

/** The start weights of the study of 2018, by which its control arm was always ranked. */
export const FRECENCY_START = Object.freeze([
  4, 14, 31, 90, 100, 70, 50, 30, 10, 0, 0, 100, 2000, 75, 0, 0, 0, 25, 0, 140, 200, 0,
]);

const BUCKETS = 5;
const FIRST_WEIGHT = FRECENCY_NAMES.indexOf("firstBucketWeight");
const BOOKMARK = FRECENCY_NAMES.indexOf("bookmarkVisitBonus");
const UNVISITED_BOOKMARK = FRECENCY_NAMES.indexOf("unvisitedBookmarkBonus");
const UNVISITED_TYPED = FRECENCY_NAMES.indexOf("unvisitedTypedBonus");

/** The weight with the bonus of each type of visit, by the type's number; the last is for redirect sources. */
const BONUS_WEIGHT = [
  "defaultVisitBonus",
  "linkVisitBonus",
  "typedVisitBonus",
  "bookmarkVisitBonus",
  "embedVisitBonus",
  "permRedirectVisitBonus",
  "tempRedirectVisitBonus",
  "downloadVisitBonus",
  "framedLinkVisitBonus",
  "reloadVisitBonus",
  "redirectSourceVisitBonus",
].map((name) => FRECENCY_NAMES.indexOf(name));

const REDIRECT_SOURCE = BONUS_WEIGHT.length - 1;

/** A kind is 2 × the bonus of a visit + 1 if its page is bookmarked. */
const KINDS = 2 * BONUS_WEIGHT.length;

/** See `RankingModel` in `ranking_model.js`. */
export const frecency2018 = Object.freeze({
  name: "frecency-2018",
  weightNames: FRECENCY_NAMES,

  /**
   * The score of every page, in whole points; -1 for visits without points, 0 for a page to be hidden.
   *
   * @param {ArrayLike<number>} weights The 22 weights.
   * @param {PageTable} pages
   */
  scores(weights, pages) {
    const kinds = kindsOf(pages);
    const points = pointTable(weights);
    const unvisited = unvisitedScores(weights);
    const scores = new Float64Array(pages.length);
    for (let page = 0; page < pages.length; page += 1) {
      const sampled = pages.visitCount[page] > 0 ? pages.sampled[page] : 0;
      scores[page] = sampled
        ? scoreOf(pointsOf(weights, pages, page, kinds, points), pages.visitCount[page], sampled)
        : unvisited[unvisitedKind(pages, page)];
    }
    return scores;
  },
});

/**
 * @param {number} points
 * @param {number} visitCount
 * @param {number} sampled
 */
function scoreOf(points, visitCount, sampled) {
  if (points === 0) {
    return -1;
  }
  const product = Math.fround(Math.ceil(points) * Math.fround(visitCount));
  return Math.ceil(Math.fround(product / sampled)) + 0; // the ceiling of -0.5 is -0, a zero like any other
}

/**
 * The points of a page's sampled visits, summed in single precision.
 *
 * @param {ArrayLike<number>} weights
 * @param {PageTable} pages
 * @param {number} page
 * @param {Uint8Array} kinds
 * @param {Float32Array} points
 */
function pointsOf(weights, pages, page, kinds, points) {
  const first = page * MAX_SAMPLED;
  const end = first + pages.sampled[page];
  let total = 0;
  for (let cell = first; cell < end; cell += 1) {
    total = Math.fround(total + points[bucketOf(weights, pages.age[cell]) * KINDS + kinds[cell]]);
  }
  return total;
}

/**
 * The first bucket that holds an age; the cutoffs need not be ascending.
 *
 * @param {ArrayLike<number>} weights
 * @param {number} age
 */
function bucketOf(weights, age) {
  if (age <= weights[0]) return 0;
  if (age <= weights[1]) return 1;
  if (age <= weights[2]) return 2;
  if (age <= weights[3]) return 3;
  return 4;
}

/**
 * The points of a visit by bucket and kind.
 *
 * @param {ArrayLike<number>} weights
 */
function pointTable(weights) {
  const points = new Float32Array(BUCKETS * KINDS);
  for (let bucket = 0; bucket < BUCKETS; bucket += 1) {
    for (let kind = 0; kind < KINDS; kind += 1) {
      points[bucket * KINDS + kind] = (weights[FIRST_WEIGHT + bucket] * bonusOf(weights, kind)) / 100;
    }
  }
  return points;
}

/**
 * The bonus of a kind of visit, in percent: the type's, plus the bookmark's for a bookmarked page.
 *
 * @param {ArrayLike<number>} weights
 * @param {number} kind
 */
function bonusOf(weights, kind) {
  const bonus = weights[BONUS_WEIGHT[kind >> 1]];
  return kind & 1 ? bonus + weights[BOOKMARK] : bonus;
}

/**
 * The scores of pages without a sample: hidden, bookmarked, bookmarked and typed.
 *
 * @param {ArrayLike<number>} weights
 */
function unvisitedScores(weights) {
  const first = Math.fround(weights[FIRST_WEIGHT]);
  const bookmarked = weights[UNVISITED_BOOKMARK];
  const bonuses = [bookmarked, bookmarked + weights[UNVISITED_TYPED]];
  return [0, ...bonuses.map((bonus) => Math.ceil(Math.fround(first * Math.fround(Math.fround(bonus) / 100))) + 0)];
}

/**
 * @param {PageTable} pages
 * @param {number} page
 */
function unvisitedKind(pages, page) {
  return pages.bookmarked[page] && !pages.isQuery[page] ? 1 + pages.typed[page] : 0;
}

/** @type {WeakMap<PageTable, Uint8Array>} */
const knownKinds = new WeakMap();

/**
 * The kind of every visit. It does not depend on the weights, so the 44 evaluations of an update share it.
 *
 * @param {PageTable} pages
 */
function kindsOf(pages) {
  const known = knownKinds.get(pages);
  if (known !== undefined) {
    return known;
  }
  const kinds = new Uint8Array(pages.length * MAX_SAMPLED);
  for (let page = 0; page < pages.length; page += 1) {
    const end = page * MAX_SAMPLED + pages.sampled[page];
    for (let cell = page * MAX_SAMPLED; cell < end; cell += 1) {
      kinds[cell] = 2 * bonusNumber(pages, cell) + pages.bookmarked[page];
    }
  }
  knownKinds.set(pages, kinds);
  return kinds;
}

/**
 * @param {PageTable} pages
 * @param {number} cell
 */
function bonusNumber(pages, cell) {
  const type = typeThatCounts(pages.type[cell], pages.originType[cell]);
  return isRedirectSource(pages.onward[cell], type) ? REDIRECT_SOURCE : type;
}

/**
 * The type that counts for a visit: a redirect's target takes its origin's type if known, for one hop only.
 *
 * @param {number} type
 * @param {number} origin
 */
function typeThatCounts(type, origin) {
  const isTarget = type === VisitType.PERM_REDIRECT || type === VisitType.TEMP_REDIRECT;
  return isTarget && origin !== ORIGIN_NOT_KNOWN ? origin : type;
}

/**
 * @param {number} onward
 * @param {number} type
 */
function isRedirectSource(onward, type) {
  return onward === Onward.PERMANENTLY || (onward === Onward.TEMPORARILY && type !== VisitType.TYPED);
}
