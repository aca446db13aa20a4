// @ts-check
/**
 * The queue of unsent pings. Each is stored, even if the tab is closed, and sent with the same document id until a
 * server accepts it. Pings beyond a set age or number are dropped.
 *
 * Tabs share the stored pings. Two that send the same ping at once do no harm: it is one document.
 *
 * @import { Backoff } from "./backoff.js"
 * @import { Environment } from "./environment.js"
 * @import { Outcome, Sender } from "./sender.js"
 * @import { ClientStorage } from "./storage.js"
 *
 * @typedef {object} Letter
 * @property {string} id
 * @property {string} body
 * @property {number} created Milliseconds since 1970.
 * @property {number} attempts
 * @property {boolean} [isPrivate] Whether it is a ping of a private line.
 * @property {string} [type] The type of ping, if it is not the client's own.
 * @property {number} [notBefore] The earliest time to send it, milliseconds since 1970; at once if absent.
 */

import { uniform } from "./environment.js";

const LONGEST_WAIT = 86_400_000;

/** Milliseconds until the next check whether this is a good moment to send. */
const NEXT_MOMENT = 300_000;

export class Outbox {
  /** @type {Map<string, Letter>} */
  #letters = new Map();
  /** @type {Set<string>} */
  #underWay = new Set();
  /** @type {Set<string>} */
  #seenInStorage = new Set();
  #wanted = false;
  /** @type {Promise<void> | null} */
  #delivering = null;
  /** @type {any} */
  #timer = null;
  #pause = { failures: 0, until: 0 };

  /**
   * @param {object} settings
   * @param {Sender} settings.sender
   * @param {ClientStorage} settings.storage A storage that doesn't fail.
   * @param {string} settings.prefix The prefix of the keys in the storage.
   * @param {Backoff} settings.backoff
   * @param {number} settings.longest The age, in milliseconds, at which a ping is dropped.
   * @param {number} settings.most The maximum number of stored pings; the oldest are dropped.
   * @param {() => boolean} settings.maySend Called before each ping.
   * @param {() => boolean | Promise<boolean>} [settings.isForgotten] Called before each ping: whether another tab has
   *   forgotten the client.
   * @param {(() => Promise<boolean>) | null} [settings.moment] Whether this is a good moment to send; without it, every
   *   moment is.
   * @param {(what: "refused" | "dropped", letter: Letter) => void} [settings.lost] Called for pings that are lost.
   * @param {Environment} settings.environment
   */
  constructor({ sender, storage, prefix, backoff, longest, most, maySend, environment, ...more }) {
    const { isForgotten = () => false, moment = null, lost = () => {} } = more;
    this.sender = sender;
    this.storage = storage;
    this.prefix = `${prefix}queue/`;
    this.pauseKey = `${prefix}pause`;
    this.backoff = backoff;
    this.longest = longest;
    this.most = most;
    this.maySend = maySend;
    this.isForgotten = isForgotten;
    this.moment = moment;
    this.lost = lost;
    this.environment = environment;
    /** The results of this page's pings. */
    this.counts = { accepted: 0, refused: 0, dropped: 0 };
  }

  /** The pings that no server has accepted yet, as far as this page knows; the oldest first. */
  get waiting() {
    return [...this.#letters.values()].sort((a, b) => a.created - b.created);
  }

  /**
   * Queue a ping. With a storage that writes at once it is stored when the call returns.
   *
   * @param {string} id The permanent document id.
   * @param {string} body
   * @param {{ isPrivate?: boolean, type?: string, notBefore?: number }} [more]
   */
  async add(id, body, more = {}) {
    const letter = { id, body, created: this.environment.now(), attempts: 0, ...more };
    this.#letters.set(id, letter);
    const kept = this.storage.set(this.prefix + id, letter);
    this.#dropTheOldest();
    await kept;
  }

  /** Try to send all waiting pings; failed ones are retried later. */
  deliver() {
    this.#wanted = true;
    this.#delivering ??= this.#deliverWhileWanted();
    return this.#delivering;
  }

  /** Send at once, in requests that may outlive the page, which is about to close. */
  leave() {
    // A storage that doesn't answer at once can't be asked, because the page is closing.
    if (this.moment !== null || this.#paused() || !this.maySend() || this.isForgotten() === true) {
      return;
    }
    for (const letter of this.#due()) {
      const sent = this.sender.send(letter.id, letter.body, true, letter);
      if (sent !== null) {
        void this.#settle(letter, sent);
      }
    }
  }

  /** Delete every ping that no server has accepted yet. */
  async clear() {
    this.stop();
    this.#letters.clear();
    const keys = await this.storage.keys(this.prefix);
    await Promise.all([...keys, this.pauseKey].map((key) => this.storage.remove(key)));
  }

  /**
   * Drop this page's pings, because another tab has forgotten the client. Other stored pings stay: they may be another
   * client's.
   */
  async abandon() {
    this.stop();
    const ids = [...this.#letters.keys()];
    this.#letters.clear();
    await Promise.all(ids.map((id) => this.storage.remove(this.prefix + id)));
  }

  /** Stop sending automatically. */
  stop() {
    this.environment.clearTimeout(this.#timer);
  }

  async #deliverWhileWanted() {
    while (this.#wanted) {
      this.#wanted = false; // pings that are added from now on set it again
      await this.#deliver();
    }
    this.#delivering = null;
  }

  async #deliver() {
    if (await this.isForgotten()) {
      return this.abandon();
    }
    await this.#load();
    if (this.moment !== null && this.#due().length > 0 && !(await this.moment())) {
      this.environment.clearTimeout(this.#timer);
      this.#timer = this.environment.setTimeout(() => void this.deliver(), NEXT_MOMENT);
      return undefined;
    }
    for (const letter of this.#due()) {
      if (this.#paused() || !this.maySend()) {
        break;
      }
      if (await this.isForgotten()) {
        return this.abandon();
      }
      if (this.#letters.has(letter.id) && !this.#underWay.has(letter.id)) {
        const sent = this.sender.send(letter.id, letter.body, false, letter);
        await this.#settle(letter, /** @type {Promise<Outcome>} */ (sent));
      }
    }
    this.#sleepIfPaused();
    this.#sleepUntilDue();
    return undefined;
  }

  /** Load the stored pings, also those of other tabs and of closed pages. */
  async #load() {
    this.#takePause(await this.storage.get(this.pauseKey));
    const keys = new Set(await this.storage.keys(this.prefix));
    for (const id of this.#seenInStorage) {
      if (!keys.has(this.prefix + id)) {
        this.#letters.delete(id); // another tab has delivered it
        this.#seenInStorage.delete(id);
      }
    }
    for (const key of keys) {
      this.#take(key, await this.storage.get(key));
    }
    this.#dropTheOld();
    this.#dropTheOldest();
  }

  /** @param {any} pause */
  #takePause(pause) {
    const isOne = Number.isFinite(pause?.failures) && Number.isFinite(pause?.until);
    // A pause longer than any possible one comes from a wrong clock.
    if (isOne && pause.until - this.environment.now() <= this.longest) {
      this.#pause = pause;
    }
  }

