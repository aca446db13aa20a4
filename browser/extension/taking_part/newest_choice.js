// @ts-check
/**
 * The result of the newest choice, or the reason why it is not sent: stored until the browser closes, without the
 * chosen page.
 *
 * @import { Client, Shown } from "../fedping.js"
 * @import { Settings } from "./settings.js"
 *
 * @typedef {object} Newest
 * @property {number} at Milliseconds since 1970.
 * @property {boolean} isSent Whether a message was sent for it; the list of sent messages has the answer.
 * @property {string} words The result, in words that follow "it".
 */

import { studyOf } from "./settings.js";

const KEY = "newest choice";

export class NewestChoice {
  /** @param {any} area The browser's `storage.session`. */
  constructor(area) {
    this.area = area;
  }

  /** @returns {Promise<Newest | null>} */
  async read() {
    return (await this.area.get(KEY))[KEY] ?? null;
  }

  /** @param {Newest} newest */
  keep(newest) {
    return this.area.set({ [KEY]: newest });
  }

  clear() {
    return this.area.remove(KEY);
  }
}

/**
 * The reason why a choice is not sent, in words that follow "it was not sent: ".
 *
 * @param {object} situation
 * @param {Settings} situation.settings
 * @param {boolean} situation.lacksPermission
 * @param {Client | null} situation.client
 * @param {string} situation.study The study that the list was ranked for; "" for none.
 * @param {Shown} situation.shown
 */
export function whyNot({ settings, lacksPermission, client, study, shown }) {
  if (studyOf(settings) === "") {
    return "no study is set";
  }
  if (settings.consent !== "given") {
    return "you have not agreed to the study";
  }
  if (!settings.on) {
    return "the extension is switched off";
  }
  if (client === null) {
    return lacksPermission ? "the browser has not let the extension reach the study's server yet" : "you do not take part yet";
  }
  if (client.trouble !== null) {
    return client.trouble;
  }
  if (client.arm === null) {
    return "the study's server has not answered yet";
  }
  if (study !== studyOf(settings) || shown.role.arm === null) {
    return "its list was shown before you took part in this study; the next list counts";
  }
  if (shown.role.privacy !== null) {
    return "this study gets one message for each version of the ranking, and has this one's";
  }
  return "a number in its message would be too large to send";
}
