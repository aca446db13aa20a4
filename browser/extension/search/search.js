// @ts-check
/**
 * The search page: a box and a list below it, which the arrow keys move through while the box keeps the focus.
 *
 * @import { Listed } from "../taking_part/participation.js"
 */

import { api } from "../api.js";
import { ask, byId, element, whenChanged } from "../ask.js";
import { marked, readable } from "../history/words.js";
import { Interaction } from "../interaction.js";
import { HANDED_OVER } from "../worker.js";

/** @type {HTMLInputElement} */
const query = byId("query");
/** @type {HTMLUListElement} */
const results = byId("results");
const status = byId("status");

/** Keys that neither type nor move through the list. */
const NO_KEYS = new Set(["Enter", "Shift", "Control", "Alt", "Meta", "Tab"]);

let interaction = Interaction.begin(performance.now(), true);
/** @type {Listed | null} */
let listed = null;
let shownFor = "";
let selected = -1;
let asked = 0;
let chosen = false;

async function search() {
  const typed = query.value;
  const turn = (asked += 1);
  const answer = await ask({ ask: "search", typed });
  if (turn !== asked) {
    return; // the text has changed in the meantime
  }
  listed = /** @type {Listed} */ (answer.listed);
  shownFor = typed;
  const pages = /** @type {any[]} */ (listed.pages);
  interaction.saw(pages, performance.now());
  results.replaceChildren(...pages.map((page, place) => line(page, place, typed)));
  results.hidden = pages.length === 0;
  query.setAttribute("aria-expanded", String(pages.length > 0));
  select(pages.length > 0 ? 0 : -1);
  status.textContent = said(pages.length, answer);
  byId("ranking").textContent = ranking(listed);
  if (answer.reading !== null) {
    setTimeout(() => turn === asked && void search(), 1000);
  }
}

/**
 * @param {any} page
 * @param {number} place
 * @param {string} typed
 */
function line({ url, title, bookmarked }, place, typed) {
  const address = readable(url);
  const star = bookmarked ? [element("span", { className: "bookmark", title: "Bookmark" }, "★")] : [];
  const option = element(
    "li",
    { id: `result-${place}`, title: url },
    element("div", { className: "title", dir: "auto" }, ...star, ...withMarks(title || address, typed)),
    element("div", { className: "address", dir: "ltr" }, ...withMarks(address, typed)),
  );
  option.setAttribute("role", "option");
  option.dataset.url = url;
  return option;
}

/** @param {string} text @param {string} typed */
function withMarks(text, typed) {
  return marked(text, typed).map(([piece, isMarked]) => (isMarked ? element("mark", {}, piece) : piece));
}

/** @param {number} found @param {any} answer */
function said(found, { reading, size }) {
  if (reading !== null) {
    return `Your history is being read: ${reading.done} of ${reading.of} pages.`;
  }
  if (found > 0) {
    return "";
  }
  return size === 0 ? "Your history and bookmarks have no pages yet." : "No page matches these words.";
}

/** @param {Listed} list */
function ranking({ study, role, held }) {
  if (study === "" || role.arm === null) {
    return "Ranked by the start values, without a study.";
  }
  const version = role.arm.applies && held.version >= 0 ? `version ${held.version}` : "the start values";
  return `Ranked by ${version}, as the study asks of this browser.`;
}

/** @param {number} place */
function select(place) {
  selected = place;
  [...results.children].forEach((option, i) => option.setAttribute("aria-selected", String(i === place)));
  const option = results.children[place];
  if (option) {
    query.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  } else {
    query.removeAttribute("aria-activedescendant");
  }
}

/**
 * @param {number} place
 * @param {boolean} enter
 * @param {string} disposition
 */
async function choose(place, enter, disposition) {
  const pages = /** @type {any[]} */ (listed?.pages ?? []);
  if (listed === null || pages[place] === undefined || chosen) {
    return;
  }
  chosen = disposition === "currentTab";
  const observed = interaction.chose(
    { pages, chosen: place, typed: shownFor, enter, otherLines: 0 },
    performance.now(),
  );
  await ask({ ask: "chose", choice: { listed, observed, url: pages[place].url }, disposition });
  begin();
}

/** Begin a new interaction: each choice has its own ping. */
function begin() {
  interaction = Interaction.begin(performance.now(), true);
  if (listed !== null) {
    interaction.saw(/** @type {any[]} */ (listed.pages), performance.now());
  }
  chosen = false;
}

/** Show the result of the newest choice, and rank again if the list is of another study than the configured one. */
async function follow() {
  const { ingest, study, takesPart, arm, newest } = await ask({ ask: "state" });
  const isOfStudy = takesPart && arm !== null;
  const isListOfStudy = listed !== null && listed.study === `${ingest} ${study}` && listed.role.arm !== null;
  byId("newest").textContent = newest === null || !study ? "" : `Your newest choice ${newest.words}.`;
  if (isOfStudy !== isListOfStudy || (listed !== null && !takesPart && listed.study !== "")) {
    await search();
  }
}

/** The tab in which to open a page, by the usual keys of browsers. @param {MouseEvent | KeyboardEvent} event */
function disposition(event) {
  const aside = event.ctrlKey || event.metaKey || ("button" in event && event.button === 1);
  return aside ? (event.shiftKey ? "newForegroundTab" : "newBackgroundTab") : "currentTab";
}

query.addEventListener("input", () => void search());
query.addEventListener("keydown", (event) => {
  if (event.isComposing) {
    return;
  }
  if (!NO_KEYS.has(event.key)) {
    interaction.key();
  }
  const count = results.children.length;
  if (event.key === "ArrowDown" && count > 0) {
    select((selected + 1) % count);
  } else if (event.key === "ArrowUp" && count > 0) {
    select((selected + count - 1) % count);
  } else if (event.key === "Enter") {
    // The last keystroke may not be shown yet; the choice is from the shown list.
    void choose(selected, true, disposition(event));
  } else if (event.key === "Escape" && query.value !== "") {
    query.value = "";
    begin();
    void search();
  } else {
    return;
  }
  event.preventDefault();
});

for (const kind of ["click", "auxclick"]) {
  results.addEventListener(kind, (/** @type {any} */ event) => {
    const option = event.target.closest("[role=option]");
    if (option && event.button <= 1) {
      event.preventDefault();
      void choose([...results.children].indexOf(option), false, disposition(event));
    }
  });
}
results.addEventListener("mousedown", (event) => event.preventDefault()); // the box keeps the focus
window.addEventListener("pageshow", (event) => {
  if (event.persisted) {
    begin(); // the user has returned to this page
    void search().then(follow);
  }
});

const { [HANDED_OVER]: typed = "" } = await api.storage.session.get(HANDED_OVER);
await api.storage.session.remove(HANDED_OVER);
query.value ||= typed;
query.focus();
await search();
await follow();
whenChanged(follow);
