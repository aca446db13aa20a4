// @ts-check
/** Functions with which the extension's pages ask the background script and draw its answers. */

import { api } from "./api.js";

/**
 * @param {import("./worker.js").Message} message
 * @returns {Promise<any>}
 * @throws {Error} A problem that the user can solve, in a sentence.
 */
export async function ask(message) {
  const answer = await api.runtime.sendMessage(message);
  if (answer?.problem !== undefined) {
    throw new Error(answer.problem);
  }
  return answer?.value;
}

/**
 * The page's element with an id.
 *
 * @param {string} id
 * @returns {any}
 */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * A new element.
 *
 * @param {string} name
 * @param {Record<string, any>} [properties]
 * @param {...(Node | string)} children
 */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** Keys of the data that pages show: decisions, the study and its model, messages, and the newest choice. */
const SHOWN = /^(settings|sent|newest choice|fedping\/.*)$/;
const SOON = 50;

/**
 * Draw a page again whenever its data has changed, by this or another page. Drawings run one at a time.
 *
 * @param {() => Promise<void>} redraw
 */
export function whenChanged(redraw) {
  let drawing = Promise.resolve();
  let isPlanned = false;
  api.storage.onChanged.addListener((/** @type {Record<string, unknown>} */ changes) => {
    if (isPlanned || !Object.keys(changes).some((key) => SHOWN.test(key))) {
      return;
    }
    isPlanned = true;
    setTimeout(() => {
      isPlanned = false;
      drawing = drawing.then(redraw).catch((error) => console.error("fedping:", error?.message ?? error));
    }, SOON);
  });
}

/**
 * Run the user's action, and show the result.
 *
 * @param {HTMLElement} where
 * @param {() => Promise<string>} action Returns the sentence to show.
 */
export async function told(where, action) {
  try {
    where.textContent = await action();
    where.classList.remove("problem");
  } catch (error) {
    where.textContent = /** @type {Error} */ (error).message;
    where.classList.add("problem");
  }
  where.scrollIntoView({ block: "nearest" });
}
