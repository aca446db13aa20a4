// @ts-check
/**
 * The schedule of requests for the next model: about every 30 minutes, with growing waits after failures, and never
 * before the time the server asked for. The time is stored, so that a restarted background script neither forgets it
 * nor sends a request at each start.
 *
 * @import { Api } from "../api.js"
 * @import { Environment } from "../fedping.js"
 *
 * @typedef {{ ok: true } | { ok: false, retryAfter: number | null }} Outcome
 */

import { Backoff, uniform } from "../fedping.js";

export const MODEL = "model";

const KEY = "schedule";
const MINUTE = 60_000;
const EVERY = 30 * MINUTE;
const JITTER = 0.25;
/**
 * The milliseconds over which requests are spread that were due while the browser was closed, because many browsers
 * start in the same minute.
 */
const SPREAD = 2 * MINUTE;
/** The maximum plausible wait, in milliseconds; a longer one comes from a wrong clock. */
const LONGEST = 24 * 60 * MINUTE;

export class Schedule {
  #backoff = new Backoff({ first: 60 }); // the finest resolution of alarms is half a minute

  /** @param {{ api: Api, environment: Environment }} settings */
  constructor({ api, environment }) {
    this.api = api;
    this.environment = environment;
  }

  /** Whether a time is set. A missing alarm is created again, as after a restart of the browser. */
  async isSet() {
    const { next } = await this.#kept();
    const now = this.environment.now();
    if (!Number.isFinite(next) || next - now > LONGEST) {
      return false;
    }
    if (!(await this.api.alarms.get(MODEL))) {
      this.#alarm(next > now ? next : now + SPREAD * uniform(this.environment));
    }
    return true;
  }

  /**
   * Set the next time after a request for a model.
   *
   * @param {Outcome} outcome
   */
  async after(outcome) {
    const failures = outcome.ok ? 0 : ((await this.#kept()).failures ?? 0) + 1;
    const share = uniform(this.environment);
    const wait = outcome.ok
      ? EVERY * (1 - JITTER + 2 * JITTER * share)
      : 1000 * this.#backoff.wait(failures, share, outcome.retryAfter);
    const next = this.environment.now() + Math.min(wait, LONGEST);
    await this.api.storage.local.set({ [KEY]: { failures, next } });
    this.#alarm(next);
  }

  async clear() {
    await Promise.all([this.api.storage.local.remove(KEY), this.api.alarms.clear(MODEL)]);
  }

  async #kept() {
    return (await this.api.storage.local.get(KEY))[KEY] ?? {};
  }

  /** @param {number} when */
  #alarm(when) {
    this.api.alarms.create(MODEL, { when });
  }
}
