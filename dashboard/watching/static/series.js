// From the points of single runs to what is drawn: the mean over the seeds, a band about it, and fewer points where there
// are more than a drawing can show. Nothing here changes the data.

/** @typedef {{seed: number, fold: number | null, x: number[], y: (number | null)[]}} Run one repetition of a variant */

/** Points of a line that are drawn at most. */
export const MOST = 2000;

/** Points of all lines together that are drawn at most, but for `LEAST` of each. */
const MOST_IN_ALL = 40_000;
const LEAST = 250;

/** How many points of each line are drawn where there are so many lines. */
export const mostOf = (lines) => Math.max(LEAST, Math.min(MOST, Math.floor(MOST_IN_ALL / Math.max(1, lines))));

/** All rounds at which any of the runs was measured, ascending. */
function roundsOf(runs) {
  const longest = runs.reduce((a, b) => (b.x.length > a.x.length ? b : a), { x: [] }).x;
  if (runs.every(({ x }) => x.every((round, i) => round === longest[i]))) return longest;
  return [...new Set(runs.flatMap(({ x }) => x))].sort((a, b) => a - b);
}

/** Things by what `key` says of them, in the order of the first of each. */
export function grouped(things, key) {
  const groups = new Map();
  for (const thing of things) {
    const name = key(thing);
    if (groups.has(name)) groups.get(name).push(thing);
    else groups.set(name, [thing]);
  }
  return groups;
}

/** The runs with the folds of each seed as one, their mean. */
export function bySeed(runs) {
  const seeds = grouped(runs, ({ seed }) => seed);
  return [...seeds].map(([seed, folds]) => (folds.length === 1 ? folds[0] : { seed, fold: null, ...meanOf(folds) }));
}

function meanOf(runs) {
  const { x, mean } = overSeeds(runs, []);
  return { x, y: mean };
}

/**
 * The mean of the runs at every round over those that have a value there, and how far its 95 % t interval reaches.
 * @param {Run[]} runs one a seed
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

/**
 * A line with at most so many points: the least and the greatest of every stretch, in their order, so that no spike is
 * lost; the first and the last are kept.
 * @returns {[number, number | null][]}
 */
export function thinned(x, y, most) {
  if (x.length <= most) return x.map((at, i) => [at, y[i]]);
  const stretches = Math.max(1, Math.floor(most / 2) - 1);
  const points = [[x[0], y[0]]];
  for (let k = 0; k < stretches; k += 1) {
    const from = 1 + Math.floor((k * (x.length - 2)) / stretches);
    const to = 1 + Math.floor(((k + 1) * (x.length - 2)) / stretches);
    let least = -1;
    let greatest = -1;
    for (let i = from; i < to; i += 1) {
      if (y[i] === null) continue;
      if (least < 0 || y[i] < y[least]) least = i;
      if (greatest < 0 || y[i] > y[greatest]) greatest = i;
    }
    if (least < 0) points.push([x[from], null]);
    else for (const i of least === greatest ? [least] : [least, greatest].sort((a, b) => a - b)) points.push([x[i], y[i]]);
  }
  points.push([x.at(-1), y.at(-1)]);
  return points;
}

/** Positions of at most so many of n, evenly, with the first and the last. */
export function picked(n, most) {
  if (n <= most) return Array.from({ length: n }, (_, i) => i);
  return Array.from({ length: most }, (_, i) => Math.round((i * (n - 1)) / (most - 1)));
}

/** The last value of a run that is one; null if there is none. */
export const lastOf = ({ y }) => y.findLast((value) => value !== null) ?? null;

/**
 * Values that hold all points but those of the first tenth of the rounds, beside whose start the rest may be flat.
 * @param {boolean} positive whether only values above 0 count, as on a log scale
 */
export function limitsLate(lines, positive = false) {
  let low = Infinity;
  let high = -Infinity;
  for (const { x, y } of lines) {
    const from = (x.at(-1) ?? 0) / 10;
    for (let i = 0; i < x.length; i += 1) {
      if (y[i] === null || x[i] < from || (positive && y[i] <= 0)) continue;
      low = Math.min(low, y[i]);
      high = Math.max(high, y[i]);
    }
  }
  return low <= high ? [low, high] : null;
}
