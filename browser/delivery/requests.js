// @ts-check
/**
 * Requests that don't identify their sender: no cookies, no referrer.
 *
 * @import { Environment } from "./environment.js"
 */

/** @type {RequestInit} */
export const ANONYMOUS = Object.freeze({ credentials: "omit", referrerPolicy: "no-referrer" });

/** The timeout of a request, in milliseconds. */
export const PATIENCE = 30_000;

/**
 * Make a request and read its answer, within {@link PATIENCE}. The request is made before the call returns, so before
 * its promise settles.
 *
 * @template T
 * @param {Environment} environment
 * @param {string} url
 * @param {RequestInit} init
 * @param {(response: Response) => T | Promise<T>} read
 * @returns {Promise<T>}
 */
export async function request(environment, url, init, read) {
  const patience = new AbortController();
  const timer = environment.setTimeout(() => patience.abort(), PATIENCE);
  try {
    return await read(await environment.fetch(url, { ...ANONYMOUS, ...init, signal: patience.signal }));
  } finally {
    environment.clearTimeout(timer);
  }
}

/**
 * The seconds of a Retry-After header, given as a number or a date; null for neither, or if the page may not read it.
 *
 * @param {Response} response
 * @param {number} now Milliseconds since 1970.
 */
export function retryAfter(response, now) {
  const value = response.headers.get("Retry-After");
  if (value === null) {
    return null;
  }
  const seconds = /^\d+$/.test(value) ? Number(value) : (Date.parse(value) - now) / 1000;
  return Number.isNaN(seconds) ? null : Math.max(0, seconds);
}
