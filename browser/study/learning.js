// @ts-check
/**
 * Ranks pages by the model of a client's arm, and learns from choices. Functions of numbers alone, without storage or
 * requests.
 *
 * @import { Page } from "../models/pages.js"
 * @import { RankingModel } from "../models/ranking_model.js"
 * @import { Arm, ModelSpec, PublicStudy, Version } from "./study.js"
 * @import { Descent, Kept } from "./personal/personal.js"
 *
 * @typedef {import("./parts.js").Role} Role
 *
 * @typedef {object} Shown A shown list.
 * @property {readonly Page[]} pages In displayed order, the top first.
 * @property {readonly number[]} scores The scores that ranked the pages, in the same order.
 * @property {number} now The time of the scores, milliseconds since 1970.
 * @property {Role} role The client's role at that time.
 * @property {Version} held The model version that the client held.
 */

import { storedScores } from "../models/decay.js";
import { NOTHING_CHOSEN, bestFirst, rankingLoss } from "../models/loss.js";
import { PageTable } from "../models/pages.js";
import { MODELS } from "../models/ranking_model.js";
import { descent } from "../models/update.js";
import { PRODUCT_SPEC } from "./pages.js";
import { personalWeights } from "./personal/personal.js";
import { roleOf, startWeights } from "./study.js";

/**
 * The role of a client in an arm of a study; without a study, the product's role.
 *
 * @param {PublicStudy | null} study
 * @param {Arm | null} arm
 * @returns {Role}
 */
export function roleIn(study, arm) {
  return roleOf(study, arm, PRODUCT_SPEC);
}

/**
 * The score of every page for this client, at this moment.
 *
 * @param {Role} role
 * @param {Version} held
 * @param {readonly Page[]} pages
 * @param {number} now
 * @param {Kept | null} [own] The personal model; without it, the scores are the shared model's.
 * @returns {Float64Array}
 */
export function scoresFor({ arm, spec, personal }, held, pages, now, own = null) {
  const table = PageTable.of(pages, now);
  const applied = personal && own ? personalWeights(personal, spec, held, own) : held.weights;
  const scores = modelOf(spec).scores(arm?.applies ? applied : startWeights(spec), table);
  return arm?.decays ? storedScores(scores, table) : scores;
}

/**
 * The pages ranked: the highest score first, equal scores in the order given.
 *
 * @param {Role} role
 * @param {Version} held
 * @param {readonly Page[]} pages
 * @param {number} now
 * @param {number} [most] The maximum number of pages shown.
 * @param {Kept | null} [own] The personal model.
 * @returns {Shown}
 */
export function ranked(role, held, pages, now, most = pages.length, own = null) {
  const scores = scoresFor(role, held, pages, now, own);
  const order = bestFirst(scores).slice(0, most);
  return { pages: order.map((row) => pages[row]), scores: order.map((row) => scores[row]), now, role, held };
}

/**
 * The data learned from a choice: the scores of the list, its loss, and the direction of descent at the weights that
 * the client held; null if its arm submits none. `sentUpdate` encodes the update for sending.
 *
 * The scores are those that ranked the list. If a personal model ranked it, scores, loss and update are the shared
 * model's, for the list {@link inSharedOrder}: private weights must not influence what is sent.
 *
 * @param {Shown} shown
 * @param {number} chosen The place of the chosen page; -1 for none.
 * @param {boolean} [sends] Whether the client sends an update this time.
 * @returns {{ scores: readonly number[], loss: number, update: number[] | null }}
 */
export function learned(shown, chosen, sends = true) {
  const { arm, spec, sign } = shown.role;
  const { scores, place } = inSharedOrder(shown, chosen);
  const loss = rankingLoss(scores, place, spec.margin);
  if (!arm?.submits || !sends) {
    return { scores, loss, update: null };
  }
  const update = descentOf(shown, chosen)(Float64Array.from(shown.held.weights));
  return { scores, loss, update: sign ? update.map(signOf) : update };
}

/**
 * The scores of a list by the shared model, in displayed order.
 *
 * @param {Shown} shown
 * @returns {readonly number[]}
 */
export function sharedScores({ pages, scores, now, role, held }) {
  return role.personal ? Array.from(scoresFor(role, held, pages, now)) : scores;
}

/**
 * A list as it is reported. A list that a personal model ranked is put in the order of the shared model, because the
 * displayed order would reveal the personal one. Other lists stay unchanged.
 *
 * @param {Shown} shown
 * @param {number} chosen The place of the chosen page in the displayed order; -1 for none.
 * @returns {{ pages: readonly Page[], scores: readonly number[], place: number }} `place` is the chosen page's place in
 *   this order.
 */
function inSharedOrder(shown, chosen) {
  const { pages, role } = shown;
  const scores = sharedScores(shown);
  if (!role.personal) {
    return { pages, scores, place: chosen };
  }
  const order = bestFirst(scores);
  return { pages: order.map((row) => pages[row]), scores: order.map((row) => scores[row]), place: order.indexOf(chosen) };
}

/**
 * The direction of descent of the loss of a list, as a function of the weights. It is summed in the order in which the list is
 * reported.
 *
 * @param {Shown} shown
 * @param {number} chosen The place of the chosen page; -1 for none, which gives all zeros.
 * @returns {Descent}
 */
export function descentOf(shown, chosen) {
  const { spec } = shown.role;
  if (chosen === NOTHING_CHOSEN) {
    return () => spec.weights.map(() => 0);
  }
  const { pages, place } = inSharedOrder(shown, chosen);
  const table = PageTable.of(pages, shown.now);
  const model = modelOf(spec);
  const lossAt = (/** @type {ArrayLike<number>} */ weights) =>
    rankingLoss(model.scores(weights, table), place, spec.margin);
  return (weights) => descent(lossAt, weights, spec.epsilon);
}

/** @param {number} number */
function signOf(number) {
  return Math.sign(number) + 0; // turns -0 into 0
}

/**
 * @param {ModelSpec} spec
 * @returns {RankingModel}
 */
function modelOf(spec) {
  return /** @type {RankingModel} */ (MODELS.get(spec.model)); // checked when the study was read
}
