// @ts-check
/**
 * The module, as the extension's files ask for it. In the packed folder the module itself lies here, in place of this
 * file, so that the same imports hold in both.
 */

export * from "../fedping.js";
