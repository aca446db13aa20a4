// @ts-check
/**
 * The common part of `Ranker` and `Predictor`: they take part automatically, report each trouble with its code, and forget in
 * all tabs.
 *
 * @import { Composed, Ping } from "../delivery/participant.js"
 * @import { ClientStorage } from "../delivery/storage.js"
 * @import { Environment } from "../delivery/environment.js"
 * @import { ClientEnd } from "../study/links.js"
 * @import { Parts, PersonalPart, PrivatePart } from "../study/parts.js"
 *
 * @typedef {"unreachable" | "study_unfit" | "study_ended" | "model_unfit" | "nothing_sent" | "storage" | "forgotten" |
 *   "ping_refused" | "ping_dropped" | "feature_missing" | "feature_type" | "feature_bounds" | "category_unlisted" |
 *   "not_in_list" | "chosen_already" | "not_chosen" | "list_unfit" | "list_long" | "outcome_undeclared" |
 *   "outcome_type" | "outcome_unlisted" | "outcome_late" | "example_unfit" | "not_finite"} TroubleCode
 *
 * @typedef {object} Trouble A problem, for the product's developers. It contains nothing about the user.
 * @property {TroubleCode} code
 * @property {string} sentence A sentence that says what is wrong, where, and what to do.
 *
 * @typedef {object} MoreParts Parts that the entry point omits, to keep pages small: `fedping/links`, `fedping/personal`, `fedping/private`.
 * @property {ReadonlyMap<string, ClientEnd>} [links]
 * @property {PersonalPart} [personal]
 * @property {PrivatePart} [privacy]
 *
 * @typedef {object} ProductSettings
 * @property {string} ingest The address of ingest, such as `https://telemetry.example.org`.
 * @property {string} study The study's name.
 * @property {() => boolean} [consent] Whether the user agrees to take part; called before each action. Until it
 *   returns true, nothing is fetched, stored or sent. Default: always true.
 * @property {(trouble: Trouble) => void} [onTrouble] Called with each trouble.
 * @property {MoreParts} [parts]
 * @property {ClientStorage} [storage] Default: `localStorage`; in a service worker, IndexedDB.
 * @property {() => boolean} [isPrivate] Whether this is a private window. Then nothing is fetched, kept or sent.
 * @property {() => string | null} [ticket] The product's ticket for the client's id, in studies that ask for it.
 * @property {boolean} [patient] Send only when the page is idle and the connection is unmetered, as far as the browser
 *   says.
 * @property {number} [everyMinutes] The average minutes between requests for a new model.
 * @property {number} [longestDays] The age in days at which a ping that no server has accepted is deleted.
 * @property {number} [mostContributions] The maximum number of versions of a private line that this client contributes to.
 * @property {Environment} [environment] The browser's functions; tests pass their own.
 */

import { browserEnvironment } from "../delivery/environment.js";
import { Participant } from "../delivery/participant.js";
import { indexedStorage, memoryStorage, webStorage } from "../delivery/storage.js";

const SETTINGS = "ingest study consent onTrouble parts storage isPrivate ticket patient everyMinutes longestDays mostContributions environment";

/**
 * Throw for a setting that is unknown or of the wrong type: with a misspelt `consent`, all users would take part.
 *
 * @param {any} settings
 * @param {string} own The names of the entry point's additional settings.
 */
function checkSettings(settings, own) {
  const known = `${SETTINGS} ${own}`.split(" ");
  const wrong = Object.keys({ ingest: 0, study: 0, ...settings }).find(
    (name, at) => !known.includes(name) || (at < 2 && typeof settings[name] !== "string") || (name === "consent" && !settings[name]?.call),
  );
  if (wrong) {
    throw new TypeError(`the setting '${wrong}' is missing, unknown or of another type`);
  }
}

