// From the points of single runs to what is drawn: the mean over the seeds and a band around it. Nothing here changes the
// data.

/** @typedef {{seed: number, fold: number | null, x: number[], y: (number | null)[]}} Run one repetition of a variant */

/** All rounds at which any of the runs was measured, ascending. */
function roundsOf(runs) {
  const longest = runs.reduce((a, b) => (b.x.length > a.x.length ? b : a), { x: [] }).x;
  if (runs.every(({ x }) => x.every((round, i) => round === longest[i]))) return longest;
  return [...new Set(runs.flatMap(({ x }) => x))].sort((a, b) => a - b);
}

/** Things grouped by `key`, in the order of the first of each group. */
export function grouped(things, key) {
  const groups = new Map();
  for (const thing of things) {
    const name = key(thing);
    if (groups.has(name)) groups.get(name).push(thing);
    else groups.set(name, [thing]);
  }
  return groups;
}

/** The runs with the folds of each seed merged into their mean. */
export function bySeed(runs) {
  const seeds = grouped(runs, ({ seed }) => seed);
  return [...seeds].map(([seed, folds]) => (folds.length === 1 ? folds[0] : { seed, fold: null, ...meanOf(folds) }));
}

function meanOf(runs) {
  const { x, mean } = overSeeds(runs, []);
  return { x, y: mean };
}

/**
 * The mean of the runs at every round over those that have a value there, and half its 95 % t interval.
 * @param {Run[]} runs one per seed
 * @param {number[]} quantiles Student's t for 2, 3, … values
 * @returns {{x: number[], mean: (number | null)[], half: (number | null)[], seeds: number[]}}
 */
export function overSeeds(runs, quantiles) {
  const x = roundsOf(runs);
  const place = new Map(x.map((round, i) => [round, i]));
  const n = new Array(x.length).fill(0);
  const sum = new Float64Array(x.length);
  for (const run of runs) each(run, place, (i, y) => ((n[i] += 1), (sum[i] += y)));
  const mean = x.map((_, i) => (n[i] ? sum[i] / n[i] : null));
  const squares = new Float64Array(x.length);
  for (const run of runs) each(run, place, (i, y) => (squares[i] += (y - mean[i]) ** 2));
  const half = x.map((_, i) =>
    n[i] > 1 && quantiles[n[i] - 2] !== undefined ? quantiles[n[i] - 2] * Math.sqrt(squares[i] / (n[i] - 1) / n[i]) : null,
  );
  return { x, mean, half, seeds: n };
}

function each({ x, y }, place, take) {
  for (let i = 0; i < x.length; i += 1) if (y[i] !== null) take(place.get(x[i]), y[i]);
}

/** The last non-null value of a run; null if there is none. */
export const lastOf = ({ y }) => y.findLast((value) => value !== null) ?? null;

/**
 * Limits that contain all points but those of the first tenth of the rounds, whose start may flatten the rest.
 * @param {(number | null)[][][]} lines of points [x, y]
 * @param {boolean} positive whether only values above 0 count, as on a log scale
 */
export function limitsLate(lines, positive = false) {
  let low = Infinity;
  let high = -Infinity;
  for (const points of lines) {
    const from = (points.at(-1)?.[0] ?? 0) / 10;
    for (const [x, y] of points) {
      if (y === null || x < from || (positive && y <= 0)) continue;
      low = Math.min(low, y);
      high = Math.max(high, y);
    }
  }
  return low <= high ? [low, high] : null;
}

/** Metrics that are shares, and those that have only one limit. */
const SHARES = new Set(["accuracy", "precision", "recall", "f1", "auc", "top_choice", "recovered_mrr", "recovered_ndcg", "recovered_clicks"]);
const ENDS = {
  r2: [-Infinity, 1],
  recovered_gain: [-Infinity, 1],
  recovered_cosine: [-1, 1],
  mse: [0, Infinity],
  rmse: [0, Infinity],
  mae: [0, Infinity],
};

/** The limits of a metric; null if unknown. An interval may extend beyond them, and is drawn as far as they go. */
export function boundsOf(metric) {
  const of = metric.split("_of_")[0];
  return SHARES.has(of) ? [0, 1] : (ENDS[of] ?? null);
}
