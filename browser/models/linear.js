// @ts-check
/**
 * The linear ranking model of the thesis' simulation: three kinds of visit by five recencies, one weight each.
 *
 * A score is visit count / sampled visits × the sum of the weights of the sampled visits. Other kinds of visits add
 * nothing to the sum, but count as sampled.
 */

import { MAX_SAMPLED, VisitType } from "./pages.js";

/** @import { PageTable } from "./pages.js" */

const CUTOFFS = [4, 14, 31, 90];
const RECENCIES = ["FirstBucket", "SecondBucket", "ThirdBucket", "FourthBucket", "DefaultBucket"];

/** The weights' names: by kind, then by recency from new to old. */
export const LINEAR_15_NAMES = Object.freeze(
  ["link", "typed", "bookmark"].flatMap((kind) => RECENCIES.map((recency) => kind + recency)),
);

/** See `RankingModel` in `ranking_model.js`. */
export const linear15 = Object.freeze({
  name: "linear-15",
  weightNames: LINEAR_15_NAMES,

  /**
   * The score of every page in points; 0 for a page without visits.
   *
   * @param {ArrayLike<number>} weights The 15 weights.
   * @param {PageTable} pages
   */
  scores(weights, pages) {
    const scores = new Float64Array(pages.length);
    for (let page = 0; page < pages.length; page += 1) {
      const sampled = pages.sampled[page];
      if (sampled > 0) {
        scores[page] = (pages.visitCount[page] / sampled) * pointsOf(weights, pages, page);
      }
    }
    return scores;
  },
});

/**
 * @param {ArrayLike<number>} weights
 * @param {PageTable} pages
 * @param {number} page
 */
function pointsOf(weights, pages, page) {
  const first = page * MAX_SAMPLED;
  const end = first + pages.sampled[page];
  let points = 0;
  for (let cell = first; cell < end; cell += 1) {
    const type = pages.type[cell];
    if (type >= VisitType.LINK && type <= VisitType.BOOKMARK) {
      points += weights[(type - VisitType.LINK) * RECENCIES.length + recencyOf(pages.age[cell])];
    }
  }
  return points;
}

/** @param {number} age */
function recencyOf(age) {
  let recency = 0;
  while (recency < CUTOFFS.length && age > CUTOFFS[recency]) {
    recency += 1;
  }
  return recency;
}
