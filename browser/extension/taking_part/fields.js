// @ts-check
/** What each field of a ping says, in plain words. A test holds that no field is without them. */

/** @type {readonly (readonly [string, string])[]} */
export const FIELDS = Object.freeze([
  [
    "clientId",
    "A random number drawn for this study alone. It tells the server which messages are of one installation, and nothing else. It is deleted when you decline or switch off.",
  ],
  ["type", "The kind of message: always the same."],
  ["model_version", "Which version of the ranking model this browser holds; −1 for none yet."],
  ["study_variation", "The group of the study that this browser was put in by chance."],
  [
    "update",
    "One number for each weight of the ranking: whether it should rise or fall so that your choice would have stood higher. It is worked out here, from when and how the pages shown were visited. Some studies ask for it in a shorter form, as letters: of some weights alone, which are drawn by lot, or rounded by lot, each time anew. Empty if your group sends none.",
  ],
  ["loss", "How far your choice was from the top, in points; 0 if it was at the top by a margin."],
  [
    "frecency_scores",
    "The points of the pages shown, in their order: how often and how recently each was visited, as one number. Not which pages they are. Where your ranking is fitted to you: by the ranking that everybody gets, and in its order.",
  ],
  ["num_suggestions_displayed", "How many lines were shown in all."],
  ["rank_selected", "The place of the line you chose, counted from 0."],
  ["bookmark_and_history_num_suggestions_displayed", "How many of the lines were pages of your history or bookmarks."],
  ["bookmark_and_history_rank_selected", "The place of your choice among those, counted from 0."],
  ["num_chars_typed", "How many characters you had typed; not which."],
  [
    "num_key_down_events",
    "How many keys you had pressed on the search page; 0 in the address bar, where this cannot be seen.",
  ],
  [
    "num_key_down_events_at_selecteds_first_entry",
    "How many keys until the page you chose was first shown; −1 where this cannot be seen.",
  ],
  ["time_start_interaction", "Always 0: times are counted from the moment you began."],
  ["time_end_interaction", "How many milliseconds you took. No time of day is sent."],
  ["time_at_selecteds_first_entry", "How many milliseconds until the page you chose was first shown."],
  ["selected_style", "“history” or “bookmark”: which of the two the page you chose is."],
  ["selected_url_was_same_as_search_string", "1 if you had typed the whole address of the page, 0 if not."],
  [
    "enter_was_pressed",
    "1 if you chose with Enter, 0 if with the mouse; 1 in the address bar, where this cannot be seen.",
  ],
  ["study_addon_version", "The version of this extension."],
]);

/**
 * The same of a ping of a private study.
 *
 * @type {readonly (readonly [string, string])[]}
 */
export const PRIVATE_FIELDS = Object.freeze([
  [
    "clientId",
    "A random number that is another one for every version of the ranking. What it is made of never leaves this browser, so nobody can tell from it which messages are of one installation.",
  ],
  ["type", "The kind of message: always the same."],
  ["model_version", "Which version of the ranking model this browser holds."],
  ["study_variation", "The group of the study that this browser was put in by chance."],
  [
    "update",
    "For each weight of the ranking whether it should rise or fall, or by how much up to a bound, so that your choice would have stood higher; and, unless this browser adds noise of its own, how far your choice was from the top and whether it was at the top.",
  ],
]);

/**
 * The same of a ping that two servers share.
 *
 * @type {readonly (readonly [string, string])[]}
 */
export const SHARED_FIELDS = Object.freeze([
  ...PRIVATE_FIELDS.filter(([name]) => name !== "update"),
  [
    "update",
    "What your choice says, split by chance into two parts: one for the study's operator, and one that is locked for the helper, a second server of somebody else. Each is noise by itself. Where the study asks for it, a proof that these are votes and nothing else is in them too. Also, in the first eight bytes, which key of the helper it is locked with.",
  ],
]);

/** What an update that travels as bytes tells, by what is in the name of its encoding. */
const TOLD = /** @type {const} */ ([
  ["mask", "of some weights alone, drawn by lot"],
  ["sign", "only whether each weight should rise or fall"],
  ["levels", "rounded by lot"],
  ["steps", "rounded by lot"],
  ["shared", "in two parts, of which either alone is noise"],
]);

/**
 * A field's value, in short.
 *
 * @param {any} value
 */
export function inShort(value) {
  if (typeof value?.payload === "string") {
    const told = TOLD.filter(([name]) => value.encoding.includes(name)).map(([, words]) => words);
    return [`${atob(value.payload).length} bytes`, ...told].join(", ");
  }
  if (!Array.isArray(value)) {
    return JSON.stringify(value);
  }
  const some = value.filter((number) => number !== 0).length;
  return value.length > 10 ? `${value.length} numbers, ${some || "none"} of them not 0` : value.join(", ") || "none";
}

/** What is in no ping. */
export const NEVER = Object.freeze([
  "addresses or titles of pages",
  "anything you type",
  "what this browser learns for itself, in studies that fit the ranking to you",
  "dates and times of day",
  "anything from private windows, in which this extension does not run",
  "cookies, your name, or an account",
]);

/** What any server learns that is asked for anything. */
export const SEEN_ON_THE_WAY =
  "Like every web server, the study's sees the internet address that a message comes from and the name of your browser. fedping's server keeps neither.";
