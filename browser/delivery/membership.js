// @ts-check
/**
 * Who a client is in a study, and the model that it holds: fetched, kept, and found again by the next page.
 *
 * @import { Arm, PublicStudy, Version } from "../study/study.js"
 * @import { Environment } from "./environment.js"
 * @import { Outcome } from "./poller.js"
 * @import { ForgivingStorage } from "./storage.js"
 */

import { fromHex, toHex } from "../study/bytes.js";
import { enrol, stagedFor } from "../study/enrolment.js";
import { roleIn } from "../study/learning.js";
import { PRIVATE_TYPE } from "../study/ping.js";
import { promiseOf } from "../study/privacy/guarantee.js";
import { SECRET_BYTES, hasTurn } from "../study/privacy/ids.js";
import { canShare } from "../study/sharing/sealing.js";
import { NO_VERSION, readModel, readStudy, stagedIn, startWeights } from "../study/study.js";
import { Contributions } from "./contributions.js";
import { uuid } from "./environment.js";
import { fetchJson } from "./fetching.js";
import { Sharing } from "./sharing.js";
import { then } from "./storage.js";

export class Membership {
  /** @type {PublicStudy | null} */
  #study = null;
  /** @type {Arm | null} */
  #arm = null;
  /** @type {Version | null} */
  #fetched = null;
  /** Whether the id was found in the storage once, so that it is missed if it is gone. */
  #isKept = false;
  /** How often this client left: what was under way by then comes to nothing. */
  #left = 0;

  /**
   * @param {object} settings
   * @param {string} settings.ingest
   * @param {string} settings.study The study's name.
   * @param {ForgivingStorage} settings.storage
   * @param {string} settings.prefix Of the keys in the storage.
   * @param {Environment} settings.environment
   * @param {(what: string) => void} settings.notice Told why nothing is sent, once.
   */
  constructor({ ingest, study, storage, prefix, environment, notice }) {
    this.models = `${ingest}/models/${study}`;
    this.name = study;
    this.storage = storage;
    this.prefix = prefix;
    this.environment = environment;
    /** @type {string | null} A UUID drawn at random, for this study alone; null before the study was fetched. */
    this.clientId = null;
    /** @type {Uint8Array | null} What the ids for versions of private lines are made of; of other studies null. */
    this.secret = null;
    this.contributions = new Contributions({ storage, prefix });
    this.sharing = new Sharing({ environment });
    this.notice = notice;
    /** @type {string | null} Why this client takes no part, or sends nothing, in words for whoever set up the study. */
    this.trouble = null;
  }

  /** The study, as far as it is known. */
  get study() {
    return this.#study;
  }

