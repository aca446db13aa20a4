// @ts-check
/**
 * The browser's functions that the client uses, in one place, so that tests can replace them.
 *
 * @typedef {object} Environment
 * @property {typeof fetch} fetch
 * @property {() => number} now Milliseconds since 1970.
 * @property {(action: () => void, milliseconds: number) => any} setTimeout
 * @property {(timer: any) => void} clearTimeout
 * @property {(count: number) => Uint8Array} randomBytes
 * @property {boolean} keepalive Whether `fetch` supports `keepalive`.
 * @property {((url: string, body: Blob) => boolean) | null} sendBeacon
 * @property {(leave: () => void, back: () => void) => () => void} onLeaving Calls `leave` when the page is hidden and
 *   `back` when it is visible again; returns a function that stops this.
 * @property {() => Promise<boolean>} [restful] Waits until the page is idle; returns whether the connection is
 *   unmetered.
 */

import { onLeaving } from "./leaving.js";

/** The longest delay of a browser's timer, in milliseconds, about 25 days. Timers with a longer delay fire at once. */
const LONGEST_TIMER = 2 ** 31 - 1;

/** The maximum milliseconds to wait until a page is idle. */
const IDLE = 60_000;

/**
 * The environment of a real browser.
 *
 * @returns {Environment}
 */
export function browserEnvironment() {
  const { navigator } = globalThis;
  const hasBeacon = typeof navigator === "object" && typeof navigator.sendBeacon === "function";
  return {
    fetch: (input, init) => globalThis.fetch(input, init),
    now: () => Date.now(),
    setTimeout: (action, milliseconds) => globalThis.setTimeout(action, Math.min(milliseconds, LONGEST_TIMER)),
    clearTimeout: (timer) => globalThis.clearTimeout(timer),
    randomBytes: (count) => crypto.getRandomValues(new Uint8Array(count)),
    keepalive: typeof Request === "function" && "keepalive" in Request.prototype,
    sendBeacon: hasBeacon ? (url, body) => navigator.sendBeacon(url, body) : null,
    restful: async () => isUnmetered(navigator) && (await idle()),
    onLeaving: (leave, back) => {
      const { document, window } = globalThis; // an extension's background script may have neither
      return document && window ? onLeaving(document, window, leave, back) : () => {};
    },
  };
}

/**
 * Whether the connection is unmetered, as far as the browser says; only Chromium does.
 *
 * @param {any} navigator
 */
function isUnmetered(navigator) {
  const { saveData = false, type } = navigator?.connection ?? {};
  return !saveData && type !== "cellular";
}

/** Returns true once the page is idle; at once where the browser can't tell. */
async function idle() {
  const { requestIdleCallback } = globalThis;
  return requestIdleCallback === undefined || new Promise((done) => requestIdleCallback(() => done(true), { timeout: IDLE }));
}

/**
 * A random number, uniform in [0, 1).
 *
 * @param {Environment} environment
 */
export function uniform(environment) {
  return environment.randomBytes(6).reduce((sum, byte) => sum * 256 + byte, 0) / 2 ** 48;
}

/**
 * A random UUID (version 4), in lower case.
 *
 * @param {Environment} environment
 */
export function uuid(environment) {
  const bytes = environment.randomBytes(16);
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
