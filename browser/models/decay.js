// @ts-check
/** The daily decay of stored scores, which some arms use. */

/** @import { PageTable } from "./pages.js" */

import { MAX_SAMPLED } from "./pages.js";

const LARGEST_THAT_STAYS = 20;

/**
 * A score a day later: × 0.975, rounded half up; 20 and below stay as they are.
 *
 * @param {number} score
 */
export function decayed(score) {
  return score > LARGEST_THAT_STAYS ? Math.floor(0.975 * score + 0.5) : score;
}

/**
 * Scores after decaying once for each whole day since the page's newest visit, at which the score was computed. A page
 * without visits keeps its score.
 *
 * @param {Float64Array} scores
 * @param {PageTable} pages
 */
export function storedScores(scores, pages) {
  return scores.map((score, page) => {
    const days = pages.sampled[page] > 0 ? pages.age[page * MAX_SAMPLED] : 0;
    return afterDays(score, days);
  });
}

/**
 * @param {number} score
 * @param {number} days
 */
function afterDays(score, days) {
  let before = score;
  for (let day = 0; day < days; day += 1) {
    const after = decayed(before);
    if (after === before) {
      break; // a score that has stopped decaying stays the same
    }
    before = after;
  }
  return before;
}
