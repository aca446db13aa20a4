// @ts-check
/**
 * The personal model of a client in a personal arm: stored on this device alone, under the study's prefix, loaded by
 * the next page, and deleted with the arm. Tabs share it; if two learn at the same time, the last model written is
 * kept, whole.
 *
 * @import { Role } from "../study/parts.js"
 * @import { Descent, Kept } from "../study/personal/personal.js"
 * @import { Version } from "../study/study.js"
 * @import { ClientStorage } from "./storage.js"
 *
 * @typedef {{ role: Role, held: Version }} Shown The client's role and the version that it held when a list was shown.
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
   * @param {ClientStorage} settings.storage A storage that doesn't fail.
   * @param {string} settings.prefix The prefix of the keys in the storage.
   * @param {() => number} settings.draw A random number from [0, 1).
   * @param {(what: string) => void} settings.notice Called with a sentence when the stored model can no longer be used.
   */
  constructor({ storage, prefix, draw, notice }) {
    this.storage = storage;
    this.prefix = `${prefix}own/`;
    this.draw = draw;
    this.notice = notice;
  }

  /** The personal model; null in an arm that is not personal. */
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
   * Whether the next training returns an update of the shared weights.
   *
   * @param {Shown} shown
   */
  sends({ role, held }) {
    return role.personal === null || this.#own === null || sends(role.personal, held, this.#own.kept);
  }

  /**
   * Learn from a choice, if the list was shown in the role that this model belongs to.
   *
   * @param {Shown} shown
   * @param {() => Descent} descentOf Returns the descent of the choice; called only if the model learns.
   */
  learn(shown, descentOf) {
    const epoch = this.#forgotten;
    this.#turn = this.#turn.then(() => (epoch === this.#forgotten ? this.#learn(shown, descentOf, epoch) : undefined));
    return this.#turn;
  }

  /** Forget the model in this page alone: the stored one may already belong to another client. */
  leave() {
    this.#forgotten += 1;
    this.#own = null;
  }

  /** Delete the model; a client that still takes part starts a new one. */
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
    const other = await this.storage.get(key); // another tab may have trained or forgotten it in the meantime
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
