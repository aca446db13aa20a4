// @ts-check
/**
 * The background script's work: it answers the address bar and the extension's pages, follows the history, and keeps
 * the study up to date. The browser may end it at any moment and restart it with the next event, so all lasting state
 * is in storage.
 *
 * @import { Api } from "./api.js"
 * @import { Environment, Observed } from "./fedping.js"
 * @import { Listed } from "./taking_part/participation.js"
 * @import { Settings } from "./taking_part/settings.js"
 *
 * @typedef {{ ask: string, [more: string]: any }} Message
 */

import { DISCLOSURES, disclosureOf, lists } from "./disclosure/groups.js";
import { uuid } from "./fedping.js";
import { Library } from "./history/library.js";
import { Omnibox, firstLine } from "./omnibox.js";
import { Participation } from "./taking_part/participation.js";
import { preview } from "./taking_part/preview.js";
import { MODEL } from "./taking_part/schedule.js";
import { serverAddress, studyName, withConsent, withStudy } from "./taking_part/settings.js";

/** The number of matching pages that are scored for the list: the first by their stored scores. */
const CANDIDATES = 50;
const SHOWN_ON_PAGE = 10;

const HISTORY = "history";
const HISTORY_MINUTES = 30;
/**
 * The alarm that reads titles after visits: a page's title is often not known yet at its visit, and Chromium has no
 * event for it.
 */
const TITLE = "title";
const TITLE_MINUTES = 1;
const LOOK_BACK = 600_000;

export const SEARCH_PAGE = "search/search.html";
export const WELCOME_PAGE = "welcome/welcome.html";
export const HANDED_OVER = "search/typed";

export class Worker {
  /** @type {Promise<void> | null} */
  #opened = null;
  /** @type {Promise<unknown>} Decisions are applied one at a time. */
  #deciding = Promise.resolve();

  /** @param {{ api: Api, environment: Environment }} settings */
  constructor({ api, environment }) {
    this.api = api;
    this.environment = environment;
    this.participation = new Participation({ api, environment });
    this.library = new Library({ api, score: (pages) => this.participation.scores(pages) });
    this.omnibox = new Omnibox({ api, now: environment.now, search: (typed, most) => this.list(typed, most) });
  }

