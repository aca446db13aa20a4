// @ts-check
/**
 * Repeats an action at its own times: jittered, and with growing delays while it fails. In 2018 all clients asked in
 * the same minute.
 *
 * @import { Backoff } from "./backoff.js"
 * @import { Environment } from "./environment.js"
 *
 * @typedef {{ ok: true } | { ok: false, retryAfter: number | null }} Outcome
 */

import { uniform } from "./environment.js";

/** How far an interval may deviate, as a share of it. */
const JITTER = 0.25;

export class Poller {
  /**
   * @param {object} settings
   * @param {() => Promise<Outcome>} settings.task
   * @param {number} settings.every Milliseconds.
   * @param {Backoff} settings.backoff
   * @param {Environment} settings.environment
   */
  constructor({ task, every, backoff, environment }) {
    this.task = task;
    this.every = every;
    this.backoff = backoff;
    this.environment = environment;
    this.failures = 0;
    /** @type {any} */
    this.timer = null;
    this.running = false;
  }

  /**
   * Begin, at once or after some milliseconds; returns when the first turn is over, if it is at once.
   *
   * @param {number} [after]
   */
  async start(after = 0) {
    this.running = true;
    if (after > 0) {
      this.#sleep(after);
    } else {
      await this.#turn();
    }
  }

  /** End; what is under way is not taken back. */
  stop() {
    this.running = false;
    this.environment.clearTimeout(this.timer);
  }

  async #turn() {
    const outcome = await this.task();
    this.failures = outcome.ok ? 0 : this.failures + 1;
    if (this.running) {
      this.#sleep(outcome.ok ? this.#interval() : this.#pause(outcome.retryAfter));
    }
  }

  #interval() {
    return this.every * (1 - JITTER + 2 * JITTER * uniform(this.environment));
  }

  /** @param {number | null} retryAfter */
  #pause(retryAfter) {
    return 1000 * this.backoff.wait(this.failures, uniform(this.environment), retryAfter);
  }

  /** @param {number} milliseconds */
  #sleep(milliseconds) {
    this.timer = this.environment.setTimeout(() => void this.#turn(), milliseconds);
  }
}
