// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const places = new Map();

/** Numbers as text with the true minus sign, for pages; files have hyphens. */
export const withMinus = (text) => text.replaceAll("-", "−");

/** A count, with separators: 12,345. */
export const count = (value) => (value == null ? "–" : withMinus(whole.format(value)));

/** A measured number with this many significant digits (4); very large and very small ones in powers of ten. */
export function number(value, digits = 4) {
  if (value == null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-4)) return withMinus(value.toExponential(digits - 1).replace("e+", "e"));
  if (!places.has(digits)) places.set(digits, new Intl.NumberFormat("en", { maximumSignificantDigits: digits }));
  return withMinus(places.get(digits).format(value));
}

/** The label of a tick on an axis. */
export const tick = (value, digits = 3) => number(value, digits);

/**
 * The text of an error as a sentence, with a capital letter and a full stop, as `as_sentence` makes it on the server: a
 * path, file or setting at the start stays unchanged.
 */
export function sentence(text) {
  const first = text.split(" ", 1)[0].replace(/[.,:;!?]+$/, "");
  const begun = /[/._]/.test(first) ? text : text.slice(0, 1).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(text) ? begun : `${begun}.`;
}

/** A change, always with a sign. */
export const signed = (value, digits = 4) => (value > 0 ? "+" : "") + number(value, digits);

/** A share in per cent. */
export const percent = (value, digits = 1) => (value == null ? "–" : `${withMinus((100 * value).toFixed(digits))} %`);

/** Seconds in words: 48 s, 3 min 10 s, 2 h 5 min, 4 days. */
export function duration(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return both(seconds, 60, "min", 1, "s");
  if (seconds < 172800) return both(seconds, 3600, "h", 60, "min");
  return `${Math.floor(seconds / 86400)} days`;
}

function both(seconds, large, largeName, small, smallName) {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

/** How long ago a time was. */
export function ago(iso, now = Date.now()) {
  const seconds = (now - Date.parse(iso)) / 1000;
  return seconds < 5 ? "just now" : `${duration(seconds)} ago`;
}

const PARTS = { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short" };
const local = new Intl.DateTimeFormat("en-GB", PARTS);

const toTheSecond = new Intl.DateTimeFormat("en-GB", { ...PARTS, second: "2-digit" });

/** Show a time element's `datetime` in the visitor's zone, which is named, in 24 hours; in UTC on hover. */
export function shownTime(element, seconds = false) {
  const at = new Date(element.dateTime);
  if (Number.isNaN(at.getTime())) return element;
  element.textContent = (seconds ? toTheSecond : local).format(at);
  element.title = at.toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
  return element;
}

/** The time of day in the visitor's zone, to the second. */
export const clockTime = (at) => at.toLocaleTimeString("en-GB", { hourCycle: "h23" });

/** A time (milliseconds since 1970) in 24 hours in UTC, to the minute: 2026-01-31 06:30 UTC. */
export const utc = (milliseconds) => `${new Date(milliseconds).toISOString().slice(0, 16).replace("T", " ")} UTC`;

const HOUR_MS = 3_600_000;
const SHORT_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");

/** Tick labels for an axis over so many milliseconds: hours if there are few days, and the date where a day begins. */
export function clockTick(span) {
  return (at, i) => {
    const [month, date] = [SHORT_MONTHS[at.getUTCMonth()], at.getUTCDate()];
    if (span > 96 * HOUR_MS) return `${date} ${month}`;
    const time = at.toISOString().slice(11, span < HOUR_MS / 6 ? 19 : 16);
    return i === 0 || time.startsWith("00:00") ? `${time}\n${date} ${month}` : time;
  };
}
