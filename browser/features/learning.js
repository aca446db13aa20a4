// @ts-check
/**
 * The loss and the update of a list. The update is a direction of descent.
 *
 * @import { Layout } from "./layout.js"
 * @import { Row, Values } from "./values.js"
 *
 * @typedef {object} ShownList
 * @property {readonly Row[]} items In displayed order, the top first.
 * @property {Row} query
 * @property {number} chosen The place of the chosen item, from 0; -1 for none.
 * @property {number | null} [seen] The number of items, from the top, that the user has seen; all if it is not given.
 * @property {ReadonlySet<number>} [pinned] The places of items that the product has pinned.
 *
 * @typedef {{ values: Values[], places: number[], chosen: number }} Teaching The items that enter the loss.
 */

import { NOTHING_CHOSEN } from "../models/loss.js";
import { descent } from "../models/update.js";
import { pulled } from "./losses.js";
import { hiddenRow, scoreOf, unitsOf } from "./ranking.js";
import { valuesOf } from "./values.js";

/**
 * The loss of a list at some weights; 0 if nothing was chosen.
 *
 * @param {Layout} layout
 * @param {ArrayLike<number>} weights
 * @param {ShownList} list
 */
export function lossOfList(layout, weights, list) {
  return lossAt(layout, teachingOf(layout, list))(weights);
}

/**
 * The update of a list, one number for each weight.
 *
 * @param {Layout} layout
 * @param {ArrayLike<number>} weights
 * @param {ShownList} list
 * @returns {number[]}
 */
export function updateOfList(layout, weights, list) {
  const teaching = teachingOf(layout, list);
  const { values, places, chosen } = teaching;
  if (chosen !== NOTHING_CHOSEN && layout.spec.gradient === "finite_differences") {
    return descent(lossAt(layout, teaching), weights, layout.spec.epsilon);
  }
  const update = new Array(layout.m).fill(0);
  if (chosen === NOTHING_CHOSEN) {
    return update;
  }
  const { pulls } = pulled(layout.spec, placedScores(layout, weights, teaching), chosen);
  pulls.forEach((pull, j) => {
    const { at, value } = values[j];
    for (let k = 0; k < at.length; k += 1) {
      update[at[k]] += pull * value[k];
    }
    const place = placeWeight(layout, places[j]);
    if (place !== null) {
      update[place] += pull;
    }
    if (layout.hidden > 0) {
      addHidden(layout, weights, values[j], pull, update);
    }
  });
  return update;
}

/**
 * The part of a list that enters the loss: up to the last item seen or the chosen one, whichever is lower in the list.
 * Without offsets of places, pinned items are left out, because the product chose their places.
 *
 * @param {Layout} layout
 * @param {ShownList} list
 * @returns {Teaching}
 */
function teachingOf(layout, { items, query, chosen, seen = null, pinned = new Set() }) {
  const count = seen === null ? items.length : Math.min(Math.max(seen, chosen + 1), items.length);
  const places = [];
  for (let place = 0; place < count; place += 1) {
    if (layout.offsets > 0 || !pinned.has(place)) {
      places.push(place);
    }
  }
  const values = valuesOf(layout, query, places.map((place) => items[place]));
  return { values, places, chosen: places.indexOf(chosen) };
}

/**
 * @param {Layout} layout
 * @param {Teaching} teaching
 * @returns {(weights: ArrayLike<number>) => number}
 */
function lossAt(layout, teaching) {
  const { chosen } = teaching;
  if (chosen === NOTHING_CHOSEN) {
    return () => 0;
  }
  return (weights) => pulled(layout.spec, placedScores(layout, weights, teaching), chosen).loss;
}

/**
 * @param {Layout} layout
 * @param {ArrayLike<number>} weights
 * @param {Teaching} teaching
 */
function placedScores(layout, weights, { values, places }) {
  return values.map((each, j) => {
    const place = placeWeight(layout, places[j]);
    return scoreOf(layout, weights, each) + (place === null ? 0 : weights[place]);
  });
}

/**
 * The position of the weight of a place, counted from 0; null for the first place, and without offsets.
 *
 * @param {Layout} layout
 * @param {number} place
 */
function placeWeight({ places, offsets }, place) {
  return place === 0 || offsets === 0 ? null : places + Math.min(place, offsets) - 1;
}

/**
 * @param {Layout} layout
 * @param {ArrayLike<number>} weights
 * @param {Values} values
 * @param {number} pull
 * @param {number[]} update
 */
function addHidden(layout, weights, values, pull, update) {
  unitsOf(layout, weights, values).forEach((z, unit) => {
    if (z > 0) {
      update[layout.hiddenOut + unit] += pull * z;
      const passed = pull * weights[layout.hiddenOut + unit];
      update[layout.hiddenBias + unit] += passed;
      values.at.forEach((at, k) => {
        update[hiddenRow(layout, at) + unit] += passed * values.value[k];
      });
    }
  });
}
