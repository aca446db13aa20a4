// @ts-check
/**
 * A client of a study of any kind: it enrols itself, keeps the newest model of its arm, sends pings, and forgets. `client.js`,
 * `ranker.js` and `predictor.js` are its interfaces for products.
 *
 * @import { Parts } from "../study/parts.js"
 * @import { Environment } from "./environment.js"
 * @import { OwnModel } from "./own_model.js"
 * @import { Outcome } from "./poller.js"
 * @import { Mode } from "./sender.js"
 * @import { ClientStorage } from "./storage.js"
 *
 * @typedef {{ clientId: string, type: string, payload: Record<string, any>, ticket?: string }} Ping
 *
 * @typedef {object} Composed A ping that is ready to be sent.
 * @property {string} documentId
 * @property {Ping} ping
 * @property {readonly number[]} [vector] In a private line, the numbers in the ping, or hidden in its two shares.
 *
 * @typedef {object} Participating The settings that all entry points share.
 * @property {string} ingest The address of ingest, such as `https://telemetry.example.org`.
 * @property {string} study The study's name.
 * @property {ClientStorage} storage Where to store data that must outlive the page.
 * @property {Mode} [mode] `"cors"` (default), or `"no-cors"` for extensions; docs/browser.md names the disadvantages.
 * @property {boolean} [beacon] Send beacons from pages that leave, in browsers whose `fetch` does not support
 *   `keepalive`. A beacon carries the cookies of ingest's address if it has any, so it is off unless asked for.
 * @property {() => boolean} [isPrivate] Whether this is a private window. Then nothing is fetched, kept or sent.
 * @property {() => boolean} [hasConsent] Whether pings may be sent; called before each. Always, by default.
 * @property {number} [everyMinutes] The average minutes between requests for a new model.
 * @property {number} [longestDays] The age in days at which a ping that no server has accepted is deleted.
 * @property {number} [mostPings] The maximum number of stored pings that no server has accepted.
 * @property {Backoff} [backoff] The waits after failures.
 * @property {number} [mostContributions] The maximum number of versions of a private line that this client ever
 *   contributes to; the line's own cap also holds.
 * @property {(what: string) => void} [notice] Called with a sentence for the product's log, such as the restart of a
 *   personal model. It contains nothing about the user.
 * @property {Environment} [environment] The browser's functions; tests pass their own.
 * @property {boolean} [patient] Send only when the page is idle and the connection is unmetered.
 * @property {boolean} [marksForgetting] Store a mark when the client is forgotten, for tabs that have not joined yet.
 * @property {(what: "refused" | "dropped", documentId: string) => void} [lost] Called for pings that are lost.
 * @property {() => void} [refreshed] Called after each request for the study.
 */

import { PRIVATE_TYPE } from "../study/study.js";
import { Backoff } from "./backoff.js";
import { browserEnvironment, uniform } from "./environment.js";
import { Membership } from "./membership.js";
import { Outbox } from "./outbox.js";
import { Poller } from "./poller.js";
import { PING_VERSION, Sender } from "./sender.js";
import { forgiving, then } from "./storage.js";

const MINUTE = 60_000;
const DAY = 86_400_000;

export class Participant {
  /** @type {Outbox} */
  #outbox;
  /** @type {Poller} */
  #poller;
  /** @type {() => boolean} */
  #isPrivate;
  /** @type {() => void} */
  #refreshed;
  /** @type {Promise<unknown>} The contribution that is being counted before its delay begins. */
  #contributing = Promise.resolve();
  /** @type {Promise<unknown>} The training by the last report. */
  #learning = Promise.resolve();
  /** @type {() => void} */
  #stopListening = () => {};
  /** Whether this client was forgotten, here or in another tab, and has not been started again. */
  #hasLeft = false;
  /** @type {string | null} The storage key of the mark that the client was forgotten. */
  #markKey;
  /** @type {unknown} The mark in the storage when this client started; undefined before the start. */
  #mark = undefined;

