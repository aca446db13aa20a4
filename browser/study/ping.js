// @ts-check
/**
 * The ping: one interaction with a ranked list. Pings are the only data that a client sends.
 *
 * @import { EncodedUpdate } from "./links.js"
 *
 * @typedef {object} Observed The user's choice, apart from the list shown.
 * @property {number} chosen The place of the chosen page in the ranked list, from 0; -1 for none.
 * @property {number} [suggestions] The number of all suggestions shown, including other kinds.
 * @property {number} [rank] The rank of the choice among all suggestions; -1 if nothing was selected.
 * @property {number} [charactersTyped]
 * @property {number} [keysPressed] Enter excluded.
 * @property {number} [keysAtFirstEntry] Keys pressed until the item finally chosen first appeared.
 * @property {number} [milliseconds] Milliseconds from focus to the choice.
 * @property {number} [millisecondsAtFirstEntry] Milliseconds from focus until the item finally chosen first appeared.
 * @property {string} [style] The kind of suggestion chosen; at most 64 characters.
 * @property {boolean | null} [sameAsSearch] Whether the chosen address equals the typed text; null if not known.
 * @property {boolean} [enter] Whether the choice was made with Enter.
 *
 * @typedef {object} Learned
 * @property {string} arm
 * @property {number} version The model version known to the client.
 * @property {readonly number[]} scores The scores of the ranked pages, in displayed order; in a personal arm by the
 *   shared model, highest first.
 * @property {number} loss
 * @property {readonly number[] | EncodedUpdate | null} update The update as it is sent.
 *
 * @typedef {{ clientId: string, type: string, payload: Record<string, any>, ticket?: string }} Ping
 */

import { NOTHING_CHOSEN } from "../models/loss.js";

export { PING_VERSION } from "../delivery/sender.js";
export { PRIVATE_TYPE } from "./study.js";

export const PING_TYPE = "frecency-update";

/** The client's name in `study_addon_version`. */
export const CLIENT_VERSION = "fedping-js-1";

const LARGEST_COUNT = 2 ** 31 - 1;
const MOST_SCORES = 1000;
const LONGEST_TEXT = 64;

/**
 * The ping of an interaction.
 *
 * @param {string} clientId
 * @param {Learned} learned
 * @param {Observed} observed
 * @param {string} [clientVersion]
 * @returns {Ping}
 * @throws {RangeError} An impossible number.
 */
export function pingOf(clientId, learned, observed, clientVersion = CLIENT_VERSION) {
  const shown = learned.scores.length;
  const { chosen, rank = chosen, suggestions = shown } = observed;
  const selected = rank > NOTHING_CHOSEN;
  const payload = {
    model_version: learned.version,
    study_variation: learned.arm,
    update: learned.update,
    loss: learned.loss,
    frecency_scores: [...learned.scores],
    num_suggestions_displayed: count("suggestions", suggestions, shown),
    rank_selected: count("rank", rank, chosen, suggestions - 1),
    bookmark_and_history_num_suggestions_displayed: shown,
    bookmark_and_history_rank_selected: count("chosen", chosen, NOTHING_CHOSEN, shown - 1),
    num_chars_typed: count("charactersTyped", observed.charactersTyped ?? 0),
    num_key_down_events: count("keysPressed", observed.keysPressed ?? 0),
    num_key_down_events_at_selecteds_first_entry: selected
      ? count("keysAtFirstEntry", observed.keysAtFirstEntry ?? -1, -1)
      : -1,
    time_start_interaction: 0,
    time_end_interaction: milliseconds("milliseconds", observed.milliseconds ?? 0),
    time_at_selecteds_first_entry: selected
      ? milliseconds("millisecondsAtFirstEntry", observed.millisecondsAtFirstEntry ?? -1, -1)
      : -1,
    selected_style: selected ? text("style", observed.style ?? "") : "",
    selected_url_was_same_as_search_string: selected ? sameAsSearch(observed.sameAsSearch) : -1,
    enter_was_pressed: observed.enter ? 1 : 0,
    study_addon_version: text("clientVersion", clientVersion),
  };
  if (shown > MOST_SCORES) {
    throw new RangeError(`${shown} pages were shown; a ping has at most ${MOST_SCORES}`);
  }
  return { clientId, type: PING_TYPE, payload };
}

/**
 * @param {string} name
 * @param {number} value
 * @param {number} [least]
 * @param {number} [largest]
 */
function count(name, value, least = 0, largest = LARGEST_COUNT) {
  if (!Number.isInteger(value) || value < least || value > largest) {
    throw new RangeError(`${name} is ${value}; use a whole number from ${least} to ${largest}`);
  }
  return value;
}

/**
 * A time in whole milliseconds; the clocks of pages have fractions.
 *
 * @param {string} name
 * @param {number} value
 * @param {number} [least]
 */
function milliseconds(name, value, least = 0) {
  return count(name, Math.floor(value + 0.5), least, Number.MAX_SAFE_INTEGER);
}

/**
 * @param {string} name
 * @param {string} value
 */
function text(name, value) {
  if (typeof value !== "string" || [...value].length > LONGEST_TEXT) {
    throw new RangeError(`${name} is not a text of at most ${LONGEST_TEXT} characters; shorten it`);
  }
  return value;
}

/** @param {boolean | null | undefined} same */
function sameAsSearch(same) {
  return same === null || same === undefined ? -1 : Number(same);
}
