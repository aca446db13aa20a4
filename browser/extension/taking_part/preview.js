// @ts-check
/**
 * The ping that would be sent, composed from the user's own pages.
 *
 * @import { Observed, Page, Ping, Role } from "../fedping.js"
 * @import { Participation } from "./participation.js"
 *
 * @typedef {object} Preview
 * @property {string[]} guarantee The guarantee of a private study, a sentence each.
 * @property {"pages" | "private" | "shared"} kind The kind of message.
 * @property {boolean} noisy Whether this browser adds noise to it.
 * @property {Ping | null} ping Null if none would be sent now: a private study gets one for each version, up to its
 *   cap.
 * @property {string} address
 * @property {boolean} drawn Whether id and group are this browser's own, not stand-ins.
 * @property {string | null} trouble
 * @property {Told | null} told The content of a private study's ping, which the ping itself doesn't show.
 *
 * @typedef {object} Told The content of a private study's ping.
 * @property {string[]} up Weights that should rise.
 * @property {string[]} down Weights that should fall.
 * @property {{ loss: number, top: boolean } | null} choice The distance of the choice from the top, from 0 to 1, and
 *   whether it was at the top; null if the browser adds noise and so doesn't send them.
 */

import {
  PRODUCT_SPEC,
  NO_VERSION,
  PING_TYPE,
  PING_VERSION,
  PRIVATE_TYPE,
  learned,
  pingOf,
  ranked,
  roleIn,
  startWeights,
} from "../fedping.js";
import { NO_GROUP, NO_ID } from "../disclosure/groups.js";
import { CLIENT_VERSION } from "./participation.js";

/** The maximum number of pages in a list. */
const SHOWN = 10;

/**
 * An example of a user's choice from a list: three letters typed, the second page chosen.
 *
 * @param {number} pages
 * @returns {Observed}
 */
export function example(pages) {
  return {
    chosen: Math.min(1, pages - 1),
    charactersTyped: 3,
    keysPressed: 3,
    keysAtFirstEntry: 2,
    milliseconds: 2400,
    millisecondsAtFirstEntry: 1500,
    style: "history",
    sameAsSearch: false,
    enter: true,
  };
}

/**
 * The exact ping of the example choice, with the client's id, arm and model, or stand-ins if it has none yet.
 *
 * @param {Participation} participation
 * @param {readonly Page[]} pages The first pages of the user.
 * @param {() => string} drawId
 * @returns {Preview}
 */
export function preview(participation, pages, drawId) {
  const listed = participation.rank(pages, SHOWN);
  const observed = example(listed.pages.length);
  const composed = participation.client?.compose(listed, observed) ?? null;
  const { ingest, study } = participation.settings;
  const guarantee = participation.client?.guarantee ?? [];
  const { privacy } = listed.role;
  const type = guarantee.length > 0 ? PRIVATE_TYPE : PING_TYPE;
  const at = `${ingest || "https://…"}/submit/${study || "…"}/${type}/${PING_VERSION}`;
  const otherwise = guarantee.length > 0 ? null : standIn(pages, observed, participation.environment.now());
  return {
    guarantee,
    kind: privacy === null ? "pages" : privacy.shared ? "shared" : "private",
    noisy: Boolean(privacy?.local),
    ping: composed?.ping ?? otherwise,
    address: `${at}/${composed?.documentId ?? drawId()}`,
    drawn: composed !== null,
    trouble: participation.client?.trouble ?? null,
    told: composed?.vector === undefined ? null : toldBy(composed.vector, listed.role),
  };
}

/**
 * The content of a vector: a number for each weight, then one for the browser, its loss, and whether the choice was at the top.
 *
 * @param {readonly number[]} vector
 * @param {Role} role
 * @returns {Told}
 */
function toldBy(vector, { spec, privacy }) {
  const names = spec.weights.map(({ name }) => name);
  const [all, loss, top] = vector.slice(names.length);
  const where = (/** @type {number} */ sign) => names.filter((_, k) => Math.sign(vector[k]) === sign);
  return { up: where(1), down: where(-1), choice: privacy?.local ? null : { loss: loss / all, top: top > 0 } };
}

/**
 * @param {readonly Page[]} pages
 * @param {Observed} observed
 * @param {number} now
 */
function standIn(pages, observed, now) {
  const arm = { name: NO_GROUP, share: 1, line: null, applies: true, submits: true, decays: false };
  const held = { version: NO_VERSION, weights: startWeights(PRODUCT_SPEC) };
  const shown = ranked(roleIn(null, arm), held, pages, now, SHOWN);
  const { scores, loss, update } = learned(shown, observed.chosen);
  return pingOf(
    NO_ID,
    { arm: arm.name, version: NO_VERSION, scores, loss, update },
    observed,
    CLIENT_VERSION,
  );
}
