// @ts-check
/** Values of a message in a few words. */

/** The content of an update sent as bytes, by words in the name of its encoding. */
const ENCODED = /** @type {const} */ ([
  ["mask", "a random selection of weights"],
  ["sign", "only whether each weight should rise or fall"],
  ["levels", "rounded at random"],
  ["steps", "rounded at random"],
  ["shared", "in two parts, of which either alone is noise"],
]);

/** The maximum number of scores in an example. */
const MOST_NAMED = 10;

/**
 * A field's value, in short.
 *
 * @param {any} value
 */
export function inShort(value) {
  if (typeof value?.payload === "string") {
    const words = ENCODED.filter(([name]) => value.encoding.includes(name)).map(([, each]) => each);
    return [counted(atob(value.payload).length, "byte"), ...words].join(", ");
  }
  if (!Array.isArray(value)) {
    return JSON.stringify(value) ?? "not sent";
  }
  const some = value.filter((number) => number !== 0).length;
  return value.length > MOST_NAMED ? `${value.length} numbers, ${some || "none"} of them not 0` : value.join(", ") || "none";
}

/** @param {number} count @param {string} thing */
export function counted(count, thing) {
  return `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;
}

/** @param {number} place From 0. */
export function ordinal(place) {
  const number = place + 1;
  const teen = number % 100 > 10 && number % 100 < 14;
  return `${number}${(!teen && ["th", "st", "nd", "rd"][number % 10]) || "th"}`;
}

/** @param {number} milliseconds */
export function seconds(milliseconds) {
  return `${(milliseconds / 1000).toLocaleString("en", { maximumFractionDigits: 1 })} s`;
}

/**
 * The first numbers, separated by semicolons, because large numbers contain commas.
 *
 * @param {readonly number[]} numbers
 */
export function points(numbers) {
  const named = numbers.slice(0, MOST_NAMED).map((number) => number.toLocaleString("en", { maximumSignificantDigits: 6 }));
  const more = numbers.length > MOST_NAMED ? [`and ${numbers.length - MOST_NAMED} more`] : [];
  return [...named, ...more].join("; ") || "none";
}
