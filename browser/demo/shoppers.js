// @ts-check
/**
 * Other invented people of a study of features, each a separate client: they see some items, and choose the one they
 * want most. Their taste is derived from the study's name, so a model can learn it.
 *
 * @import { Environment } from "../delivery/environment.js"
 * @import { Feature } from "../features/layout.js"
 * @import { Row } from "../features/values.js"
 * @import { ModelSpec } from "../study/study.js"
 * @import { Item } from "./items.js"
 * @import { Crowd } from "./study_page.js"
 */

import { browserEnvironment } from "../delivery/environment.js";
import { memoryStorage } from "../delivery/storage.js";
import { layoutFor } from "../features/lists.js";
import { valuesOf } from "../features/values.js";
import { Ranker } from "../ranker.js";
import { madeItems, madeQuery, someOf } from "./items.js";
import { crowd, NOTHING } from "./people.js";
import { seedOf, seeded } from "./random.js";
import { ID_BYTES, MORE, beginningWith } from "./visitor.js";

export const SHOWN = 8;

/**
 * Let people choose, like `letChoose` in `people.js`.
 *
 * @param {Crowd & { spec: ModelSpec, itemSeed: string, environment?: Environment }} settings
 */
export function letShop({ spec, itemSeed, environment = browserEnvironment(), ...settings }) {
  const features = featuresOf(spec);
  const items = madeItems(features, itemSeed);
  return crowd(settings, (seed) => shop({ ...settings, seed, spec, features, items, environment }));
}

/** The features of a spec with features. @param {ModelSpec} spec */
export function featuresOf(spec) {
  return /** @type {{ features: readonly Feature[] }} */ (/** @type {unknown} */ (spec)).features;
}

/**
 * How much people want each item: the sum of its values, each times the worth that all people share.
 *
 * @param {ModelSpec} spec
 * @param {string} study
 * @param {Row} query
 * @param {readonly Row[]} rows
 */
export function wanted(spec, study, query, rows) {
  return valuesOf(layoutFor(spec), query, rows).map(({ at, value }) => at.reduce((sum, position, k) => sum + worth(study, position) * value[k], 0));
}

/**
 * The worth of one unit of a value, between −2 and 2.
 *
 * @param {string} study
 * @param {number} position
 */
function worth(study, position) {
  return 4 * seeded(seedOf(`worth/${study}/${position}`)).fraction() - 2;
}

/**
 * @param {{ ingest: string, study: string, seed: string, spec: ModelSpec, features: readonly Feature[], items: readonly Item[], environment: Environment }} settings
 */
async function shop({ ingest, study, seed, spec, features, items, environment }) {
  const draw = seeded(seedOf(`person/${seed}`));
  const own = { ...environment, ...beginningWith(draw.bytes(ID_BYTES), environment) }; // documents have new ids each time
  const ranker = new Ranker({ ingest, study, storage: memoryStorage(), environment: own, parts: MORE });
  try {
    await ranker.ready;
    if (ranker.arm === null && !(await ranker.fetchModel())) {
      return { ...NOTHING, waiting: 1 };
    }
    if (ranker.arm === null) {
      return { ...NOTHING, notEnrolled: 1 };
    }
    const query = madeQuery(features, draw);
    const list = ranker.rank(someOf(items, SHOWN, draw).map(({ row }) => row), query, SHOWN);
    const liking = wanted(spec, study, query, list.items).map((worthOf) => worthOf - Math.log(-Math.log(draw.fraction() || 0.5)));
    list.choose(list.items[liking.indexOf(Math.max(...liking))]);
    await ranker.deliver();
    const { accepted, refused, waiting } = ranker.counts;
    return { accepted, refused, waiting, learning: Number(ranker.participant.membership.role.arm?.submits ?? false), notEnrolled: 0 };
  } finally {
    ranker.stop();
  }
}