  /**
   * @param {string} key
   * @param {any} letter
   */
  #take(key, letter) {
    if (isLetter(letter) && key === this.prefix + letter.id) {
      this.#letters.set(letter.id, this.#letters.get(letter.id) ?? letter);
      this.#seenInStorage.add(letter.id);
    } else if (letter !== undefined) {
      void this.storage.remove(key);
    }
  }

  #dropTheOld() {
    const now = this.environment.now();
    for (const letter of this.waiting) {
      if (letter.created > now) {
        letter.created = now; // a wrong clock must not keep a ping forever
        void this.storage.set(this.prefix + letter.id, letter);
      }
      if (now - letter.created > this.longest) {
        this.#drop(letter);
      }
    }
  }

  /**
   * The pings to send, those with the fewest failures first, so that a ping that always fails doesn't delay the others.
   */
  #due() {
    return this.waiting
      .filter((letter) => !this.#underWay.has(letter.id) && this.#waits(letter) <= 0)
      .sort((a, b) => a.attempts - b.attempts);
  }

  /**
   * Wait for an answer, and act on it.
   *
   * @param {Letter} letter
   * @param {Promise<Outcome>} sent
   */
  async #settle(letter, sent) {
    this.#underWay.add(letter.id);
    const outcome = await sent;
    this.#underWay.delete(letter.id);
    if (outcome.delivery === "retry") {
      await this.#postpone(letter, outcome.retryAfter);
    } else {
      this.counts[outcome.delivery] += 1;
      if (outcome.delivery === "refused") {
        this.lost("refused", letter);
      }
      this.#letters.delete(letter.id);
      this.#pause = { failures: 0, until: 0 };
      await Promise.all([this.storage.remove(this.pauseKey), this.storage.remove(this.prefix + letter.id)]);
    }
  }

  /**
   * @param {Letter} letter
   * @param {number | null} retryAfter
   */
  async #postpone(letter, retryAfter) {
    if (!this.#letters.has(letter.id)) {
      return; // forgotten in the meantime
    }
    if (await this.isForgotten()) {
      return this.abandon();
    }
    letter.attempts += 1;
    const failures = this.#pause.failures + 1;
    const wait = 1000 * this.backoff.wait(failures, uniform(this.environment), retryAfter);
    this.#pause = { failures, until: this.environment.now() + Math.min(wait, this.longest) };
    this.#sleepIfPaused();
    await Promise.all([
      this.storage.set(this.pauseKey, this.#pause),
      this.storage.set(this.prefix + letter.id, letter),
    ]);
  }

  /**
   * The milliseconds that a letter must wait; 0 for an impossibly long wait, which comes from a wrong clock.
   *
   * @param {Letter} letter
   */
  #waits({ notBefore = -Infinity }) {
    const wait = notBefore - this.environment.now();
    return wait <= LONGEST_WAIT ? wait : 0;
  }

  #sleepUntilDue() {
    const waits = this.waiting.map((letter) => this.#waits(letter)).filter((wait) => wait > 0);
    if (waits.length > 0 && !this.#paused()) {
      this.environment.clearTimeout(this.#timer);
      this.#timer = this.environment.setTimeout(() => void this.deliver(), Math.min(...waits));
    }
  }

  #paused() {
    return this.environment.now() < this.#pause.until;
  }

  #sleepIfPaused() {
    if (this.#letters.size > 0 && this.#paused()) {
      this.environment.clearTimeout(this.#timer);
      const wait = this.#pause.until - this.environment.now();
      this.#timer = this.environment.setTimeout(() => void this.deliver(), wait);
    }
  }

  #dropTheOldest() {
    this.waiting.slice(0, Math.max(0, this.#letters.size - this.most)).forEach((letter) => this.#drop(letter));
  }

  /** @param {Letter} letter */
  #drop(letter) {
    this.counts.dropped += 1;
    this.lost("dropped", letter);
    this.#letters.delete(letter.id);
    void this.storage.remove(this.prefix + letter.id);
  }
}

/** @param {any} value */
function isLetter(value) {
  const { id, body, created, attempts, notBefore = 0 } = value ?? {};
  if (!Number.isFinite(notBefore)) {
    return false;
  }
  return typeof id === "string" && typeof body === "string" && Number.isFinite(created) && Number.isInteger(attempts);
}
