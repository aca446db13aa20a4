// @ts-check
/**
 * All upload links of this module.
 *
 * @import { Randomness } from "./encodings/randomness.js"
 * @import { ClientEnd, EncodedUpdate, UploadLink } from "./links.js"
 */

import { FLOAT32 } from "./encodings/float32.js";
import { LEVELS } from "./encodings/levels.js";
import { MASK, maskThen } from "./encodings/mask.js";
import { SYSTEM } from "./encodings/randomness.js";
import { ROTATION } from "./encodings/rotation.js";
import { SIGN, SIGNS } from "./encodings/signs.js";
import { STEPS } from "./encodings/steps.js";
import { linksTrouble, sentBy } from "./links.js";

export { base64, registerLink } from "./links.js";

/** Links that may encode the weights kept by a mask. */
const AFTER_A_MASK = new Map([
  ["float32", FLOAT32],
  ["levels", LEVELS],
  ["steps", STEPS],
]);

/** @type {ReadonlyMap<string, ClientEnd>} */
const OURS = new Map(
  /** @type {[string, ClientEnd][]} */ ([
    ...AFTER_A_MASK,
    ["dense", {}],
    ["mask", { ...MASK, before: maskBefore }],
    ["rotation", ROTATION],
    ["sign", SIGN],
    ["signs", SIGNS],
  ]),
);

export { OURS as LINKS };

/**
 * The reason why this client can't take part in a line with these links; null if it can.
 *
 * @param {any} upload The study's value, unchecked.
 */
export function uploadTrouble(upload) {
  return linksTrouble(upload, OURS);
}

/**
 * An update as it is sent; null if the transformed update has a number that may not be sent.
 *
 * @param {readonly UploadLink[]} upload Links that this client has ({@link uploadTrouble}).
 * @param {readonly number[]} update
 * @param {Randomness} [randomness] The source of seeds and of numbers for rounding; tests pass their own.
 * @returns {number[] | EncodedUpdate | null}
 */
export function sentUpdate(upload, update, randomness = SYSTEM) {
  return sentBy(upload, update, OURS, randomness);
}

/**
 * @param {any} last
 * @returns {ClientEnd | null}
 */
function maskBefore(last) {
  const values = AFTER_A_MASK.get(last?.link);
  return values === undefined ? null : maskThen(values, last);
}
