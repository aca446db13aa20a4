// @ts-check
/**
 * The number of a client's contributions to a private line. The client itself counts, and permanently stops at the cap.
 * Only the count and the last version are stored, and they stay when everything else is forgotten.
 *
 * @import { ClientStorage } from "./storage.js"
 *
 * @typedef {{ count: number, last: number }} Contributed The number of contributions, and the version of the last one.
 */

/** @type {Contributed} */
export const NEVER = Object.freeze({ count: 0, last: -1 });

/**
 * Whether a client may contribute to a version: once to each, in order, and at most `most` times in all.
 *
 * @param {Contributed} contributed
 * @param {number} version
 * @param {number} most
 */
export function mayContribute({ count, last }, version, most) {
  return version > last && count < most;
}

export class Contributions {
  /** @type {Map<string, Contributed>} */
  #known = new Map();

  /**
   * @param {object} settings
   * @param {ClientStorage} settings.storage A storage that doesn't fail.
   * @param {string} settings.prefix The prefix of the keys in the storage.
   */
  constructor({ storage, prefix }) {
    this.storage = storage;
    this.prefix = `${prefix}contributed/`;
  }

  /**
   * Load the stored count of a line.
   *
   * @param {string} line
   */
  async recall(line) {
    this.#known.set(line, await this.#kept(line));
  }

  /**
   * Whether the client may contribute, as far as this page knows.
   *
   * @param {string} line
   * @param {number} version
   * @param {number} most
   */
  may(line, version, most) {
    return mayContribute(this.#known.get(line) ?? NEVER, version, most);
  }

  /**
   * Count a contribution that is about to be sent. Returns whether it may be sent: not if the count can't be stored.
   * Where the browser has locks, tabs count one at a time; otherwise another tab could count between reading and
   * writing.
   *
   * @param {string} line
   * @param {number} version
   * @param {number} most
   * @returns {Promise<boolean>}
   */
  async take(line, version, most) {
    const take = () => this.#take(line, version, most);
    const locks = globalThis.navigator?.locks;
    return locks === undefined ? take() : locks.request(`fedping ${this.prefix}${line}`, take);
  }

  /**
   * @param {string} line
   * @param {number} version
   * @param {number} most
   */
  async #take(line, version, most) {
    if (!this.may(line, version, most)) {
      return false;
    }
    const { count } = this.#known.get(line) ?? NEVER;
    this.#known.set(line, { count: count + 1, last: version }); // at once, before storage answers
    const kept = await this.#kept(line); // another tab may have written it
    if (!mayContribute(kept, version, most)) {
      this.#known.set(line, kept);
      return false;
    }
    const next = { count: kept.count + 1, last: version };
    this.#known.set(line, next);
    await this.storage.set(this.prefix + line, next);
    const written = await this.#kept(line);
    return written.count === next.count && written.last === next.last;
  }

  /** @param {string} line */
  async #kept(line) {
    const kept = await this.storage.get(this.prefix + line);
    return Number.isSafeInteger(kept?.count) && Number.isSafeInteger(kept?.last) ? kept : NEVER;
  }
}
