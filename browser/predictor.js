// @ts-check
/**
 * Predict a number or a class, and learn from the outcome:
 *
 *     import { Predictor } from "fedping/predictor";
 *
 *     const form = new Predictor({ ingest: "https://telemetry.example.org", study: "form", labels: ["home", "work"] });
 *     form.predict([0.2, 1, 0])?.label;
 *     form.learn([0.2, 1, 0], "work");
 *
 * @import { Example, Form } from "./predicting/models.js"
 * @import { Parts } from "./study/parts.js"
 * @import { ModelSpec } from "./study/study.js"
 *
 * @typedef {import("./product/product.js").Trouble} Trouble
 * @typedef {import("./product/product.js").TroubleCode} TroubleCode
 * @typedef {import("./delivery/storage.js").ClientStorage} ClientStorage
 */

/**
 * @template {string | number} [L=number]
 * @template {string} [F=string]
 * @typedef {object} OfExamples
 * @property {readonly L[]} [labels] The names of the classes, in the order of the study; numbers from 0 by default.
 * @property {readonly F[]} [fields] The names of an example's numbers, in the order of the study; then an example may be an object.
 * @property {number} [batch] The number of examples in a ping, if the study doesn't set it; 20 by default.
 */

/**
 * @template {string | number} [L=number]
 * @template {string} [F=string]
 * @typedef {import("./product/product.js").ProductSettings & OfExamples<L, F>} PredictorSettings
 */

/**
 * @template {string | number} [L=number]
 * @typedef {object} Prediction
 * @property {number} value The predicted number; for classes, the probability of the likeliest.
 * @property {L | null} label The likeliest class; null for a predicted number.
 * @property {readonly number[]} probabilities The probability of each class; empty for a predicted number.
 * @property {number} version The model version that made the prediction.
 */

import { uuid } from "./delivery/environment.js";
import { PREDICTING_MODELS, formOf, learnedOf, predicted } from "./predicting/models.js";
import { Product } from "./product/product.js";
import { mayTravel, sentBy } from "./study/links.js";
import { startWeights } from "./study/study.js";

export { indexedStorage, memoryStorage, webStorage } from "./delivery/storage.js";

const MODEL_TYPE = "model-update";

/** The number of examples in a ping by default. */
const BATCH = 20;

/** @type {Parts} */
const PARTS = Object.freeze({
  entry: "predictor",
  pings: { types: [MODEL_TYPE], of: "examples, 'model-update'" },
  product: { model: "linear-regression", weights: [], margin: 0, epsilon: 1 },
  models: PREDICTING_MODELS,
  links: new Map([["dense", {}]]),
  personal: null,
  privacy: null,
});

/** @type {WeakMap<ModelSpec, Form>} */
const forms = new WeakMap();

/**
 * @template {string | number} [L=number]
 * @template {string} [F=string]
 */
export class Predictor extends Product {
  /** @type {readonly L[] | undefined} */
  #labels;
  /** @type {readonly F[] | undefined} */
  #fields;
  #batch;
  #key;
  /** @type {Promise<void>} Examples are stored one at a time. */
  #turn = Promise.resolve();

  /** @param {PredictorSettings<L, F>} settings */
  constructor(settings) {
    super(settings, PARTS, "labels fields batch");
    this.#labels = settings.labels;
    this.#fields = settings.fields;
    this.#batch = settings.batch ?? BATCH;
    this.#key = `fedping/${settings.study}/examples`;
  }

  /**
   * The model's prediction for an example; null until the study is known, and for a malformed example.
   *
   * @param {readonly number[] | Readonly<Record<F, number>>} x
   * @returns {Prediction<L> | null}
   */
  predict(x) {
    this.takePart();
    const { study, role, held } = this.participant.membership;
    const numbers = study === null ? null : this.#numbers(x, formFor(role.spec));
    if (numbers === null) {
      return null;
    }
    const { own, parts } = this.participant;
    const { personal } = role;
    const kept = own?.kept;
    const mine = personal && kept ? parts.personal?.weights(personal, role.spec, held, kept) : null;
    const found = predicted(formFor(role.spec), role.arm?.applies ? (mine ?? held.weights) : startWeights(role.spec), numbers);
    const { version } = held;
    if (formFor(role.spec).classes === 0) {
      return { value: found[0], label: null, probabilities: [], version };
    }
    const best = found.indexOf(Math.max(...found));
    const label = this.#labels === undefined ? /** @type {L} */ (best) : this.#labels[best];
    return { value: found[best], label, probabilities: found, version };
  }

