// @ts-check
/**
 * Invented items and queries of a study: a random value for each field that its features read, generated from one seed.
 *
 * @import { Draw } from "./random.js"
 * @import { Feature } from "../features/layout.js"
 *
 * @typedef {{ title: string, row: Record<string, unknown> }} Item
 */

import { seedOf, seeded } from "./random.js";

const COUNT = 40;
const MISSING = 0.15;
const UNLISTED = 0.1;
const DIGITS = 12;
const WIDEST = 1000; // maximum spreads from the middle to a bound
const WORDS = ["amber", "birch", "cedar", "delta", "ember", "fern", "grove", "harbour", "iris", "jasper", "kelp", "linen"];

/**
 * The items generated from a seed.
 *
 * @param {readonly Feature[]} features
 * @param {string} seed
 * @returns {Item[]}
 */
export function madeItems(features, seed) {
  const draw = seeded(seedOf(`items/${seed}`));
  return Array.from({ length: COUNT }, (_, i) => ({ title: `Item ${i + 1}`, row: rowOf(features, "item", draw) }));
}

/**
 * A random query.
 *
 * @param {readonly Feature[]} features
 * @param {Draw} draw
 */
export function madeQuery(features, draw) {
  return rowOf(features, "query", draw);
}

/**
 * A random selection of items, each at most once.
 *
 * @param {readonly Item[]} items
 * @param {number} count
 * @param {Draw} draw
 */
export function someOf(items, count, draw) {
  const left = [...items];
  return Array.from({ length: Math.min(count, items.length) }, () => left.splice(draw.whole(0, left.length - 1), 1)[0]);
}

/**
 * The fields of an item or a query in words, such as `price 4.2, new`.
 *
 * @param {Record<string, unknown>} row
 */
export function rowInWords(row) {
  const words = Object.entries(row).map(([name, value]) => (value === true ? name : value === false ? `not ${name}` : `${name} ${inWords(value)}`));
  return words.join(", ");
}

/** @param {unknown} value @returns {string} */
function inWords(value) {
  if (typeof value === "object") {
    return Object.keys(value ?? {}).join(" and ") || "none";
  }
  return typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 3 }).replace("-", "−") : String(value);
}

/**
 * @param {readonly Feature[]} features
 * @param {"item" | "query"} on
 * @param {Draw} draw
 */
function rowOf(features, on, draw) {
  /** @type {Record<string, unknown>} */
  const row = {};
  for (const feature of features) {
    const field = fieldOf(feature, on);
    if (field !== null && !Object.hasOwn(row, field) && !(feature.missing && draw.fraction() < MISSING)) {
      row[field] = valueFor(feature, features, draw);
    }
  }
  return row;
}

/**
 * The field of an item or a query that a feature reads; null if the feature reads none.
 *
 * @param {Feature} feature
 * @param {"item" | "query"} on
 */
function fieldOf(feature, on) {
  if (feature.kind === "equal" || feature.kind === "product") {
    return feature[on] ?? null;
  }
  return feature.kind !== "cross" && (feature.on ?? "item") === on ? feature.field || feature.name : null;
}

/**
 * @param {Feature} feature
 * @param {readonly Feature[]} features All features; another one may list the values of the same field.
 * @param {Draw} draw
 */
function valueFor(feature, features, draw) {
  const { kind, values = [], other = false, cutoffs = [], knots = [], spread = 1, ...more } = feature;
  switch (kind) {
    case "flag":
      return draw.fraction() < 0.5;
    case "category":
      return other && draw.fraction() < UNLISTED ? draw.one(WORDS) : draw.one(values);
    case "hashed":
      return draw.one(WORDS);
    case "equal":
      return draw.one(listed(feature, features) ?? WORDS.slice(0, 3));
    case "counts":
      return Object.fromEntries(values.filter(() => draw.fraction() < 0.4).map((value) => [value, countFor(spread, more.log, draw)]));
    case "bucket":
      return between(cutoffs[0] - 1, /** @type {number} */ (cutoffs.at(-1)) + 1, draw);
    case "spline":
      return between(knots[0], /** @type {number} */ (knots.at(-1)), draw);
    default:
      return numberFor({ spread, ...more }, draw);
  }
}

/**
 * The values that a category feature lists for a compared field; null if none does.
 *
 * @param {Feature} equal
 * @param {readonly Feature[]} features
 */
function listed(equal, features) {
  const category = features.find(
    (each) => each.kind === "category" && fieldOf(each, each.on ?? "item") === equal[each.on ?? "item"],
  );
  return category?.values ?? null;
}

/**
 * @param {number} spread The divisor of the counts, or of their logarithms.
 * @param {boolean | undefined} log
 * @param {Draw} draw
 */
function countFor(spread, log, draw) {
  return draw.whole(1, Math.max(3, Math.round(log ? Math.expm1(Math.min(2 * spread, 12)) : Math.min(2 * spread, 1e6))));
}

/**
 * A number near the middle of a feature and within its bounds, or between the bounds if the middle is outside them.
 *
 * @param {Pick<Feature, "low" | "high" | "log" | "center" | "spread">} feature
 * @param {Draw} draw
 */
function numberFor({ low = null, high = null, log = false, center = 0, spread = 1 }, draw) {
  const [least, most] = [low ?? -Infinity, high ?? Infinity].map((each) => (log ? Math.log1p(each) : each));
  let [first, last] = [Math.max(center - 2 * spread, least), Math.min(center + 2 * spread, most)];
  if (first >= last) {
    [first, last] = [Math.max(least, most - WIDEST * spread), Math.min(most, least + WIDEST * spread)];
  }
  const x = between(first, last, draw);
  return log ? Number(Math.expm1(x).toPrecision(DIGITS)) : x;
}

/**
 * A random number between bounds, rounded so that a few hundred values are distinct.
 *
 * @param {number} low
 * @param {number} high
 * @param {Draw} draw
 */
function between(low, high, draw) {
  const step = 10 ** (Math.floor(Math.log10(high - low)) - 2);
  const x = low + draw.fraction() * (high - low);
  return Math.min(Math.max(Number((Math.round(x / step) * step).toPrecision(DIGITS)), low), high);
}
