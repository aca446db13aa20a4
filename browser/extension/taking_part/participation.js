// @ts-check
/**
 * Participation in the configured study. If the user has agreed and the switch is on, there is a client; otherwise
 * pages are ranked as the product does, and nothing is fetched, stored or sent.
 *
 * The module's client is not started, because its timers would end with the background script. Alarms replace them, and
 * the time of the next fetch is stored.
 *
 * @import { Api } from "../api.js"
 * @import { Environment, Observed, Page, Shown } from "../fedping.js"
 * @import { Settings } from "./settings.js"
 *
 * @typedef {Shown & { study: string }} Listed A shown list, and the study it was ranked for; "" for none.
 */

import {
  Client,
  NO_VERSION,
  PRODUCT_SPEC,
  extensionStorage,
  ranked,
  roleIn,
  scoresFor,
  startWeights,
} from "../fedping.js";
import { originNamesInstallation } from "../api.js";
import { NewestChoice, whyNot } from "./newest_choice.js";
import { Schedule } from "./schedule.js";
import { SentLog } from "./sent.js";
import { hostPattern, keepSettings, readSettings, studyOf, takesPart, withConsent } from "./settings.js";

export const CLIENT_VERSION = "fedping-extension-1";

/**
 * The kinds of data for which Firefox also asks consent, and lets the user withdraw it in its own settings. The
 * manifest lists the same kinds.
 */
export const DATA_COLLECTION = Object.freeze(["browsingActivity", "technicalAndInteraction"]);

const DELIVER = "deliver";
const DELIVER_MINUTES = 5;
const DAY = 86_400_000;
/** Part of the storage keys of contribution counts of private lines; no other key contains it. */
const CONTRIBUTED = "/contributed/";
const NOT_COUNTED = "was not sent: this study has as many messages of this browser as it takes";
const NO_ROLE = roleIn(null, null);
const START = Object.freeze({ version: NO_VERSION, weights: startWeights(PRODUCT_SPEC) });

export class Participation {
  /** @type {Settings} */
  #settings = /** @type {any} */ (null);
  /** @type {Client | null} */
  #client = null;
  #stopping = new AbortController();
  /** @type {Schedule} */
  #schedule;

  /**
   * @param {object} settings
   * @param {Api} settings.api
   * @param {Environment} settings.environment
   */
  constructor({ api, environment }) {
    this.api = api;
    this.environment = environment;
    this.#schedule = new Schedule({ api, environment });
    /** The messages sent so far. */
    this.sent = new SentLog(api.storage.local, environment.now);
    /** The result of the newest choice. */
    this.newest = new NewestChoice(api.storage.session);
    /** Whether the extension still lacks the permission to reach the server; only a click may request it. */
    this.lacksPermission = false;
  }

  get settings() {
    return this.#settings;
  }

  /** The client; null while the user does not take part. */
  get client() {
    return this.#client;
  }

