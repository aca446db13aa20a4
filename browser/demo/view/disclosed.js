// @ts-check
/** The contents of a ping, in the groups that the extension shows before its user agrees, with this ping's values. */

import { disclosureOf, valuesOf } from "../../disclosure/groups.js";
import { el } from "./dom.js";

/**
 * The groups of a ping's fields in plain words, each with this ping's values.
 *
 * @param {any} ping
 * @returns {HTMLElement[]} Empty for a kind of ping without a disclosure.
 */
export function disclosed(ping) {
  const disclosure = disclosureOf(ping);
  if (disclosure === null) {
    return [];
  }
  const values = valuesOf(ping);
  const rows = disclosure.groups.map(({ title, says, example }) =>
    el("div", {}, el("dt", {}, title), el("dd", { class: "example" }, example(values)), el("dd", { class: "note" }, says)),
  );
  return [el("dl", { class: "groups" }, ...rows)];
}
