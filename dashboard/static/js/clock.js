// The server's clock, for measuring times from the server, because a visitor's clock may be wrong by hours.

/** Differences up to this mean nothing: a second of rounding, plus the transfer. */
const LEAST_MS = 5000;

let ahead = 0;

/** Milliseconds since 1970 by the server's clock, once it has been asked; until then by the visitor's own. */
export const now = () => Date.now() + ahead;

async function ask() {
  const answer = await fetch("/static/icon.svg", { method: "HEAD", cache: "no-store" }).catch(() => null);
  const there = Date.parse(answer?.headers.get("Date") ?? "");
  if (Math.abs(there - Date.now()) > LEAST_MS) ahead = there - Date.now();
}
ask();
