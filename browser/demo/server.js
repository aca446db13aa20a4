// @ts-check
/**
 * The page's requests to ingest beyond a client's: the pings that wait for the next round, and single versions.
 *
 * @import { Version } from "../study/study.js"
 *
 * @typedef {{ name: string, iteration: number, min_clients: number, pings: number | null, clients: number | null }} LineState
 * @typedef {{ studies: string[], study: string, lines: LineState[] }} State
 */

import { readModel } from "../study/study.js";

/** @import { ModelSpec } from "../study/study.js" */

const PATIENCE = 10_000;

/** The server rejected the request; the message is the server's. */
export class Refused extends Error {}

/** The server doesn't answer. */
export class Away extends Error {}

/**
 * The state of a study; of the first, if none is named.
 *
 * @param {string | null} study
 * @returns {Promise<State>}
 */
export function askState(study) {
  return askJson(`state.json${study === null ? "" : `?study=${encodeURIComponent(study)}`}`);
}

/**
 * A version of a line; null if it can't be fetched.
 *
 * @param {string} ingest
 * @param {string} study
 * @param {{ name: string, spec: ModelSpec }} line
 * @param {number} number
 * @returns {Promise<Version | null>}
 */
export async function askVersion(ingest, study, line, number) {
  try {
    return readModel(await askJson(`${ingest}/models/${study}/${line.name}/${number}.json`), line.spec);
  } catch {
    return null;
  }
}

/**
 * @param {string} url
 * @returns {Promise<any>}
 * @throws {Refused} The server answers with an error.
 * @throws {Away} The server does not answer.
 */
export async function askJson(url) {
  const options = { cache: /** @type {const} */ ("no-cache"), signal: AbortSignal.timeout(PATIENCE) };
  const response = await fetch(url, { ...options, credentials: "omit" }).catch(() => {
    throw new Away("the server does not answer");
  });
  const answer = await response.json().catch(() => null);
  if (!response.ok) {
    throw new Refused(answer?.error ?? `the server answers ${response.status}`);
  }
  return answer;
}
