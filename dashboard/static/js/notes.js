// Notes about a study: their list and form on a page, their marks on charts, and their column in the charts' tables.

import { el, fill } from "./dom.js";
import { utc } from "./format.js";
import { getJSON, post } from "./http.js";

/** Seconds after which a page asks for notes that others have written. */
const EVERY_S = 20;

/** The most notes that charts mark: the newest. */
const MARKED = 60;

/** Letters of a note's text above a chart. */
const LETTERS = 22;

const SHOWN = 20;

/** Follow the notes of the study of this page, if it has a card for them, and call `onChange` with them. */
export function followNotes(onChange, newestVersion = () => null) {
  const card = document.getElementById("notes");
  if (!card) return;
  let known = "";
  let all = false;
  let notes = [];
  let again = 0;

  async function look() {
    clearTimeout(again);
    try {
      const found = await getJSON(`${card.dataset.notes}?known=${known}`);
      at("notes-trouble").textContent = "";
      if (found) {
        known = found.state;
        notes = found.notes.toSorted((a, b) => (b.at_ms ?? 0) - (a.at_ms ?? 0) || b.id - a.id);
        show();
        onChange(notes);
      }
    } catch (error) {
      at("notes-trouble").textContent = `The notes can't be read: ${error.message}`;
    }
    again = setTimeout(() => (document.hidden ? null : look()), 1000 * EVERY_S);
  }

  function show() {
    at("notes-none").hidden = notes.length > 0;
    fill(at("notes-list"), (all ? notes : notes.slice(0, SHOWN)).map((note) => item(note, form)));
    at("notes-more").hidden = all || notes.length <= SHOWN;
    at("notes-more").firstElementChild.textContent = `Show all ${notes.length}`;
  }

  const form = card.dataset.may ? writing(card, look, newestVersion) : null;
  at("notes-more").firstElementChild.addEventListener("click", () => {
    all = true;
    show();
  });
  addEventListener("beforeprint", () => {
    all = true;
    show();
  });
  document.addEventListener("visibilitychange", () => document.hidden || look());
  look();
}

const at = (id) => document.getElementById(id);

function item(note, form) {
  const written = `${note.by}, ${utc(Date.parse(note.written))}${note.edited ? `; edited by ${note.edited_by}, ${utc(Date.parse(note.edited))}` : ""}`;
  return el(
    "li",
    { id: `note-${note.id}` },
    el(
      "div",
      { class: "head" },
      el("span", { class: "pin" }, pinned(note)),
      el("span", { class: "by" }, el("bdi", {}, written)),
      form && el("span", { class: "acts" },
        el("button", { type: "button", class: "small", "aria-label": `Edit note ${note.id}`, onclick: () => form.edit(note) }, "Edit"),
        el("button", { type: "button", class: "small", "aria-label": `Remove note ${note.id}`, onclick: (event) => form.remove(note, event.target) }, "Remove")),
    ),
    el("p", { class: "text", dir: "auto" }, note.text),
  );
}

/** Where a note is pinned, in words. */
function pinned({ version, line, arm, date, at_ms: moment }) {
  const when = version === null ? utc(Date.parse(date)) : `Version ${version}${moment === null ? "" : `, ${utc(moment)}`}`;
  return [when, line && `line ${line}`, arm && `arm ${arm}`].filter(Boolean).join(", ");
}

