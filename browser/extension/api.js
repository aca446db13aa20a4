// @ts-check
/**
 * The browser's interfaces for extensions, by one name in both browsers.
 *
 * @typedef {any} Api `browser` or `chrome`; the extension uses only what answers by promise in both.
 */

/** @type {Api} */
export const api = /** @type {any} */ (globalThis).browser ?? /** @type {any} */ (globalThis).chrome;

/**
 * Whether the extension's origin is a name of this installation: Firefox draws one for each, in Chromium all have the
 * same.
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
