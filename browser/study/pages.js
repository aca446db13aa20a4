// @ts-check
/**
 * The parts of a client of pages: the two models of a browser's history, all links, personal and private lines.
 *
 * @import { ModelKind, Parts } from "./parts.js"
 * @import { ModelSpec, PublicStudy } from "./study.js"
 */

import { FRECENCY_NAMES, FRECENCY_START } from "../models/frecency.js";
import { MODELS } from "../models/ranking_model.js";
import { personal } from "../personal.js";
import { privacy } from "../private.js";
import { PING_TYPE } from "./ping.js";
import { isNumber, studyOf } from "./study.js";
import { LINKS } from "./upload.js";

/**
 * The spec with which a browser ranks without a line: frecency with the weights that it shipped with.
 *
 * @type {ModelSpec}
 */
export const PRODUCT_SPEC = Object.freeze({
  model: "frecency-2018",
  weights: FRECENCY_NAMES.map((name, k) => ({ name, start: FRECENCY_START[k], integer: true })),
  margin: 10,
  epsilon: 1,
});

/** @type {Parts} */
export const PAGES = Object.freeze({
  entry: "fedping",
  pings: { types: [PING_TYPE], of: "interactions" },
  product: PRODUCT_SPEC,
  models: new Map([...MODELS].map(([name, { weightNames }]) => [name, ofSingleWeights(weightNames.length)])),
  links: LINKS,
  personal,
  privacy,
});

/**
 * Check a fetched study.
 *
 * @param {any} given The parsed JSON.
 * @param {string} name The study that was asked for.
 * @returns {PublicStudy}
 * @throws {TypeError} It is another study, or one that this module can't take part in.
 */
export function readStudy(given, name) {
  return studyOf(given, name, PAGES);
}

/**
 * @param {number} count
 * @returns {ModelKind}
 */
function ofSingleWeights(count) {
  const fits = (/** @type {any} */ weight) => typeof weight?.name === "string" && isNumber(weight.start);
  return {
    trouble: ({ model, weights }) =>
      Array.isArray(weights) && weights.length === count && weights.every(fits)
        ? null
        : `does not name the weights of '${model}' one by one`,
  };
}
