// @ts-check
/**
 * The parts of a client of lists: models of features, without the parts that a page adds.
 *
 * @import { Parts } from "../study/parts.js"
 */

import { FEATURES, featuresModel } from "../features/lists.js";
import { areOutcomes } from "../study/outcomes.js";

export const LIST_TYPE = "list-update";
const MODEL_TYPE = "model-update";

/** @type {Parts} */
export const LISTS = Object.freeze({
  entry: "ranker",
  pings: { types: [LIST_TYPE, MODEL_TYPE], of: "lists, 'list-update' or 'model-update'" },
  product: { model: FEATURES, weights: [], margin: 0, epsilon: 1 },
  models: new Map([[FEATURES, featuresModel]]),
  links: new Map([["dense", {}]]),
  outcomes: areOutcomes,
  personal: null,
  privacy: null,
});
