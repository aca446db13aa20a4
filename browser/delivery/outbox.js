// @ts-check
/**
 * Pings on their way: sent, sent again with the same document id, and stored until a server accepts them, even if the tab
 * is closed. Pings beyond a set age or number are dropped.
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
 * @property {boolean} [isPrivate] Of a ping of a private line.
 * @property {string} [type] Of a ping of another type than the client's own.
 * @property {number} [notBefore] When it may be sent, milliseconds since 1970; at once if it does not say.
 */

import { uniform } from "./environment.js";

const LONGEST_WAIT = 86_400_000;

/** Milliseconds until it is asked again whether this is a moment to send. */
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
   * @param {ClientStorage} settings.storage One that does not fail.
   * @param {string} settings.prefix Of the keys in the storage.
   * @param {Backoff} settings.backoff
   * @param {number} settings.longest The age, in milliseconds, at which a ping is given up.
   * @param {number} settings.most How many pings are kept; the oldest are dropped.
   * @param {() => boolean} settings.maySend Asked before each ping.
   * @param {() => boolean | Promise<boolean>} [settings.isForgotten] Asked likewise: whether another tab has forgotten the client.
   * @param {(() => Promise<boolean>) | null} [settings.moment] Whether this is a moment to send; without it, every one is.
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
   * Take charge of a ping. With a storage that writes at once it is kept when the call returns.
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

  /** Try to hand over everything that waits; what fails is tried again later. */
  deliver() {
    this.#wanted = true;
    this.#delivering ??= this.#deliverWhileWanted();
    return this.#delivering;
  }

  /** Send what may outlive the page, which is about to go, at once. */
  leave() {
    // A storage that does not answer at once cannot be asked: the page is going.
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

  /** Give up the pings of a client that another tab has forgotten; whose pings the others are that are kept, is not known. */
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
      this.#wanted = false; // what is added from here on is asked for again
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

  /** Learn what is kept, also by other tabs and by pages that have gone. */
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
    // One that is longer than any was made by a clock that was wrong.
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
        letter.created = now; // a clock that was wrong must not keep a ping for ever
        void this.storage.set(this.prefix + letter.id, letter);
      }
      if (now - letter.created > this.longest) {
        this.#drop(letter);
      }
    }
  }

  /** The pings to send: those that failed least first, so that one which fails for ever does not hold up the others. */
  #due() {
    return this.waiting
      .filter((letter) => !this.#underWay.has(letter.id) && this.#waits(letter) <= 0)
      .sort((a, b) => a.attempts - b.attempts);
  }

  /**
   * Wait for an answer, and do what it says.
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
      return; // forgotten meanwhile
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
   * For how many milliseconds a letter must wait; one that would wait for longer than any does was made by a clock that
   * was wrong.
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
