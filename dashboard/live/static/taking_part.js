// Who takes part in a line of few clients, such as institutions, and how versions do on rows that they hold out: read when
// pings have landed, or a version has come.

import { el, fill } from "/static/js/dom.js";
import { count, shownTime } from "/static/js/format.js";
import { getJSON } from "/static/js/http.js";

const at = (id) => document.getElementById(id);
const AT_MOST_EVERY_MS = 5000;

let wanted = null;
let read = null;
let reading = false;

/** Show the participants known so far. */
export function showTakingPart(line) {
  if (!line.now || !at("taking-part")) return;
  const { version, pings } = line.now.landed;
  wanted = JSON.stringify([version, pings, line.newest?.version ?? null]);
  readAgain();
}

async function readAgain() {
  if (reading || read === wanted) return;
  reading = true;
  read = wanted;
  try {
    show(await getJSON("clients.json"));
  } catch (error) {
    at("taking-part").hidden = false;
    at("taking-part-words").textContent = error.message;
  }
  setTimeout(() => {
    reading = false;
    readAgain();
  }, AT_MOST_EVERY_MS);
}

function show({ roll, evaluations }) {
  at("taking-part").hidden = !roll?.clients;
  if (!roll) return;
  at("taking-part-words").textContent = summary(roll);
  const rows = roll.listed.map((one) => [
    el("code", {}, one.client),
    one.arm,
    shownTime(el("time", { datetime: new Date(one.heard_ms).toISOString() })),
    one.version,
    one.examples,
    one.pings,
  ]);
  shown("taking-part-rows", ["client", "arm", "last heard", "version", "rows, as it says", "pings"], rows);
  const told = [...evaluations].reverse().map((one) => [
    one.version,
    one.arm,
    one.clients,
    one.examples,
    figure(one.loss),
    figure(one.accuracy),
    figure(one.balanced_accuracy),
    figure(one.worst),
  ]);
  shown("held-out-rows", ["version", "arm", "clients", "rows", "loss", "accuracy", "balanced", "worst client"], told);
  at("held-out").hidden = !told.length;
}

function summary({ clients, listed, complete }) {
  const many = `${complete ? "" : "At least "}${count(clients)} ${clients === 1 ? "client has" : "clients have"} sent valid pings`;
  return `${many}${listed.length ? "." : ", which are too many to list."}`;
}

function figure(number) {
  return number === null || number === undefined ? "" : number.toPrecision(4);
}

function shown(id, head, rows) {
  const place = at(id);
  place.hidden = !rows.length;
  fill(place, el(
    "table",
    {},
    el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) =>
      typeof cell === "number" ? el("td", { class: "number" }, count(cell)) : el("td", {}, cell))))),
  ));
}
