// The list of runs, kept up to date: rows that change are requested again, a running run just moves its bar.

import { now } from "/static/js/clock.js";
import { duration, shownTime } from "/static/js/format.js";
import { follow } from "/static/js/stream.js";

const at = (id) => document.getElementById(id);
const list = at("runs");

function showTimes(within = list) {
  for (const took of within.querySelectorAll(".took")) {
    const to = took.dataset.to ? Date.parse(took.dataset.to) : now();
    took.textContent = duration(Math.max(0, (to - Date.parse(took.dataset.from)) / 1000));
  }
}

let shown = 0;

/** Replace the rows that differ from what the server has; keep ticks and the focus. */
async function renew() {
  const number = ++shown;
  const answer = await fetch(list.dataset.rows, { headers: { Accept: "text/html" } });
  if (!answer.ok || number !== shown) return;
  const body = document.createElement("tbody");
  body.innerHTML = await answer.text();
  const ids = new Set([...body.children].map((row) => row.id));
  for (const old of [...list.children]) if (!ids.has(old.id)) old.remove();
  let before = null;
  for (const row of [...body.children]) {
    const old = at(row.id);
    const current = old?.dataset.mark === row.dataset.mark ? old : replaced(old, row);
    if (before ? before.nextElementSibling !== current : list.firstElementChild !== current) {
      if (before) before.after(current);
      else list.prepend(current);
    }
    before = current;
  }
}

function replaced(old, row) {
  for (const time of row.querySelectorAll("time[datetime]")) shownTime(time);
  showTimes(row);
  if (!old) return row;
  const ticked = old.querySelector(".tick input")?.checked;
  const focused = old.contains(document.activeElement);
  old.replaceWith(row);
  const box = row.querySelector(".tick input");
  if (box && ticked) box.checked = true;
  if (focused) (row.querySelector("button") ?? row.querySelector("a"))?.focus();
  return row;
}

function moveBar(item, run) {
  const bar = item.querySelector("progress");
  if (!bar || run.done == null) return;
  bar.value = run.done;
  item.querySelector(".percent").textContent = `${Math.floor(100 * run.done)} %`;
}

function showProgress(progress) {
  const was = !at("indexing").hidden;
  at("indexing").hidden = !progress;
  if (!progress) return was;
  const [known, all] = progress;
  at("indexed").textContent = `${known.toLocaleString("en")} of ${all.toLocaleString("en")}`;
  at("index-bar").max = Math.max(1, all);
  at("index-bar").value = known;
  return false;
}

/** Whether a reload would lose something: what is typed, ticked or opened. */
const isBusy = () =>
  document.activeElement?.matches("input, select") || Boolean(document.querySelector("#runs .tick :checked, .choosing [open]"));

const whole = (value) => value.toLocaleString("en");

function showCounts({ matching, all, rows }) {
  const of = matching === all ? "" : ` of ${whole(all)}`;
  at("count").textContent = `${whole(matching)}${of} ${matching === 1 && all === 1 ? "run" : "runs"}${rows === matching ? "" : ` in ${whole(rows)} rows`}`;
}

function show({ runs, all, matching, rows: count, columns, progress }) {
  const ended = showProgress(progress);
  const others = columns.length !== Number(list.dataset.columns); // the first runs have come, with their settings and metrics
  if ((ended || others) && !isBusy()) return location.reload();
  showCounts({ matching, all, rows: count });
  at("none").hidden = all > 0 || Boolean(progress);
  at("listed").hidden = !all && !progress;
  const rows = [...list.children];
  const same = rows.length === runs.length && rows.every((row, place) => row.dataset.id === runs[place].id);
  if (!same || runs.some((run, place) => rows[place].dataset.mark !== run.mark)) renew();
  else for (const [place, run] of runs.entries()) moveBar(rows[place], run);
}

showTimes();
setInterval(showTimes, 1000);
follow(list.dataset.feed, { onChange: show });
