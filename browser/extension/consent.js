// @ts-check
/** Agreeing and declining, for every page that asks for consent. */

import { api, isFirefox } from "./api.js";
import { ask } from "./ask.js";
import { DATA_COLLECTION } from "./taking_part/participation.js";

/**
 * Agree. Firefox then shows its own question; refusing there, or withdrawing later, counts as declining. Call this
 * first in the listener of a click, because the browser allows the request only there.
 *
 * @returns {Promise<any>} The state from the background script.
 */
export async function agree() {
  const allowed = !isFirefox(api) || (await api.permissions.request({ data_collection: [...DATA_COLLECTION] }));
  return ask({ ask: "consent", agreed: allowed });
}

/** Decline, or withdraw an agreement. */
export async function decline() {
  const state = await ask({ ask: "consent", agreed: false });
  if (isFirefox(api)) {
    await api.permissions.remove({ data_collection: [...DATA_COLLECTION] });
  }
  return state;
}

/**
 * The result, in a sentence.
 *
 * @param {any} state
 */
export function outcome(state) {
  if (state.consent !== "given") {
    return "You do not take part. Nothing is fetched or sent. Your random number, the model and waiting messages are deleted.";
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
 * The reason why the user is in no group of a study that they agreed to.
 *
 * @param {{ trouble: string | null }} state
 */
export function notReached({ trouble }) {
  return trouble === null ? NOT_REACHED : `This browser can't take part for now: ${trouble}. Until it can, pages are ranked by the start values.`;
}

const NOT_REACHED =
  "The server has not answered, doesn't know this study, or doesn't accept this browser. The extension will ask again. Until then, pages are ranked by the start values.";

export const LACKS_PERMISSION =
  "Nothing is sent, because the browser has not let the extension reach the study's server yet. Press Save in the settings.";
