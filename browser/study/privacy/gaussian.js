// @ts-check
/**
 * The noise that one Gaussian answer needs (Balle and Wang 2018); `protocol/gaussian.py` has the derivation. A client
 * computes it from the published guarantee, so that a server can't ask for too little.
 */

const HALVINGS = 200;
const TERMS = 2000;
const ERROR = 2 ** -49;

/**
 * The minimum noise, divided by the sensitivity, that guarantees (ε, δ).
 *
 * @param {number} epsilon
 * @param {number} delta
 */
export function leastNoise(epsilon, delta) {
  const wanted = Math.log(delta);
  let high = 1;
  while (logDelta(epsilon, high) > wanted) {
    high *= 2;
  }
  let low = high;
  while (low > 2 ** -60 && logDelta(epsilon, low) <= wanted) {
    low /= 2;
  }
  for (let i = 0; i < HALVINGS; i += 1) {
    const middle = (low + high) / 2;
    if (logDelta(epsilon, middle) > wanted) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return high * (1 + 1e-12);
}

/**
 * ln δ, plus the maximum rounding error.
 *
 * @param {number} epsilon
 * @param {number} z
 */
function logDelta(epsilon, z) {
  const larger = logPhi(1 / (2 * z) - epsilon * z);
  const far = logPhi(-1 / (2 * z) - epsilon * z);
  if (far === -Infinity) {
    return larger;
  }
  return larger + Math.log(-Math.expm1(Math.min(epsilon + far - larger, 0) - ERROR * (1 - far)));
}

/**
 * ln Φ(x): by Laplace's continued fraction below -1, by a series of odd powers up to 1, and above 1 by 1 - Φ(-x).
 *
 * @param {number} x
 * @returns {number}
 */
function logPhi(x) {
  if (x > 1) {
    return Math.log1p(-Math.exp(logPhi(-x)));
  }
  const logDensity = (-x * x) / 2 - Math.log(2 * Math.PI) / 2;
  if (x >= -1) {
    let term = x;
    let sum = x;
    for (let k = 3; k < 80; k += 2) {
      term *= (x * x) / k;
      sum += term;
    }
    return Math.log(0.5 + Math.exp(logDensity) * sum);
  }
  let fraction = -x;
  for (let k = TERMS; k > 0; k -= 1) {
    fraction = -x + k / fraction;
  }
  return logDensity - Math.log(fraction);
}
