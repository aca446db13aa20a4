// @ts-check
/** The part of a page that shows the ping which would be sent: field by field in plain words, and as it travels. */

import { ask, byId, element } from "./ask.js";
import { PRIVATE_TYPE } from "./fedping.js";
import { FIELDS, NEVER, PRIVATE_FIELDS, SEEN_ON_THE_WAY, SHARED_FIELDS, inShort } from "./taking_part/fields.js";

/** Draw it anew. */
export async function drawWouldSend() {
  const { ping, address, drawn, guarantee, trouble, told: secret } = await ask({ ask: "preview" });
  const promised = guarantee.map((/** @type {string} */ sentence) => element("p", {}, sentence));
  const told = ping === null ? [element("p", {}, nothingNow(trouble))] : inWords(ping, drawn, secret);
  byId("would-send").replaceChildren(...promised, ...told);
  byId("would-send-address").textContent = ping === null ? "" : address;
  byId("would-send-json").textContent = ping === null ? "" : inJson(ping);
}

/**
 * @param {any} ping
 * @param {boolean} drawn
 * @param {import("./taking_part/preview.js").Told | null} told
 */
function inWords({ payload, ...outer }, drawn, told) {
  const values = { ...outer, ...payload };
  if (outer.type === PRIVATE_TYPE) {
    const isShared = payload.update?.encoding === "shared";
    const fields = isShared ? SHARED_FIELDS : PRIVATE_FIELDS;
    return [
      element("p", {}, EXAMPLE_OF_PRIVATE),
      element("dl", { className: "fields" }, ...fields.flatMap((field) => described(field, values))),
      ...(told === null ? [] : [element("p", {}, element("strong", {}, isShared ? INSIDE_SHARED : INSIDE), saysOf(told))]),
      element("p", {}, element("strong", {}, "Never sent: "), `${NEVER.join("; ")}.`),
      element("p", {}, SEEN_ON_THE_WAY),
    ];
  }
  const unlike = drawn ? [] : [element("p", {}, NOT_DRAWN)];
  const fields = FIELDS.flatMap((field) => described(field, values));
  return [
    element("p", {}, payload.frecency_scores.length > 0 ? EXAMPLE : NO_PAGES),
    ...unlike,
    element("dl", { className: "fields" }, ...fields),
    element("p", {}, element("strong", {}, "Never sent: "), `${NEVER.join("; ")}.`),
    element("p", {}, SEEN_ON_THE_WAY),
  ];
}

/**
 * @param {readonly [string, string]} field
 * @param {any} values
 */
function described([name, meaning], values) {
  return [
    element("dt", {}, element("code", {}, name), element("code", {}, inShort(values[name]))),
    element("dd", {}, meaning),
  ];
}

/** @param {import("./taking_part/preview.js").Told} told */
function saysOf({ up, down, choice }) {
  const some = (/** @type {string[]} */ names) => names.join(", ") || "none";
  const weights = `should rise: ${some(up)}; should fall: ${some(down)}`;
  if (choice === null) {
    return `${weights}.`;
  }
  const far = `${Math.round(100 * choice.loss)} % of the farthest that can be told`;
  return `${weights}; your choice was ${choice.top ? "" : "not "}at the top, and its distance ${far}.`;
}

/** @param {string | null} trouble */
function nothingNow(trouble) {
  return trouble === null ? NOTHING_NOW : `At this moment nothing would be sent: ${trouble}.`;
}

const INSIDE = "What its update says: ";
const INSIDE_SHARED = "What its update says, which only this browser knows, and the two servers could read only together: ";
const EXAMPLE_OF_PRIVATE =
  "One message for each version of the ranking, of the first page you choose from a list with it. This is the message for your own pages as they are now, had you chosen the second page shown.";
const NOTHING_NOW =
  "At this moment nothing would be sent: this browser has sent its message for this version of the ranking, or has no version yet.";
const EXAMPLE =
  "One message for each page you choose from a list. This is the message for your own pages as they are now, had you typed three letters and chosen the second page shown.";
const NO_PAGES =
  "One message for each page you choose from a list. There are no pages yet, so this is the message of an empty list.";
const NOT_DRAWN =
  "Your random number and your group are drawn only once you take part; until then “00000000-…” and “not-drawn-yet” stand in their places.";

/**
 * A message as JSON, its arrays of numbers on one line each.
 *
 * @param {any} message
 */
export function inJson(message) {
  return JSON.stringify(message, null, 2).replace(/\[[^[\]{}"]*\]/g, (array) =>
    array.replace(/\s+/g, " ").replace(/^\[ | \]$/g, (end) => end.trim()),
  );
}
