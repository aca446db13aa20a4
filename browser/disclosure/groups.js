// @ts-check
/**
 * The parts of a message in plain words. Tests check that every field of the schemas is in one group, or named as
 * unused.
 *
 * @typedef {object} Group
 * @property {string} title
 * @property {string} says What these fields reveal, and what they don't.
 * @property {(values: any) => string} example An example in a few words, with the values of one message.
 * @property {readonly (readonly [name: string, meaning: string])[]} fields The fields' names in the message, with their
 *   meanings.
 *
 * @typedef {object} Disclosure
 * @property {readonly Group[]} groups
 * @property {string} risk
 * @property {string} riskWithNoise The risk if the browser adds noise.
 * @property {readonly string[]} never Data that no message contains.
 */

import { counted, inShort, ordinal, points, seconds } from "./values.js";

export { inShort };

/** The stand-in for an id before one is drawn. */
export const NO_ID = "00000000-0000-4000-8000-000000000000";

/** The stand-in for a group before one is drawn. */
export const NO_GROUP = "not-drawn-yet";

/** Fields of the schemas that the browser's clients leave out, with the reason. */
export const UNUSED = Object.freeze({
  ticket: "A product's proof that it knows this installation. The extension and the demo page have none.",
  search_string_length: "The name that the second study of 2018 had for num_chars_typed.",
});

/** @param {any} values */
function sender({ clientId, study_variation: group }) {
  return clientId === NO_ID ? "number and group are drawn once you take part" : `number ${clientId.slice(0, 8)}…, group “${group}”`;
}

/** @param {any} values */
function versions({ model_version: version, study_addon_version: addon }) {
  const ranking = version < 0 ? "no version of the ranking yet" : `ranking version ${version}`;
  return addon === undefined ? ranking : `${ranking}, “${addon}”`;
}

/** @param {any} values */
function learned({ update }) {
  if (update === null) {
    return "none: your group sends no update";
  }
  if (!Array.isArray(update)) {
    return inShort(update);
  }
  const [up, down] = [1, -1].map((sign) => update.filter((number) => Math.sign(number) === sign).length);
  return up + down === 0 ? `none of ${update.length} weights should change` : `${up} of ${update.length} weights up, ${down} down`;
}

const GROUP_MEANING = "The group of the study, assigned to this browser at random.";
const TYPE_MEANING = "The kind of message, always the same.";