  /** The model and day of scores computed now. */
  get frame() {
    const { arm = null, version = NO_VERSION, personal = null } = this.#client ?? {};
    const day = Math.floor(this.environment.now() / DAY);
    const frame = [this.#client && studyOf(this.#settings), arm, version, day];
    return JSON.stringify(personal === null ? frame : [...frame, personal.trained]);
  }

  /** Load the user's decision, and the stored data of the study. */
  async open() {
    this.#settings = await readSettings(this.api.storage.local);
    if (this.#settings.consent === "given" && !(await this.#collectionAllowed())) {
      this.#settings = withConsent(this.#settings, false);
      await keepSettings(this.api.storage.local, this.#settings);
    }
    await this.#join();
  }

  /**
   * Apply the user's new decision. Data of a study that they no longer take part in is deleted: the id, the model, and
   * the pings that no server has accepted yet; open requests are aborted.
   *
   * @param {Settings} next
   */
  async change(next) {
    const before = this.#settings;
    await keepSettings(this.api.storage.local, next);
    this.#settings = next;
    if (!takesPart(next) || studyOf(next) !== studyOf(before)) {
      await this.#leave();
    }
    await this.#join();
  }

  /**
   * Rank pages: by the study's model, or without a client as the product does.
   *
   * @param {readonly Page[]} pages
   * @param {number} most
   * @returns {Listed}
   */
  rank(pages, most) {
    const shown = this.#client?.rank(pages, most) ?? ranked(NO_ROLE, START, pages, this.environment.now(), most);
    return { ...shown, study: this.#client ? studyOf(this.#settings) : "" };
  }

  /** @param {readonly Page[]} pages */
  scores(pages) {
    return this.#client?.scores(pages) ?? scoresFor(NO_ROLE, START, pages, this.environment.now());
  }

  /**
   * Report a choice, if the list was ranked for the study that the client takes part in.
   *
   * @param {Listed} listed
   * @param {Observed} observed
   */
  async report({ study, ...shown }, observed) {
    const [at, settings, client, lacksPermission] = [this.environment.now(), this.#settings, this.#client, this.lacksPermission];
    const reported = study === studyOf(settings) ? (client?.report(shown, observed) ?? null) : null;
    const why = reported === null ? whyNot({ settings, lacksPermission, client, study, shown }) : null;
    await this.newest.keep({ at, isSent: why === null, words: why === null ? "is being sent" : `was not sent: ${why}` });
    await this.deliver();
    if (reported !== null && (await this.newest.read())?.at === at) {
      const words = await this.#became(reported.documentId);
      await this.newest.keep({ at, isSent: words !== NOT_COUNTED, words });
    }
    return reported;
  }

  /**
   * The result of a message, in words that follow "it".
   *
   * @param {string} documentId
   */
  async #became(documentId) {
    const letter = (await this.#letters()).find(({ id }) => id === documentId);
    if (letter === undefined) {
      const isLogged = (await this.sent.all()).some(({ address }) => address.endsWith(`/${documentId}`));
      return isLogged ? "was sent" : NOT_COUNTED;
    }
    return letter.attempts === 0 && letter.notBefore > this.environment.now()
      ? "waits for a random time before it is sent, as the study promises"
      : "has not arrived yet, and is sent again";
  }

  /** Forget the personal model of this browser, and continue to take part. */
  async forgetPersonal() {
    await this.#client?.forgetPersonal();
  }

  /** Send the waiting pings; an alarm tries the unaccepted ones again. */
  async deliver() {
    await this.#client?.deliver();
    if (this.#client !== null && this.#client.counts.waiting > 0) {
      this.api.alarms.create(DELIVER, { delayInMinutes: DELIVER_MINUTES });
    }
  }

  /** The stored messages that no server has accepted yet. */
  async waiting() {
    return (await this.#letters()).map(({ id, body }) => ({ documentId: id, ping: JSON.parse(body) }));
  }

  async #letters() {
    const storage = extensionStorage(this.api.storage.local);
    const letters = await Promise.all((await storage.keys(`fedping/${this.#settings.study}/queue/`)).map(storage.get));
    return letters.filter((letter) => letter !== undefined);
  }

  /** Ask for the newest model now. Return whether the server had one. */
  async fetchModel() {
    const client = this.#client;
    if (client === null) {
      return false;
    }
    const outcome = await client.refresh();
    if (client === this.#client) {
      await this.#schedule.after(outcome);
    }
    return outcome.ok;
  }

  /** Make sure that the next model will be asked for; now, if none ever was. */
  async keepUp() {
    if (this.#client !== null && !(await this.#schedule.isSet())) {
      await this.fetchModel();
    }
  }

  async #join() {
    const { ingest, study } = this.#settings;
    this.lacksPermission = takesPart(this.#settings) && !(await this.#mayReach(ingest));
    if (!takesPart(this.#settings) || this.lacksPermission) {
      await this.#forgetAll();
    } else if (this.#client === null) {
      const client = this.#clientOf(ingest, study);
      await client.recall();
      this.#client = client;
    }
  }

  async #leave() {
    const client = this.#client;
    this.#client = null;
    this.#stopping.abort();
    this.#stopping = new AbortController();
    await client?.forget();
    await this.#forgetAll();
  }

  /** Delete all data of studies, also what a background script left that was ended while deleting. */
  async #forgetAll() {
    this.#client?.stop();
    this.#client = null;
    const storage = extensionStorage(this.api.storage.local);
    const keys = (await storage.keys("fedping/")).filter((key) => !key.includes(CONTRIBUTED)); // counts stay
    await Promise.all(keys.map((key) => storage.remove(key)));
    await Promise.all([this.#schedule.clear(), this.api.alarms.clear(DELIVER)]);
  }

  /** @param {string} ingest @param {string} study */
  #clientOf(ingest, study) {
    const { signal } = this.#stopping;
    const fetch = this.sent.noting((/** @type {any} */ url, /** @type {any} */ init) =>
      this.environment.fetch(url, { ...init, signal: AbortSignal.any([init.signal, signal]) }),
    );
    return new Client({
      ingest,
      study,
      storage: extensionStorage(this.api.storage.local),
      mode: originNamesInstallation(this.api) ? "no-cors" : "cors",
      isPrivate: () => this.api.extension?.inIncognitoContext === true,
      hasConsent: () => takesPart(this.#settings),
      clientVersion: CLIENT_VERSION,
      notice: (what) => console.info(`fedping: ${what}`),
      environment: { ...this.environment, fetch },
    });
  }

  /**
   * Whether the extension may reach the server. In Firefox, a request without this permission would send the
   * extension's origin, which identifies the installation.
   *
   * @param {string} ingest
   */
  async #mayReach(ingest) {
    return !originNamesInstallation(this.api) || this.api.permissions.contains({ origins: [hostPattern(ingest)] });
  }

  async #collectionAllowed() {
    const { data_collection: allowed } = await this.api.permissions.getAll();
    return allowed === undefined || DATA_COLLECTION.every((kind) => allowed.includes(kind));
  }
}
