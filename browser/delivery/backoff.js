// @ts-check
/** Waits between a client's attempts: exponentially growing, jittered, never shorter than the server asked. */

/**
 * Times in seconds. The k-th wait is drawn uniformly between half of first × factor^k and all of it, up to `longest`,
 * so that clients which failed together don't all retry together. A wait that the server asked for is lengthened by up
 * to `first`, for the same reason.
 */
export class Backoff {
  /** @param {{ first?: number, factor?: number, longest?: number }} [settings] */
  constructor({ first = 5, factor = 2, longest = 3600 } = {}) {
    if (!(first >= 0 && first <= longest && factor >= 1 && factor <= 1000 && longest < Infinity)) {
      throw new RangeError("a back-off cannot be meant; wait 0 <= first <= longest seconds, grow by 1 to 1000");
    }
    this.first = first;
    this.factor = factor;
    this.longest = longest;
  }

  /**
   * The seconds to wait after a number of failures in a row.
   *
   * @param {number} failures At least 1.
   * @param {number} uniform In [0, 1).
   * @param {number | null} [retryAfter] The wait that the server asked for, in seconds.
   */
  wait(failures, uniform, retryAfter = null) {
    let ceiling = this.first;
    for (let k = 1; k < failures && ceiling < this.longest && ceiling > 0 && this.factor > 1; k += 1) {
      ceiling *= this.factor;
    }
    const wait = Math.min(this.longest, ceiling) * (0.5 + 0.5 * uniform);
    return retryAfter === null ? wait : Math.max(wait, retryAfter + this.first * uniform);
  }
}
