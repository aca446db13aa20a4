// @ts-check
/**
 * Other invented people, each a separate client with a separate history: they search for something, and choose the page
 * that frecency with the weights of 2018 would rank first.
 *
 * @import { Environment } from "../delivery/environment.js"
 * @import { Remembered } from "./history.js"
 * @import { Draw } from "./random.js"
 *
 * @typedef {{ accepted: number, refused: number, waiting: number, learning: number, notEnrolled: number }} Made The
 *   results of the choices; `learning` counts those whose ping carried an update.
 */

import { Client } from "../client.js";
import { Backoff } from "../delivery/backoff.js";
import { browserEnvironment, uuid } from "../delivery/environment.js";
import { memoryStorage } from "../delivery/storage.js";
import { FRECENCY_START, frecency2018 } from "../models/frecency.js";
import { PageTable } from "../models/pages.js";
import { madeHistory, matching } from "./history.js";
import { seedOf, seeded } from "./random.js";
import { WORDS } from "./sites.js";

export const MOST_SHOWN = 8;
const AT_ONCE = 5;

/** @type {Made} */
export const NOTHING = { accepted: 0, refused: 0, waiting: 0, learning: 0, notEnrolled: 0 };

/**
 * Let people choose. The same seed gives the same people, with the same ids, searches and choices. Their pings have new
 * document ids each time; otherwise ingest would drop them as duplicates.
 *
 * @param {object} settings
 * @param {string} settings.ingest
 * @param {string} settings.study
 * @param {string} settings.seed
 * @param {number} settings.count
 * @param {(done: number) => void} [settings.onProgress]
 * @param {Environment} [settings.environment]
 */
export function letChoose({ ingest, study, environment = browserEnvironment(), ...settings }) {
  return crowd(settings, (seed) => choose({ ingest, study, seed, environment }));
}

/**
 * Run a number of people, a few at a time.
 *
 * @param {{ seed: string, count: number, onProgress?: (done: number) => void }} settings
 * @param {(seed: string) => Promise<Made>} one Runs the person of a seed.
 */
export async function crowd({ seed, count, onProgress = () => {} }, one) {
  const made = { ...NOTHING };
  const numbers = Array.from({ length: count }, (_, number) => number).values();
  let done = 0;
  const oneAfterTheOther = async () => {
    for (const number of numbers) {
      add(made, await one(`${seed}/${number}`));
      onProgress((done += 1));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, oneAfterTheOther));
  return made;
}

/**
 * Run one person, from enrolment to the answer of ingest.
 *
 * @param {{ ingest: string, study: string, seed: string, environment: Environment }} settings
 * @returns {Promise<Made>}
 */
async function choose({ ingest, study, seed, environment }) {
  const draw = seeded(seedOf(`person/${seed}`));
  const own = { ...environment, randomBytes: draw.bytes };
  const backoff = new Backoff({ first: 1, longest: 2 });
  const client = new Client({ ingest, study, storage: memoryStorage(), backoff, environment: own });
  try {
    await client.start();
    if (client.arm === null && !(await client.fetchModel())) {
      return { ...NOTHING, waiting: 1 };
    }
    const { shown, chosen, typed } = searched(client, madeHistory(seed, own.now()), draw, own.now());
    const composed = client.compose(shown, { chosen, charactersTyped: typed.length, keysPressed: typed.length });
    if (composed === null) {
      return { ...NOTHING, notEnrolled: 1 };
    }
    client.send({ ...composed, documentId: uuid(environment) });
    await client.deliver();
    const { accepted, refused, waiting } = client.counts;
    return { accepted, refused, waiting, learning: Number(composed.ping.payload.update !== null), notEnrolled: 0 };
  } finally {
    client.stop();
  }
}

/**
 * The text that a person types, the list shown, and the choice.
 *
 * @param {Pick<Client, "rank">} client
 * @param {readonly Remembered[]} pages
 * @param {Draw} draw
 * @param {number} now
 */
export function searched(client, pages, draw, now) {
  const typed = draw.one(WORDS);
  const shown = client.rank(matching(pages, typed), MOST_SHOWN, now);
  const liking = frecency2018.scores(FRECENCY_START, PageTable.of(shown.pages, now));
  const chosen = liking.reduce((best, score, place) => (score > liking[best] ? place : best), 0);
  return { typed, shown, chosen: shown.pages.length > 0 ? chosen : -1 };
}

/**
 * @param {Made} made
 * @param {Made} more
 */
function add(made, more) {
  for (const name of /** @type {(keyof Made)[]} */ (Object.keys(made))) {
    made[name] += more[name];
  }
}
