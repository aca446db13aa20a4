// @ts-check
/**
 * The part for small updates: masks, rotations, numbers of few bits.
 *
 *     import { links } from "fedping/links";
 */

export { registerLink } from "./study/links.js";
export { LINKS as links } from "./study/upload.js";
