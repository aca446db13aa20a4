// @ts-check
/**
 * When the next model is asked for: about every 30 minutes, later and later while it fails, and never before the server
 * asked. The moment is kept, so that a background script that was ended neither forgets it nor asks at each awakening.
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
/** In which those that were due while the browser was closed are spread: many start in the same minute. */
const SPREAD = 2 * MINUTE;
/** Longer than any wait that was meant: one that a clock which was wrong has made. */
const LONGEST = 24 * 60 * MINUTE;

export class Schedule {
  #backoff = new Backoff({ first: 60 }); // alarms are no finer than half a minute

  /** @param {{ api: Api, environment: Environment }} settings */
  constructor({ api, environment }) {
    this.api = api;
    this.environment = environment;
  }

  /** Whether a moment is set; its alarm is made if it has gone, as after a restart of the browser. */
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
   * A model was asked for: set the next moment.
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
