// @ts-check
/**
 * Hash enrolment: which arm a client belongs to, decided by the client alone and the same on every visit.
 *
 * @import { Arm, PublicStudy } from "./study.js"
 */

import { sha256 } from "./sha256.js";

/**
 * Where a client falls in [0, 1): the first 48 bits of SHA-256(study, newline, client id) as a fraction.
 *
 * @param {string} study The study's name.
 * @param {string} clientId A UUID in small letters.
 */
export function position(study, clientId) {
  const digest = sha256(`${study}\n${clientId}`);
  return (digest[0] * 2 ** 16 + (digest[1] >>> 16)) / 2 ** 48;
}

/**
 * The arm of a client, or null if it falls beyond the sum of the shares and is not enrolled.
 *
 * @param {PublicStudy} study
 * @param {string} clientId
 * @returns {Arm | null}
 */
export function enrol(study, clientId) {
  const where = position(study.name, clientId);
  let upper = 0;
  for (const arm of study.arms) {
    upper += arm.share;
    if (where < upper) {
      return arm;
    }
  }
  return null;
}
