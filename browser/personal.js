// @ts-check
/**
 * The part for personal arms: a model, or a vector added to the shared one, that stays on the device.
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
