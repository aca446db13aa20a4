// @ts-check
/**
 * The features of a spec, and the positions of their weights: first the single weights of all features, then those of
 * places, then a block for each hashed feature and cross, then the hidden layer (`protocol/features.py`).
 *
 * @typedef {object} Feature
 * @property {string} kind
 * @property {string} name
 * @property {string} [field] The field's name; the feature's name if empty.
 * @property {"item" | "query"} [on] Whose field it is.
 * @property {boolean} [missing] Whether missing values have a separate weight.
 * @property {number | null} [low]
 * @property {number | null} [high]
 * @property {boolean} [log]
 * @property {number} [center]
 * @property {number} [spread]
 * @property {readonly string[]} [values]
 * @property {boolean} [other]
 * @property {number} [buckets]
 * @property {readonly number[]} [cutoffs]
 * @property {readonly number[]} [knots]
 * @property {string} [query] The query's field, of a feature of both item and query.
 * @property {string} [item] The item's field, of such a feature.
 * @property {readonly string[]} [of] The names of a cross's two features.
 *
 * @typedef {"softmax" | "hinge" | "pairwise"} Loss
 *
 * @typedef {object} FeaturesSpec The part of a model spec about its features.
 * @property {readonly Feature[]} features
 * @property {Loss} [loss]
 * @property {number} [places] The number of places with offsets; the first place's is 0.
 * @property {number} [hidden] The width of the hidden layer.
 * @property {number} [explore] The share of the lists in which two neighbours are swapped.
 * @property {"analytic" | "finite_differences"} [gradient]
 * @property {number} margin
 * @property {number} epsilon
 *
 * @typedef {object} Span
 * @property {Feature} feature
 * @property {number} at The position of its first weight.
 * @property {number} width The number of its weights.
 *
 * @typedef {object} Layout
 * @property {FeaturesSpec} spec
 * @property {ReadonlyMap<string, Feature>} byName
 * @property {readonly Span[]} spans The spans of the features with weights, in the order of the wire.
 * @property {number} places The position of `place 2`.
 * @property {number} offsets The number of place weights.
 * @property {number} values The number of feature weights.
 * @property {number} hidden The width of the hidden layer.
 * @property {number} hiddenIn The position of its first weight.
 * @property {number} hiddenBias
 * @property {number} hiddenOut
 * @property {number} m The number of all weights.
 * @property {Map<string, number>} hashes Hashes computed so far.
 */

const KINDS = ["number", "flag", "category", "hashed", "bucket", "spline", "counts", "equal", "product", "cross"];
const LOSSES = ["softmax", "hinge", "pairwise"];
const GRADIENTS = ["analytic", "finite_differences"];

/**
 * The layout of a spec's weights.
 *
 * @param {FeaturesSpec} spec
 * @returns {Layout}
 */
export function layoutOf(spec) {
  const { features, places = 0, hidden = 0 } = spec;
  const byName = new Map(features.map((feature) => [feature.name, feature]));
  const weighed = features.filter((feature) => !isOfQuery(feature));
  const ordered = [...weighed.filter((each) => !isBlock(each)), ...weighed.filter(isBlock)];
  const offsets = Math.max(places - 1, 0);
  let values = 0;
  let single = 0;
  const spans = ordered.map((feature) => {
    const width = widthOf(feature, byName);
    const span = { feature, at: isBlock(feature) ? values + offsets : values, width };
    values += width;
    single += isBlock(feature) ? 0 : width;
    return span;
  });
  const hiddenIn = values + offsets;
  const hiddenBias = hiddenIn + values * hidden;
  const hiddenOut = hiddenBias + hidden;
  const m = hiddenOut + hidden;
  return { spec, byName, spans, places: single, offsets, values, hidden, hiddenIn, hiddenBias, hiddenOut, m, hashes: new Map() };
}

/**
 * The number of a feature's values.
 *
 * @param {Feature} feature
 * @param {ReadonlyMap<string, Feature>} byName
 * @returns {number}
 */
export function widthOf(feature, byName) {
  const { kind, values = [], cutoffs = [], knots = [], buckets = 0, of = [] } = feature;
  if (kind === "cross") {
    return of.map((name) => widthOf(/** @type {Feature} */ (byName.get(name)), byName)).reduce((a, b) => a * b, 1);
  }
  const own = {
    category: values.length + (feature.other ? 1 : 0),
    counts: values.length,
    hashed: buckets,
    bucket: cutoffs.length + 1,
    spline: knots.length,
  };
  return (own[/** @type {keyof typeof own} */ (kind)] ?? 1) + (feature.missing ? 1 : 0);
}

/**
 * Whether a feature's weights are a block.
 *
 * @param {Feature} feature
 */
export function isBlock({ kind }) {
  return kind === "hashed" || kind === "cross";
}

/**
 * Whether a feature is the query's alone: equal for all items, and without weights.
 *
 * @param {Feature} feature
 */
export function isOfQuery({ on }) {
  return on === "query";
}

/**
 * The reason why this client can't compute a spec's features; null if it can.
 *
 * @param {any} spec The spec from JSON, unchecked.
 * @returns {string | null}
 */
export function featuresTrouble(spec) {
  const { features, loss = "softmax", gradient = "analytic", places = 0, hidden = 0, explore = 0 } = spec ?? {};
  if (!Array.isArray(features) || features.length === 0) {
    return "its spec has no features";
  }
  const odd = features.find((each) => !KINDS.includes(each?.kind) || typeof each.name !== "string" || !isWhole(each));
  if (odd !== undefined) {
    return `its spec has a feature of the kind '${odd?.kind}', which this client cannot compute`;
  }
  const names = new Map(features.map((/** @type {Feature} */ each) => [each.name, each]));
  const isKnown = (/** @type {string} */ name) => names.has(name) && names.get(name)?.kind !== "cross";
  const crosses = features.filter((/** @type {Feature} */ each) => each.kind === "cross");
  if (names.size < features.length || !crosses.every((/** @type {any} */ each) => each.of.every(isKnown))) {
    return "its features do not fit each other";
  }
  const knows = LOSSES.includes(loss) && GRADIENTS.includes(gradient);
  const counts = [places, hidden].every((each) => Number.isSafeInteger(each) && each >= 0);
  return knows && counts && explore >= 0 && explore <= 1 ? null : "its spec has a loss or setting that this client does not know";
}

/** @param {any} feature */
function isWhole({ kind, values, cutoffs, knots, buckets, of, query, item }) {
  const isNumbers = (/** @type {any} */ all) => Array.isArray(all) && all.every(Number.isFinite);
  const isTexts = (/** @type {any} */ all) => Array.isArray(all) && all.every((each) => typeof each === "string");
  switch (kind) {
    case "category":
    case "counts":
      return isTexts(values);
    case "hashed":
      return Number.isSafeInteger(buckets) && buckets >= 2;
    case "bucket":
      return isNumbers(cutoffs) && cutoffs.length >= 1;
    case "spline":
      return isNumbers(knots) && knots.length >= 2;
    case "cross":
      return isTexts(of) && of.length === 2;
    case "equal":
    case "product":
      return isTexts([query, item]);
    default:
      return true;
  }
}
