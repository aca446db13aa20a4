// @ts-check
/**
 * Outcomes of a choice as declared by a study: their values within bounds, and the pings of later outcomes.
 *
 * @typedef {{ name: string, within?: string | null, linked?: boolean }} Declared
 * @typedef {Declared & { kind: "flag" }} FlagOutcome
 * @typedef {Declared & { kind: "count", most: number }} CountOutcome
 * @typedef {Declared & { kind: "number", low: number, high: number, round: number }} NumberOutcome
 * @typedef {Declared & { kind: "category", values: readonly string[] }} CategoryOutcome
 * @typedef {FlagOutcome | CountOutcome | NumberOutcome | CategoryOutcome} Outcome
 */

import { toHex } from "./bytes.js";
import { sha256Bytes } from "./sha256.js";

const HOUR = 3_600_000;
const DURATION = /^[1-9][0-9]{0,4}[hd]$/;

/**
 * Whether a value published by a study is a list of outcomes.
 *
 * @param {any} given
 */
export function areOutcomes(given) {
  return Array.isArray(given) && given.every(isOutcome);
}

/** @param {any} given */
function isOutcome(given) {
  const { kind, name, within = null, most, low, high, round, values } = given ?? {};
  const bounds = {
    flag: () => true,
    count: () => Number.isSafeInteger(most) && most >= 1,
    number: () => [low, high, round].every(Number.isFinite) && low < high && round > 0,
    category: () => Array.isArray(values) && values.every((each) => typeof each === "string"),
  };
  const isKnown = typeof kind === "string" && Object.hasOwn(bounds, kind);
  const isNamed = typeof name === "string" && (within === null || DURATION.test(within));
  return isKnown && isNamed && bounds[/** @type {keyof typeof bounds} */ (kind)]();
}

/**
 * The value to send, within the bounds and rounded; undefined for an unlisted category, which is not sent.
 *
 * @param {Outcome} outcome
 * @param {any} value
 * @returns {boolean | number | string | undefined}
 */
export function clipped(outcome, value) {
  switch (outcome.kind) {
    case "count":
      return Math.floor(Math.min(Math.max(value, 0), outcome.most) + 0.5);
    case "number": {
      const { low, high, round } = outcome;
      const steps = Math.floor((Math.min(Math.max(value, low), high) - low) / round + 0.5);
      return Math.min(low + steps * round, high);
    }
    case "category":
      return outcome.values.includes(value) ? value : undefined;
    default:
      return value;
  }
}

/**
 * The hours after a choice within which a later outcome counts; 0 for an outcome at the choice.
 *
 * @param {Outcome} outcome
 */
export function hoursOf({ within }) {
  return within ? parseInt(within, 10) * (within.endsWith("d") ? 24 : 1) : 0;
}

/**
 * The whole hours from a choice to an outcome, by this device's clock; 0 if the clock was set back.
 *
 * @param {number} chosen Milliseconds since 1970.
 * @param {number} at
 */
export function ageOf(chosen, at) {
  return Math.floor(Math.max(0, at - chosen) / HOUR);
}

/**
 * The document id of a later outcome, the same for every repetition: a UUID of version 8 (RFC 9562).
 *
 * @param {string} choice The document id of the choice.
 * @param {string} column
 * @param {string | null} secret Drawn by this client and never sent; null for an outcome that names its choice.
 */
export function outcomeId(choice, column, secret) {
  const text = `${secret === null ? "" : `${secret}\n`}${choice}\n${column}`;
  const bytes = sha256Bytes(new TextEncoder().encode(text)).slice(0, 16);
  bytes[6] = 0x80 | (bytes[6] & 0x0f);
  bytes[8] = 0x80 | (bytes[8] & 0x3f);
  return toHex(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/**
 * The columns of a ping at the choice.
 *
 * @param {readonly Outcome[]} outcomes All outcomes that the study declares.
 * @param {Record<string, any>} observed Values by name; later outcomes and unknown names are ignored.
 * @returns {Record<string, boolean | number | string>}
 */
export function columnsOf(outcomes, observed) {
  /** @type {Record<string, boolean | number | string>} */
  const columns = {};
  for (const outcome of outcomes) {
    if (!outcome.within && Object.hasOwn(observed, outcome.name)) {
      const value = clipped(outcome, observed[outcome.name]);
      if (value !== undefined) {
        columns[outcome.name] = value;
      }
    }
  }
  return columns;
}

/**
 * The ping of a later outcome; null if it comes too late, or its value is not sent.
 *
 * @param {Outcome} outcome
 * @param {any} value
 * @param {{ clientId: string, arm: string, version: number, choice: string, chosen: number }} of The client, and the
 *   choice that the outcome follows.
 * @param {number} at The time of the outcome, in milliseconds since 1970.
 */
export function outcomePing(outcome, value, { clientId, arm, version, choice, chosen }, at) {
  const age = ageOf(chosen, at);
  const sent = clipped(outcome, value);
  if (sent === undefined || age >= hoursOf(outcome)) {
    return null;
  }
  const link = outcome.linked ? { choice } : {};
  const payload = { model_version: version, study_variation: arm, age, ...link, [outcome.name]: sent };
  return { clientId, type: "outcome", payload };
}
