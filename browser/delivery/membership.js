// @ts-check
/**
 * A client's id and arm in a study, and the model that it holds: fetched, stored, and loaded again by the next page.
 *
 * @import { Parts } from "../study/parts.js"
 * @import { Arm, PublicStudy, Version } from "../study/study.js"
 * @import { Environment } from "./environment.js"
 * @import { Outcome } from "./poller.js"
 * @import { PrivateLine } from "./private_line.js"
 * @import { ForgivingStorage } from "./storage.js"
 */

import { enrol, stagedFor } from "../study/enrolment.js";
import { NO_VERSION, PRIVATE_TYPE, readModel, roleOf, stagedIn, startWeights, studyOf } from "../study/study.js";
import { uuid } from "./environment.js";
import { fetchJson } from "./fetching.js";
import { then } from "./storage.js";

export class Membership {
  /** @type {PublicStudy | null} */
  #study = null;
  /** @type {Arm | null} */
  #arm = null;
  /** @type {Version | null} */
  #fetched = null;
  /** Whether the id was once found in the storage, so that a missing id means that it was deleted. */
  #isKept = false;
  /** The number of times this client left: work under way at that moment is discarded. */
  #left = 0;

  /**
   * @param {object} settings
   * @param {string} settings.ingest
   * @param {string} settings.study The study's name.
   * @param {ForgivingStorage} settings.storage
   * @param {string} settings.prefix The prefix of the keys in the storage.
   * @param {Environment} settings.environment
   * @param {(what: string) => void} settings.notice Called once with the reason why nothing is sent.
   * @param {Parts} settings.parts The optional parts that this client has.
   * @param {PrivateLine | null} settings.privateLine The client's part in private lines; null if it has none.
   * @param {() => boolean | Promise<boolean>} [settings.isMarked] Whether the storage has a newer mark that the client
   *   was forgotten.
   */
  constructor({ ingest, study, storage, prefix, environment, notice, parts, privateLine, isMarked = () => false }) {
    this.models = `${ingest}/models/${study}`;
    this.name = study;
    this.storage = storage;
    this.prefix = prefix;
    this.environment = environment;
    /** @type {string | null} A UUID drawn at random, for this study alone; null before the study was fetched. */
    this.clientId = null;
    this.notice = notice;
    this.parts = parts;
    this.privateLine = privateLine;
    this.isMarked = isMarked;
    /** @type {string | null} The reason why this client takes no part, or sends nothing, in words for the study's organiser. */
    this.trouble = null;
    /**
     * @type {{ code: string, sentence: string } | null} The reason why the client takes no part after the last fetch;
     *   null if it does.
     */
    this.cause = null;
  }

  /** Whether the client's id was found in the storage. */
  get isKept() {
    return this.#isKept;
  }

  /** The study, if it is known. */
  get study() {
    return this.#study;
  }

