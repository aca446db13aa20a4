// Following a feed: a stream of events if the server has room for one, or else polling every few seconds.
//
// Every change has a position. EventSource sends the last one by itself when it reconnects; polling sends it in
// `?since=`. So nothing is missed or repeated, even if the server was restarted in between.
//
// A stream without a sign of life, such as that of a server that hangs, counts as broken. While no news comes, nothing
// on the page is shown as well: see `data-connection` in base.css.

import { clockTime } from "./format.js";
import { getJSON } from "./http.js";

const POLL_MS = 3000;
const BACK_TO_STREAM_MS = 60_000;

/** A server sends a sign of life every 5 s. */
const SILENCE_MS = 15_000;
const WORDS = { live: "live", polling: "asking every 3 s", reconnecting: "connecting again …", broken: "store unreadable", ended: "" };

let away = null;

function showState(state, text) {
  const shown = document.getElementById("connection");
  if (!shown) return;
  shown.hidden = state === "ended";
  document.documentElement.dataset.connection = state;
  away = state === "reconnecting" ? (away ?? new Date()) : null;
  if (shown.dataset.state === state && shown.title === text) return;
  shown.dataset.state = state;
  shown.textContent = `${text || WORDS[state]}${away ? ` (since ${clockTime(away)})` : ""}`;
  shown.title = text;
}

/**
 * Call `onChange(data)` for every change of the feed at `url` from now on.
 * @param {string} url
 * @param {{onChange: (data: object) => void, onState?: (state: string, text: string) => void, since?: string}} how
 *   `since`: the position of what the page already has.
 * @returns {{stop: () => void}}
 */
export function follow(url, { onChange, onState = showState, since }) {
  let position = since;
  let source = null;
  let timer = null;
  let stopped = false;
  let troubled = false;
  let heard = Date.now();

  const withPosition = () => {
    const address = new URL(url, location.href);
    if (position !== undefined) address.searchParams.set("since", position);
    return address;
  };

  const contact = (state) => {
    heard = Date.now();
    onState(troubled ? "broken" : state, "");
  };

  function take(newPosition, data, state) {
    position = newPosition;
    troubled = Boolean(data.trouble);
    contact(state);
    onChange(data);
  }

  function stream() {
    if (stopped) return;
    source = new EventSource(withPosition());
    heard = Date.now();
    source.addEventListener("open", () => contact("live"));
    source.addEventListener("beat", () => contact("live"));
    source.addEventListener("change", (event) => take(event.lastEventId, JSON.parse(event.data), "live"));
    source.addEventListener("problem", (event) => {
      heard = Date.now();
      onState("reconnecting", JSON.parse(event.data).error);
    });
    source.addEventListener("error", () => {
      // CONNECTING: the connection broke and the browser tries again. CLOSED: the server refused a stream.
      if (source.readyState === EventSource.CLOSED) {
        source = null;
        const until = performance.now() + BACK_TO_STREAM_MS;
        poll(until);
      } else onState("reconnecting", "");
    });
  }

  async function poll(until) {
    if (stopped) return;
    if (performance.now() > until) return stream();
    try {
      const answer = await getJSON(withPosition(), SILENCE_MS);
      if (answer !== null && !stopped) take(answer.position, answer.data, "polling");
      else contact("polling");
    } catch (error) {
      onState("reconnecting", error.message);
    }
    if (!stopped) timer = setTimeout(poll, POLL_MS, until);
  }

  const watch = setInterval(() => {
    if (source?.readyState === EventSource.OPEN && Date.now() - heard > SILENCE_MS) onState("reconnecting", "no word from the dashboard");
  }, 1000);

  function stop() {
    stopped = true;
    clearInterval(watch);
    source?.close();
    clearTimeout(timer);
    removeEventListener("pagehide", pause);
    removeEventListener("pageshow", resume);
    onState("ended", "");
  }

  // A page waiting in the browser's history must not hold a connection that another viewer could use.
  function pause() {
    source?.close();
    source = null;
    clearTimeout(timer);
  }
  function resume(event) {
    if (event.persisted && !stopped) stream();
  }
  addEventListener("pagehide", pause);
  addEventListener("pageshow", resume);

  stream();
  return { stop };
}
