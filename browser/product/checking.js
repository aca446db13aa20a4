// @ts-check
/**
 * Problems in the fields of an item or a query. Each is reported once to the developer, and learning continues without
 * the field.
 *
 * @import { Feature } from "../features/layout.js"
 * @import { Row } from "../features/values.js"
 *
 * @typedef {"feature_missing" | "feature_type" | "feature_bounds" | "category_unlisted"} Oddity
 */

import { fieldOf } from "../features/values.js";

/** The field types of kinds of features; all other kinds take numbers. */
const TYPES = { flag: "boolean", category: "string", hashed: "string", counts: "object" };

/**
 * The problem with a feature's field; null if the field is fine.
 *
 * @param {Feature} feature A feature other than a cross.
 * @param {Row} query
 * @param {Row} item
 * @returns {{ code: Oddity, field: string, is: string } | null} `is` describes the problem without the value, which is
 *   the user's.
 */
export function oddityOf(feature, query, item) {
  if (feature.kind === "equal" || feature.kind === "product") {
    return ofField(feature, "query", feature.query ?? "", query) ?? ofField(feature, "item", feature.item ?? "", item);
  }
  const on = feature.on ?? "item";
  return ofField(feature, on, feature.field || feature.name, on === "query" ? query : item);
}

/**
 * @param {Feature} feature
 * @param {string} on
 * @param {string} field
 * @param {Row} row
 * @returns {{ code: Oddity, field: string, is: string } | null}
 */
function ofField({ kind, missing, low = null, high = null, values = [], other }, on, field, row) {
  const x = /** @type {any} */ (fieldOf(row, field));
  const odd = (/** @type {Oddity} */ code, /** @type {string} */ is) => ({ code, field: `'${field}' of the ${on}`, is });
  if (x === null || x === undefined) {
    return missing ? null : odd("feature_missing", "is missing and adds nothing; provide it, or set missing = true in the study");
  }
  const type = kind === "equal" ? typeof x : (TYPES[/** @type {keyof typeof TYPES} */ (kind)] ?? "number");
  if (typeof x !== type || Number.isNaN(x) || Array.isArray(x)) {
    const not = Number.isNaN(x) ? "not a number" : Array.isArray(x) ? "a list" : `a ${typeof x}`;
    return odd("feature_type", `is ${not}, so it counts as missing; give a ${type}`);
  }
  if ((low !== null && x < low) || (high !== null && x > high)) {
    return odd("feature_bounds", `is beyond ${low ?? "…"} to ${high ?? "…"} and counts as the bound; widen 'low' or 'high' in a new study`);
  }
  const unlisted = kind === "category" && !other && !values.includes(x);
  return unlisted ? odd("category_unlisted", "is an unlisted text and adds nothing; list it, or set other = true") : null;
}
