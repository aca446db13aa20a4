// @ts-check
/**
 * Shares for the helper, sealed before there is a vector to share. A sealed share contains only a seed, which doesn't
 * depend on the vector. It is bound to one ping: the document id is drawn here, and the ping uses it. So a choice
 * doesn't wait for the browser's cryptography, and a ping can be shown as it will be sent.
 *
 * A seed hides one vector, so a share can be used once ({@link Sharing.use}).
 *
 * @import { Arm, Line, PublicStudy } from "../study/study.js"
 * @import { Environment } from "./environment.js"
 *
 * @typedef {object} SealedShare
 * @property {string} documentId The document id of its ping.
 * @property {string} study The study's name.
 * @property {string} line
 * @property {string} arm
 * @property {number} version The model version that the ping names.
 * @property {Uint8Array} offer The id of the helper's offer.
 * @property {Uint8Array} seed
 * @property {number} metric The largest number of a metric, if the vector needs a proof; else 0.
 * @property {Uint8Array} sealed The seed, sealed for the helper; if the vector needs a proof, the two seeds derived
 *   from it.
 */

import { toHex } from "../study/bytes.js";
import { agreedTerms } from "../study/sharing/offer.js";
import { seal } from "../study/sharing/sealing.js";
import { SEED_BYTES, infoOf } from "../study/sharing/shares.js";
import { helperSeeds } from "../study/sharing/votes.js";
import { uuid } from "./environment.js";

/** The number of versions with shares: a list may have been ranked by the version before the newest. */
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
   * Check the line's offer, and prepare a share for a version.
   *
   * @param {PublicStudy} study
   * @param {Line} line A two-server line.
   * @param {Arm} arm
   * @param {number | null} version Null if the client won't send a ping of it.
   * @returns {Promise<string | null>} The reason why no ping may be sent in this line; null if one may.
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
   * The prepared share for a ping; null without one.
   *
   * @param {string} line @param {string} arm @param {number} version
   */
  find(line, arm, version) {
    const found = this.#ready.filter((share) => same(share, { line, arm, version, offer: share.offer }));
    return found.find((share) => !this.#used.has(share)) ?? null;
  }

  /**
   * Use up a share for sending. Returns false if it was used before.
   *
   * @param {SealedShare} share
   */
  use(share) {
    const first = !this.#used.has(share);
    this.#used.add(share);
    return first;
  }

  /** Delete all prepared shares. */
  clear() {
    this.#ready = [];
  }
}

/** @param {SealedShare} share @param {{ line: string, arm: string, version: number, offer: Uint8Array }} other */
function same(share, { line, arm, version, offer }) {
  return share.line === line && share.arm === arm && share.version === version && toHex(share.offer) === toHex(offer);
}
