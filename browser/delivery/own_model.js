// @ts-check
/**
 * What stays with a client of a personal arm: kept under the study's prefix and on this device alone, found again by the next
 * page, and gone with the arm. Tabs share it; of two that learn at once, the last one's is kept, whole.
 *
 * @import { Role } from "../study/parts.js"
 * @import { Descent, Kept } from "../study/personal/personal.js"
 * @import { Version } from "../study/study.js"
 * @import { ClientStorage } from "./storage.js"
 *
 * @typedef {{ role: Role, held: Version }} Shown Of a list that was shown, what the client was to do and held.
 */

import { begun, digestOf, readKept, sends, trained } from "../study/personal/personal.js";

export class OwnModel {
  /** @type {{ key: string, digest: string, kept: Kept } | null} */
  #own = null;
  /** @type {Promise<void>} Trainings run one at a time. */
  #turn = Promise.resolve();
  #forgotten = 0;

  /**
   * @param {object} settings
   * @param {ClientStorage} settings.storage One that does not fail.
   * @param {string} settings.prefix Of the keys in the storage.
   * @param {() => number} settings.draw A random number from [0, 1).
   * @param {(what: string) => void} settings.notice Told in a sentence when what was kept is of no use any more.
   */
  constructor({ storage, prefix, draw, notice }) {
    this.storage = storage;
    this.prefix = `${prefix}own/`;
    this.draw = draw;
    this.notice = notice;
  }

  /** What is kept; null in an arm that is not personal. */
  get kept() {
    return this.#own?.kept ?? null;
  }

  /**
   * Load the stored model of a role, or start one; if the role has no personal model, forget another role's.
   *
   * @param {Role} role
   */
  async recall(role) {
    const to = placeOf(role);
    if (to === null || role.personal === null) {
      await this.forget();
      return;
    }
    const epoch = this.#forgotten;
    const key = this.prefix + to.line;
    const { digest } = to;
    const value = await this.storage.get(key);
    const kept = this.#read(role, digest, value);
    const useless = (await this.storage.keys(this.prefix)).filter((each) => each !== key || kept === null);
    await Promise.all(useless.map((each) => this.storage.remove(each)));
    if (epoch !== this.#forgotten) {
      return;
    }
    const untrained = this.#own?.digest === digest && this.#own.kept.trained === 0 ? this.#own.kept : null;
    this.#own = { key, digest, kept: kept ?? untrained ?? begun(role.personal, role.spec, this.draw) };
  }

  /**
   * Whether the next training gives an update of the shared weights.
   *
   * @param {Shown} shown
   */
  sends({ role, held }) {
    return role.personal === null || this.#own === null || sends(role.personal, held, this.#own.kept);
  }

  /**
   * Learn from a choice, if the list is of the role whose model this is.
   *
   * @param {Shown} shown
   * @param {() => Descent} descentOf What the choice teaches; asked for where something is learned.
   */
  learn(shown, descentOf) {
    const epoch = this.#forgotten;
    this.#turn = this.#turn.then(() => (epoch === this.#forgotten ? this.#learn(shown, descentOf, epoch) : undefined));
    return this.#turn;
  }

  /** Forget it in this page alone: what is kept may be another client's by now. */
  leave() {
    this.#forgotten += 1;
    this.#own = null;
  }

  /** Forget all of it; a client that still takes part starts again. */
  async forget() {
    this.leave();
    await this.#turn;
    await Promise.all((await this.storage.keys(this.prefix)).map((key) => this.storage.remove(key)));
  }

  /**
   * @param {Shown} shown
   * @param {() => Descent} descentOf
   * @param {number} epoch
   */
  async #learn({ role, held }, descentOf, epoch) {
    const { digest } = placeOf(role) ?? {};
    if (role.personal === null || this.#own === null || digest !== this.#own.digest) {
      return;
    }
    const { key } = this.#own;
    const other = await this.storage.get(key); // which another tab may have trained meanwhile, or forgotten
    if (epoch !== this.#forgotten || this.#own === null) {
      return;
    }
    const mine = this.#own.kept.trained === 0 ? this.#own.kept : begun(role.personal, role.spec, this.draw);
    const from = this.#read(role, digest, other) ?? mine;
    const kept = trained(role.personal, role.spec, held, from, descentOf());
    this.#own = { key, digest, kept };
    await this.storage.set(key, { digest, kept });
    if (epoch !== this.#forgotten) {
      await this.storage.remove(key);
    }
  }

  /**
   * @param {Role} role
   * @param {string} digest
   * @param {any} value
   */
  #read(role, digest, value) {
    if (value === undefined || role.personal === null) {
      return null;
    }
    if (value?.digest !== digest) {
      const known = typeof value?.digest === "string";
      this.notice(`the personal model of line '${role.arm?.line}' is ${known ? "of other settings" : "damaged"}; it starts again`);
      return null;
    }
    const kept = readKept(role.personal, role.spec, value.kept);
    if (kept === null) {
      this.notice(`the personal model of line '${role.arm?.line}' is damaged; it starts again`);
    }
    return kept;
  }
}

/** @type {WeakMap<object, string>} */
const digests = new WeakMap();

/** @param {Role} role */
function placeOf({ arm, personal, spec }) {
  if (!arm?.line || personal === null) {
    return null;
  }
  const digest = digests.get(personal) ?? digestOf(personal, spec);
  digests.set(personal, digest);
  return { line: arm.line, digest };
}
