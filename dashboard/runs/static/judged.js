// The server's verdict on a description while it is written: its size, or its errors and where they are.

import { post } from "/static/js/http.js";

const PAUSE_MS = 250;

/** Ask the server about the form's present values a moment after each change; the newest question wins. */
export function judged(form, url, onVerdict) {
  let waiting;
  let asked = 0;
  async function ask() {
    const mine = ++asked;
    const said = Object.fromEntries([...new FormData(form)].filter(([name]) => name !== "csrf_token"));
    try {
      const verdict = await post(url, said);
      if (mine === asked) onVerdict(verdict);
    } catch (error) {
      if (mine === asked) onVerdict({ problems: [{ sentence: error.message, input: null }], size: "" });
    }
  }
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(ask, PAUSE_MS);
  };
  form.addEventListener("input", soon);
  form.addEventListener("change", soon);
  ask();
  return soon;
}

const errors = document.getElementById("errors");
const problem = document.getElementById("problem");

/** Make the form's element with a problem visible, opening whatever it is folded into. */
export function unfolded(name) {
  const input = document.getElementById(name);
  for (let more = input?.closest("details"); more; more = more.parentElement.closest("details")) more.open = true;
  return input;
}

/**
 * Update the summary on top if a start was refused, else show problems without a field there; and say beside the
 * button whether a start would be refused.
 */
export function showProblems(problems, size) {
  const elsewhere = problems.find(({ input }) => !input);
  const words = errors.hidden && elsewhere ? elsewhere.sentence : "";
  if (problem.textContent !== words) problem.textContent = words;
  problem.hidden = !words;
  if (!errors.hidden) {
    if (!problems.length) errors.hidden = true;
    errors.querySelector("ul").replaceChildren(...problems.map(item));
  }
  const shown = document.getElementById("size");
  shown.classList.toggle("wrong", problems.length > 0);
  if (problems.length) shown.replaceChildren("Not ready to start. ", ...item(problems[0]).childNodes);
  else shown.textContent = size;
}

function item({ sentence, input, label }) {
  const li = document.createElement("li");
  if (input) li.append(Object.assign(document.createElement("a"), { href: `#${input}`, textContent: label }), ": ");
  li.append(sentence);
  return li;
}

// A link to a field leads into it, even if it is folded.
document.addEventListener("click", (event) => {
  const link = event.target.closest("#errors a, #size a");
  if (!link) return;
  event.preventDefault();
  const input = unfolded(decodeURIComponent(link.hash.slice(1)));
  input?.focus({ preventScroll: true });
  input?.scrollIntoView({ block: "center" });
});

if (!errors.hidden) errors.focus();

/** Describe the chosen shipped experiment beside their list. */
export function describePresets() {
  const list = document.getElementById("from");
  const about = document.getElementById("about-preset");
  const say = () => {
    const { about: words, source, seconds } = list.selectedOptions[0].dataset;
    about.textContent = words === undefined ? "" : `${words} (${source}${seconds ? `, about ${seconds} s of processor time` : ""})`;
  };
  list.addEventListener("change", say);
  say();
}
