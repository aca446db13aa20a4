// @ts-check
/**
 * A client of a study, whatever it learns from: it enrols itself, keeps the newest model of its arm, hands over pings, and
 * forgets. `client.js`, `ranker.js` and `predictor.js` put a product's words around it.
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
 * @property {readonly number[]} [vector] In a private line, the numbers that the ping tells, or that its two shares hide.
 *
 * @typedef {object} Participating What the settings of every entry point have in common.
 * @property {string} ingest The address of ingest, such as `https://telemetry.example.org`.
 * @property {string} study The study's name.
 * @property {ClientStorage} storage Where to keep what has to outlive the page.
 * @property {Mode} [mode] `"cors"` (default), or `"no-cors"` for extensions; docs/browser.md says what that costs.
 * @property {boolean} [beacon] Send beacons from pages that leave, in browsers whose `fetch` does not know `keepalive`. A
 *   beacon carries the cookies of ingest's address if it has any, so it is off unless asked for.
 * @property {() => boolean} [isPrivate] Whether this is a private window. Then nothing is fetched, kept or sent.
 * @property {() => boolean} [hasConsent] Whether pings may be sent; asked before each. Always, if not given.
 * @property {number} [everyMinutes] How often to ask for a new model, on average.
 * @property {number} [longestDays] The age at which a ping that nobody took is given up.
 * @property {number} [mostPings] How many pings that nobody took are kept.
 * @property {Backoff} [backoff] How long to wait after failures.
 * @property {number} [mostContributions] To how many versions of a private line this client contributes at most, for good; the
 *   line's own cap holds besides.
 * @property {(what: string) => void} [notice] Told, in a sentence, what somebody who looks into the product's log may want to
 *   know, such as that a personal model begins afresh. Nothing in it is a user's.
 * @property {Environment} [environment] What the browser offers; tests give their own.
 * @property {boolean} [patient] Send only when the page is idle and its connection not metered.
 * @property {boolean} [marksForgetting] Keep a mark of having forgotten, by which tabs notice it that have not joined yet.
 * @property {(what: "refused" | "dropped", documentId: string) => void} [lost] Told of pings that come to nothing.
 * @property {() => void} [refreshed] Told each time that the study was asked for.
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
  /** @type {Promise<unknown>} What is being counted before it waits to be sent. */
  #contributing = Promise.resolve();
  /** @type {Promise<unknown>} What is being learned of the last report. */
  #learning = Promise.resolve();
  /** @type {() => void} */
  #stopListening = () => {};
  /** Whether this client was forgotten, here or in another tab, and not started again. */
  #hasLeft = false;
  /** @type {string | null} Where a mark of having forgotten is kept. */
  #markKey;
  /** @type {unknown} The mark that was there when this client began; it is undefined before. */
  #mark = undefined;

  /**
   * @param {Participating} settings
   * @param {Parts} parts What this client can do.
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
    /** @type {OwnModel | null} What stays with the client, of an entry point with the part for it. */
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

  /** What became of pings in this page, and how many nobody has taken yet. */
  get counts() {
    return { ...this.#outbox.counts, waiting: this.#outbox.waiting.length };
  }

  /** The document ids and bodies of the pings that nobody has taken yet: all that this client would still send. */
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

  /** Stop, since another tab has forgotten this client. Returns true. */
  leave() {
    this.stop();
    this.#hasLeft = true;
    this.membership.leave();
    this.own?.leave();
    void this.#outbox.abandon();
    return true;
  }

  /**
   * Whether this client was forgotten; if another tab did that, it stops. At once with a storage that answers at once.
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
   * Send a ping, now or as soon as it can be. With a storage that writes at once it is kept when this call returns.
   * Whether it was taken charge of: not in a private window, nor without consent.
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
      return false; // two vectors under one mask would tell how they differ
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
   * Train what stays on this device by a choice. Returns when it is kept.
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
   * Wait for something that is being learned before pings are said to be delivered.
   *
   * @param {Promise<unknown>} learning
   */
  awaits(learning) {
    this.#learning = learning;
  }

  /** Try to hand over what waits; returns when each ping was taken, refused, or put off, and what was learned is kept. */
  async deliver() {
    await Promise.all([this.#contributing, this.#learning]);
    await this.#outbox.deliver();
  }

  /**
   * Ask for the newest model now; if none was there, the seconds after which ingest wants to be asked again.
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

  /** Find the study, the id and the model that are kept. Returns when they were fetched, -Infinity for never. */
  async recall() {
    if (this.#isPrivate() || (await this.isForgotten())) {
      return -Infinity;
    }
    const fetchedAt = await this.membership.recall();
    await this.#recallOwn();
    return fetchedAt;
  }

  /** Find what is the client's own, as far as the study is known; without consent, it is forgotten. */
  async #recallOwn() {
    if (!this.maySend()) {
      await this.own?.forget();
    } else if (this.membership.study !== null) {
      await this.own?.recall(this.membership.role);
    }
  }

  /** A turn of the poller: what another tab has fetched meanwhile need not be fetched again. */
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
