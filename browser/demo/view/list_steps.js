// @ts-check
/**
 * The steps after a choice from a list of items, in plain words. Each function returns the nodes of one step.
 *
 * @import { Ordered } from "../explaining.js"
 * @import { Held, Sent } from "../study_page.js"
 * @import { Role } from "../../study/parts.js"
 * @import { Item } from "../items.js"
 *
 * @typedef {object} ListChoice
 * @property {readonly Item[]} items In displayed order.
 * @property {Record<string, unknown>} query
 * @property {readonly number[]} scores The scores by the weights that the client ranks with.
 * @property {number} chosen The place, from 0.
 * @property {Role} role
 * @property {any} ping Null if no ping is sent.
 */

import { rowInWords } from "../items.js";
import { disclosed } from "./disclosed.js";
import { counted, el, ordinal, told } from "./dom.js";
import { tableOf } from "./figures.js";
import { changedWeights, orderTable, requestOf, updateBars, versionWords } from "./steps.js";

const LOSSES = {
  softmax: "The loss is −log of the model's probability for the choice.",
  hinge: "The loss adds up how far the others are above the choice, or too close below it.",
  pairwise: "The loss is a sum over the others. Each term grows with the model's certainty that this one is better than the choice.",
};

/**
 * An item of the open list.
 *
 * @param {Item} item
 * @param {number} place From 0.
 * @param {number} score
 * @param {() => void} onChoice
 */
export function itemRow({ title, row }, place, score, onChoice) {
  const button = el("button", { type: "button", class: "item", "data-place": place }, el("span", { class: "title" }, title), el("span", { class: "why" }, rowInWords(row)), el("span", { class: "score" }, told(score), el("span", { class: "unit" }, " score")));
  button.addEventListener("click", onChoice);
  return el("li", {}, button);
}

/** The step of what the client computed. @param {ListChoice} choice */
export function computedOfList({ items, scores, chosen, role, ping }) {
  const where = `You chose “${items[chosen].title}”, the ${ordinal(chosen)} of ${counted(items.length, "item")}.`;
  if (ping === null) {
    return [el("p", {}, `${where} This client is not enrolled, and computes nothing.`)];
  }
  const { loss = "softmax", places = 0 } = /** @type {any} */ (role.spec);
  const { update } = ping.payload;
  const offsets = places > 1 ? " Items near the top are chosen more often because of their place; the weights “place 2” and so on account for that." : "";
  const why = `The arm “${role.arm?.name}” is there to compare with: its clients report their loss, and compute no update.`;
  const sent = Array.isArray(update) ? updateBars(role, update) : [el("p", {}, `The update is sent in the encoding “${update?.encoding}”.`)];
  return [
    el("p", {}, `${where} ${LOSSES[/** @type {keyof typeof LOSSES} */ (loss)]} It is ${told(ping.payload.loss)}.${offsets}`),
    el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Items and their scores" }, scoreTable(items, scores, chosen)),
    ...(update === null ? [el("p", {}, why)] : sent),
  ];
}

/**
 * @param {readonly Item[]} items
 * @param {readonly number[]} scores
 * @param {number} chosen
 */
function scoreTable(items, scores, chosen) {
  const rows = items.map(({ title }, place) =>
    el(
      "tr",
      { class: place === chosen ? "chosen" : null },
      el("th", { scope: "row" }, title, place === chosen ? el("span", { class: "tag" }, "chosen") : null),
      el("td", { class: "number" }, told(scores[place])),
    ),
  );
  return tableOf("The list by the model that ranked it", ["item", "score"], rows);
}

/**
 * The ping that is sent.
 *
 * @param {ListChoice} choice
 * @param {Sent | null} sent
 * @param {string} address
 */
export function leavingOfList({ ping, items }, sent, address) {
  if (ping === null) {
    return [el("p", {}, "No ping leaves: this client is not enrolled.")];
  }
  return [
    ...disclosed(ping),
    el("p", {}, el("strong", {}, "Not in it:"), ` which of the ${counted(items.length, "item")} was chosen, the fields of any item, the query, a name, a cookie.`),
    requestOf(ping, sent, address),
  ];
}

/**
 * The model in use, the changed weights, and their effect on a list.
 *
 * @param {Held} held
 * @param {Role} role
 * @param {(weights: readonly number[]) => Ordered} ranked The same items, ranked by other weights.
 * @param {Item | null} chosen
 */
export function arrivedForList({ version, before }, role, ranked, chosen) {
  if (before === null) {
    return versionWords(version.version);
  }
  const [old, now] = [before, version].map(({ weights }) => ranked(weights));
  const caption = `The same items under versions ${before.version} and ${version.version}`;
  return [
    ...changedWeights(role.spec.weights.map(({ name }) => name), before, version),
    orderTable(old, now, chosen, caption, ["before", "now", "item", "score before", "now"]),
  ];
}
