// @ts-check
/**
 * Repeats an action at jittered intervals, with growing delays while it fails. In 2018 all clients sent requests in the
 * same minute.
 *
 * @import { Backoff } from "./backoff.js"
 * @import { Environment } from "./environment.js"
 *
 * @typedef {{ ok: true } | { ok: false, retryAfter: number | null }} Outcome
 */

import { uniform } from "./environment.js";

/** The maximum deviation of an interval, as a fraction of it. */
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
   * Start, at once or after some milliseconds. Without a delay, resolves after the first turn.
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

  /** Stop; a turn in progress still finishes. */
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
