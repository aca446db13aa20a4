// The server's clock: what it wrote is measured by that, for a visitor's may be wrong by hours.

/** Beside a second of rounding and the way there, a smaller difference says nothing. */
const LEAST_MS = 5000;

let ahead = 0;

/** Milliseconds since 1970 as the server has them, as soon as it has been asked; until then the visitor's own. */
export const now = () => Date.now() + ahead;

async function ask() {
  const answer = await fetch("/static/icon.svg", { method: "HEAD", cache: "no-store" }).catch(() => null);
  const there = Date.parse(answer?.headers.get("Date") ?? "");
  if (Math.abs(there - Date.now()) > LEAST_MS) ahead = there - Date.now();
}
ask();
