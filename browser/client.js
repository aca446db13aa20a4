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
 * @property {() => string | null} [ticket] The product's word for the client's id, in studies that ask for it; asked for
 *   before each ping.
 * @property {string} [clientVersion] What the product calls itself in pings.
 *
 * @typedef {import("./delivery/participant.js").Participating & OfPages} Settings
 *
 * @typedef {object} Staying What stays on this device, of a client in a personal arm.
 * @property {number} trained How often its model was trained; before that it is the shared one.
 * @property {{ name: string, shared: number, own: number }[]} weights Those that differ from the shared ones.
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

  /** What stays with this client. */
  get #kept() {
    return this.#participant.own?.kept ?? null;
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
    const kept = this.#kept;
    if (role.personal === null || kept === null) {
      return null;
    }
    const own = personalWeights(role.personal, role.spec, held, kept);
    const weights = role.spec.weights.map(({ name }, k) => ({ name, shared: held.weights[k], own: own[k] }));
    return { trained: kept.trained, weights: weights.filter((each) => each.own !== each.shared) };
  }

  /** What became of pings in this page, and how many nobody has taken yet. */
  get counts() {
    return this.#participant.counts;
  }

  /** The document ids and bodies of the pings that nobody has taken yet: all that this client would still send. */
  get waiting() {
    return /** @type {{ documentId: string, ping: Ping }[]} */ (this.#participant.waiting);
  }

  /**
   * Take part: enrol, fetch the model, and hand over what earlier pages left. Ranking does not need to wait for it.
   */
  async start() {
    await this.#participant.start();
  }

  /** Take part no longer; what waits is kept for the next page. */
  stop() {
    this.#participant.stop();
  }

  /**
   * Take part no longer, and forget everything: the id, the model, what is the client's own, and the pings that nobody has taken
   * yet. Other tabs of the same storage stop as well, before they send or keep anything more.
   */
  async forget() {
    await this.#participant.forget();
  }

  /** Forget what stays on this device, and go on taking part: the model becomes the shared one again, and learns anew. */
  async forgetPersonal() {
    await this.#participant.forgetPersonal();
  }

  /**
   * The scores of pages, in the order given: whoever caches scores asks for those of the pages that have changed.
   *
   * @param {readonly Page[]} pages
   * @param {number} [now] Milliseconds since 1970.
   * @returns {Float64Array}
   */
  scores(pages, now = this.#environment.now()) {
    return scoresFor(this.#membership.role, this.#membership.held, pages, now, this.#kept);
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
    return ranked(this.#membership.role, this.#membership.held, pages, now, most, this.#kept);
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
   * Send a ping, now or as soon as it can be. With a storage that writes at once it is kept when this call returns.
   * Whether it was taken charge of: not in a private window, nor without consent.
   *
   * @param {Composed} composed
   */
  send(composed) {
    return this.#participant.send(composed);
  }

  /**
   * Compose the ping of an interaction and send it, and learn from it what stays here. Returns the ping; null if none is sent.
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
   * Train what stays on this device by a choice; in an arm that is not personal, nothing happens. {@link report} does it. Who
   * composes and sends instead does it once for each interaction, after that. Returns when it is kept.
   *
   * @param {Shown} shown
   * @param {number} chosen The place of the chosen page among those that were ranked, -1 for none of them.
   */
  async learn(shown, chosen) {
    await this.#participant.learn(shown, () => descentOf(shown, chosen));
  }

  /** Try to hand over what waits; returns when each ping was taken, refused, or put off, and what was learned is kept. */
  async deliver() {
    await this.#participant.deliver();
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
    return this.#participant.refresh();
  }

  /**
   * Find the study, the id and the model that are kept, and ask nobody. Returns when they were fetched, milliseconds since
   * 1970; -Infinity for never.
   */
  async recall() {
    return this.#participant.recall();
  }
}
