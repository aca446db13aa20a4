// @ts-check
/**
 * The part for personal arms: a model that stays on the device, or a vector that is added to the shared model and stays
 * on the device.
 *
 *     import { personal } from "fedping/personal";
 *
 * @import { PersonalPart } from "./study/parts.js"
 */

import { OwnModel } from "./delivery/own_model.js";
import { personalTrouble, personalWeights } from "./study/personal/personal.js";

/** @type {PersonalPart} */
export const personal = Object.freeze({
  trouble: personalTrouble,
  weights: personalWeights,
  open: (settings) => new OwnModel(settings),
});
