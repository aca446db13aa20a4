// @ts-check
/**
 * A client of a study: it enrols itself, keeps the newest model of its arm, ranks pages, and reports what it learned.
 *
 * @import { Environment } from "./delivery/environment.js"
 * @import { Outcome } from "./delivery/poller.js"
 * @import { Mode } from "./delivery/sender.js"
 * @import { ClientStorage } from "./delivery/storage.js"
 * @import { Page } from "./models/pages.js"
 * @import { Shown } from "./study/learning.js"
 * @import { Observed, Ping } from "./study/ping.js"
 *
 * @typedef {object} Settings
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
 * @property {() => string | null} [ticket] The product's word for the client's id, in studies that ask for it; asked for
 *   before each ping.
 * @property {number} [mostContributions] To how many versions of a private line this client contributes at most, for good; the
 *   line's own cap holds besides.
 * @property {string} [clientVersion] What the product calls itself in pings.
 * @property {(what: string) => void} [notice] Told, in a sentence, what somebody who looks into the product's log may want to
 *   know, such as that a personal model begins afresh. Nothing in it is a user's.
 * @property {Environment} [environment] What the browser offers; tests give their own.
 *
 * @typedef {object} Composed A ping that is ready to be sent.
 * @property {string} documentId
 * @property {Ping} ping
 * @property {readonly number[]} [vector] In a private line, the numbers that the ping tells, or that its two shares hide.
 *
 * @typedef {object} Staying What stays on this device, of a client in a personal arm.
 * @property {number} trained How often its model was trained; before that it is the shared one.
 * @property {{ name: string, shared: number, own: number }[]} weights Those that differ from the shared ones.
 */

import { Backoff } from "./delivery/backoff.js";
import { browserEnvironment, uniform, uuid } from "./delivery/environment.js";
import { Membership } from "./delivery/membership.js";
import { Outbox } from "./delivery/outbox.js";
import { OwnModel } from "./delivery/own_model.js";
import { Poller } from "./delivery/poller.js";
import { Sender } from "./delivery/sender.js";
import { forgiving, then } from "./delivery/storage.js";
import { learned, ranked, scoresFor } from "./study/learning.js";
import { personalWeights } from "./study/personal/personal.js";
import { PING_TYPE, PING_VERSION, PRIVATE_TYPE, mayTravel, pingOf, privatePingOf } from "./study/ping.js";
import { SYSTEM } from "./study/privacy/chance.js";
import { guaranteeInWords } from "./study/privacy/guarantee.js";
import { hasTurn, rotatingId } from "./study/privacy/ids.js";
import { ENCODING, frameOf, payloadOf, vectorOf } from "./study/privacy/vectors.js";
import { SHARED, leaderShare, sharedPayload } from "./study/sharing/shares.js";
import { provenShare } from "./study/sharing/votes.js";
import { base64, sentUpdate } from "./study/upload.js";

/** @import { SealedShare } from "./delivery/sharing.js" @import { Arm } from "./study/study.js" @import { Privacy } from "./study/privacy/vectors.js" */

const MINUTE = 60_000;
const DAY = 86_400_000;

export class Client {
  /** @type {Membership} */
  #membership;
  /** @type {OwnModel} */
  #own;
  /** @type {Outbox} */
  #outbox;
  /** @type {Poller} */
  #poller;
  /** @type {Environment} */
  #environment;
  /** @type {() => boolean} */
  #isPrivate;
  /** @type {() => boolean} */
  #maySend;
  /** @type {string | undefined} */
  #clientVersion;
  /** @type {number} */
  #mostContributions;
  /** @type {() => string | null} */
  #ticket;
  /** @type {WeakMap<Ping, { line: string, privacy: Privacy, share: SealedShare | null }>} Pings of private lines, as they were composed. */
  #private = new WeakMap();
  /** @type {Promise<unknown>} What is being counted before it waits to be sent. */
  #contributing = Promise.resolve();
  /** @type {Promise<unknown>} What is being learned of the last report. */
  #learning = Promise.resolve();
  /** @type {() => void} */
  #stopListening = () => {};
  /** Whether this client was forgotten, here or in another tab, and not started again. */
  #hasLeft = false;

