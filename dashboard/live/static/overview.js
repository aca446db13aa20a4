// The page of all studies: requests them again whenever something has changed.

import { el, fill } from "/static/js/dom.js";
import { sentence, shownTime } from "/static/js/format.js";
import { follow } from "/static/js/stream.js";

const place = document.getElementById("studies");
const outage = document.getElementById("outage");
let shown = null;
let had = place.querySelector(".status") !== null;

async function renew() {
  const answer = await fetch("studies", { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const text = await answer.text();
  if (text === shown) return;
  shown = text;
  const held = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  place.innerHTML = text;
  for (const time of place.querySelectorAll("time[datetime]")) shownTime(time);
  if (held) [...place.querySelectorAll("a")].find((link) => link.getAttribute("href") === held)?.focus();
}

/** The studies, or instead of them what is wrong and since when. */
function take({ trouble, since }) {
  had ||= place.querySelector(".status") !== null;
  const lost = Boolean(trouble) && had;
  outage.hidden = !lost;
  place.hidden = lost;
  if (!lost) return renew();
  const when = shownTime(el("time", { datetime: since }), true);
  fill(outage, el("h2", {}, "This page can't read its store"), el("p", {}, sentence(trouble)), el("p", { class: "muted" }, "Since ", when, ". The studies come back by themselves once it can be read."));
}

follow("changes", { onChange: take });
