// @ts-check
/**
 * Random integers from random bytes, with exact probabilities, so that the proven guarantees hold.
 *
 * Bernoulli trials with probability e^-γ, discrete Laplace and discrete Gaussian by Canonne, Kamath and Steinke, "The
 * Discrete Gaussian for Differential Privacy" (2020), algorithms 1 to 3. No probability is ever a float.
 *
 * @typedef {(count: number) => Uint8Array} Draw Returns a number of random bytes.
 */

/** The denominator of epsilons, which are rounded down to a multiple of 1 / FRACTION. */
const FRACTION = 2 ** 20;

export class Chance {
  /** @param {Draw} draw */
  constructor(draw) {
    this.draw = draw;
  }

  /**
   * A uniform whole number from 0 to n - 1, by drawing bits until the number is below n.
   *
   * @param {bigint} n
   */
  below(n) {
    const bits = n === 1n ? 0 : (n - 1n).toString(2).length;
    const size = Math.ceil(bits / 8);
    for (;;) {
      const drawn = this.draw(size).reduce((sum, byte) => sum * 256n + BigInt(byte), 0n) >> BigInt(8 * size - bits);
      if (drawn < n) {
        return drawn;
      }
    }
  }

  coin() {
    return this.below(2n) === 1n;
  }

  /**
   * True with probability exp(-numerator / denominator).
   *
   * @param {bigint} numerator
   * @param {bigint} denominator
   */
  decays(numerator, denominator) {
    let left = numerator;
    for (; left > denominator; left -= denominator) {
      if (!this.#decaysByOne(1n, 1n)) {
        return false;
      }
    }
    return this.#decaysByOne(left, denominator);
  }

  /**
   * The same for a quotient of at most 1.
   *
   * @param {bigint} numerator
   * @param {bigint} denominator
   */
  #decaysByOne(numerator, denominator) {
    let k = 1n;
    while (this.below(denominator * k) < numerator) {
      k += 1n;
    }
    return k % 2n === 1n;
  }

  /**
   * True with probability e^ε / (1 + e^ε), or slightly less: whether randomised response reports the truth.
   *
   * @param {number} epsilon
   */
  isTrue(epsilon) {
    const numerator = BigInt(Math.floor(epsilon * FRACTION));
    while (!this.coin()) {
      if (this.decays(numerator, BigInt(FRACTION))) {
        return false;
      }
    }
    return true;
  }

  /**
   * A whole number x with probability proportional to exp(-|x| / scale).
   *
   * @param {bigint} scale
   */
  discreteLaplace(scale) {
    for (;;) {
      const within = this.below(scale);
      if (!this.decays(within, scale)) {
        continue;
      }
      let beyond = 0n;
      while (this.decays(1n, 1n)) {
        beyond += 1n;
      }
      const found = within + scale * beyond;
      const negative = this.coin();
      if (!(negative && found === 0n)) {
        return negative ? -found : found;
      }
    }
  }

  /**
   * A whole number x with probability proportional to exp(-x² / 2σ²).
   *
   * @param {number} sigma
   */
  discreteGaussian(sigma) {
    const scale = BigInt(sigma) + 1n;
    const variance = BigInt(sigma) ** 2n;
    for (;;) {
      const found = this.discreteLaplace(scale);
      const size = found < 0n ? -found : found;
      if (this.decays((size * scale - variance) ** 2n, 2n * variance * scale * scale)) {
        return Number(found);
      }
    }
  }
}

/** Draws from the platform's randomness, whose seed no server knows. Settings can't replace it. */
export const SYSTEM = new Chance((count) => crypto.getRandomValues(new Uint8Array(count)));