export class Product {
  /** @type {Promise<void> | null} */
  #starting = null;
  /** @type {(trouble: Trouble) => void} */
  #onTrouble;
  /** @type {() => boolean} */
  #consent;
  /** @type {Set<string>} Troubles that are reported once. */
  #told = new Set();
  /** @type {{ name: string, channel: BroadcastChannel | null }} */
  #tabs;
  /** @type {(() => void)[]} Calls that wait until the study is known. */
  #pending = [];

  /**
   * @param {ProductSettings} settings
   * @param {Parts} parts
   * @param {string} own The names of the entry point's additional settings.
   */
  constructor(settings, parts, own) {
    checkSettings(settings, own);
    const { study, consent = () => true, onTrouble = () => {}, ticket = () => null, environment = browserEnvironment() } = settings;
    /** @type {Trouble | null} The newest unresolved trouble; null without one. */
    this.trouble = null;
    this.#onTrouble = onTrouble;
    this.#consent = consent;
    this.ticket = ticket;
    this.study = study;
    this.environment = environment;
    const { storage, failed } = kept(settings.storage);
    this.participant = new Participant(
      {
        ...settings,
        storage,
        environment,
        hasConsent: consent,
        marksForgetting: true,
        notice: () => {},
        lost: (what, id) => this.#lost(what, id),
        refreshed: () => this.#look(),
      },
      { ...parts, ...settings.parts, links: new Map([...parts.links, ...(settings.parts?.links ?? [])]) },
    );
    this.#tabs = { name: `fedping/${study}`, channel: null };
    if (failed !== null) {
      this.tell("storage", failed);
    }
    this.takePart();
  }

  /** Resolves when the newest model has loaded, or the reason for its absence is known; never rejects. */
  get ready() {
    return (this.#starting ?? Promise.resolve()).then(() => this);
  }

  /** The name of the client's arm; null if it is not enrolled, or not yet. */
  get arm() {
    return this.participant.membership.role.arm?.name ?? null;
  }

  /** The number of the model version that the client holds; -1 before any was fetched. */
  get version() {
    return this.participant.membership.held.version;
  }

  /** The results of this page's pings, and the number that no server has accepted yet. */
  get counts() {
    return this.participant.counts;
  }

  /** The pings that no server has accepted yet: all that this client would still send. */
  get waiting() {
    return this.participant.waiting;
  }

  /**
   * A private study's guarantee to its clients, a sentence each; empty for a study that is not private, or not known
   * yet.
   */
  get guarantee() {
    const { privacy } = this.participant.membership.role;
    return (privacy && this.participant.parts.privacy?.inWords(privacy)) ?? [];
  }

  /** Join again, after {@link forget}. */
  start() {
    this.#starting = null;
    this.takePart();
    return this.ready;
  }

  /** Stop taking part in this page; waiting pings stay for the next one. */
  stop() {
    this.participant.stop();
    this.#tabs.channel?.close();
    this.#tabs.channel = null;
  }

  /** Delete everything, in all tabs: the id, the model, the client's own model, and unsent pings. */
  async forget() {
    const { name } = this.#tabs;
    this.#pending = [];
    this.#starting ??= Promise.resolve();
    await this.participant.forget();
    if (globalThis.BroadcastChannel !== undefined) {
      const channel = this.#tabs.channel ?? new BroadcastChannel(name);
      channel.postMessage("forgotten");
      channel.close();
      this.#tabs.channel = null;
    }
  }

  /** Send the waiting pings now. */
  async deliver() {
    await this.ready;
    await this.participant.deliver();
  }

  /** Ask for the newest model now. Return whether the server had one. */
  async fetchModel() {
    return (await this.participant.refresh()).ok;
  }

  /** Take part, starting with the first call at which the user agrees. */
  takePart() {
    if (this.#starting === null && this.participant.maySend()) {
      this.#starting = this.#begin();
    }
  }

  async #begin() {
    this.#listen();
    await this.participant.start();
    this.#flush();
    const { membership } = this.participant;
    if (membership.clientId !== null && !membership.isKept) {
      this.tell("storage", "the browser stores nothing for this page, so each page is a new client");
    }
  }

