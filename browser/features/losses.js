// @ts-check
/**
 * The loss of a list's scores by a choice, and the pull on each score: the loss's negative derivative. Sums are plain
 * loops in displayed order.
 *
 * @import { FeaturesSpec } from "./layout.js"
 *
 * @typedef {{ loss: number, pulls: number[] }} Pulled
 */

import { exp, log, log1p } from "./numbers.js";

/**
 * @param {FeaturesSpec} spec
 * @param {readonly number[]} scores Scores including the offsets of places.
 * @param {number} chosen
 * @returns {Pulled}
 */
export function pulled({ loss = "softmax", margin }, scores, chosen) {
  switch (loss) {
    case "softmax":
      return softmax(scores, chosen);
    case "hinge":
      return hinge(scores, chosen, margin);
    default:
      return pairwise(scores, chosen);
  }
}

/**
 * @param {readonly number[]} scores
 * @param {number} chosen
 * @returns {Pulled}
 */
function softmax(scores, chosen) {
  const largest = scores.reduce((most, score) => (score > most ? score : most), -Infinity);
  const powers = scores.map((score) => exp(score - largest));
  let total = 0;
  for (const power of powers) {
    total += power;
  }
  const pulls = powers.map((power) => -(power / total));
  pulls[chosen] = 1 - powers[chosen] / total;
  return { loss: log(total) - (scores[chosen] - largest), pulls };
}

/**
 * @param {readonly number[]} scores
 * @param {number} chosen
 * @param {number} margin
 * @returns {Pulled}
 */
function hinge(scores, chosen, margin) {
  let loss = 0;
  const pulls = scores.map(() => 0);
  scores.forEach((score, j) => {
    const over = score + margin - scores[chosen];
    if (j !== chosen && over > 0) {
      loss += over;
      pulls[j] = -1;
      pulls[chosen] += 1;
    }
  });
  return { loss, pulls };
}

/**
 * @param {readonly number[]} scores
 * @param {number} chosen
 * @returns {Pulled}
 */
function pairwise(scores, chosen) {
  let loss = 0;
  const pulls = scores.map(() => 0);
  scores.forEach((score, j) => {
    if (j !== chosen) {
      const d = score - scores[chosen];
      const power = exp(-Math.abs(d));
      loss += (d > 0 ? d : 0) + log1p(power);
      const pull = (d > 0 ? 1 : power) / (1 + power);
      pulls[j] = -pull;
      pulls[chosen] += pull;
    }
  });
  return { loss, pulls };
}
