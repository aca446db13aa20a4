// @ts-check
/**
 * The newest messages that were sent, for the user to read: with their addresses and the server's answers. They stay in this
 * browser until the user deletes them, even after they stop taking part.
 *
 * @typedef {object} Sent
 * @property {number} at The time when it was last sent, in milliseconds since 1970.
 * @property {string} address
 * @property {string} body The message as it was sent.
 * @property {number} times The number of attempts.
 * @property {string} answer The result, in words.
 */

const KEY = "sent";

/** The maximum number of stored messages, each some thousand characters long. */
export const KEPT = 100;

export class SentLog {
  #writing = Promise.resolve();

  /** @param {any} area What `storage.local` is. @param {() => number} now */
  constructor(area, now) {
    this.area = area;
    this.now = now;
  }

  /** @returns {Promise<Sent[]>} The newest first. */
  async all() {
    return (await this.area.get(KEY))[KEY] ?? [];
  }

  /**
   * The newest message whose address has a prefix; null if none is stored.
   *
   * @param {string} start
   * @returns {Promise<{ at: number, ping: any } | null>}
   */
  async newest(start) {
    const found = (await this.all()).find(({ address }) => address.startsWith(start));
    return found === undefined ? null : { at: found.at, ping: JSON.parse(found.body) };
  }

  /**
   * Return a `fetch` that also stores every message that it sends, and its answer.
   *
   * @param {typeof globalThis.fetch} fetch
   * @returns {typeof globalThis.fetch}
   */
  noting(fetch) {
    return async (url, init) => {
      if (init?.method !== "POST") {
        return fetch(url, init);
      }
      const [address, body] = [String(url), String(init.body)];
      const answering = fetch(url, init); // at once, because the page may be about to close
      const noted = this.#note(address, body, "no answer yet", 1);
      try {
        const response = await answering;
        await noted;
        await this.#note(address, body, words(response), 0);
        return response;
      } catch (error) {
        await this.#note(address, body, "no answer; it may have arrived", 0);
        throw error;
      }
    };
  }

  /** Delete all messages. */
  clear() {
    return this.#inTurn(() => this.area.remove(KEY));
  }

  /**
   * @param {string} address The address contains the message's id, so that a message sent twice is stored once.
   * @param {string} body
   * @param {string} answer
   * @param {number} more
   */
  #note(address, body, answer, more) {
    return this.#inTurn(async () => {
      const all = await this.all();
      const before = all.find((sent) => sent.address === address);
      const sent = { at: this.now(), address, body, times: (before?.times ?? 0) + more, answer };
      const others = all.filter((other) => other !== before);
      const deletedMeanwhile = before === undefined && more === 0;
      if (!deletedMeanwhile) {
        await this.area.set({ [KEY]: [sent, ...others].slice(0, KEPT) });
      }
    });
  }

  /** @param {() => Promise<void>} action */
  #inTurn(action) {
    const done = this.#writing.then(action);
    this.#writing = done.catch(() => {}); // a failed write must not block the next one
    return this.#writing;
  }
}

/** @param {Response} response */
function words(response) {
  if (response.type === "opaque") {
    return "answered; this browser doesn't let extensions see how";
  }
  return response.ok ? "accepted" : `not accepted (status ${response.status})`;
}
