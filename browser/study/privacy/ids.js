// @ts-check
/**
 * Unlinkable ids: a client of a private line has a different id for every version.
 *
 * @import { Arm, PublicStudy } from "../study.js"
 * @import { Privacy } from "./vectors.js"
 */

import { toHex, utf8 } from "../bytes.js";
import { enrol } from "../enrolment.js";
import { hmac } from "../hmac.js";

export const SECRET_BYTES = 32;

/**
 * The id of a client for one version of its arm's line: a UUID of version 8. It is the first of HMAC-SHA256(secret,
 * "study|line|version|counter") for counter = 0, 1, ... that belongs to the arm.
 *
 * @param {PublicStudy} study
 * @param {Uint8Array} secret The client's secret, which is never sent.
 * @param {Arm} arm The client's arm, by its permanent id.
 * @param {number} version
 * @returns {string}
 */
export function rotatingId(study, secret, arm, version) {
  for (let counter = 0; ; counter += 1) {
    const found = uuidOf(hmac(secret, utf8(`${study.name}|${arm.line}|${version}|${counter}`)).slice(0, 16));
    if (enrol(study, found)?.name === arm.name) {
      return found;
    }
  }
}

/**
 * Whether a client has drawn a version to contribute to. This spreads its contributions over the rounds; otherwise
 * early clients would use up their contributions in the first versions.
 *
 * @param {string} study The study's name.
 * @param {Uint8Array} secret The client's secret.
 * @param {string} line
 * @param {number} version
 * @param {Privacy} privacy
 * @returns {boolean}
 */
export function hasTurn(study, secret, line, version, { contributions, central }) {
  if (contributions === null || central === null || contributions >= central.rounds) {
    return true;
  }
  const drawn = hmac(secret, utf8(`${study}|${line}|${version}|turn`)).slice(0, 6);
  return drawn.reduce((sum, byte) => sum * 256 + byte, 0) / 2 ** 48 < contributions / central.rounds;
}

/** @param {Uint8Array} bytes */
function uuidOf(bytes) {
  bytes[6] = (bytes[6] & 0x0f) | 0x80;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = toHex(bytes);
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
