// @ts-check
/** Lookup of the weights that a setting names. */

/** @import { ModelSpec } from "../study.js" */

/**
 * The reason why names don't denote weights, in words that follow "its personal models"; null if they do.
 *
 * @param {string} setting
 * @param {any} names
 * @param {ModelSpec} spec
 * @returns {string | null}
 */
export function namesTrouble(setting, names, spec) {
  const unknown = (names ?? []).find((/** @type {string} */ each) => placesOfName(spec.weights, each).length === 0);
  return unknown === undefined ? null : `name '${unknown}' in '${setting}', which is not a weight of the model`;
}

/**
 * @param {readonly string[]} names
 * @param {ModelSpec} spec
 */
export function placesOf(names, spec) {
  return names.flatMap((each) => placesOfName(spec.weights, each));
}

/**
 * The positions of the weight with a name, or of all weights of a feature or block with that name.
 *
 * @param {ModelSpec["weights"]} weights
 * @param {string} name
 * @returns {number[]}
 */
export function placesOfName(weights, name) {
  const places = weights.map((_, k) => k);
  const own = places.filter((k) => weights[k].name === name);
  const isOfFeature = (/** @type {string} */ each) => each.startsWith(name) && "=<>@:[".includes(each[name.length] ?? " ");
  return own.length > 0 ? own : places.filter((k) => isOfFeature(weights[k].name));
}