/** The form, which writes a new note or changes one. */
function writing(card, look, newestVersion) {
  const form = at("notes-form");
  const fields = form.elements;
  let edited = null;

  function choose(pin) {
    fields.pin.value = pin;
    for (const one of form.querySelectorAll("[data-pin]")) one.hidden = one.dataset.pin !== pin;
  }
  function settle(note) {
    edited = note;
    at("note-save").textContent = note ? `Change note ${note.id}` : "Add the note";
    at("note-cancel").hidden = !note;
    fields.text.value = note?.text ?? "";
    if (!note) return;
    choose(note.version === null ? "date" : "version");
    fields.date.value = note.version === null ? new Date(note.date).toISOString().slice(0, 16) : "";
    fields.version.value = note.version ?? "";
    fields.line.value = note.line;
    fields.arm.value = note.arm;
    fields.text.focus();
  }
  async function send(address, body) {
    at("notes-trouble").textContent = "";
    try {
      await post(`${card.dataset.at}${address}`, body);
      await look();
      return true;
    } catch (error) {
      at("notes-trouble").textContent = sentence(error.message);
      return false;
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const pin = fields.pin.value;
    const version = pin === "version" ? (fields.version.value === "" ? newestVersion() : Number(fields.version.value)) : null;
    const date = pin === "date" ? `${fields.date.value || new Date().toISOString().slice(0, 16)}Z` : "";
    const body = { text: fields.text.value, date, version, line: fields.line.value, arm: fields.arm.value };
    at("note-save").disabled = true;
    if (await send(edited ? edited.id : "", edited ? { ...body, mark: edited.mark } : body)) settle(null);
    at("note-save").disabled = false;
  });
  fields.pin.addEventListener("change", () => choose(fields.pin.value));
  at("note-cancel").addEventListener("click", () => settle(null));
  return {
    edit: settle,
    async remove(note, button) {
      if (!button.dataset.sure) {
        button.dataset.sure = "1";
        button.textContent = "Really remove?";
        button.setAttribute("aria-label", `Really remove note ${note.id}?`);
        return;
      }
      if (await send(`${note.id}/remove`, { mark: note.mark }) && edited?.id === note.id) settle(null);
    },
  };
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;

/** The words of a note above a chart: a sign that it is one, and how it begins. */
function shortWords({ text, arm }) {
  const signs = [...`${arm ? `${arm}: ` : ""}${text.replaceAll("\n", " ")}`];
  return `✎ ${signs.length > LETTERS ? `${signs.slice(0, LETTERS - 1).join("")}…` : signs.join("")}`;
}

/** The newest notes with a known moment, as marks on an axis of time, the oldest of them first. */
export const timeMarks = (notes) =>
  notes.filter((note) => note.at_ms !== null).slice(0, MARKED).map((note) => ({ x: note.at_ms, at: note.at_ms, words: shortWords(note) })).reverse();

/** Notes of a line on an axis of iterations: at their version, or as far between two as their date is. */
export function iterationMarks(notes, line, times) {
  const known = [...times].sort(([a], [b]) => a - b);
  return ofLine(notes, line).slice(0, MARKED).flatMap((note) => {
    const x = iterationOf(note, known);
    return x === null || note.at_ms === null ? [] : [{ x, at: note.at_ms, words: shortWords(note) }];
  });
}

const ofLine = (notes, line) => notes.filter((note) => !note.line || note.line === line);

function iterationOf({ version, at_ms: moment }, known) {
  if (version !== null) return version;
  const next = known.findIndex(([, time]) => time > moment);
  if (next === 0 || !known.length) return null;
  const [before, began] = known[next < 0 ? known.length - 1 : next - 1];
  if (next < 0) return before;
  const [after, ended] = known[next];
  return before + ((after - before) * (moment - began)) / (ended - began);
}

/** A table by iteration or version, with a column of the notes of a line. */
export function notedTable(table, notes, line, times) {
  if (!["iteration", "version"].includes(table.head[0])) return table;
  const known = [...times].sort(([a], [b]) => a - b);
  return withColumn(table, ofLine(notes, line).map((note) => [iterationOf(note, known), note.text]), (cell) => cell);
}

/** A table by time (UTC), with a column of the notes of its time. */
export function timedTable(table, notes) {
  const place = (cell) => Date.parse(`${cell.replace(" ", "T")}Z`);
  const times = [...new Set(table.rows.map((row) => place(row[0])))].sort((a, b) => a - b);
  const [before, last] = [times.at(-2) ?? times.at(-1), times.at(-1)];
  const during = notes.filter((note) => note.at_ms < last + Math.max(1, last - before));
  return withColumn(table, during.map((note) => [note.at_ms, note.text]), place);
}

/** Put each text into the last row that is not after it; without any text the table stays as it is. */
function withColumn({ head, rows }, texts, place) {
  const usable = texts.filter(([x]) => x !== null);
  if (!usable.length || !rows.length) return { head, rows };
  const places = rows.map((row) => place(row[0]));
  const told = new Map();
  for (const [x, text] of usable) {
    const best = places.reduce((found, at) => (at <= x && at > found ? at : found), -Infinity);
    const row = places.indexOf(best);
    if (row >= 0) told.set(row, [...(told.get(row) ?? []), text]);
  }
  return { head: [...head, "notes"], rows: rows.map((row, i) => [...row, told.get(i)?.join("; ") ?? ""]) };
}
