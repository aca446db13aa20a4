// @ts-check
/**
 * The steps after a choice, in plain words. Each function returns the nodes of one step.
 *
 * @import { Staying } from "../../client.js"
 * @import { Remembered } from "../history.js"
 * @import { Made } from "../people.js"
 * @import { LineState } from "../server.js"
 * @import { Answered, Posted } from "../visitor.js"
 * @import { Ping } from "../../study/ping.js"
 * @import { Shown } from "../../study/learning.js"
 * @import { Role } from "../../study/parts.js"
 * @import { Version } from "../../study/study.js"
 * @import { Ordered } from "../explaining.js"
 *
 * @typedef {{ shown: Shown, chosen: number, typed: string, ping: Ping | null }} Choice
 */

import { changes, lossUnder, moved, rankedBy, readable, reordered, shares } from "../explaining.js";
import { learned, sharedScores } from "../../study/learning.js";
import { disclosed } from "./disclosed.js";
import { counted, el, ordinal, signed, told } from "./dom.js";
import { barTable, tableOf } from "./figures.js";

/**
 * What the client computed.
 *
 * @param {Choice} choice
 */
export function computed({ shown, chosen, ping }) {
  const { spec, personal } = shown.role;
  const scores = sharedScores(shown);
  const costs = shares(scores, chosen, spec.margin);
  const loss = costs.reduce((sum, cost) => sum + cost, 0);
  const title = /** @type {Remembered} */ (shown.pages[chosen]).title;
  const where = `You chose “${title}”, the ${ordinal(chosen)} of ${counted(shown.pages.length, "suggestion")}.`;
  const whose = personal
    ? [el("p", { class: "note" }, "Your own model made the order. Scores, loss and update are from the shared model, so that nothing computed from what stays here is sent.")]
    : [];
  const rule = `It should stand at least ${counted(spec.margin, "point")} above each of the others.`;
  if (loss === 0) {
    return [el("p", {}, `${where} ${rule} It does: the loss is 0, and there is nothing to learn from this choice.`), ...whose];
  }
  const wrong = costs.filter((cost) => cost > 0).length;
  return [
    el("p", {}, `${where} ${rule} ${wrong === 1 ? "One is" : `${told(wrong)} are`} above it or too close.`),
    el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Suggestions and the loss" }, lossTable(shown, scores, chosen, costs, loss)),
    ...whose,
    ...updateOf(shown, chosen, ping),
  ];
}

/**
 * @param {Shown} shown
 * @param {readonly number[]} scores
 * @param {number} chosen
 * @param {number[]} costs
 * @param {number} loss
 */
function lossTable(shown, scores, chosen, costs, loss) {
  const rows = shown.pages.map((page, place) =>
    el(
      "tr",
      { class: place === chosen ? "chosen" : null },
      el("th", { scope: "row" }, /** @type {Remembered} */ (page).title, place === chosen ? el("span", { class: "tag" }, "chosen") : null),
      el("td", { class: "number" }, told(scores[place])),
      el("td", { class: "number" }, costs[place] > 0 ? told(costs[place]) : ""),
    ),
  );
  const sum = el("tr", { class: "sum" }, el("th", { scope: "row" }, "Loss: the sum"), el("td", {}), el("td", { class: "number" }, told(loss)));
  return tableOf("What the choice cost, in points", ["suggestion", "score", "too high by"], [...rows, sum]);
}

/**
 * @param {Shown} shown
 * @param {number} chosen
 * @param {Ping | null} ping
 */
function updateOf(shown, chosen, ping) {
  const { role } = shown;
  const sent = ping?.payload.update ?? null;
  const update = sent === null || Array.isArray(sent) ? sent : learned(shown, chosen).update;
  if (update === null) {
    const alone = "This time the browser only learns for itself, and sends no update.";
    const why = role.arm?.submits ? alone : `The arm “${role.arm?.name ?? "none"}” is there to compare with: its clients report their loss, and compute no update.`;
    return [el("p", {}, why)];
  }
  const encoded = Array.isArray(sent) ? "" : ` It is sent in the encoding “${sent.encoding}”.`;
  return updateBars(role, update, encoded);
}

/**
 * An update by its weights, the largest first.
 *
 * @param {Role} role
 * @param {readonly number[]} update
 * @param {string} [more] More text for the caption.
 */
export function updateBars(role, update, more = "") {
  const all = changes(role.spec.weights.map(({ name }) => name), update);
  if (all.length === 0) {
    return [el("p", {}, "No weight alone, moved a little, would make the loss smaller: the update is all zeros.")];
  }
  const rows = all.map(({ name, value }) => ({ cells: [name, signed(value)], value }));
  const caption = role.sign ? "The update: which way each weight should go" : "The update: which way each weight should go, and how much that helps";
  const others = update.length - all.length;
  const note = "For each weight, by how many points the loss falls for one unit more of it; below zero: for one unit less.";
  return [
    barTable({ caption, head: ["weight", role.sign ? "sign" : "points"], rows }),
    el("p", { class: "note" }, `${role.sign ? "This study's clients send the sign alone." : note} ${others > 0 ? `The other ${counted(others, "weight")} would change nothing here.` : ""}${more}`),
  ];
}