  /** @param {Settings} settings */
  constructor(settings) {
    const { study, backoff = new Backoff(), environment = browserEnvironment(), isPrivate = () => false } = settings;
    const { hasConsent = () => true, everyMinutes = 30, longestDays = 7, mostPings = 500 } = settings;
    const ingest = settings.ingest.replace(/\/+$/, "");
    const prefix = `fedping/${study}/`;
    const shared = { storage: forgiving(settings.storage), prefix, environment, backoff };
    const [address, privateAddress] = [PING_TYPE, PRIVATE_TYPE].map(
      (type) => `${ingest}/submit/${study}/${type}/${PING_VERSION}`,
    );
    const { mode = "cors", beacon = false } = settings;
    this.#environment = environment;
    this.#isPrivate = isPrivate;
    this.#maySend = () => !isPrivate() && hasConsent();
    this.#clientVersion = settings.clientVersion;
    this.#mostContributions = settings.mostContributions ?? Infinity;
    this.#ticket = settings.ticket ?? (() => null);
    const { notice = () => {} } = settings;
    this.#membership = new Membership({ ...shared, ingest, study, notice });
    this.#own = new OwnModel({ ...shared, draw: () => uniform(environment), notice });
    this.#outbox = new Outbox({
      ...shared,
      sender: new Sender({ address, privateAddress, mode, beacon, environment }),
      longest: longestDays * DAY,
      most: mostPings,
      maySend: this.#maySend,
      isForgotten: () => then(this.#membership.isForgotten(), (forgotten) => forgotten && this.#leave()),
    });
    this.#poller = new Poller({ ...shared, task: () => this.#turn(), every: everyMinutes * MINUTE });
  }

  /** The name of the client's arm; null if it is not enrolled, or not yet. */
  get arm() {
    return this.#membership.role.arm?.name ?? null;
  }

  /** What the study promises to its clients, a sentence each; empty for a study that is not private, or not known yet. */
  get guarantee() {
    const { privacy } = this.#membership.role;
    return privacy === null ? [] : guaranteeInWords(privacy);
  }

  /**
   * Why this client takes no part in the study, or sends nothing although it does, in a sentence for whoever set the study up:
   * the study asks for what this browser does not have, or its helper's offer is missing or does not fit. Null if it knows of
   * nothing.
   */
  get trouble() {
    return this.#membership.trouble;
  }

  /** The client's id, for which a product makes a ticket; null if it is not enrolled, or not yet. */
  get clientId() {
    return this.#membership.clientId;
  }

  /** The number of the model version that the client holds; -1 before any was fetched. */
  get version() {
    return this.#membership.held.version;
  }

  /**
   * What stays on this device and is never sent; null in an arm that is not personal, or not enrolled. For a page that shows it
   * to the user, beside {@link forgetPersonal}.
   *
   * @returns {Staying | null}
   */
  get personal() {
    const { role, held } = this.#membership;
    const { kept } = this.#own;
    if (role.personal === null || kept === null) {
      return null;
    }
    const own = personalWeights(role.personal, role.spec, held, kept);
    const weights = role.spec.weights.map(({ name }, k) => ({ name, shared: held.weights[k], own: own[k] }));
    return { trained: kept.trained, weights: weights.filter((each) => each.own !== each.shared) };
  }

  /** What became of pings in this page, and how many nobody has taken yet. */
  get counts() {
    return { ...this.#outbox.counts, waiting: this.#outbox.waiting.length };
  }

  /** The document ids and bodies of the pings that nobody has taken yet: all that this client would still send. */
  get waiting() {
    return this.#outbox.waiting.map(({ id, body }) => ({ documentId: id, ping: /** @type {Ping} */ (JSON.parse(body)) }));
  }

  /**
   * Take part: enrol, fetch the model, and hand over what earlier pages left. Ranking does not need to wait for it.
   */
  async start() {
    if (this.#isPrivate()) {
      return;
    }
    this.#hasLeft = false;
    const fetchedAt = await this.recall();
    this.#listen();
    void this.#outbox.deliver();
    const fresh = fetchedAt + this.#poller.every - this.#environment.now();
    await this.#poller.start(fresh > 0 ? fresh * (0.75 + 0.25 * uniform(this.#environment)) : 0);
  }

  /** Take part no longer; what waits is kept for the next page. */
  stop() {
    this.#poller.stop();
    this.#outbox.stop();
    this.#stopListening();
  }

  /**
   * Take part no longer, and forget everything: the id, the model, what is the client's own, and the pings that nobody has taken
   * yet. Other tabs of the same storage stop as well, before they send or keep anything more.
   */
  async forget() {
    this.stop();
    this.#hasLeft = true;
    await Promise.all([this.#outbox.clear(), this.#membership.forget(), this.#own.forget()]);
  }

  /** Stop, since another tab has forgotten this client. Returns true. */
  #leave() {
    this.stop();
    this.#hasLeft = true;
    this.#membership.leave();
    this.#own.leave();
    void this.#outbox.abandon();
    return true;
  }

  /** Whether this client was forgotten; if another tab did that, it stops. */
  async #isForgotten() {
    return this.#hasLeft || ((await this.#membership.isForgotten()) && this.#leave());
  }

  /** Forget what stays on this device, and go on taking part: the model becomes the shared one again, and learns anew. */
  async forgetPersonal() {
    await this.#own.forget();
    await this.#recallOwn();
  }

  /**
   * The scores of pages, in the order given: whoever caches scores asks for those of the pages that have changed.
   *
   * @param {readonly Page[]} pages
   * @param {number} [now] Milliseconds since 1970.
   * @returns {Float64Array}
   */
  scores(pages, now = this.#environment.now()) {
    return scoresFor(this.#membership.role, this.#membership.held, pages, now, this.#own.kept);
  }

  /**
   * Rank pages: the highest score at the top; of equal scores, in the order given.
   *
   * @param {readonly Page[]} pages
   * @param {number} [most] How many are shown.
   * @param {number} [now] Milliseconds since 1970.
   * @returns {Shown}
   */
  rank(pages, most = pages.length, now = this.#environment.now()) {
    return ranked(this.#membership.role, this.#membership.held, pages, now, most, this.#own.kept);
  }

  /**
   * Rank pages by the shared model, as a client would that has nothing of its own: to show the difference, and not to report of.
   *
   * @param {readonly Page[]} pages
   * @param {number} [most] How many are shown.
   * @param {number} [now] Milliseconds since 1970.
   * @returns {Shown}
   */
  rankShared(pages, most = pages.length, now = this.#environment.now()) {
    return ranked(this.#membership.role, this.#membership.held, pages, now, most);
  }

  /**
   * A list that was ranked by scores which the product has kept from {@link scores}.
   *
   * @param {readonly Page[]} pages In displayed order, the top first.
   * @param {readonly number[]} scores In the same order.
   * @param {number} [now] Milliseconds since 1970.
   * @returns {Shown}
   */
  shown(pages, scores, now = this.#environment.now()) {
    return { pages, scores, now, role: this.#membership.role, held: this.#membership.held };
  }

  /**
   * The ping of an interaction, as it would be sent; null if none would be: in a private window, when the client was not
   * enrolled when the list was ranked, or if a number is beyond what may travel. A private line gets one of each version,
   * up to its cap, and of choices alone.
   *
   * @param {Shown} shown What {@link rank} or {@link shown} returned.
   * @param {Observed} observed
   * @returns {Composed | null}
   * @throws {RangeError} A number that cannot be meant.
   */
  compose(shown, observed) {
    const { clientId } = this.#membership;
    const { role, held } = shown;
    if (this.#isPrivate() || role.arm === null || clientId === null) {
      return null;
    }
    const { scores, loss, update } = learned(shown, observed.chosen, this.#own.sends(shown));
    if (role.privacy !== null) {
      return this.#composePrivately(shown, role.arm, role.privacy, observed.chosen, loss, update);
    }
    if (!mayTravel([loss, ...scores, ...(update ?? [])])) {
      return null;
    }
    const sent = update && sentUpdate(role.upload, update);
    if (sent === null && update !== null) {
      return null;
    }
    const what = { arm: role.arm.name, version: held.version, scores, loss, update: sent };
    const ping = pingOf(clientId, what, observed, this.#clientVersion);
    const ticket = this.#ticket();
    return { documentId: uuid(this.#environment), ping: ticket === null ? ping : { ...ping, ticket } };
  }

  /**
   * @param {Shown} shown
   * @param {Arm} arm
   * @param {Privacy} privacy
   * @param {number} chosen
   * @param {number} loss
   * @param {readonly number[] | null} update
   * @returns {Composed | null}
   */
  #composePrivately({ role, held }, arm, privacy, chosen, loss, update) {
    const { study, secret, contributions } = this.#membership;
    const line = String(arm.line);
    const may = contributions.may(line, held.version, this.#cap(privacy));
    if (study === null || secret === null || chosen < 0 || held.version < 0 || !may) {
      return null;
    }
    if (!hasTurn(study.name, secret, line, held.version, privacy)) {
      return null;
    }
    const learnt = update ?? role.spec.weights.map(() => 0);
    const vector = vectorOf(privacy, frameOf(privacy, role.spec), learnt, loss, chosen === 0, SYSTEM);
    const share = privacy.shared ? this.#membership.sharing.find(line, arm.name, held.version) : null;
    if (privacy.shared && share === null) {
      return null; // no offer yet, or one that does not fit
    }
    const sent = share === null ? plain(vector) : split(vector, share);
    const ping = privatePingOf(rotatingId(study, secret, arm, held.version), arm.name, held.version, sent);
    this.#private.set(ping, { line, privacy, share });
    return { documentId: share?.documentId ?? uuid(this.#environment), ping, vector };
  }

  /** @param {Privacy} privacy */
  #cap({ contributions }) {
    return Math.min(contributions ?? Infinity, this.#mostContributions);
  }

  /**
   * Count a contribution, and send it after a random delay.
   *
   * @param {Composed} composed
   * @param {{ line: string, privacy: Privacy }} to
   */
  async #contribute({ documentId, ping }, { line, privacy }) {
    const version = ping.payload.model_version;
    if (await this.#membership.contributions.take(line, version, this.#cap(privacy))) {
      const delay = Number(SYSTEM.below(BigInt(Math.round(privacy.delay_minutes * MINUTE) + 1)));
      const notBefore = this.#environment.now() + delay;
      void this.#outbox.add(documentId, JSON.stringify(ping), { isPrivate: true, notBefore });
      await this.#outbox.deliver();
    }
  }

  /**
   * Send a ping, now or as soon as it can be. With a storage that writes at once it is kept when this call returns.
   * Whether it was taken charge of: not in a private window, nor without consent.
   *
   * @param {Composed} composed
   */
  send({ documentId, ping }) {
    if (!this.#maySend() || this.#hasLeft) {
      return false;
    }
    if (this.#membership.isForgotten() === true) {
      this.#leave();
      return false;
    }
    const to = this.#private.get(ping);
    if (to?.share && !this.#membership.sharing.use(to.share)) {
      return false; // two vectors under one mask would tell how they differ
    }
    if (to !== undefined) {
      this.#contributing = Promise.all([this.#contributing, this.#contribute({ documentId, ping }, to)]);
      return true;
    }
    void this.#outbox.add(documentId, JSON.stringify(ping));
    void this.#outbox.deliver();
    return true;
  }

  /**
   * Compose the ping of an interaction and send it, and learn from it what stays here. Returns the ping; null if none is sent.
   *
   * @param {Shown} shown
   * @param {Observed} observed
   */
  report(shown, observed) {
    const composed = this.#maySend() ? this.compose(shown, observed) : null;
    this.#learning = this.learn(shown, observed.chosen);
    return composed !== null && this.send(composed) ? composed : null;
  }

  /**
   * Train what stays on this device by a choice; in an arm that is not personal, nothing happens. {@link report} does it. Who
   * composes and sends instead does it once for each interaction, after that. Returns when it is kept.
   *
   * @param {Shown} shown
   * @param {number} chosen The place of the chosen page among those that were ranked, -1 for none of them.
   */
  async learn(shown, chosen) {
    if (await this.#isForgotten()) {
      return;
    }
    if (this.#maySend()) {
      await this.#own.learn(shown, chosen);
    } else if (!this.#isPrivate()) {
      await this.#own.forget();
    }
  }

  /** Try to hand over what waits; returns when each ping was taken, refused, or put off, and what was learned is kept. */
  async deliver() {
    await Promise.all([this.#contributing, this.#learning]);
    await this.#outbox.deliver();
  }

  /** Ask for the newest model now. Whether one was there. */
  async fetchModel() {
    return (await this.refresh()).ok;
  }

  /**
   * Ask for the newest model now; if none was there, the seconds after which ingest wants to be asked again. For those
   * who choose the moments themselves and do not {@link start} the client, since their timers do not last.
   *
   * @returns {Promise<Outcome>}
   */
  async refresh() {
    if (this.#isPrivate() || (await this.#isForgotten())) {
      return { ok: false, retryAfter: null };
    }
    const outcome = await this.#membership.refresh();
    if (await this.#isForgotten()) {
      return { ok: false, retryAfter: null };
    }
    await this.#recallOwn();
    return outcome;
  }

  /**
   * Find the study, the id and the model that are kept, and ask nobody. Returns when they were fetched, milliseconds since
   * 1970; -Infinity for never.
   */
  async recall() {
    if (this.#isPrivate() || (await this.#isForgotten())) {
      return -Infinity;
    }
    const fetchedAt = await this.#membership.recall();
    await this.#recallOwn();
    return fetchedAt;
  }

  /** Find what is the client's own, as far as the study is known; without consent, it is forgotten. */
  async #recallOwn() {
    if (!this.#maySend()) {
      await this.#own.forget();
    } else if (this.#membership.study !== null) {
      await this.#own.recall(this.#membership.role);
    }
  }

  /** A turn of the poller: what another tab has fetched meanwhile need not be fetched again. */
  async #turn() {
    if (this.#isPrivate() || (await this.#isForgotten())) {
      return { ok: /** @type {const} */ (true) };
    }
    const fetchedAt = await this.recall();
    const recent = this.#environment.now() - fetchedAt < this.#poller.every / 2;
    return recent ? { ok: /** @type {const} */ (true) } : this.refresh();
  }

  #listen() {
    this.#stopListening();
    const back = () => void this.#outbox.deliver();
    this.#stopListening = this.#environment.onLeaving(() => this.#outbox.leave(), back);
  }
}

/** @param {readonly number[]} vector */
function plain(vector) {
  return { encoding: ENCODING, payload: base64(payloadOf(vector)) };
}

/** @param {readonly number[]} vector @param {SealedShare} share */
function split(vector, share) {
  const { offer, seed, sealed } = share;
  const leader = share.metric > 0 ? provenShare(vector, seed, share) : leaderShare(vector, seed);
  return { encoding: SHARED, payload: base64(sharedPayload(offer, leader, sealed)) };
}
