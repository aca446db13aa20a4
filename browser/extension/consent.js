// @ts-check
/** Agreeing and declining, on whichever page it is done. */

import { api, isFirefox } from "./api.js";
import { ask } from "./ask.js";
import { DATA_COLLECTION } from "./taking_part/participation.js";

/**
 * Agree. Firefox then asks in its own words; its no is a no, and so is its withdrawal later. To be called at once in the
 * listener of a click: nothing else may ask.
 *
 * @returns {Promise<any>} The state, as the background script answers.
 */
export async function agree() {
  const allowed = !isFirefox(api) || (await api.permissions.request({ data_collection: [...DATA_COLLECTION] }));
  return ask({ ask: "consent", agreed: allowed });
}

/** Decline, or withdraw what was agreed to. */
export async function decline() {
  const state = await ask({ ask: "consent", agreed: false });
  if (isFirefox(api)) {
    await api.permissions.remove({ data_collection: [...DATA_COLLECTION] });
  }
  return state;
}

/**
 * What came of it, in a sentence.
 *
 * @param {any} state
 */
export function outcome(state) {
  if (state.consent !== "given") {
    return "You do not take part. Nothing is fetched or sent; your random number, the model and messages that waited are deleted.";
  }
  if (!state.on) {
    return "Thank you. The extension is switched off in the settings, so nothing is sent.";
  }
  if (state.lacksPermission) {
    return LACKS_PERMISSION;
  }
  return state.arm === null ? `Thank you. ${notReached(state)}` : `Thank you. You take part in the study “${state.study}”.`;
}

/**
 * Why the user is in no group of a study that they agreed to.
 *
 * @param {{ trouble: string | null }} state
 */
export function notReached({ trouble }) {
  return trouble === null ? NOT_REACHED : `This browser takes no part for now: ${trouble}. Until then pages are ranked by the start values.`;
}

const NOT_REACHED =
  "The server has not answered with such a study, or it does not take this browser; it will be asked again. Until then pages are ranked by the start values.";

export const LACKS_PERMISSION =
  "The browser has not been asked yet whether the extension may reach the study's server, so nothing is sent: press Save in the settings.";
