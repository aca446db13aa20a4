// @ts-check
/**
 * The ranking models by name.
 *
 * @import { PageTable } from "./pages.js"
 *
 * @typedef {object} RankingModel
 * @property {string} name Its name in a model spec.
 * @property {readonly string[]} weightNames The weights' names, in the order of the wire.
 * @property {(weights: ArrayLike<number>, pages: PageTable) => Float64Array} scores The score of every page, in points.
 */

import { frecency2018 } from "./frecency.js";
import { linear15 } from "./linear.js";

/** @type {ReadonlyMap<string, RankingModel>} */
export const MODELS = new Map([frecency2018, linear15].map((model) => [model.name, model]));
