// @ts-check
/**
 * The part of a page that shows the data sent, for the user's last message: in plain words, by field name, and as raw
 * JSON.
 */

import { ask, byId, element } from "./ask.js";
import { DISCLOSURES, SEEN_ON_THE_WAY, fieldsOf, inShort, valuesOf } from "./disclosure/groups.js";

/** @import { Disclosure, Group } from "./disclosure/groups.js" */

const WHEN = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

/** Draw this part again. */
export async function drawWouldSend() {
  const { ping, last, address, drawn, guarantee, trouble, told: secret, kind, noisy } = await ask({ ask: "preview" });
  const disclosure = DISCLOSURES[/** @type {keyof typeof DISCLOSURES} */ (kind)];
  const shown = last?.ping ?? ping;
  const values = shown && valuesOf(shown);
  byId("would-send").replaceChildren(
    ...guarantee.map((/** @type {string} */ sentence) => element("p", {}, sentence)),
    element("p", {}, PER_MESSAGE[/** @type {keyof typeof PER_MESSAGE} */ (kind)], " ", exampleOf({ last, ping, drawn, trouble })),
    inGroups(disclosure, values),
    ...(secret === null ? [] : [element("p", {}, element("strong", {}, kind === "shared" ? INSIDE_SHARED : INSIDE), saysOf(secret))]),
    element("p", { className: "risk" }, element("strong", {}, "Risk: "), noisy ? disclosure.riskWithNoise : disclosure.risk),
    element("p", {}, element("strong", {}, "Never sent: "), `${disclosure.never.join("; ")}.`),
    element("p", { className: "soft" }, SEEN_ON_THE_WAY),
  );
  byId("technical-names").textContent = `The ${fieldsOf(disclosure).length} technical names, with their values`;
  byId("would-send-names").replaceChildren(...disclosure.groups.flatMap((group) => named(group, values)));
  byId("would-send-address").textContent = ping === null ? "" : address;
  byId("would-send-json").textContent = ping === null ? "" : inJson(ping);
  byId("message-itself").hidden = ping === null;
}

/**
 * @param {Disclosure} disclosure
 * @param {any} values Null if no message can be shown.
 */
function inGroups({ groups }, values) {
  const rows = groups.map(({ title, says, example }) =>
    element(
      "div",
      {},
      element("dt", {}, title),
      element("dd", {}, says),
      ...(values === null ? [] : [element("dd", { className: "example" }, element("span", { className: "unseen" }, "In this example: "), example(values))]),
    ),
  );
  return element("dl", { className: "groups" }, ...rows);
}

/**
 * @param {Group} group
 * @param {any} values
 */
function named({ title, fields }, values) {
  const rows = fields.flatMap(([name, meaning]) => [
    element("dt", {}, element("code", {}, name), ...(values === null ? [] : [element("code", {}, inShort(values[name]))])),
    element("dd", {}, meaning),
  ]);
  return [element("h3", {}, title), element("dl", { className: "fields" }, ...rows)];
}

/** @param {{ last: { at: number } | null, ping: any, drawn: boolean, trouble: string | null }} shown */
function exampleOf({ last, ping, drawn, trouble }) {
  const now = ping === null ? nothingNow(trouble) : "";
  if (last !== null) {
    return [`The examples are from your last message, of ${WHEN.format(last.at)}.`, now].filter(Boolean).join(" ");
  }
  if (ping === null) {
    return now;
  }
  const made = ping.payload.frecency_scores?.length === 0 ? NO_PAGES : EXAMPLE;
  return drawn ? made : `${made} ${NOT_DRAWN}`;
}

/** @param {import("./taking_part/preview.js").Told} told */
function saysOf({ up, down, choice }) {
  const some = (/** @type {string[]} */ names) => names.join(", ") || "none";
  const weights = `should rise: ${some(up)}; should fall: ${some(down)}`;
  if (choice === null) {
    return `${weights}.`;
  }
  const far = `${Math.round(100 * choice.loss)} % of the largest distance that a message can state`;
  return `${weights}; your choice was ${choice.top ? "" : "not "}at the top, and its distance ${far}.`;
}

/** @param {string | null} trouble */
function nothingNow(trouble) {
  return trouble === null ? NOTHING_NOW : `At this moment nothing would be sent: ${trouble}.`;
}

const PER_MESSAGE = Object.freeze({
  pages: "One message is sent for each page you choose from a list.",
  private: "One message is sent for each version of the ranking, about the first page you choose from a list with it.",
  shared: "One message is sent for each version of the ranking, about the first page you choose from a list with it.",
});
const INSIDE = "What the update of the next message says: ";
const INSIDE_SHARED = "What the update of the next message says, which only this browser knows, and the two servers could read only together: ";
const NOTHING_NOW =
  "At this moment nothing would be sent: this browser has sent its message for this version of the ranking, or has no version yet.";
const EXAMPLE =
  "You have sent none to this study yet. The examples are from your own pages, as if you had typed three letters and chosen the second page shown.";
const NO_PAGES = "You have sent none to this study yet, and have no pages yet; the examples are of an empty list.";
const NOT_DRAWN = "Your random number and your group are drawn only once you take part. A private study gets less; this page then lists that.";

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
