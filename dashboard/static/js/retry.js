// A page that could not be read: asks for it every few seconds, and shows it once it can be read.

import { shownTime } from "./format.js";
import { el, fill } from "./dom.js";

const EVERY_MS = 3000;

const sentence = document.getElementById("sentence");
const retrying = document.getElementById("retrying");

async function again() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
    if (answer.status !== 503) return location.reload();
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const now = page.getElementById("sentence")?.textContent;
    if (now && now !== sentence.textContent) sentence.textContent = now;
  } catch {
    // the dashboard is unreachable; the page retries
  }
  setTimeout(again, EVERY_MS);
}

const since = shownTime(el("time", { datetime: new Date().toISOString() }), true);
fill(retrying, "Since ", since, " at the latest. This page asks again every 3 seconds.");
retrying.hidden = false;
setTimeout(again, EVERY_MS);
