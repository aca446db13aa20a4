// @ts-check
/** A client's update: a direction of **descent**, which a ping carries and the server adds to the weights. */

/**
 * (loss(w - ε) - loss(w + ε)) / 2ε for each weight, the others unchanged: central finite differences of a black box.
 *
 * @param {(weights: Float64Array) => number} loss
 * @param {ArrayLike<number>} weights w.
 * @param {number} epsilon ε, in units of the weights.
 * @returns {number[]}
 */
export function descent(loss, weights, epsilon) {
  const moved = Float64Array.from(weights);
  return Array.from(weights, (weight, k) => {
    moved[k] = weight - epsilon;
    const less = loss(moved);
    moved[k] = weight + epsilon;
    const more = loss(moved);
    moved[k] = weight;
    return (less - more) / (2 * epsilon);
  });
}