/**
 * The ping that is sent.
 *
 * @param {Choice} choice
 * @param {{ posted: Posted, answered: Answered } | null} sent
 * @param {string | null} address The address that it would be posted to, if it has not been posted yet.
 */
export function leaving({ ping, typed, shown }, sent, address) {
  if (ping === null) {
    return [el("p", {}, "No ping leaves: this client is not enrolled.")];
  }
  return [
    ...disclosed(ping),
    el("p", {}, el("strong", {}, "Not in it:"), ` the address or the title of any page, ${notTyped(typed)}, the history, a name, a cookie.${withoutPages(ping, shown)}`),
    requestOf(ping, sent, address),
  ];
}

/** @param {Ping} ping @param {Shown} shown */
function withoutPages(ping, shown) {
  return "frecency_scores" in ping.payload ? ` The ${counted(shown.pages.length, "score")} are numbers without their pages.` : "";
}

/**
 * The raw request, folded.
 *
 * @param {any} ping
 * @param {{ posted: Posted, answered: Answered } | null} sent
 * @param {string | null} address The address that it would be posted to, if it has not been posted yet.
 */
export function requestOf(ping, sent, address) {
  const url = new URL(sent?.posted.url ?? address ?? "", location.href);
  return el(
    "details",
    {},
    el("summary", {}, "The whole request, as it travels"),
    el("pre", { class: "wide", tabindex: 0, role: "group", "aria-label": "The request" },
      el("span", { class: "head" }, `POST ${url.pathname}\nContent-Type: ${sent?.posted.contentType ?? "text/plain;charset=UTF-8"}\n\n`),
      readable(sent ? JSON.parse(sent.posted.body) : ping)),
  );
}

/** @param {string} typed */
function notTyped(typed) {
  return typed === "" ? "a text (none was typed)" : `the text “${typed}” (only that it has ${counted(typed.length, "character")})`;
}

/**
 * What the server answered.
 *
 * @param {{ answered: Answered } | null} sent
 * @param {number} waiting The number of pings that this client still stores.
 */
export function answer(sent, waiting) {
  if (sent === null) {
    return [el("p", {}, "The ping is on its way.")];
  }
  if (sent.answered === null) {
    return [el("p", {}, `No answer. The client keeps ${counted(waiting, "ping")} and sends each again, under the same id.`)];
  }
  const { status, text } = sent.answered;
  const meaning = status === 200 ? "200 means that the ping is on the server's disk. The client deletes its copy." : "The server rejected the ping; its answer says why.";
  return [el("p", {}, el("code", {}, `${status} ${text}`)), el("p", {}, meaning)];
}

/**
 * The pings that wait for the next round.
 *
 * @param {LineState} state
 */
export function waiting({ iteration, min_clients: least, pings, clients }) {
  if (pings === null) return [el("p", {}, "This study is private: the number of waiting pings is secret.")];
  const landed = `${counted(pings, "ping")} of version ${iteration} ${pings === 1 ? "has" : "have"} landed in Parquet`;
  if (clients === null) {
    return [el("p", {}, `${landed}.`)];
  }
  const useful = `${landed}, from ${counted(clients, "client")} with an update. The next round needs ${told(least)}.`;
  const label = `${told(clients)} of ${told(least)} clients`;
  return [
    el("p", {}, useful),
    el("progress", { max: least, value: Math.min(clients, least), "aria-label": "Clients with an update, of those that a round needs" }, label),
  ];
}

/**
 * The results of other people's choices.
 *
 * @param {Made} made
 */
export function others({ accepted, refused, waiting: left, learning, notEnrolled }) {
  const parts = [
    `${counted(accepted, "choice")} of made-up people ${accepted === 1 ? "was" : "were"} accepted. ${told(learning)} had an update; the others are from arms that are there to compare with.`,
    refused > 0 ? ` ${counted(refused, "ping")} were rejected.` : "",
    left > 0 ? ` ${counted(left, "ping")} did not reach a server and are lost.` : "",
    notEnrolled > 0 ? ` ${counted(notEnrolled, "person", "people")} are not enrolled.` : "",
  ];
  return parts.join("");
}

/**
 * The model in use, and its changes to the weights.
 *
 * @param {object} told
 * @param {Version} told.version
 * @param {Version | null} told.before The version before; null if none exists, or it can't be fetched.
 * @param {Shown | null} told.shown A list to rank under both.
 * @param {Choice | null} told.choice
 */
export function arrived({ version, before, shown, choice }) {
  const names = shown?.role.spec.weights.map(({ name }) => name) ?? [];
  if (before === null) {
    return versionWords(version.version);
  }
  const [words, ...bars] = changedWeights(names, before, version);
  return [
    words,
    ...(choice === null ? [] : [el("p", {}, lossesOf(choice, before, version))]),
    ...(shown === null || shown.pages.length < 2 ? [] : [orderOf(shown, before, version, choice)]),
    ...bars,
  ];
}