  /** The client's role, as far as it is known. */
  get role() {
    return roleOf(this.#study, this.#arm, this.parts.product);
  }

  /**
   * The model version that the client holds; -1 and the start weights before any was fetched.
   *
   * @returns {Version}
   */
  get held() {
    return this.#fetched ?? { version: NO_VERSION, weights: startWeights(this.role.spec) };
  }

  /**
   * Load the data that an earlier page or another tab has stored. Returns the time of its fetch from this ingest;
   * -Infinity for never.
   */
  async recall() {
    const kept = await this.storage.get(`${this.prefix}membership`);
    try {
      await this.#join(studyOf(kept?.study, this.name, this.parts));
      if (kept.model !== null && kept.line === this.#arm?.line) {
        this.#hold(kept.model);
      }
      await this.#prepare();
      const isFromHere = (kept.models ?? this.models) === this.models; // otherwise a wrong address would go unnoticed
      return isFromHere && Number.isFinite(kept.fetchedAt) ? Math.min(kept.fetchedAt, this.environment.now()) : -Infinity;
    } catch {
      return -Infinity; // nothing is stored, or another version of the module stored it
    }
  }

  /**
   * Fetch the study, and the newest model of the client's arm.
   *
   * @returns {Promise<Outcome>}
   */
  async refresh() {
    const left = this.#left;
    const isOver = async () => left !== this.#left || (await this.isForgotten());
    const nothing = { ok: /** @type {const} */ (false), retryAfter: null };
    const study = await fetchJson(this.environment, `${this.models}/study.json`);
    if (await isOver()) {
      return nothing;
    }
    const unread = await this.#reads(() => this.#join(studyOf(study.value, this.name, this.parts)));
    if (unread !== null) {
      this.#blame(study.value === undefined ? null : "study_unfit", unread, study.status);
      if (study.value !== undefined) {
        this.#say(unread);
      }
      return { ok: false, retryAfter: study.retryAfter };
    }
    const model = this.#arm?.line ? await fetchJson(this.environment, `${this.models}/${this.#arm.line}/latest.json`) : null;
    if (await isOver()) {
      return nothing;
    }
    const unfit = model === null ? null : await this.#reads(() => this.#hold(model.value));
    this.cause = null;
    if (study.value.ended !== undefined) {
      this.#blame("study_ended", `the study '${this.name}' has ended; this client ranks as the product does`);
    }
    if (unfit !== null) {
      this.#blame(model?.value === undefined ? null : "model_unfit", unfit, model?.status);
    } else {
      const first = await this.#staged(model?.value);
      await this.#prepare();
      if (await isOver()) {
        return nothing;
      }
      await this.#keep(study.value, first ?? (model && pruned(model.value)));
      if (this.trouble !== null) {
        this.#blame("nothing_sent", this.trouble);
      }
    }
    return unfit === null ? { ok: true } : { ok: false, retryAfter: model?.retryAfter ?? null };
  }

  /**
   * Fetch the staged version that a document names, if this client is among those that get it first. Returns the part
   * to store; null without a staged version, or if it can't be fetched.
   *
   * @param {any} newest
   */
  async #staged(newest) {
    const staged = stagedIn(newest);
    const arm = this.#arm;
    if (!staged || !arm?.line || !arm.applies || !stagedFor(this.name, arm.line, staged, this.clientId ?? "")) {
      return null;
    }
    const { value } = await fetchJson(this.environment, `${this.models}/${arm.line}/staged-${staged.iteration}.json`);
    const holds = value?.iteration === staged.iteration && (await this.#reads(() => this.#hold(value))) === null;
    return holds ? pruned(value) : null;
  }

  /** Delete everything, including the client's id, but never the number of its contributions. */
  async forget() {
    this.leave();
    await Promise.all(["membership", "client", "secret", "promise"].map((key) => this.storage.remove(this.prefix + key)));
  }

  /** Stop taking part in this page. Stored data stays, because it may already belong to another client. */
  leave() {
    this.#left += 1;
    this.#isKept = false;
    this.privateLine?.leave();
    this.trouble = null;
    this.#study = this.#arm = this.#fetched = this.clientId = null;
  }

  /**
   * Whether another tab has forgotten this client: its id is no longer stored, or was replaced, or the storage has a
   * mark. Answers at once with a storage that answers at once.
   *
   * @returns {boolean | Promise<boolean>}
   */
  isForgotten() {
    return then(this.isMarked(), (marked) => marked || this.#isGone());
  }

  /** @returns {boolean | Promise<boolean>} */
  #isGone() {
    if (this.clientId === null || !this.#isKept) {
      return false;
    }
    const key = `${this.prefix}client`;
    const { clientId } = this;
    return then(this.storage.get(key), (kept) => (kept === undefined ? this.storage.lacks(key) : kept !== clientId));
  }

  /** @param {PublicStudy} study */
  async #join(study) {
    await this.privateLine?.check(study);
    const clientId = this.clientId ?? (await this.#clientId());
    const arm = study.ended === undefined ? enrol(study, clientId) : null; // clients no longer take part
    if (arm?.line !== this.#arm?.line) {
      this.#fetched = null;
    }
    if (study.pings === PRIVATE_TYPE && arm?.line) {
      await this.privateLine?.join(study, arm.line, (name, draw) => this.#drawn(name, draw));
    }
    this.#isKept ||= (await this.storage.get(`${this.prefix}client`)) === clientId;
    this.#study = study;
    this.clientId = clientId;
    this.#arm = arm;
  }

  /** Prepare what a private line needs before a choice. */
  async #prepare() {
    this.#say((await this.privateLine?.prepare(this.#study, this.#arm, this.held)) ?? null);
  }

  /** @param {string | null} trouble */
  #say(trouble) {
    if (trouble !== null && trouble !== this.trouble) {
      this.notice(`nothing is sent: ${trouble}`);
    }
    this.trouble = trouble;
  }

  /** @param {any} document */
  #hold(document) {
    this.#fetched = readModel(document, this.role.spec);
  }

  /** The stored id, or a new one. If two tabs draw one at the same time, both use the one written last. */
  async #clientId() {
    return this.#drawn("client", () => uuid(this.environment));
  }

  /**
   * @param {string} name
   * @param {() => string} draw
   */
  async #drawn(name, draw) {
    const key = this.prefix + name;
    const kept = await this.storage.get(key);
    if (typeof kept === "string") {
      return kept;
    }
    const drawn = draw();
    await this.storage.set(key, drawn);
    return (await this.storage.get(key)) ?? drawn;
  }

  /**
   * @param {any} study
   * @param {any} model
   */
  async #keep(study, model) {
    const line = this.#arm?.line ?? null;
    const { models } = this;
    await this.storage.set(`${this.prefix}membership`, { study, line, model, models, fetchedAt: this.environment.now() });
  }

  /**
   * Returns the reason why a fetched document can't be read; null if it can. An unreadable document counts as none.
   *
   * @param {() => void | Promise<void>} read
   * @returns {Promise<string | null>}
   */
  async #reads(read) {
    try {
      await read();
      return null;
    } catch (error) {
      return /** @type {any} */ (error)?.message ?? String(error);
    }
  }

  /**
   * @param {string | null} code Null if no document came.
   * @param {string} sentence
   * @param {number} [status] The status of an answer without a document; 0 without an answer.
   */
  #blame(code, sentence, status = 0) {
    const gave = status ? `answered ${status}` : "gave no readable answer; check the address, connect-src and the network";
    const hint = status === 404 ? "; check the study's name" : "";
    const nothing = `${this.models} ${gave}${hint}; the client asks again, and ranks as before`;
    this.cause = code === null ? { code: "unreachable", sentence: nothing } : { code, sentence };
  }
}

/** @param {any} document */
function pruned({ model, iteration, names }) {
  return { model, iteration, names };
}
