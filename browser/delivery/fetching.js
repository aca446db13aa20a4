// @ts-check
/**
 * Asking ingest for the study and for models.
 *
 * A model has an entity tag, and the browser's own cache asks with it (`cache: "no-cache"`): a page that asked with a
 * header of its own would have to ask for permission first, at every fetch, when ingest is elsewhere.
 *
 * @import { Environment } from "./environment.js"
 *
 * @typedef {{ value: any, retryAfter: null, status?: number } | { value: undefined, retryAfter: number | null, status?: number }} Fetched
 *   The document; or none, with the status of an answer that refuses it, and the seconds after which ingest wants to be asked again.
 */

import { request, retryAfter } from "./requests.js";

/**
 * Fetch a JSON document. Nothing is raised: that none comes is an ordinary event in a client's life.
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
