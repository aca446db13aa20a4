// @ts-check
/**
 * A client of a study of pages: it enrols itself, keeps the newest model of its arm, ranks pages, and reports what it learned.
 *
 * @import { Outcome } from "./delivery/poller.js"
 * @import { Page } from "./models/pages.js"
 * @import { Shown } from "./study/learning.js"
 * @import { Observed, Ping } from "./study/ping.js"
 *
 * @typedef {import("./delivery/participant.js").Composed} Composed
 *
 * @typedef {object} OfPages
 * @property {() => string | null} [ticket] The product's ticket for the client's id, in studies that ask for it; called
 *   before each ping.
 * @property {string} [clientVersion] The product's name in pings.
 *
 * @typedef {import("./delivery/participant.js").Participating & OfPages} Settings
 *
 * @typedef {object} Staying The data that stays on this device, for a client in a personal arm.
 * @property {number} trained The number of times its model was trained; before the first it is the shared one.
 * @property {{ name: string, shared: number, own: number }[]} weights Weights that differ from the shared ones.
 */

import { browserEnvironment, uuid } from "./delivery/environment.js";
import { Participant } from "./delivery/participant.js";
import { descentOf, learned, ranked, scoresFor } from "./study/learning.js";
import { sentBy, mayTravel } from "./study/links.js";
import { PAGES } from "./study/pages.js";
import { personalWeights } from "./study/personal/personal.js";
import { pingOf } from "./study/ping.js";
import { guaranteeInWords } from "./study/privacy/guarantee.js";

export class Client {
  /** @type {Participant} */
  #participant;
  /** @type {import("./delivery/environment.js").Environment} */
  #environment;
  /** @type {string | undefined} */
  #clientVersion;
  /** @type {() => string | null} */
  #ticket;

  /** @param {Settings} settings */
  constructor(settings) {
    const { environment = browserEnvironment(), ticket = () => null, clientVersion } = settings;
    this.#environment = environment;
    this.#clientVersion = clientVersion;
    this.#ticket = ticket;
    this.#participant = new Participant({ ...settings, environment }, PAGES);
  }

