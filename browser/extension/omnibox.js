// @ts-check
/**
 * The address bar, after the keyword: pages in the order of their scores below a first line that opens the search page.
 *
 * The shown list is kept while the browser runs, so that a restarted background script can interpret a choice.
 *
 * @import { Api } from "./api.js"
 * @import { Listed } from "./taking_part/participation.js"
 *
 * @typedef {{ interaction: import("./interaction.js").State, typed: string, listed: Listed | null }} Session
 */

import { isFirefox } from "./api.js";
import { Interaction } from "./interaction.js";
import { readable } from "./history/words.js";

/** The number of listed pages, as many as both browsers show. */
export const MOST = 5;

/** The line for the typed text, above the pages. */
const OTHER_LINES = 1;

const KEY = "omnibox";

export class Omnibox {
  /** @type {Session | null} */
  #session = null;

  /**
   * @param {object} settings
   * @param {Api} settings.api
   * @param {() => number} settings.now
   * @param {(typed: string, most: number) => Listed} settings.search
   */
  constructor({ api, now, search }) {
    this.api = api;
    this.now = now;
    this.search = search;
  }

  begin() {
    this.#session = { interaction: Interaction.begin(this.now(), false).state, typed: "", listed: null };
    return this.#keep();
  }

  /**
   * The lines to suggest for the changed text.
   *
   * @param {string} typed
   */
  async changed(typed) {
    const listed = this.search(typed, MOST);
    const { interaction } = (await this.#current()) ?? { interaction: Interaction.begin(this.now(), false).state };
    new Interaction(interaction).saw(/** @type {any} */ (listed.pages), this.now());
    this.#session = { interaction, typed, listed };
    void this.#keep();
    return /** @type {any[]} */ (listed.pages).map((page) => this.#line(page));
  }

  /**
   * The page and the report of a chosen line; null if the line was not a page.
   *
   * @param {string} text
   */
  async entered(text) {
    const session = await this.#current();
    this.#session = null;
    await this.api.storage.session.remove(KEY); // one report for each choice
    const pages = /** @type {any[]} */ (session?.listed?.pages ?? []);
    const chosen = pages.findIndex(({ url }) => url === text);
    if (session === null || session.listed === null || chosen < 0) {
      return null;
    }
    const choice = { pages, chosen, typed: session.typed, enter: true, otherLines: OTHER_LINES };
    return {
      listed: session.listed,
      observed: new Interaction(session.interaction).chose(choice, this.now()),
      url: text,
    };
  }

  /** @returns {Promise<Session | null>} */
  async #current() {
    return this.#session ?? (await this.api.storage.session.get(KEY))[KEY] ?? null;
  }

  #keep() {
    return this.api.storage.session.set({ [KEY]: this.#session });
  }

  /** @param {{ url: string, title: string }} page */
  #line({ url, title }) {
    const address = readable(url);
    const name = title || address;
    // Chromium accepts markup and needs special characters escaped; Firefox shows plain text.
    const description = isFirefox(this.api)
      ? `${name} — ${address}`
      : `${escaped(name)} <url>${escaped(address)}</url>`;
    return { content: url, description };
  }
}

/**
 * The line above the pages.
 *
 * @param {Api} api
 */
export function firstLine(api) {
  const keys = isFirefox(api) ? "what you type" : "<match>%s</match>";
  return { description: `Search your history and bookmarks for ${keys}` };
}

/** @param {string} text */
function escaped(text) {
  const legal = text.replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "").toWellFormed();
  return legal.replace(/[<>&"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}
