// @ts-check
/**
 * Sends a ping to ingest, in one attempt.
 *
 * With `cors`, ingest's answer can be read: 200 means that the ping is durable. With `no-cors` it can't: the client
 * learns only that the request was answered. In return such a request doesn't name its origin, which for a Firefox
 * extension identifies the installation.
 *
 * The body is `text/plain` in both: any other type would need a preflight request before each ping.
 *
 * @import { Environment } from "./environment.js"
 *
 * @typedef {"cors" | "no-cors"} Mode
 * @typedef {{ delivery: "accepted" | "refused" } | { delivery: "retry", retryAfter: number | null }} Outcome
 */

import { request, retryAfter } from "./requests.js";

/** The maximum bytes in flight in requests that outlive their page, a limit of browsers. */
export const KEEPALIVE_BYTES = 64 * 1024;

/** The version in the address of pings, the same for all types. */
export const PING_VERSION = "1";

const CONTENT_TYPE = "text/plain;charset=UTF-8";
const TRY_AGAIN = new Set([408, 425, 429]);

export class Sender {
  /**
   * @param {object} settings
   * @param {string} settings.address The address of pings, up to the document id:
   *   `https://…/submit/<study>/<type>/<version>`.
   * @param {(type: string) => string} [settings.addressOf] Returns the address of pings of another type.
   * @param {Mode} settings.mode
   * @param {string} [settings.privateAddress] The address of pings of private lines.
   * @param {boolean} settings.beacon Whether to send beacons where `fetch` does not support `keepalive`.
   * @param {Environment} settings.environment
   */
  constructor({ address, addressOf = () => address, privateAddress = address, mode, beacon, environment }) {
    this.address = address;
    this.addressOf = addressOf;
    this.privateAddress = privateAddress;
    this.mode = mode;
    this.beacon = beacon;
    this.environment = environment;
    this.keptAlive = 0;
  }

  /**
   * Post a ping; null if it cannot be sent now, because the page is leaving and the ping would not outlive it.
   *
   * The request has been made when this call returns.
   *
   * @param {string} documentId
   * @param {string} body
   * @param {boolean} leaving
   * @param {{ isPrivate?: boolean, type?: string }} [of] Whether it is a ping of a private line, and its type if it is
   *   not the client's own.
   * @returns {Promise<Outcome> | null}
   */
  send(documentId, body, leaving, { isPrivate = false, type } = {}) {
    const address = type ? this.addressOf(type) : isPrivate ? this.privateAddress : this.address;
    const url = `${address}/${documentId}`;
    const bytes = new TextEncoder().encode(body).length;
    const outlives = this.environment.keepalive && this.keptAlive + bytes <= KEEPALIVE_BYTES;
    if (leaving && !outlives) {
      return this.#sendBeacon(url, body);
    }
    return this.#post(url, body, outlives ? bytes : 0);
  }

  /**
   * @param {string} url
   * @param {string} body
   * @param {number} keptAlive The bytes of a request that outlives the page; 0 for a request that ends with it.
   * @returns {Promise<Outcome>}
   */
  async #post(url, body, keptAlive) {
    this.keptAlive += keptAlive;
    try {
      const init = { method: "POST", body, headers: { "Content-Type": CONTENT_TYPE }, keepalive: keptAlive > 0 };
      // Ingest never redirects a ping, so a redirect is an error and the ping is kept. With `no-cors`, browsers always
      // follow redirects.
      const mode = this.mode === "cors" ? { mode: this.mode, redirect: "error" } : { mode: this.mode };
      return await request(this.environment, url, /** @type {RequestInit} */ ({ ...init, ...mode }), (response) =>
        this.#outcome(response),
      );
    } catch {
      return { delivery: "retry", retryAfter: null };
    } finally {
      this.keptAlive -= keptAlive;
    }
  }

  /**
   * @param {Response} response
   * @returns {Outcome}
   */
  #outcome(response) {
    if (response.ok || response.type === "opaque") {
      return { delivery: "accepted" };
    }
    const isRedirect = response.status >= 300 && response.status < 400;
    if (response.status >= 500 || isRedirect || TRY_AGAIN.has(response.status)) {
      return { delivery: "retry", retryAfter: retryAfter(response, this.environment.now()) };
    }
    return { delivery: "refused" };
  }

  /**
   * A beacon has no result. Where answers can be read, the ping is sent again later to get one. The second is a
   * duplicate, which ingest and rounds drop by its document id.
   *
   * @param {string} url
   * @param {string} body
   * @returns {Promise<Outcome> | null}
   */
  #sendBeacon(url, body) {
    const { keepalive, sendBeacon } = this.environment;
    if (!this.beacon || keepalive || sendBeacon === null) {
      return null;
    }
    const queued = sendBeacon(url, new Blob([body], { type: CONTENT_TYPE }));
    return queued && this.mode === "no-cors" ? Promise.resolve({ delivery: "accepted" }) : null;
  }
}
