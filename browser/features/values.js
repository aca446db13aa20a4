// @ts-check
/**
 * The values of items, rounded to single precision, by the positions of their weights. A field that is absent, null,
 * not finite or of another type counts as missing: it adds nothing, or has a separate weight.
 *
 * @import { Feature, Layout } from "./layout.js"
 *
 * @typedef {Readonly<Record<string, unknown>>} Row The fields of an item or of a query.
 *
 * @typedef {{ at: number[], value: number[] }} Values Positions in ascending order, and their values.
 */

import { sha256 } from "../study/sha256.js";
import { isOfQuery, widthOf } from "./layout.js";
import { log1p } from "./numbers.js";

const LARGEST_VALUE = 1e9;
const MOST_HASHES = 10_000;
const SURROGATES = /\p{Surrogate}/u;

/**
 * The nonzero values of a list's items.
 *
 * @param {Layout} layout
 * @param {Row} query
 * @param {readonly Row[]} items
 * @returns {Values[]} The values of each item.
 */
export function valuesOf(layout, query, items) {
  const ofQuery = new Map();
  for (const feature of layout.spec.features) {
    if (isOfQuery(feature)) {
      ofQuery.set(feature.name, ofFeature(layout, feature, query, {}, ofQuery));
    }
  }
  return items.map((item) => {
    /** @type {Values} */
    const found = { at: [], value: [] };
    for (const { feature, at } of layout.spans) {
      const own = ofFeature(layout, feature, query, item, ofQuery);
      own.value.forEach((value, k) => {
        if (value !== 0) {
          found.at.push(at + own.at[k]);
          found.value.push(value);
        }
      });
    }
    return found;
  });
}

/**
 * The values of a feature, by their positions within the feature.
 *
 * @param {Layout} layout
 * @param {Feature} feature
 * @param {Row} query
 * @param {Row} item
 * @param {ReadonlyMap<string, Values>} known The values of the query's features.
 * @returns {Values}
 */
function ofFeature(layout, feature, query, item, known) {
  const found = known.get(feature.name);
  if (found !== undefined) {
    return found;
  }
  if (feature.kind === "cross") {
    const [one, other] = (feature.of ?? []).map((name) => /** @type {Feature} */ (layout.byName.get(name)));
    return crossed(
      ofFeature(layout, one, query, item, known),
      ofFeature(layout, other, query, item, known),
      widthOf(other, layout.byName),
    );
  }
  const own = isOfBoth(feature)
    ? ofBoth(feature, fieldOf(query, feature.query ?? ""), fieldOf(item, feature.item ?? ""))
    : ofField(layout, feature, fieldOf(isOfQuery(feature) ? query : item, feature.field || feature.name));
  return own ?? (feature.missing ? one(widthOf(feature, layout.byName) - 1, 1) : { at: [], value: [] });
}

/**
 * @param {Row} row
 * @param {string} field
 */
export function fieldOf(row, field) {
  return row != null && Object.hasOwn(row, field) ? row[field] : undefined; // a page may pass null as an item
}

/**
 * @param {number} at
 * @param {number} value
 * @returns {Values}
 */
function one(at, value) {
  return { at: [at], value: [value] };
}

/** @param {Feature} feature */
function isOfBoth({ kind }) {
  return kind === "equal" || kind === "product";
}

/**
 * @param {Values} rows
 * @param {Values} others
 * @param {number} columns
 * @returns {Values}
 */
function crossed(rows, others, columns) {
  /** @type {Values} */
  const found = { at: [], value: [] };
  rows.at.forEach((row, i) => {
    others.at.forEach((column, j) => {
      found.at.push(row * columns + column);
      found.value.push(Math.fround(rows.value[i] * others.value[j]));
    });
  });
  return found;
}

/**
 * @param {Feature} feature
 * @param {unknown} q
 * @param {unknown} x
 * @returns {Values | null} Null if either value is missing.
 */
function ofBoth(feature, q, x) {
  if (feature.kind === "product") {
    if (!isNumber(q) || !isNumber(x)) {
      return null;
    }
    return one(0, scaled(limited(q * x, feature), feature));
  }
  const comparable = (isNumber(q) && isNumber(x)) || (isText(q) && isText(x)) || (isFlag(q) && isFlag(x));
  return comparable ? one(0, q === x ? 1 : 0) : null;
}