/** The disclosure of an ordinary ping about a list of pages. @type {Disclosure} */
export const PAGES = {
  groups: [
    {
      title: "A number for this browser",
      says: "A random number, drawn for this study alone, and the group that this browser was put in at random.",
      example: sender,
      fields: [
        ["clientId", "A random number, drawn for this study alone. It shows the server which messages are from the same installation. It is deleted when you decline or switch off."],
        ["study_variation", GROUP_MEANING],
      ],
    },
    {
      title: "Versions",
      says: "The kind of message, and the versions of the ranking and of the program that sends it.",
      example: versions,
      fields: [
        ["type", TYPE_MEANING],
        ["model_version", "The version of the ranking model in this browser; −1 before the first."],
        ["study_addon_version", "The version of this extension."],
      ],
    },
    {
      title: "Where your choice was",
      says: "How many lines were listed, the place of the one you chose, and whether it is a bookmark. Not which page it is.",
      example: (values) => {
        const [place, pages] = [values.bookmark_and_history_rank_selected, values.bookmark_and_history_num_suggestions_displayed];
        const where = place < 0 ? `none of ${counted(pages, "page")}` : `the ${ordinal(place)} of ${counted(pages, "page")}`;
        return values.selected_style === "" ? where : `${where}, ${values.selected_style === "bookmark" ? "a bookmark" : "from your history"}`;
      },
      fields: [
        ["num_suggestions_displayed", "The number of lines shown."],
        ["rank_selected", "The place of the line you chose, counted from 0."],
        ["bookmark_and_history_num_suggestions_displayed", "The number of lines that were pages of your history or bookmarks."],
        ["bookmark_and_history_rank_selected", "The place of your choice among those, counted from 0."],
        ["selected_style", "“history” or “bookmark”: which of the two the page you chose is."],
      ],
    },
    {
      title: "How you typed",
      says: "The number of characters and keys, whether you pressed Enter, and whether you typed the page's whole address. Not which characters.",
      example: (values) => {
        const keys = values.num_key_down_events_at_selecteds_first_entry < 0 ? "keys not counted" : counted(values.num_key_down_events, "key");
        const whole = values.selected_url_was_same_as_search_string === 1 ? ["the whole address"] : [];
        return [counted(values.num_chars_typed, "character"), keys, values.enter_was_pressed ? "Enter" : "mouse", ...whole].join(", ");
      },
      fields: [
        ["num_chars_typed", "The number of characters you typed, not which."],
        ["num_key_down_events", "The number of keys you pressed on the search page; 0 in the address bar, where the extension can't see keys."],
        ["num_key_down_events_at_selecteds_first_entry", "The number of keys until the page you chose was first shown; −1 where the extension can't see keys."],
        ["enter_was_pressed", "1 if you chose with Enter, 0 with the mouse; 1 in the address bar, where the extension can't see which."],
        ["selected_url_was_same_as_search_string", "1 if you typed the whole address of the page, 0 if not."],
      ],
    },
    {
      title: "How long it took",
      says: "The duration of the search. No date or time of day.",
      example: (values) => `${seconds(values.time_end_interaction)}${values.time_at_selecteds_first_entry < 0 ? "" : `, the page first shown after ${seconds(values.time_at_selecteds_first_entry)}`}`,
      fields: [
        ["time_start_interaction", "Always 0: times are counted from the moment you began."],
        ["time_end_interaction", "The milliseconds from then until your choice."],
        ["time_at_selecteds_first_entry", "The milliseconds until the page you chose was first shown."],
      ],
    },
    {
      title: "How your pages score",
      says: "A score for each page listed, computed here from the number, kind and age of its visits, and the distance of your choice from the top. Not which pages they are.",
      example: ({ frecency_scores: scores, loss }) => `scores ${points(scores)}; distance ${points([loss])}`,
      fields: [
        ["frecency_scores", "The scores of the pages shown, in their order: one number each for how often and how recently it was visited. Not which pages they are. If the ranking is fitted to you, these are the scores and the order of the ranking that everyone gets."],
        ["loss", "The distance of your choice from the top, in points; 0 if it was at the top by a margin."],
      ],
    },
    {
      title: "What the ranking should learn",
      says: "For each number in the ranking (a weight), whether it should rise or fall for your choice to stand higher. Computed here from the visits to the pages listed.",
      example: learned,
      fields: [
        ["update", "One number for each weight of the ranking: whether it should rise or fall for your choice to stand higher, and by how much that helps. Some studies ask for a shorter form, written as letters: a random selection of the weights, or numbers rounded at random, drawn again for each message. Empty if your group sends none."],
      ],
    },
  ],
  risk: "All your messages carry the same random number. Someone with access to the study's data could follow this browser's habits over time and, if they know yours, recognise you.",
  riskWithNoise: "",
  never: [
    "addresses or titles of pages",
    "the text you type",
    "what this browser learns for itself, in studies that fit the ranking to you",
    "dates and times of day",
    "anything from private windows, where this extension doesn't run",
    "cookies, your name, or an account",
  ],
};

/** @type {readonly Group[]} */
const OF_PRIVATE = [
  {
    title: "A number for this message",
    says: "A random number, a new one for each version of the ranking, so that it links no two messages. And the group that this browser was put in at random.",
    example: sender,
    fields: [
      ["clientId", "A random number, a new one for each version of the ranking. The secret that it is computed from never leaves this browser, so it can't show which messages are from the same installation."],
      ["study_variation", GROUP_MEANING],
    ],
  },
  {
    title: "Versions",
    says: "The kind of message, and the version of the ranking.",
    example: versions,
    fields: [
      ["type", TYPE_MEANING],
      ["model_version", "The version of the ranking model in this browser."],
    ],
  },
];

const NEVER_PRIVATE = Object.freeze([...PAGES.never, "scores, numbers of characters and keys, and durations"]);

/** The disclosure of a private study's ping. @type {Disclosure} */
export const PRIVATE = {
  groups: [
    ...OF_PRIVATE,
    {
      title: "What the ranking should learn",
      says: "For each number in the ranking (a weight), whether it should rise or fall for your choice to stand higher. Unless this browser adds noise, also the distance of your choice from the top.",
      example: learned,
      fields: [
        ["update", "For each weight of the ranking, whether it should rise or fall for your choice to stand higher, or by how much, up to a bound. Unless this browser adds noise of its own, also the distance of your choice from the top, and whether it was at the top."],
      ],
    },
  ],
  risk: "The study's operator can read each message until its round is over.",
  riskWithNoise: "The study's operator can read each message, including this browser's noise.",
  never: NEVER_PRIVATE,
};