  /**
   * @param {Participating} settings
   * @param {Parts} parts The optional parts that this client has.
   */
  constructor(settings, parts) {
    const { study, backoff = new Backoff(), environment = browserEnvironment(), isPrivate = () => false } = settings;
    const { hasConsent = () => true, everyMinutes = 30, longestDays = 7, mostPings = 500, patient = false } = settings;
    const { mode = "cors", beacon = false, lost = () => {}, notice = () => {} } = settings;
    const ingest = settings.ingest.replace(/\/+$/, "");
    const prefix = `fedping/${study}/`;
    const shared = { storage: forgiving(settings.storage), prefix, environment, backoff };
    const addressOf = (/** @type {string} */ type) => `${ingest}/submit/${study}/${type}/${PING_VERSION}`;
    const [address, privateAddress] = [addressOf(parts.pings.types[0]), addressOf(PRIVATE_TYPE)];
    this.environment = environment;
    this.parts = parts;
    this.storage = shared.storage;
    this.#isPrivate = isPrivate;
    this.#refreshed = settings.refreshed ?? (() => {});
    this.maySend = () => !isPrivate() && hasConsent();
    this.privateLine = parts.privacy?.open({ ...shared, most: settings.mostContributions ?? Infinity }) ?? null;
    this.membership = new Membership({ ...shared, ingest, study, notice, parts, privateLine: this.privateLine, isMarked: () => this.#isMarked() });
    /** @type {OwnModel | null} The personal model; null if the entry point lacks this part. */
    this.own = parts.personal?.open({ ...shared, draw: () => uniform(environment), notice }) ?? null;
    this.#markKey = settings.marksForgetting ? `fedping-forgotten/${study}` : null;
    this.#outbox = new Outbox({
      ...shared,
      sender: new Sender({ address, addressOf, privateAddress, mode, beacon, environment }),
      longest: longestDays * DAY,
      most: mostPings,
      maySend: this.maySend,
      isForgotten: () => then(this.isForgotten(), (forgotten) => forgotten),
      moment: patient ? (environment.restful ?? null) : null,
      lost: (what, { id }) => lost(what, id),
    });
    this.#poller = new Poller({ ...shared, task: () => this.#turn(), every: everyMinutes * MINUTE });
  }

  get isPrivate() {
    return this.#isPrivate();
  }