  get #membership() {
    return this.#participant.membership;
  }

  /** The personal model's state, which stays on this device. */
  get #kept() {
    return this.#participant.own?.kept ?? null;
  }

  /** The name of the client's arm; null if it is not enrolled, or not yet. */
  get arm() {
    return this.#membership.role.arm?.name ?? null;
  }

  /** The study's promises to its clients, a sentence each; empty for a study that is not private, or not known yet. */
  get guarantee() {
    const { privacy } = this.#membership.role;
    return privacy === null ? [] : guaranteeInWords(privacy);
  }

  /**
   * The reason why this client takes no part in the study, or sends nothing, in a sentence for the study's organiser: the study
   * asks for something that this browser lacks, or its helper's offer is missing or does not fit. Null without a reason.
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
   * The data that stays on this device and is never sent; null in an arm that is not personal, or not enrolled. Show it to the
   * user, with a button for {@link forgetPersonal}.
   *
   * @returns {Staying | null}
   */
  get personal() {
    const { role, held } = this.#membership;
    const kept = this.#kept;
    if (role.personal === null || kept === null) {
      return null;
    }
    const own = personalWeights(role.personal, role.spec, held, kept);
    const weights = role.spec.weights.map(({ name }, k) => ({ name, shared: held.weights[k], own: own[k] }));
    return { trained: kept.trained, weights: weights.filter((each) => each.own !== each.shared) };
  }

  /** The results of this page's pings, and the number that no server has accepted yet. */
  get counts() {
    return this.#participant.counts;
  }

  /** The document ids and bodies of the pings that no server has accepted yet: all that this client would still send. */
  get waiting() {
    return /** @type {{ documentId: string, ping: Ping }[]} */ (this.#participant.waiting);
  }

  /**
   * Take part: enrol, fetch the model, and send the pings that earlier pages left. Ranking does not need to wait for it.
   */
  async start() {
    await this.#participant.start();
  }

  /** Stop taking part; waiting pings stay for the next page. */
  stop() {
    this.#participant.stop();
  }

  /**
   * Stop taking part, and delete everything: the id, the model, the client's own model, and the pings that no server has accepted
   * yet. Other tabs with the same storage also stop, before they send or store anything more.
   */
  async forget() {
    await this.#participant.forget();
  }

  /** Delete the data that stays on this device, and still take part: the model becomes the shared one again, and learns again. */
  async forgetPersonal() {
    await this.#participant.forgetPersonal();
  }

  /**
   * The scores of pages, in the order given. A product that caches scores asks only for changed pages.
   *
   * @param {readonly Page[]} pages
   * @param {number} [now] Milliseconds since 1970.
   * @returns {Float64Array}
   */
  scores(pages, now = this.#environment.now()) {
    return scoresFor(this.#membership.role, this.#membership.held, pages, now, this.#kept);
  }

  /**
   * Rank pages: the highest score first, equal scores in the order given.
   *
   * @param {readonly Page[]} pages
   * @param {number} [most] The maximum number of pages shown.
   * @param {number} [now] Milliseconds since 1970.
   * @returns {Shown}
   */
  rank(pages, most = pages.length, now = this.#environment.now()) {
    return ranked(this.#membership.role, this.#membership.held, pages, now, most, this.#kept);
  }

  /**
   * Rank pages by the shared model, like a client without its own: to show the difference, not to report.
   *
   * @param {readonly Page[]} pages
   * @param {number} [most] The maximum number of pages shown.
   * @param {number} [now] Milliseconds since 1970.
   * @returns {Shown}
   */
  rankShared(pages, most = pages.length, now = this.#environment.now()) {
    return ranked(this.#membership.role, this.#membership.held, pages, now, most);
  }

  /**
   * A list ranked by scores that the product has stored from {@link scores}.
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
   * The ping of an interaction, as it would be sent; null if none would be: in a private window, if the client was not enrolled
   * when the list was ranked, or if a number is too large to send. A private line gets one for each version, up to its cap, and
   * only for choices.
   *
   * @param {Shown} shown What {@link rank} or {@link shown} returned.
   * @param {Observed} observed
   * @returns {Composed | null}
   * @throws {RangeError} An impossible number.
   */
  compose(shown, observed) {
    const { clientId, study } = this.#membership;
    const { privateLine, own, isPrivate } = this.#participant;
    const { role, held } = shown;
    if (isPrivate || role.arm === null || clientId === null) {
      return null;
    }
    const { scores, loss, update } = learned(shown, observed.chosen, own?.sends(shown));
    if (role.privacy !== null) {
      return privateLine?.compose(study, shown, { chosen: observed.chosen, loss, update }) ?? null;
    }
    if (!mayTravel([loss, ...scores, ...(update ?? [])])) {
      return null;
    }
    const sent = update && sentBy(role.upload, update, PAGES.links);
    if (sent === null && update !== null) {
      return null;
    }
    const what = { arm: role.arm.name, version: held.version, scores, loss, update: sent };
    const ping = pingOf(clientId, what, observed, this.#clientVersion);
    const ticket = this.#ticket();
    return { documentId: uuid(this.#environment), ping: ticket === null ? ping : { ...ping, ticket } };
  }

  /**
   * Send a ping, now or as soon as possible. With a storage that writes at once it is stored when this call returns. Return
   * whether the ping was accepted for sending: never in a private window or without consent.
   *
   * @param {Composed} composed
   */
  send(composed) {
    return this.#participant.send(composed);
  }

  /**
   * Compose the ping of an interaction, send it, and train the client's own model. Return the ping; null if none is sent.
   *
   * @param {Shown} shown
   * @param {Observed} observed
   */
  report(shown, observed) {
    const composed = this.#participant.maySend() ? this.compose(shown, observed) : null;
    this.#participant.awaits(this.learn(shown, observed.chosen));
    return composed !== null && this.send(composed) ? composed : null;
  }

  /**
   * Train the client's own model by a choice; in an arm that is not personal, nothing happens. {@link report} does it. After
   * {@link compose} and {@link send}, call it once for each interaction. Resolves when the model is stored.
   *
   * @param {Shown} shown
   * @param {number} chosen The place of the chosen page in the ranked list; -1 for none.
   */
  async learn(shown, chosen) {
    await this.#participant.learn(shown, () => descentOf(shown, chosen));
  }

  /** Try to send the waiting pings; resolves when each was accepted, rejected or postponed, and the client's own model is stored. */
  async deliver() {
    await this.#participant.deliver();
  }

  /** Ask for the newest model now. Return whether the server had one. */
  async fetchModel() {
    return (await this.refresh()).ok;
  }

  /**
   * Ask for the newest model now; after a failure, return the seconds that ingest asks clients to wait. For programs that
   * choose the moments themselves and do not {@link start} the client, because their timers do not last.
   *
   * @returns {Promise<Outcome>}
   */
  async refresh() {
    return this.#participant.refresh();
  }

  /**
   * Load the stored study, id and model, without a request. Return the time of their fetch, milliseconds since 1970;
   * -Infinity for never.
   */
  async recall() {
    return this.#participant.recall();
  }
}