/** The disclosure of a ping that is split between two servers. @type {Disclosure} */
export const SHARED = {
  groups: [
    ...OF_PRIVATE,
    {
      title: "What the ranking should learn, in two parts",
      says: "For each number in the ranking (a weight), whether it should rise or fall, split at random into two parts for two servers. Either part alone is noise.",
      example: learned,
      fields: [
        ["update", "What your choice says, split at random into two parts: one for the study's operator, and one encrypted for the helper, a second server that someone else runs. Either part alone is noise. If the study asks for it, both have a proof that the message contains only votes. The first eight bytes name the helper's key."],
      ],
    },
  ],
  risk: "If the two servers broke their promises and put their parts together, they could read your message.",
  riskWithNoise: "If the two servers broke their promises and put their parts together, they could read your message, including this browser's noise.",
  never: NEVER_PRIVATE,
};

/**
 * The disclosure of an ordinary ping about a list of a product's own items, as the demo page sends.
 *
 * @type {Disclosure}
 */
export const LISTS = {
  groups: [
    {
      title: "A number for this browser",
      says: "A random number, drawn for this study alone, and the group that this browser was put in at random.",
      example: sender,
      fields: PAGES.groups[0].fields,
    },
    {
      title: "Versions",
      says: "The kind of message, and the version of the ranking.",
      example: versions,
      fields: PAGES.groups[1].fields.slice(0, 2),
    },
    {
      title: "Where the choice was",
      says: "The number of items listed and seen, the place of the chosen one, and whether the list was changed by the product or at random. Not which item it is.",
      example: ({ place, candidates, seen, swapped, pinned }) =>
        [
          place > 0 ? `the ${ordinal(place - 1)} of ${counted(candidates, "item")}` : `none of ${counted(candidates, "item")}`,
          ...(seen === undefined || seen === null ? [] : [`${seen} seen`]),
          ...(swapped ? ["two neighbours swapped"] : []),
          ...(pinned ? ["at a fixed place"] : []),
        ].join(", "),
      fields: [
        ["place", "The place of the choice in the list, counted from 1; 0 without a choice."],
        ["candidates", "The number of items in the list."],
        ["seen", "The number of items, from the top, that were on the screen."],
        ["swapped", "Whether two neighbours changed places at random."],
        ["pinned", "Whether the chosen item had a fixed place regardless of its score, such as an advertisement."],
      ],
    },
    {
      title: "How wrong the ranking was",
      says: "One number for how far the model's order was from the choice.",
      example: ({ loss }) => `loss ${points([loss])}`,
      fields: [["loss", "The loss of the model that ranked the list; smaller is better."]],
    },
    {
      title: "What the ranking should learn",
      says: "For each weight of the ranking, whether it should rise or fall for the choice to stand higher. Computed in the browser.",
      example: learned,
      fields: [["update", "One number for each weight of the ranking, or a shorter form of them, as the study asks. Empty if the group sends none."]],
    },
  ],
  risk: PAGES.risk,
  riskWithNoise: "",
  never: ["which item was chosen", "the fields of any item", "the query", "dates and times of day", "cookies, a name, or an account"],
};

/** The kinds of the extension's messages, by their names in a preview. */
export const DISCLOSURES = Object.freeze({ pages: PAGES, private: PRIVATE, shared: SHARED });

const OF_TYPE = Object.freeze({ "frecency-update": PAGES, "list-update": LISTS });

/**
 * The disclosure of a ping.
 *
 * @param {any} ping
 * @returns {Disclosure | null} Null for a kind of ping that no page shows.
 */
export function disclosureOf({ type, payload }) {
  if (type === "private-update") {
    return payload.update?.encoding?.startsWith("shared") ? SHARED : PRIVATE;
  }
  return OF_TYPE[/** @type {keyof typeof OF_TYPE} */ (type)] ?? null;
}

/** All fields of a disclosure. @param {Disclosure} disclosure */
export function fieldsOf({ groups }) {
  return groups.flatMap(({ fields }) => fields);
}

/** The values of a ping by the names of its fields in the message. @param {any} ping */
export function valuesOf({ payload, ...outer }) {
  return { ...outer, ...payload };
}

/**
 * Whether every field of a ping is among those that a disclosure lists.
 *
 * @param {Disclosure} disclosure
 * @param {any} ping
 */
export function lists(disclosure, ping) {
  const names = new Set(fieldsOf(disclosure).map(([name]) => name));
  const sent = Object.keys(valuesOf(ping));
  return sent.every((name) => names.has(name));
}

/** Data that every server learns from any request. */
export const SEEN_ON_THE_WAY =
  "Like every web server, the study's server sees the internet address that a message comes from, and the name of your browser. fedping's server stores neither.";
