// @ts-check
/**
 * The SVM loss for ranking, and the order of a list by its scores.
 *
 * A candidate violates the margin if f(x_j) + Δ - f(x_i) is *greater* than zero; at exactly zero it adds nothing. Sums
 * run in displayed order, in a plain loop, because another order would change the last bits.
 */

/** The choice of an interaction in which nothing was selected. */
export const NOTHING_CHOSEN = -1;

/**
 * The sum over j ≠ i of max(0, f(x_j) + Δ - f(x_i)), in points of the score; 0 if nothing was selected.
 *
 * @param {ArrayLike<number>} scores f of each candidate in displayed order.
 * @param {number} chosen i, or -1.
 * @param {number} margin Δ, in points.
 */
export function rankingLoss(scores, chosen, margin) {
  if (chosen === NOTHING_CHOSEN) {
    return 0;
  }
  const best = scores[chosen];
  let total = 0;
  for (let j = 0; j < scores.length; j += 1) {
    const over = scores[j] + margin - best;
    if (j !== chosen && over > 0) {
      total += over;
    }
  }
  return total;
}

/**
 * The rows of a list by their scores, the highest first; equal scores in the order given.
 *
 * @param {ArrayLike<number>} scores
 * @returns {number[]}
 */
export function bestFirst(scores) {
  const rows = Array.from({ length: scores.length }, (_, row) => row);
  return rows.sort((a, b) => scores[b] - scores[a]);
}