  /** What the client is to do, by what it knows so far. */
  get role() {
    return roleIn(this.#study, this.#arm);
  }

  /**
   * The model version that the client holds; -1 and the start weights before any was fetched.
   *
   * @returns {Version}
   */
  get held() {
    return this.#fetched ?? { version: NO_VERSION, weights: startWeights(this.role.spec) };
  }

  /** Find what an earlier page or another tab has kept. Returns when that was fetched, -Infinity for never. */
  async recall() {
    const kept = await this.storage.get(`${this.prefix}membership`);
    try {
      await this.#join(readStudy(kept?.study, this.name));
      if (kept.model !== null && kept.line === this.#arm?.line) {
        this.#hold(kept.model);
      }
      await this.#prepare();
      return Number.isFinite(kept.fetchedAt) ? Math.min(kept.fetchedAt, this.environment.now()) : -Infinity;
    } catch {
      return -Infinity; // nothing is kept, or not by this version of the module
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
    if (!(await this.#reads(() => this.#join(readStudy(study.value, this.name)), study.value))) {
      return { ok: false, retryAfter: study.retryAfter };
    }
    const model = this.#arm?.line ? await fetchJson(this.environment, `${this.models}/${this.#arm.line}/latest.json`) : null;
    if (await isOver()) {
      return nothing;
    }
    const holds = model === null || (await this.#reads(() => this.#hold(model.value)));
    if (holds) {
      const first = await this.#staged(model?.value);
      await this.#prepare();
      if (await isOver()) {
        return nothing;
      }
      await this.#keep(study.value, first ?? (model && pruned(model.value)));
    }
    return holds ? { ok: true } : { ok: false, retryAfter: model.retryAfter };
  }

  /**
   * Take the version that a document says is staged, if this client is among those who get it first. Returns what to keep
   * of it; null where there is none, or it does not come.
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
    const holds = value?.iteration === staged.iteration && (await this.#reads(() => this.#hold(value)));
    return holds ? pruned(value) : null;
  }

  /** Forget everything, the client's id too; but not how often it has contributed, which holds for good. */
  async forget() {
    this.leave();
    await Promise.all(["membership", "client", "secret", "promise"].map((key) => this.storage.remove(this.prefix + key)));
  }

  /** Take part no longer in this page; what is kept stays, for it may be another client's by now. */
  leave() {
    this.#left += 1;
    this.#isKept = false;
    this.sharing.clear();
    this.trouble = null;
    this.#study = this.#arm = this.#fetched = this.clientId = this.secret = null;
  }

  /**
   * Whether another tab has forgotten this client since: its id is kept no longer, or another one. At once with a storage that
   * answers at once.
   *
   * @returns {boolean | Promise<boolean>}
   */
  isForgotten() {
    if (this.clientId === null || !this.#isKept) {
      return false;
    }
    const key = `${this.prefix}client`;
    const { clientId } = this;
    return then(this.storage.get(key), (kept) => (kept === undefined ? this.storage.lacks(key) : kept !== clientId));
  }

  /** @param {PublicStudy} study */
  async #join(study) {
    if (study.lines.some((line) => line.privacy?.shared) && !(await canShare())) {
      throw new TypeError(
        `the study '${study.name}' needs X25519 and Ed25519 for its two servers, which this browser does not have, or not on a page that was loaded without HTTPS`,
      );
    }
    const clientId = this.clientId ?? (await this.#clientId());
    const arm = study.ended === undefined ? enrol(study, clientId) : null; // nobody takes part any more
    if (arm?.line !== this.#arm?.line) {
      this.#fetched = null;
    }
    if (study.pings === PRIVATE_TYPE && arm?.line) {
      await this.#sameAsPromised(study, arm.line);
      this.secret ??= await this.#secret();
      await this.contributions.recall(arm.line);
    }
    this.#isKept ||= (await this.storage.get(`${this.prefix}client`)) === clientId;
    this.#study = study;
    this.clientId = clientId;
    this.#arm = arm;
  }

  /**
   * Hold a private line to what it promised when this client joined: whoever publishes the study could promise less later,
   * or name a helper of its own.
   *
   * @param {PublicStudy} study @param {string} name
   */
  async #sameAsPromised(study, name) {
    const line = study.lines.find((each) => each.name === name);
    const promised = await this.storage.get(`${this.prefix}promise`);
    const promise = line?.privacy ? promiseOf(line.privacy) : null;
    if (promised?.line === name && promised.promise !== promise) {
      throw new TypeError(
        `line '${name}' of study '${study.name}' promises something else than when this browser joined it; forget the study, and join again if you agree to that`,
      );
    }
    if (promised?.line !== name) {
      await this.storage.set(`${this.prefix}promise`, { line: name, promise });
    }
  }

  /** In a line of shares, have one ready for the version that is held, as long as there is anything to send of it. */
  async #prepare() {
    const [study, arm] = [this.#study, this.#arm];
    const line = study?.lines.find((each) => each.name === arm?.line);
    if (study === null || arm === null || !line?.privacy?.shared) {
      this.sharing.clear();
      this.#say(null);
      return;
    }
    const { version } = this.held;
    const { privacy } = line;
    const may = version >= 0 && this.contributions.may(line.name, version, privacy.contributions ?? Infinity);
    const sends = may && this.secret !== null && hasTurn(study.name, this.secret, line.name, version, privacy);
    this.#say(await this.sharing.prepare(study, line, arm, sends ? version : null));
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

  /** The id that is kept, or a new one. Two tabs that draw one at once both take the one that was written last. */
  async #clientId() {
    return this.#drawn("client", () => uuid(this.environment));
  }

  async #secret() {
    const text = await this.#drawn("secret", () => toHex(crypto.getRandomValues(new Uint8Array(SECRET_BYTES))));
    return fromHex(text);
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
    await this.storage.set(`${this.prefix}membership`, { study, line, model, fetchedAt: this.environment.now() });
  }

  /**
   * Whether something that was fetched can be read; one that cannot is as good as none.
   *
   * @param {() => void | Promise<void>} read
   * @param {any} [study] The study that came, if that is what is read.
   */
  async #reads(read, study) {
    try {
      await read();
      return true;
    } catch (error) {
      if (study !== undefined) {
        this.#say(/** @type {any} */ (error)?.message ?? String(error));
      }
      return false;
    }
  }
}

/** @param {any} document */
function pruned({ model, iteration, names }) {
  return { model, iteration, names };
}