/** Words for a version whose predecessor is unknown. @param {number} version */
export function versionWords(version) {
  const start = "Version 0 is the start of the study, with its owner's weights. It has learned from no client yet.";
  return [el("p", {}, version === 0 ? start : `Version ${version} is in use.`)];
}

/**
 * The changes between two versions: a sentence, and a table if any weight changed.
 *
 * @param {readonly string[]} names
 * @param {Version} before
 * @param {Version} after
 */
export function changedWeights(names, before, after) {
  const all = moved(names, before.weights, after.weights);
  const rows = all.map((each) => ({ cells: [each.name, `${told(each.before)} → ${told(each.after)}`, signed(each.value)], value: each.value }));
  const changed = all.length === 0 ? "no weight has changed" : `${all.length === 1 ? "one weight has" : `${all.length} of ${names.length} weights have`} changed`;
  return [
    el("p", {}, `Version ${after.version} follows version ${before.version}: ${changed}.`),
    ...(rows.length > 0 ? [barTable({ caption: "What changed in the model", head: ["weight", "from, to", "change"], rows })] : []),
  ];
}

/**
 * @param {Choice} choice
 * @param {Version} before
 * @param {Version} after
 */
function lossesOf({ shown, chosen }, before, after) {
  const losses = [before, after].map((version) => lossUnder(shown, chosen, version));
  const verdict = losses[1] < losses[0] ? "better for you" : losses[1] > losses[0] ? "worse for you, if not for the others" : "the same for you";
  return `Your last choice costs ${counted(losses[0], "point")} under version ${before.version}, and ${told(losses[1])} under version ${after.version}: ${verdict}.`;
}

/**
 * The personal model, and its effect on a list.
 *
 * @param {object} told
 * @param {Staying} told.personal
 * @param {Shown} told.shared The list ranked by the shared model.
 * @param {Shown} told.own The same pages, ranked by the personal model.
 * @param {Choice | null} told.choice
 */
export function staying({ personal, shared, own, choice }) {
  if (personal.trained === 0) {
    return [el("p", {}, "This browser fits the model to what you choose. Until you choose a page, it is the one that everyone gets.")];
  }
  const chosen = choice === null ? null : choice.shown.pages[choice.chosen];
  const rows = personal.weights.map(({ name, shared: all, own: mine }) => ({ name, all, mine, value: mine - all }));
  rows.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const times = personal.trained === 1 ? "once" : counted(personal.trained, "time");
  const head = ["for all", "for you", "suggestion", "score for all", "for you"];
  return [
    el("p", {}, `Your own model was trained ${times}. It is kept only in this tab, and is in no ping. A new version of the shared model doesn't change it.`),
    ...(own.pages.length < 2 ? [] : [orderTable(shared, own, chosen, "The same suggestions, for everybody and for you", head)]),
    ...(rows.length === 0
      ? [el("p", {}, "All its weights equal the shared ones.")]
      : [
          barTable({
            caption: "Where your weights differ",
            head: ["weight", "for all, for you", "difference"],
            rows: rows.map(({ name, all, mine, value }) => ({ cells: [name, `${told(all)} → ${told(mine)}`, signed(value)], value })),
          }),
        ]),
  ];
}

/**
 * @param {Shown} shown
 * @param {Version} before
 * @param {Version} after
 * @param {Choice | null} choice
 */
function orderOf(shown, before, after, choice) {
  const chosen = choice?.shown === shown ? shown.pages[choice.chosen] : null;
  const [old, now] = [before, after].map((version) => rankedBy(shown, version));
  const caption = `The same suggestions under versions ${before.version} and ${after.version}`;
  return orderTable(old, now, chosen, caption, ["before", "now", "suggestion", "score before", "now"]);
}

/**
 * A list in two orders, with the number of places that each page or item moved.
 *
 * @param {Ordered} old
 * @param {Ordered} now The same pages or items in the new order.
 * @param {unknown} chosen The page to mark; null for none.
 * @param {string} caption
 * @param {string[]} head
 */
export function orderTable(old, now, chosen, caption, head) {
  const rows = reordered(old, now).map(({ page, place, was, score }) =>
    el(
      "tr",
      { class: page === chosen ? "chosen" : null },
      el("td", { class: "number" }, was + 1),
      el("td", { class: "number" }, place + 1, " ", way(was - place)),
      el("th", { scope: "row" }, page.title, page === chosen ? el("span", { class: "tag" }, "chosen") : null),
      el("td", { class: "number" }, told(old.scores[was])),
      el("td", { class: "number" }, told(score)),
    ),
  );
  return el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": caption }, tableOf(caption, head, rows, "order"));
}

/** @param {number} up */
function way(up) {
  if (up === 0) {
    return el("span", { class: "same" }, "=");
  }
  return el("span", { class: up > 0 ? "up" : "down" }, `${up > 0 ? "▲" : "▼"}${Math.abs(up)}`);
}