  /** The results of this page's pings, and the number that no server has accepted yet. */
  get counts() {
    return { ...this.#outbox.counts, waiting: this.#outbox.waiting.length };
  }

  /** The document ids and bodies of the pings that no server has accepted yet: all that this client would still send. */
  get waiting() {
    return this.#outbox.waiting.map(({ id, body }) => ({ documentId: id, ping: /** @type {Ping} */ (JSON.parse(body)) }));
  }

  async start() {
    if (this.#isPrivate()) {
      return;
    }
    this.#hasLeft = false;
    this.#mark = await this.#markNow();
    const fetchedAt = await this.recall();
    this.#listen();
    void this.#outbox.deliver();
    const fresh = fetchedAt + this.#poller.every - this.environment.now();
    await this.#poller.start(fresh > 0 ? fresh * (0.75 + 0.25 * uniform(this.environment)) : 0);
  }

  stop() {
    this.#poller.stop();
    this.#outbox.stop();
    this.#stopListening();
  }

  async forget() {
    this.stop();
    this.#hasLeft = true;
    if (this.#markKey !== null) {
      await this.storage.set(this.#markKey, Number((await this.storage.get(this.#markKey)) ?? 0) + 1);
    }
    await Promise.all([this.#outbox.clear(), this.membership.forget(), this.own?.forget()]);
  }

  /** Stop, because another tab has forgotten this client. Returns true. */
  leave() {
    this.stop();
    this.#hasLeft = true;
    this.membership.leave();
    this.own?.leave();
    void this.#outbox.abandon();
    return true;
  }

  /**
   * Whether this client was forgotten; if another tab did it, this client stops. Answers at once with a storage that
   * does.
   *
   * @returns {boolean | Promise<boolean>}
   */
  isForgotten() {
    if (this.#hasLeft) {
      return true;
    }
    return then(this.membership.isForgotten(), (gone) => gone && this.leave());
  }

  /** @returns {boolean | Promise<boolean>} */
  #isMarked() {
    return this.#markKey !== null && then(this.#markNow(), (mark) => this.#mark !== undefined && mark !== this.#mark);
  }

  /** @returns {unknown} */
  #markNow() {
    return this.#markKey === null ? null : then(this.storage.get(this.#markKey), (mark) => mark ?? null);
  }

  async forgetPersonal() {
    await this.own?.forget();
    await this.#recallOwn();
  }

  /**
   * Send a ping, now or as soon as possible. With a storage that writes at once it is stored when this call returns. Return
   * whether the ping was accepted for sending: never in a private window or without consent.
   *
   * @param {Composed} composed
   * @param {{ type?: string }} [of] The type of ping, if not the client's own.
   */
  send({ documentId, ping }, of = {}) {
    if (!this.maySend() || this.isForgotten() === true) {
      return false;
    }
    const to = this.privateLine?.sendingOf(ping);
    if (to?.share && !this.privateLine?.sharing.use(to.share)) {
      return false; // two vectors with the same mask would reveal their difference
    }
    if (to !== undefined) {
      this.#contributing = Promise.all([this.#contributing, this.#contribute({ documentId, ping }, to)]);
      return true;
    }
    void this.#outbox.add(documentId, JSON.stringify(ping), of);
    void this.#outbox.deliver();
    return true;
  }

  /**
   * Count a contribution, and send it after a random delay.
   *
   * @param {Composed} composed
   * @param {import("./private_line.js").Sending} to
   */
  async #contribute({ documentId, ping }, to) {
    const notBefore = (await this.privateLine?.contribute(ping.payload.model_version, to)) ?? null;
    if (notBefore !== null) {
      void this.#outbox.add(documentId, JSON.stringify(ping), { isPrivate: true, notBefore });
      await this.#outbox.deliver();
    }
  }

  /**
   * Train the client's own model by a choice. Resolves when it is stored.
   *
   * @param {import("./own_model.js").Shown} shown
   * @param {() => import("../study/personal/personal.js").Descent} descentOf
   */
  async learn(shown, descentOf) {
    if (await this.isForgotten()) {
      return;
    }
    if (this.maySend()) {
      await this.own?.learn(shown, descentOf);
    } else if (!this.#isPrivate()) {
      await this.own?.forget();
    }
  }

  /**
   * Let {@link deliver} also wait for this training.
   *
   * @param {Promise<unknown>} learning
   */
  awaits(learning) {
    this.#learning = learning;
  }

  /** Try to send the waiting pings; resolves when each was accepted, rejected or postponed, and the client's own model is stored. */
  async deliver() {
    await Promise.all([this.#contributing, this.#learning]);
    await this.#outbox.deliver();
  }

  /**
   * Ask for the newest model now; after a failure, return the seconds that ingest asks clients to wait.
   *
   * @returns {Promise<Outcome>}
   */
  async refresh() {
    if (this.#isPrivate() || (await this.isForgotten())) {
      return { ok: false, retryAfter: null };
    }
    const outcome = await this.membership.refresh();
    if (await this.isForgotten()) {
      return { ok: false, retryAfter: null };
    }
    await this.#recallOwn();
    this.#refreshed();
    return outcome;
  }

  /** Load the stored study, id and model. Return the time of their fetch, -Infinity for never. */
  async recall() {
    if (this.#isPrivate() || (await this.isForgotten())) {
      return -Infinity;
    }
    const fetchedAt = await this.membership.recall();
    await this.#recallOwn();
    return fetchedAt;
  }

  /** Load the personal model, if the study is known; without consent, delete it. */
  async #recallOwn() {
    if (!this.maySend()) {
      await this.own?.forget();
    } else if (this.membership.study !== null) {
      await this.own?.recall(this.membership.role);
    }
  }

  /** A turn of the poller: skips the fetch if another tab has fetched in the meantime. */
  async #turn() {
    if (this.#isPrivate() || (await this.isForgotten())) {
      return { ok: /** @type {const} */ (true) };
    }
    const fetchedAt = await this.recall();
    const recent = this.environment.now() - fetchedAt < this.#poller.every / 2;
    return recent ? { ok: /** @type {const} */ (true) } : this.refresh();
  }

  #listen() {
    this.#stopListening();
    const back = () => void this.#outbox.deliver();
    this.#stopListening = this.environment.onLeaving(() => this.#outbox.leave(), back);
  }
}
