// @ts-check
/**
 * The module under the path that the extension's files import. In the packed folder the module itself replaces this
 * file, so that the same imports work in both.
 */

export * from "../fedping.js";
