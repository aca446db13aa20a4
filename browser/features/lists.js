// @ts-check
/**
 * Ranks a list of items by their features, and learns from the choice.
 *
 * @import { Layout } from "./layout.js"
 * @import { ShownList } from "./learning.js"
 * @import { Row } from "./values.js"
 * @import { ModelKind, PersonalPart, Role } from "../study/parts.js"
 * @import { Descent, Kept } from "../study/personal/personal.js"
 * @import { ModelSpec, Version } from "../study/study.js"
 */

import { featuresTrouble, layoutOf } from "./layout.js";
import { lossOfList, updateOfList } from "./learning.js";
import { scoreOf } from "./ranking.js";
import { valuesOf } from "./values.js";
import { weightsTrouble, withAllWeights } from "./blocks.js";
import { startWeights } from "../study/study.js";

/** The model name of a spec with features. */
export const FEATURES = "features";

/** @type {ModelKind} */
export const featuresModel = Object.freeze({
  trouble: (spec) => {
    const unknown = featuresTrouble(spec);
    return unknown === null ? (weightsTrouble(spec) ?? countTrouble(spec)) : `cannot be computed here: ${unknown}`;
  },
  completed: withAllWeights,
});

/** @type {WeakMap<ModelSpec, Layout>} */
const layouts = new WeakMap();

/**
 * The layout of a spec's weights; cached, with its computed hashes.
 *
 * @param {ModelSpec} spec
 * @returns {Layout}
 */
export function layoutFor(spec) {
  let found = layouts.get(spec);
  if (found === undefined) {
    found = layoutOf(/** @type {any} */ (spec));
    layouts.set(spec, found);
  }
  return found;
}

/**
 * The scores that rank a client's items.
 *
 * @param {Role} role
 * @param {Version} held
 * @param {Row} query
 * @param {readonly Row[]} items
 * @param {{ part: PersonalPart, kept: Kept } | null} [own] The personal model.
 * @returns {number[]}
 */
export function itemScores({ arm, spec, personal }, held, query, items, own = null) {
  const layout = layoutFor(spec);
  const applied = personal && own ? own.part.weights(personal, spec, held, own.kept) : held.weights;
  const weights = arm?.applies ? applied : startWeights(spec);
  return valuesOf(layout, query, items).map((values) => scoreOf(layout, weights, values));
}

/**
 * The loss of a list by the shared weights, and the direction of descent; null if the client's arm submits none.
 *
 * @param {Role} role
 * @param {Version} held
 * @param {ShownList} list
 * @param {boolean} [sends] Whether the client sends an update this time.
 * @returns {{ loss: number, update: number[] | null }}
 */
export function learnedOfList({ arm, spec, sign }, held, list, sends = true) {
  const layout = layoutFor(spec);
  const weights = arm?.applies ? held.weights : startWeights(spec);
  const loss = lossOfList(layout, weights, list);
  if (!arm?.submits || !sends) {
    return { loss, update: null };
  }
  const update = updateOfList(layout, held.weights, list);
  return { loss, update: sign ? update.map((each) => Math.sign(each) + 0) : update };
}

/**
 * The direction of descent of a list's loss at any weights.
 *
 * @param {ModelSpec} spec
 * @param {ShownList} list
 * @returns {Descent}
 */
export function descentOfList(spec, list) {
  return (weights) => updateOfList(layoutFor(spec), weights, list);
}

/** @param {any} spec */
function countTrouble(spec) {
  const { m } = layoutOf(spec);
  const count = withAllWeights(spec).weights.length;
  return count === m ? null : `has ${count} weights, and its features have ${m}`;
}
