// Computations on the points of a line before drawing: [x, y] by x, where a y of null is a gap.

/** The most points drawn per line. */
export const MOST = 2000;

/** The most points drawn for all lines together, except that each has at least `LEAST`. */
const MOST_IN_ALL = 40_000;
const LEAST = 250;

/** How many points of each line are drawn, given the number of lines. */
export const mostOf = (lines) => Math.max(LEAST, Math.min(MOST, Math.floor(MOST_IN_ALL / Math.max(1, lines))));

/** Points with integer x, with a gap wherever one is missing, so that no line is drawn across it, unless they are `joined`. */
export const gapped = (points, joined = () => false) =>
  points.flatMap((point, i) => (i > 0 && point[0] - points[i - 1][0] > 1 && !joined(points[i - 1][0], point[0]) ? [[points[i - 1][0] + 1, null], point] : [point]));

/** The mean of the last `over` values at every point, of fewer at the beginning and after a gap, which starts anew. */
export function smoothed(points, over) {
  let last = [];
  return points.map(([x, y]) => {
    last = y === null ? [] : [...last, y].slice(-over);
    return [x, y === null ? null : last.reduce((sum, value) => sum + value, 0) / last.length];
  });
}

/** The points with a gap or an end on both sides, which have no line. */
export const alone = (points) =>
  points.filter(([, y], i) => y !== null && (points[i - 1]?.[1] ?? null) === null && (points[i + 1]?.[1] ?? null) === null);

/** The points between two x, and the neighbours outside, to which lines lead. */
export function within(points, [from, to]) {
  const first = points.findIndex(([x]) => x >= from);
  if (first < 0) return points.slice(-1);
  const after = points.findIndex(([x]) => x > to);
  return points.slice(Math.max(0, first - 1), after < 0 ? undefined : after + 1);
}

/** The x of all lines, ascending, each once. */
export const allX = (lines) => [...new Set(lines.flatMap((points) => points.filter(([, y]) => y !== null).map(([x]) => x)))].sort((a, b) => a - b);

/** The position of the value closest to x; values are ascending, and there is at least one. */
export function nearest(values, x) {
  let [low, high] = [0, values.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle;
    else high = middle;
  }
  return Math.abs(values[high] - x) < Math.abs(values[low] - x) ? high : low;
}

/**
 * A line with at most so many points: the minimum, the maximum and a gap of every stretch, in order, so that no spike
 * is lost and no gap is drawn over; the first and the last point are kept.
 */
export function thinned(points, most) {
  if (points.length <= most) return points;
  const stretches = Math.max(1, Math.floor(most / 3) - 1);
  const kept = [points[0]];
  for (let k = 0; k < stretches; k += 1) {
    const from = 1 + Math.floor((k * (points.length - 2)) / stretches);
    const to = 1 + Math.floor(((k + 1) * (points.length - 2)) / stretches);
    let [least, greatest, gap] = [-1, -1, -1];
    for (let i = from; i < to; i += 1) {
      const y = points[i][1];
      if (y === null) gap = i;
      else {
        if (least < 0 || y < points[least][1]) least = i;
        if (greatest < 0 || y > points[greatest][1]) greatest = i;
      }
    }
    const chosen = new Set([least, greatest, gap].filter((i) => i >= 0));
    for (const i of [...chosen].sort((a, b) => a - b)) kept.push(points[i]);
  }
  kept.push(points.at(-1));
  return kept;
}

/** At most so many of n positions, evenly spaced, including the first and the last. */
export function picked(n, most) {
  if (n <= most) return Array.from({ length: n }, (_, i) => i);
  return Array.from({ length: most }, (_, i) => Math.round((i * (n - 1)) / (most - 1)));
}

/**
 * Names shortened to so many letters that still differ: they are cut in the middle, because variants differ at their
 * ends; those that would be equal get a number.
 * @param {string[]} names
 * @param {number} most
 */
export function shortened(names, most) {
  const cut = names.map((name) => middleCut(name, most));
  return cut.map((short, i) => {
    if (cut.indexOf(short) === cut.lastIndexOf(short) || names.indexOf(names[i]) !== names.lastIndexOf(names[i])) return short;
    const number = ` (${i + 1})`;
    return middleCut(names[i], most - number.length) + number;
  });
}

/** A name cut in the middle to so many letters. */
export function middleCut(name, most) {
  const letters = [...name];
  if (letters.length <= most) return name;
  const head = Math.ceil((most - 1) / 2);
  return `${letters.slice(0, head).join("")}…${letters.slice(letters.length - (most - 1 - head)).join("")}`;
}
