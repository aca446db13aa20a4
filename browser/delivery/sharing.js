// @ts-check
/**
 * Shares for the helper that are sealed before there is a vector to share. What is sealed is a seed, which no vector enters, but
 * it is bound to one ping: its document id is drawn here, and the ping then takes it. So a choice need not wait for the
 * browser's cryptography, and a ping can be shown as it will be sent.
 *
 * A seed hides one vector: the sender of a share takes it ({@link Sharing.use}), which works only once.
 *
 * @import { Arm, Line, PublicStudy } from "../study/study.js"
 * @import { Environment } from "./environment.js"
 *
 * @typedef {object} SealedShare
 * @property {string} documentId Of the ping that it is for.
 * @property {string} study The study's name.
 * @property {string} line
 * @property {string} arm
 * @property {number} version The model version that the ping names.
 * @property {Uint8Array} offer The id of the helper's offer.
 * @property {Uint8Array} seed
 * @property {number} metric Where the vector is to be proven the largest number of a metric; else 0.
 * @property {Uint8Array} sealed The seed, for the helper alone; where the vector is to be proven the two that follow from it.
 */

import { toHex } from "../study/bytes.js";
import { agreedTerms } from "../study/sharing/offer.js";
import { seal } from "../study/sharing/sealing.js";
import { SEED_BYTES, infoOf } from "../study/sharing/shares.js";
import { helperSeeds } from "../study/sharing/votes.js";
import { uuid } from "./environment.js";

/** A list may have been ranked by the version before the newest. */
const VERSIONS = 2;

export class Sharing {
  /** @type {SealedShare[]} The newest last. */
  #ready = [];
  /** @type {WeakSet<SealedShare>} */
  #used = new WeakSet();

  /** @param {{ environment: Environment }} settings */
  constructor({ environment }) {
    this.environment = environment;
  }

  /**
   * Look at the line's offer, and have a share ready for a version.
   *
   * @param {PublicStudy} study
   * @param {Line} line One of shares.
   * @param {Arm} arm
   * @param {number | null} version None, if there is nothing to send of it.
   * @returns {Promise<string | null>} Why nothing is sent in this line; null if something may be.
   */
  async prepare(study, line, arm, version) {
    try {
      const terms = await agreedTerms(study, line);
      if (terms === null) {
        this.clear();
        return `line '${line.name}' of study '${study.name}' has no offer of its helper yet; the client asks again with the next model`;
      }
      const of = { line: line.name, arm: arm.name, offer: terms.id };
      this.#ready = this.#ready.filter((share) => same(share, { ...of, version: share.version }));
      if (version !== null && this.find(line.name, arm.name, version) === null) {
        const [document, seed] = [uuid(this.environment), crypto.getRandomValues(new Uint8Array(SEED_BYTES))];
        const info = infoOf({ study: study.name, ...of, version, document, numbers: terms.numbers });
        const { metric } = terms;
        const sealed = await seal(terms.key, metric > 0 ? helperSeeds(seed) : seed, info);
        const share = { documentId: document, study: study.name, ...of, version, seed, metric, sealed };
        this.#ready = [...this.#ready, share].slice(-VERSIONS);
      }
      return null;
    } catch (error) {
      this.clear();
      return /** @type {any} */ (error)?.message ?? String(error);
    }
  }

  /**
   * The share that is ready for a ping; null if none is.
   *
   * @param {string} line @param {string} arm @param {number} version
   */
  find(line, arm, version) {
    const found = this.#ready.filter((share) => same(share, { line, arm, version, offer: share.offer }));
    return found.find((share) => !this.#used.has(share)) ?? null;
  }

  /**
   * Take a share to send with. Whether it may be: it never was.
   *
   * @param {SealedShare} share
   */
  use(share) {
    const first = !this.#used.has(share);
    this.#used.add(share);
    return first;
  }

  /** Forget them. */
  clear() {
    this.#ready = [];
  }
}

/** @param {SealedShare} share @param {{ line: string, arm: string, version: number, offer: Uint8Array }} other */
function same(share, { line, arm, version, offer }) {
  return share.line === line && share.arm === arm && share.version === version && toHex(share.offer) === toHex(offer);
}
