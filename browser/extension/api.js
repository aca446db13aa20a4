// @ts-check
/**
 * The browser's interfaces for extensions, under one name in both browsers.
 *
 * @typedef {any} Api `browser` or `chrome`; the extension uses only functions that return promises in both.
 */

/** @type {Api} */
export const api = /** @type {any} */ (globalThis).browser ?? /** @type {any} */ (globalThis).chrome;

/**
 * Whether the extension's origin identifies this installation: Firefox draws a random one for each, in Chromium all
 * have the same.
 *
 * @param {Api} api
 */
export function originNamesInstallation(api) {
  return isFirefox(api);
}

/** @param {Api} api */
export function isFirefox(api) {
  return api.runtime.getURL("").startsWith("moz-extension:");
}
