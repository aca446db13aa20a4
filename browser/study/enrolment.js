// @ts-check
/**
 * Hash enrolment: the client alone computes its arm, the same on every visit.
 *
 * @import { Arm, PublicStudy } from "./study.js"
 */

import { sha256 } from "./sha256.js";

/**
 * A client's position in [0, 1): the first 48 bits of SHA-256(study, newline, client id) as a fraction.
 *
 * @param {string} study The study's name.
 * @param {string} clientId A UUID in lower case.
 */
export function position(study, clientId) {
  return fraction(`${study}\n${clientId}`);
}

/**
 * Whether a client gets a staged version of a line, by the first 48 bits of SHA-256(study, newline, line, newline,
 * number, newline, client id). About the staged share of clients does, and for each version others.
 *
 * @param {string} study The study's name.
 * @param {string} line
 * @param {import("./study.js").Staged} staged
 * @param {string} clientId A UUID in lower case.
 */
export function stagedFor(study, line, { iteration, share }, clientId) {
  return fraction(`${study}\n${line}\n${iteration}\n${clientId}`) < share;
}

/** @param {string} text */
function fraction(text) {
  const digest = sha256(text);
  return (digest[0] * 2 ** 16 + (digest[1] >>> 16)) / 2 ** 48;
}

/**
 * The arm of a client; null if its position is in no arm, so that it is not enrolled. The arms are adjacent, unless the
 * study lists pieces.
 *
 * @param {PublicStudy} study
 * @param {string} clientId
 * @returns {Arm | null}
 */
export function enrol(study, clientId) {
  const where = position(study.name, clientId);
  for (const piece of study.pieces ?? []) {
    if (where < piece.end) {
      return study.arms.find((arm) => arm.name === piece.arm) ?? null;
    }
  }
  if (study.pieces?.length) {
    return null;
  }
  let upper = 0;
  for (const arm of study.arms) {
    upper += arm.share;
    if (where < upper) {
      return arm;
    }
  }
  return null;
}