  /** Process the result of the last request for the study. */
  #look() {
    const { cause } = this.participant.membership;
    if (cause !== null) {
      if (this.trouble?.sentence !== cause.sentence) {
        this.tell(/** @type {TroubleCode} */ (cause.code), cause.sentence);
      }
    } else if (["unreachable", "study_unfit", "study_ended", "model_unfit", "nothing_sent"].includes(this.trouble?.code ?? "")) {
      this.trouble = null;
    }
    this.#flush();
  }

  #listen() {
    if (globalThis.BroadcastChannel === undefined || this.#tabs.channel !== null) {
      return;
    }
    const channel = new BroadcastChannel(this.#tabs.name);
    channel.onmessage = ({ data }) => {
      if (data === "forgotten" && this.participant.membership.clientId !== null) {
        this.participant.leave();
      }
    };
    /** @type {any} */ (channel).unref?.(); // otherwise Node would wait for it
    this.#tabs.channel = channel;
  }

  /**
   * Run an action as soon as the client's role is known; never without consent.
   *
   * @param {() => void} act
   */
  whenKnown(act) {
    this.takePart();
    if (!this.participant.maySend()) {
      return;
    }
    if (this.participant.membership.study === null) {
      this.#pending.push(act);
      if (this.#pending.length > MOST_PENDING) {
        this.#pending.shift();
        this.tell("ping_dropped", `more than ${MOST_PENDING} calls came before the study had loaded; the oldest are dropped`);
      }
    } else {
      act();
    }
  }

  /** Run the waiting calls, if the study is known. */
  #flush() {
    if (this.participant.membership.study !== null) {
      this.#pending.splice(0).forEach((act) => act());
    }
  }

  /**
   * Send a ping. Return whether it was accepted for sending.
   *
   * @param {Composed} composed
   * @param {string} type
   */
  post({ documentId, ping }, type) {
    const word = this.ticket();
    const whole = word === null ? ping : /** @type {Ping} */ (Object.assign(ping, { ticket: word }));
    return this.participant.send({ documentId, ping: whole }, { type });
  }

  /** Whether the user has left the study, here or in another tab; if so, reports a trouble. */
  hasLeft() {
    const left = this.participant.isForgotten() === true;
    if (left) {
      this.tell("forgotten", `the user has left the study '${this.study}', here or in another tab; nothing more is sent`);
    }
    return left;
  }

  /**
   * @param {TroubleCode} code
   * @param {string} sentence
   */
  tell(code, sentence) {
    this.trouble = { code, sentence };
    this.#onTrouble(this.trouble);
  }

  /**
   * Report a trouble only once, for troubles that each list would repeat.
   *
   * @param {string} what
   * @param {TroubleCode} code
   * @param {() => string} sentence
   */
  tellOnce(what, code, sentence) {
    if (!this.#told.has(`${code} ${what}`)) {
      this.#told.add(`${code} ${what}`);
      this.tell(code, sentence());
    }
  }

  /**
   * @param {"refused" | "dropped"} what
   * @param {string} id
   */
  #lost(what, id) {
    if (what === "refused") {
      this.tell("ping_refused", `ingest rejected the ping ${id}; its /metrics has the reason`);
    } else {
      this.tell("ping_dropped", `the ping ${id} is deleted: it waited too long, or too many wait`);
    }
  }
}

const MOST_PENDING = 100;

/**
 * The storage to use, and the reason if it won't outlive the page.
 *
 * @param {ClientStorage} [given]
 * @returns {{ storage: ClientStorage, failed: string | null }}
 */
function kept(given) {
  if (given !== undefined) {
    return { storage: given, failed: null };
  }
  try {
    if (globalThis.localStorage) {
      return { storage: webStorage(globalThis.localStorage), failed: null };
    }
  } catch {
    // the page may not store anything
  }
  if (globalThis.document === undefined && globalThis.indexedDB !== undefined) {
    return { storage: indexedStorage("fedping"), failed: null };
  }
  const failed = "localStorage is missing, so each start is a new client; set 'storage'";
  return { storage: memoryStorage(), failed };
}
