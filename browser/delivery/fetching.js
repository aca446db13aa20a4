// @ts-check
/**
 * Requests to ingest for the study and for models.
 *
 * A model has an entity tag, which the browser's own cache sends (`cache: "no-cache"`). If the page set the header
 * itself, each fetch from an ingest on another origin would need a preflight request.
 *
 * @import { Environment } from "./environment.js"
 *
 * @typedef {{ value: any, retryAfter: null, status?: number } | { value: undefined, retryAfter: number | null, status?:
 *   number }} Fetched The document; or undefined, with the status of the rejecting answer, and the seconds after which
 *   ingest wants the next request.
 */

import { request, retryAfter } from "./requests.js";

/**
 * Fetch a JSON document. Never raises: a failed fetch is an ordinary event for a client.
 *
 * @param {Environment} environment
 * @param {string} url
 * @returns {Promise<Fetched>}
 */
export async function fetchJson(environment, url) {
  try {
    return await request(environment, url, { cache: "no-cache", redirect: "error" }, async (response) =>
      response.ok
        ? { value: await response.json(), retryAfter: null }
        : { value: undefined, retryAfter: retryAfter(response, environment.now()), status: response.status },
    );
  } catch {
    return { value: undefined, retryAfter: null };
  }
}
