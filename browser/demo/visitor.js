// @ts-check
/**
 * The visitor's client, in an arm of the visitor's choice, with visible requests.
 *
 * In a real study, a hash of the random id decides the arm. Here ids are drawn until one falls into the chosen arm.
 *
 * @import { Environment } from "../delivery/environment.js"
 * @import { ClientStorage } from "../delivery/storage.js"
 * @import { PublicStudy } from "../study/study.js"
 *
 * @typedef {{ url: string, contentType: string, body: string }} Posted
 * @typedef {{ status: number, text: string } | null} Answered Null if the server didn't answer.
 */

import { Client } from "../client.js";
import { Backoff } from "../delivery/backoff.js";
import { uuid } from "../delivery/environment.js";
import { links } from "../links.js";
import { personal } from "../personal.js";
import { privacy } from "../private.js";
import { Ranker } from "../ranker.js";
import { enrol } from "../study/enrolment.js";

/** Additional parts of this page's rankers: small updates, personal models and private lines. */
export const MORE = Object.freeze({ links, personal, privacy });

export const ID_BYTES = 16;
const MOST_TRIES = 100_000;

/**
 * @typedef {object} Visiting
 * @property {string} ingest
 * @property {PublicStudy} study
 * @property {string} arm
 * @property {ClientStorage} storage
 * @property {Environment} environment
 * @property {(posted: Posted, answered: Answered) => void} onAnswer
 */

/**
 * A client in an arm, not started.
 *
 * @param {Visiting} visiting
 */
export function visitorIn(visiting) {
  return new Client({ ...settingsOf(visiting), backoff: new Backoff({ first: 1, longest: 2 }) });
}

/**
 * A ranker in an arm.
 *
 * @param {Visiting} visiting
 */
export function rankerIn(visiting) {
  return new Ranker({ ...settingsOf(visiting), parts: MORE });
}

/** @param {Visiting} visiting */
function settingsOf({ ingest, study, arm, storage, environment, onAnswer }) {
  const id = bytesInArm(study, arm, environment);
  return {
    ingest,
    study: study.name,
    storage: apart(storage, `arm/${arm}/`),
    environment: { ...environment, ...beginningWith(id, environment), fetch: overheard(environment, onAnswer) },
  };
}

/**
 * The bytes of an id that falls into an arm.
 *
 * @param {PublicStudy} study
 * @param {string} arm
 * @param {Environment} environment
 * @throws {RangeError} No id was found: the arm has no share.
 */
export function bytesInArm(study, arm, environment) {
  for (let tries = 0; tries < MOST_TRIES; tries += 1) {
    const bytes = environment.randomBytes(ID_BYTES);
    const id = uuid({ ...environment, randomBytes: () => bytes.slice() });
    if (enrol(study, id)?.name === arm) {
      return bytes;
    }
  }
  throw new RangeError(`no client falls into the arm '${arm}' of the study '${study.name}': its share is too small`);
}

/**
 * The environment's random bytes, except for the first id, the client's, which is given.
 *
 * @param {Uint8Array} id
 * @param {Environment} environment
 */
export function beginningWith(id, environment) {
  let first = true;
  return {
    /** @param {number} count */
    randomBytes: (count) => {
      if (first && count === ID_BYTES) {
        first = false;
        return id.slice();
      }
      return environment.randomBytes(count);
    },
  };
}

/**
 * A `fetch` that also calls `onAnswer` with every ping and its answer.
 *
 * @param {Environment} environment
 * @param {(posted: Posted, answered: Answered) => void} onAnswer
 * @returns {typeof fetch}
 */
function overheard(environment, onAnswer) {
  return async (input, init) => {
    if (init?.method !== "POST") {
      return environment.fetch(input, init);
    }
    const contentType = new Headers(init.headers).get("Content-Type") ?? "";
    const posted = { url: String(input), contentType, body: String(init.body) };
    try {
      const response = await environment.fetch(input, init);
      onAnswer(posted, { status: response.status, text: await response.clone().text() });
      return response;
    } catch (error) {
      onAnswer(posted, null);
      throw error;
    }
  };
}

/**
 * A separate part of a storage, because each arm that the visitor has tried is a separate client.
 *
 * @param {ClientStorage} storage
 * @param {string} part
 * @returns {ClientStorage}
 */
function apart(storage, part) {
  return {
    get: (key) => storage.get(part + key),
    set: (key, value) => storage.set(part + key, value),
    remove: (key) => storage.remove(part + key),
    keys: async (prefix) => (await storage.keys(part + prefix)).map((key) => key.slice(part.length)),
  };
}
