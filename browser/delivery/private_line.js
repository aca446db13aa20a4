// @ts-check
/**
 * A client's part in a private line: the client's secret, the guarantee when it joined, one ping for each version up to
 * a cap, and the shares for a second server.
 *
 * @import { Composed } from "./participant.js"
 * @import { Arm, PublicStudy, Version } from "../study/study.js"
 * @import { Role } from "../study/parts.js"
 * @import { Privacy } from "../study/privacy/vectors.js"
 * @import { Environment } from "./environment.js"
 * @import { SealedShare } from "./sharing.js"
 * @import { ForgivingStorage } from "./storage.js"
 *
 * @typedef {object} Sending How a ping was composed.
 * @property {string} line
 * @property {Privacy} privacy
 * @property {SealedShare | null} share
 */

import { fromHex, toHex } from "../study/bytes.js";
import { base64 } from "../study/links.js";
import { SYSTEM } from "../study/privacy/chance.js";
import { promiseOf } from "../study/privacy/guarantee.js";
import { SECRET_BYTES, hasTurn, rotatingId } from "../study/privacy/ids.js";
import { ENCODING, frameOf, payloadOf, vectorOf } from "../study/privacy/vectors.js";
import { canShare } from "../study/sharing/sealing.js";
import { SHARED, leaderShare, sharedPayload } from "../study/sharing/shares.js";
import { provenShare } from "../study/sharing/votes.js";
import { PRIVATE_TYPE } from "../study/study.js";
import { Contributions } from "./contributions.js";
import { uuid } from "./environment.js";
import { Sharing } from "./sharing.js";

const MINUTE = 60_000;

export class PrivateLine {
  /** @type {WeakMap<object, Sending>} How each ping was composed. */
  #composed = new WeakMap();

  /**
   * @param {object} settings
   * @param {ForgivingStorage} settings.storage
   * @param {string} settings.prefix The prefix of the keys in the storage.
   * @param {Environment} settings.environment
   * @param {number} settings.most The maximum number of versions that this client contributes to, regardless of the line.
   */
  constructor({ storage, prefix, environment, most }) {
    this.storage = storage;
    this.prefix = prefix;
    this.environment = environment;
    this.most = most;
    this.contributions = new Contributions({ storage, prefix });
    this.sharing = new Sharing({ environment });
    /** @type {Uint8Array | null} The secret from which the ids for versions are derived; null in other studies. */
    this.secret = null;
  }

  /**
   * @param {PublicStudy} study
   * @throws {TypeError} This browser lacks something that the study's lines need.
   */
  async check(study) {
    if (study.lines.some((line) => line.privacy?.shared) && !(await canShare())) {
      throw new TypeError(
        `the study '${study.name}' needs X25519 and Ed25519 for its two servers, which this browser lacks, or lacks on pages without HTTPS`,
      );
    }
  }

  /**
   * Join a line, under the guarantee that it gave when this client first joined.
   *
   * @param {PublicStudy} study
   * @param {string} line
   * @param {(name: string, draw: () => string) => Promise<string>} drawn Returns the stored value of a name, or draws
   *   and stores one.
   * @throws {TypeError} The line's guarantee has changed.
   */
  async join(study, line, drawn) {
    await this.#sameAsPromised(study, line);
    if (this.secret === null) {
      const bytes = () => toHex(crypto.getRandomValues(new Uint8Array(SECRET_BYTES)));
      this.secret = fromHex(await drawn("secret", bytes));
    }
    await this.contributions.recall(line);
  }

  /**
   * Check that a private line's guarantee is the one given when this client joined: the study's publisher could later
   * promise less, or name another helper.
   *
   * @param {PublicStudy} study @param {string} name
   */
  async #sameAsPromised(study, name) {
    const line = study.lines.find((each) => each.name === name);
    const promised = await this.storage.get(`${this.prefix}promise`);
    const promise = line?.privacy ? promiseOf(line.privacy) : null;
    if (promised?.line === name && promised.promise !== promise) {
      throw new TypeError(
        `line '${name}' of study '${study.name}' has changed its promise since this browser joined; forget the study, and join again if you agree to the new one`,
      );
    }
    if (promised?.line !== name) {
      await this.storage.set(`${this.prefix}promise`, { line: name, promise });
    }
  }

  /**
   * In a two-server line, prepare a share for the held version, while the client may still send a ping of it.
   *
   * @param {PublicStudy | null} study
   * @param {Arm | null} arm
   * @param {Version} held
   * @returns {Promise<string | null>} The reason why no ping may be sent; null if one may.
   */
  async prepare(study, arm, { version }) {
    const line = study?.lines.find((each) => each.name === arm?.line);
    if (study === null || arm === null || !line?.privacy?.shared) {
      this.sharing.clear();
      return null;
    }
    const { privacy } = line;
    const may = version >= 0 && this.contributions.may(line.name, version, privacy.contributions ?? Infinity);
    const sends = may && this.secret !== null && hasTurn(study.name, this.secret, line.name, version, privacy);
    return this.sharing.prepare(study, line, arm, sends ? version : null);
  }

  /**
   * The ping of a choice: one for each version, up to the cap; null for all others and for searches without a choice.
   *
   * @param {PublicStudy | null} study
   * @param {{ role: Role, held: Version }} shown
   * @param {{ chosen: number, loss: number, update: readonly number[] | null }} learned
   * @returns {Composed | null}
   */
  compose(study, { role, held }, { chosen, loss, update }) {
    const { arm, privacy, spec } = role;
    if (arm === null || privacy === null || study === null || this.secret === null || chosen < 0 || held.version < 0) {
      return null;
    }
    const line = String(arm.line);
    if (!this.contributions.may(line, held.version, this.#cap(privacy))) {
      return null;
    }
    if (!hasTurn(study.name, this.secret, line, held.version, privacy)) {
      return null;
    }
    const learnt = update ?? spec.weights.map(() => 0);
    const vector = vectorOf(privacy, frameOf(privacy, spec), learnt, loss, chosen === 0, SYSTEM);
    const share = privacy.shared ? this.sharing.find(line, arm.name, held.version) : null;
    if (privacy.shared && share === null) {
      return null; // no offer yet, or one that does not fit
    }
    const sent = share === null ? plain(vector) : split(vector, share);
    const clientId = rotatingId(study, this.secret, arm, held.version);
    const payload = { model_version: held.version, study_variation: arm.name, update: sent };
    const ping = { clientId, type: PRIVATE_TYPE, payload };
    this.#composed.set(ping, { line, privacy, share });
    return { documentId: share?.documentId ?? uuid(this.environment), ping, vector };
  }

  /**
   * How a ping was composed; undefined for a ping that was not composed here.
   *
   * @param {object} ping
   */
  sendingOf(ping) {
    return this.#composed.get(ping);
  }

  /**
   * Count a contribution that is about to be sent. Returns the random time until which it waits; null if it may not be
   * sent.
   *
   * @param {number} version
   * @param {Sending} sending
   */
  async contribute(version, { line, privacy }) {
    if (!(await this.contributions.take(line, version, this.#cap(privacy)))) {
      return null;
    }
    const delay = Number(SYSTEM.below(BigInt(Math.round(privacy.delay_minutes * MINUTE) + 1)));
    return this.environment.now() + delay;
  }

  /** Stop taking part in this page. */
  leave() {
    this.sharing.clear();
    this.secret = null;
  }

  /** @param {Privacy} privacy */
  #cap({ contributions }) {
    return Math.min(contributions ?? Infinity, this.most);
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
