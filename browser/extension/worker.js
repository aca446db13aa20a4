// @ts-check
/**
 * The background script's work: it answers the address bar and the extension's pages, follows the history, and keeps
 * up with the study. The browser may end it at any moment, and starts it with the next event; all that matters is in storage.
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
/** After a visit: a page's title is often not known yet at its visit, and Chromium has no event for it. */
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

  /** Everything that is kept has been taken up. */
  ready() {
    this.#opened ??= this.#open().catch((error) => {
      this.#opened = null; // for the next event to try again
      throw error;
    });
    return this.#opened;
  }

  /** Installed, or the browser was started: find what has changed meanwhile. */
  async started() {
    await this.ready();
    this.api.omnibox.setDefaultSuggestion(firstLine(this.api));
    this.api.alarms.create(HISTORY, { periodInMinutes: HISTORY_MINUTES, delayInMinutes: 1 });
    await Promise.all([this.library.catchUp(), this.participation.keepUp(), this.participation.deliver()]);
    await this.rescore();
  }

  /**
   * The pages that match the typed text, ranked: the stored scores select candidates, and the arm's present model scores these.
   * The report is about these scores, so the list shows them.
   *
   * @param {string} typed
   * @param {number} most
   * @returns {Listed}
   */
  list(typed, most) {
    return this.participation.rank(this.library.matching(typed, CANDIDATES), most);
  }

  /** Score all pages again if the stored scores are of another model, or another day. */
  async rescore() {
    const { frame } = this.participation;
    if (frame !== this.library.frame) {
      await this.library.rescore(frame);
    }
  }

  /**
   * A page was chosen: report it, and open it.
   *
   * @param {{ listed: Listed, observed: Observed, url: string }} choice
   * @param {string} disposition Where, as the address bar says.
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
   * @param {number} [tab] The active one, if not given.
   */
  async show(url, disposition, tab) {
    if (disposition === "currentTab") {
      await (tab === undefined ? this.api.tabs.update({ url }) : this.api.tabs.update(tab, { url }));
    } else {
      await this.api.tabs.create({ url, active: disposition === "newForegroundTab" });
    }
  }

  /**
   * A line of the address bar was chosen.
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
      // By storage and not in the address, so that what was typed is not in the browser's history.
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
   * A page of the extension asks.
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

  /** What the settings page shows. */
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

  /** The browser's own settings have changed: what the extension may reach, or what it may collect. */
  permissionsChanged() {
    return this.#inTurn(() => this.participation.open());
  }

  /** @param {(now: Settings) => Settings} next */
  async #decide(next) {
    await this.#inTurn(() => this.participation.change(next(this.participation.settings)));
    return this.state();
  }

  /**
   * Carry out a decision after those before it, and do what follows from it.
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
    // Typing never waits for the network; an alarm tries again what fails here.
    void this.participation
      .keepUp()
      .then(() => this.rescore())
      .catch(() => {});
    void this.participation.deliver().catch(() => {});
  }
}
