// What the server says of a description while it is written: its size, or what is wrong and where.

import { post } from "/static/js/http.js";

const PAUSE_MS = 250;

/** Ask the server about the form's present values a moment after each change, the newest question winning. */
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
      if (mine === asked) onVerdict({ problem: error.message, input: null, size: "" });
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

/** Show a sentence above the form, or hide the place for it. */
export function showProblem(sentence) {
  const place = document.getElementById("problem");
  if (place.textContent !== (sentence ?? "")) place.textContent = sentence ?? "";
  place.hidden = !sentence;
}

/** Say beside the list of shipped experiments what the chosen one is. */
export function describePresets() {
  const list = document.getElementById("from");
  const about = document.getElementById("about-preset");
  const say = () => {
    const { about: words, source, seconds } = list.selectedOptions[0].dataset;
    about.textContent = `${words} (${source}${seconds ? `, about ${seconds} s of processor time` : ""})`;
  };
  list.addEventListener("change", say);
  say();
}
