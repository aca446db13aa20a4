// The weights of a model of features, in words of the product: what an item gains them for, and what that does to a list.

import { el, fill } from "/static/js/dom.js";
import { number, signed } from "/static/js/format.js";

import { view } from "./common.js";

const WORTH =
  "The last column is an odds ratio: how many times as often an item with this gain is chosen as the same item without it.";

const PLACES = " Gains of places explain choices, and are left out when ranking.";

/** Make a section a table of the weights, which follows the line and the version that is looked at. */
export function featureTable(section) {
  const rows = el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "The weights by feature" });
  const note = el("p", { class: "note" });
  fill(section, el("h2", {}, "Weights by feature"), rows, note);
  return {
    update(line) {
      const { features, weights } = line.line;
      const shown = line.rows.find((row) => row.version === view.chosen) ?? line.newest;
      const odds = features.loss === "softmax";
      const head = ["feature", "what gains it", "version 0", `version ${shown.version}`, odds && "chosen"].filter(Boolean);
      fill(
        rows,
        el(
          "table",
          { class: "by-feature" },
          el("thead", {}, el("tr", {}, head.map((name, k) => el("th", { scope: "col", class: k > 1 && "number" }, name)))),
          el("tbody", {}, features.units.map((unit, k) => row(unit, features.units[k - 1], weights.start[k], shown.change[k], odds))),
        ),
      );
      const part = weights.names.length < weights.of ? ` Of ${number(weights.of, 9)} weights, these ${weights.names.length} had changed most.` : "";
      const places = features.units.some(({ kind }) => kind === "place") ? PLACES : "";
      note.textContent = `An item's score is the sum of its gains; the highest score ranks first. ${odds ? WORTH : ""}${places}${part}`;
    },
  };
}

function row({ feature, kind, gains }, before, start, change, odds) {
  const now = start + change;
  const first = before?.feature !== feature;
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, feature, first && feature !== kind && el("span", { class: "muted" }, ` ${kind}`)),
    el("td", {}, gains),
    el("td", { class: "number" }, start ? signed(start, 3) : "0"),
    el("td", { class: "number" }, now ? signed(now, 3) : "0"),
    odds && el("td", { class: "number" }, kind === "hidden" ? "" : `${number(Math.exp(now), 3)} ×`),
  );
}