  /** Resolves when all stored data has been loaded. */
  ready() {
    this.#opened ??= this.#open().catch((error) => {
      this.#opened = null; // so that the next event tries again
      throw error;
    });
    return this.#opened;
  }

  /** Find missed changes after an installation or a start of the browser. */
  async started() {
    await this.ready();
    this.api.omnibox.setDefaultSuggestion(firstLine(this.api));
    this.api.alarms.create(HISTORY, { periodInMinutes: HISTORY_MINUTES, delayInMinutes: 1 });
    await Promise.all([this.library.catchUp(), this.participation.keepUp(), this.participation.deliver()]);
    await this.rescore();
  }

  /**
   * The pages that match the typed text, ranked: stored scores select the candidates, and the arm's current model
   * scores these. The list is in the order of these scores, because the report is about them.
   *
   * @param {string} typed
   * @param {number} most
   * @returns {Listed}
   */
  list(typed, most) {
    return this.participation.rank(this.library.matching(typed, CANDIDATES), most);
  }

  /** Score all pages again if the stored scores are of another model or day. */
  async rescore() {
    const { frame } = this.participation;
    if (frame !== this.library.frame) {
      await this.library.rescore(frame);
    }
  }

  /**
   * Report and open a chosen page.
   *
   * @param {{ listed: Listed, observed: Observed, url: string }} choice
   * @param {string} disposition The tab to open it in, in the address bar's terms.
   * @param {number} [tab]
   */
  async chose({ listed, observed, url }, disposition, tab) {
    const reporting = this.participation.report(listed, observed);
    await this.show(url, disposition, tab);
    await reporting;
  }

  /**
   * @param {string} url
   * @param {string} disposition
   * @param {number} [tab] The tab; the active one by default.
   */
  async show(url, disposition, tab) {
    if (disposition === "currentTab") {
      await (tab === undefined ? this.api.tabs.update({ url }) : this.api.tabs.update(tab, { url }));
    } else {
      await this.api.tabs.create({ url, active: disposition === "newForegroundTab" });
    }
  }

  /**
   * Handle a chosen line of the address bar.
   *
   * @param {string} text
   * @param {string} disposition
   */
  async entered(text, disposition) {
    await this.ready();
    const choice = await this.omnibox.entered(text);
    if (choice !== null) {
      await this.chose(choice, disposition);
    } else {
      // Passed by storage, not in the address, so that the browser's history doesn't contain the typed text.
      await this.api.storage.session.set({ [HANDED_OVER]: text });
      await this.show(this.api.runtime.getURL(SEARCH_PAGE), disposition);
    }
  }

  /** @param {{ url: string, title?: string, lastVisitTime: number }} item */
  async visited(item) {
    await this.ready();
    await this.library.visited(item);
    if (!item.title && !(await this.api.alarms.get(TITLE))) {
      this.api.alarms.create(TITLE, { delayInMinutes: TITLE_MINUTES });
    }
  }

  /** @param {{ name: string }} alarm */
  async alarm({ name }) {
    await this.ready();
    if (name === HISTORY) {
      await this.library.catchUp();
    } else if (name === TITLE) {
      await this.library.lookAgain(this.environment.now() - LOOK_BACK);
    } else if (name === MODEL) {
      await this.participation.fetchModel();
    }
    await Promise.all([this.rescore(), this.participation.deliver()]);
  }

  /**
   * Answer a page of the extension.
   *
   * @param {Message} message
   * @param {{ tab?: { id?: number } }} sender
   * @returns {Promise<any>}
   */
  async answer(message, sender) {
    await this.ready();
    switch (message.ask) {
      case "search":
        return {
          listed: this.list(message.typed, SHOWN_ON_PAGE),
          reading: this.library.reading,
          size: this.library.size,
        };
      case "chose":
        return this.chose(message.choice, message.disposition, sender.tab?.id);
      case "state":
        return this.state();
      case "preview":
        return this.#preview();
      case "waiting":
        return this.participation.waiting();
      case "sent":
        return this.participation.sent.all();
      case "forget sent":
        await this.participation.newest.clear();
        return this.participation.sent.clear();
      case "forget personal":
        await this.participation.forgetPersonal();
        await this.rescore();
        return this.state();
      case "study":
        return this.#decide((now) => withStudy(now, serverAddress(message.ingest), studyName(message.study)));
      case "consent":
        return this.#decide((now) => withConsent(now, message.agreed));
      case "on":
        return this.#decide((now) => ({ ...now, on: message.on }));
      case "fetch":
        await this.participation.fetchModel();
        await this.rescore();
        return this.state();
      default:
        throw new RangeError(`nobody knows the question '${message.ask}'`);
    }
  }

  /** The next message, and the last one of the same kind if its fields are still the same. */
  async #preview() {
    const next = preview(this.participation, this.library.matching("", CANDIDATES), () => uuid(this.environment));
    const last = await this.participation.sent.newest(next.address.slice(0, next.address.lastIndexOf("/") + 1));
    return { ...next, last: last !== null && disclosureOf(last.ping) === DISCLOSURES[next.kind] && lists(DISCLOSURES[next.kind], last.ping) ? last : null };
  }

  /** The state that the settings page shows. */
  async state() {
    const { settings, client, lacksPermission } = this.participation;
    return {
      ...settings,
      takesPart: client !== null,
      lacksPermission,
      arm: client?.arm ?? null,
      version: client?.version ?? -1,
      trouble: client?.trouble ?? null,
      newest: await this.participation.newest.read(),
      personal: client?.personal ?? null,
      waiting: (await this.participation.waiting()).length,
      pages: this.library.size,
      reading: this.library.reading,
    };
  }

  /** Handle changed browser permissions: the hosts that the extension may reach, or the data it may collect. */
  permissionsChanged() {
    return this.#inTurn(() => this.participation.open());
  }

  /** @param {(now: Settings) => Settings} next */
  async #decide(next) {
    await this.#inTurn(() => this.participation.change(next(this.participation.settings)));
    return this.state();
  }

  /**
   * Carry out a decision after the earlier ones, and apply its consequences.
   *
   * @param {() => Promise<void>} action
   */
  async #inTurn(action) {
    await this.ready();
    const carriedOut = this.#deciding.then(async () => {
      await action();
      await this.participation.keepUp();
      await this.rescore();
    });
    this.#deciding = carriedOut.catch(() => {}); // the caller gets the error
    await carriedOut;
  }

  async #open() {
    await this.participation.open();
    await this.library.open();
    // Typing never waits for the network; an alarm retries failed requests.
    void this.participation
      .keepUp()
      .then(() => this.rescore())
      .catch(() => {});
    void this.participation.deliver().catch(() => {});
  }
}