  /**
   * Learn from the outcome. Examples stay on the device until there are enough for a ping, which contains only their
   * update; then they are deleted. Return whether the example is well-formed.
   *
   * @param {readonly number[] | Readonly<Record<F, number>>} x
   * @param {L} label The class, or the number.
   */
  learn(x, label) {
    this.takePart();
    if (!this.participant.maySend() || this.hasLeft()) {
      return false;
    }
    this.whenKnown(() => this.#keep(x, label));
    return true;
  }

  /** Forget everything in all tabs, including the examples. */
  async forget() {
    await super.forget();
    await this.#turn;
    await this.participant.storage.remove(this.#key);
  }

  /** Send the waiting pings now. */
  async deliver() {
    await this.ready;
    await this.#turn;
    await super.deliver();
  }

  /**
   * @param {any} x
   * @param {any} label
   */
  #keep(x, label) {
    const { study, role } = this.participant.membership;
    if (study === null || role.arm === null) {
      return;
    }
    const form = formFor(role.spec);
    const numbers = this.#numbers(x, form);
    const y = form.classes === 0 || this.#labels === undefined ? label : this.#labels.indexOf(label);
    const isOne = form.classes === 0 ? Number.isFinite(y) : Number.isSafeInteger(y) && y >= 0 && y < form.classes;
    if (numbers === null) {
      return;
    }
    if (!isOne) {
      const what = form.classes === 0 ? "finite number" : "class";
      this.tell("example_unfit", `the label of an example is no ${what} of the study '${this.study}'; it is skipped`);
      return;
    }
    this.#turn = this.#turn.then(() => this.#add({ x: numbers, y }));
  }

  /** @param {Example} example */
  async #add(example) {
    const { storage, membership } = this.participant;
    if (await this.participant.isForgotten()) {
      return;
    }
    const { role } = membership;
    const form = formFor(role.spec);
    const kept = readExamples(await storage.get(this.#key), form);
    const examples = [...kept, example];
    const line = membership.study?.lines.find(({ name }) => name === role.arm?.line);
    const { batch } = /** @type {{ batch?: number | null }} */ (line?.training ?? {});
    if (examples.length < (batch ?? this.#batch)) {
      await storage.set(this.#key, examples);
      return;
    }
    await storage.remove(this.#key);
    this.#report(examples, form);
  }

  /**
   * @param {readonly Example[]} examples
   * @param {Form} form
   */
  #report(examples, form) {
    const { membership, own, privateLine, parts } = this.participant;
    const { role, held, clientId, study } = membership;
    if (role.arm === null || clientId === null || study === null) {
      return;
    }
    const { loss } = learnedOf(form, role.arm.applies ? held.weights : startWeights(role.spec), examples);
    const submits = role.arm.submits && (own?.sends({ role, held }) ?? true);
    const learned = submits ? learnedOf(form, held.weights, examples).update : null;
    const update = learned && role.sign ? learned.map((each) => Math.sign(each) + 0) : learned;
    const sent = update && sentBy(role.upload, update, parts.links);
    if (role.privacy !== null) {
      const composed = privateLine?.compose(study, { role, held }, { chosen: NOT_ON_TOP, loss, update });
      if (composed) {
        this.post(composed, study.pings);
      }
    } else if (mayTravel([loss, ...(update ?? [])]) && (update === null || sent !== null)) {
      const of = { model_version: held.version, study_variation: role.arm.name };
      const payload = { ...of, update: sent, loss, examples: examples.length };
      this.post({ documentId: uuid(this.environment), ping: { clientId, type: MODEL_TYPE, payload } }, MODEL_TYPE);
    } else {
      this.tell("not_finite", "some examples give no finite update, so none is sent; scale their numbers");
    }
    const descent = (/** @type {ArrayLike<number>} */ weights) => learnedOf(form, weights, examples).update;
    this.participant.awaits(this.participant.learn({ role, held }, () => descent));
  }

  /**
   * An example's numbers in the order of the study; null, with a reported trouble, if it is malformed.
   *
   * @param {any} x
   * @param {Form} form
   * @returns {number[] | null}
   */
  #numbers(x, { features }) {
    const numbers = Array.isArray(x) ? x : (this.#fields ?? []).map((field) => x?.[field]);
    if (numbers.length === features && numbers.every(Number.isFinite)) {
      return numbers;
    }
    const has = `has ${features} finite numbers, and one has ${numbers.length}, or others`;
    this.tell("example_unfit", `an example of the study '${this.study}' ${has}; it is skipped`);
    return null;
  }
}

/** A place below the top: in a private line of examples, the metric "choice on top" is always 0. */
const NOT_ON_TOP = 1;

/** @param {ModelSpec} spec */
function formFor(spec) {
  const found = forms.get(spec) ?? formOf(spec);
  forms.set(spec, found);
  return found;
}

/**
 * The stored examples, without those of another study's model.
 *
 * @param {any} given
 * @param {Form} form
 * @returns {Example[]}
 */
function readExamples(given, { features, classes }) {
  const isClass = (/** @type {number} */ y) => classes === 0 || y < classes;
  const fits = (/** @type {any} */ { x, y } = {}) =>
    Array.isArray(x) && x.length === features && [...x, y].every(Number.isFinite) && isClass(y);
  return Array.isArray(given) ? given.filter(fits) : [];
}