/**
 * @param {Layout} layout
 * @param {Feature} feature
 * @param {unknown} x
 * @returns {Values | null} Null if the value is missing.
 */
function ofField(layout, feature, x) {
  const { kind, name, values = [], cutoffs = [], knots = [] } = feature;
  switch (kind) {
    case "flag":
      return isFlag(x) ? one(0, x ? 1 : 0) : null;
    case "category": {
      if (!isText(x)) {
        return null;
      }
      const place = values.indexOf(x);
      return place >= 0 ? one(place, 1) : feature.other ? one(values.length, 1) : { at: [], value: [] };
    }
    case "hashed":
      return isText(x) ? one(Math.floor(hashOf(layout, name, x) * (feature.buckets ?? 0)), 1) : null;
    case "counts":
      return isObject(x) ? counted(feature, x) : null;
    default:
  }
  if (!isNumber(x)) {
    return null;
  }
  if (kind === "bucket") {
    return one(cutoffs.filter((cutoff) => x > cutoff).length, 1);
  }
  if (kind === "spline") {
    return splined(knots, x);
  }
  const within = limited(x, feature);
  return one(0, scaled(feature.log ? log1p(within) : within, feature));
}

/**
 * @param {Feature} feature
 * @param {Row} given
 * @returns {Values}
 */
function counted({ values = [], log, spread }, given) {
  /** @type {Values} */
  const found = { at: [], value: [] };
  values.forEach((text, place) => {
    const x = fieldOf(given, text);
    if (isNumber(x)) {
      found.at.push(place);
      found.value.push(scaled(log ? log1p(x < 0 ? 0 : x) : x, { spread }));
    }
  });
  return found;
}

/**
 * @param {readonly number[]} knots
 * @param {number} x
 * @returns {Values}
 */
function splined(knots, x) {
  if (x <= knots[0]) {
    return one(0, 1);
  }
  if (x >= knots[knots.length - 1]) {
    return one(knots.length - 1, 1);
  }
  const after = knots.findIndex((knot) => x < knot);
  const t = (x - knots[after - 1]) / (knots[after] - knots[after - 1]);
  return { at: [after - 1, after], value: [Math.fround(1 - t), Math.fround(t)] };
}

/**
 * @param {number} x
 * @param {{ low?: number | null, high?: number | null }} limits
 */
function limited(x, { low = null, high = null }) {
  if (low !== null && x < low) {
    return low;
  }
  return high !== null && x > high ? high : x;
}

/**
 * @param {number} x
 * @param {{ center?: number, spread?: number }} scale
 */
function scaled(x, { center = 0, spread = 1 }) {
  return Math.fround(limited((x - center) / spread, { low: -LARGEST_VALUE, high: LARGEST_VALUE }));
}

/**
 * The hash of a text as a number in [0, 1): the first 6 bytes of SHA-256(name, newline, text) / 2^48.
 *
 * @param {Layout} layout
 * @param {string} name
 * @param {string} text
 */
export function hashOf({ hashes }, name, text) {
  const hashed = `${name}\n${text}`;
  let found = hashes.get(hashed);
  if (found === undefined) {
    const [first, second] = sha256(hashed);
    found = (first * 2 ** 16 + (second >>> 16)) / 2 ** 48;
    if (hashes.size >= MOST_HASHES) {
      hashes.clear();
    }
    hashes.set(hashed, found);
  }
  return found;
}

/**
 * @param {unknown} x
 * @returns {x is number}
 */
function isNumber(x) {
  return Number.isFinite(x);
}

/**
 * Whether a value is a text that UTF-8 can encode.
 *
 * @param {unknown} x
 * @returns {x is string}
 */
function isText(x) {
  return typeof x === "string" && !SURROGATES.test(x);
}

/**
 * @param {unknown} x
 * @returns {x is boolean}
 */
function isFlag(x) {
  return typeof x === "boolean";
}

/**
 * @param {unknown} x
 * @returns {x is Row}
 */
function isObject(x) {
  return typeof x === "object" && x !== null && !Array.isArray(x);
}
