// The data of a line on the page: rows as they come, and the series drawn from them, updated row by row.

/** The number of rounds from which the interval between rounds is computed. */
const PACED = 10;

/** A page keeps at most this many times as many versions as the server sends at first; the newest are always kept. */
const KEPT = 5;
const NEWEST = 50;

/** Outcomes of pings that are no loss: those in the mean, and those of arms that only report. */
const AS_MEANT = new Set(["used", "other_arm"]);

/** The loss that decisions go by: the winsorised mean by client where it is told, else the mean; null without any. */
export const lossOf = (arm) => arm?.winsorised?.loss ?? arm?.loss ?? null;

export class Line {
  constructor() {
    this.line = null;
    this.now = null;
    this.trouble = "";
    this.since = null;
    this.notes = [];
    this.clear();
  }

  clear() {
    this.complete = false;
    this.leftOut = []; // runs [first, last] of versions that the server has and this page has not
    this.#empty();
  }

  #empty() {
    this.rows = [];
    this.loss = new Map();
    this.pings = new Map();
    this.clients = [];
    this.stable = [];
    this.influence = [];
    this.shared = new Map();
    this.unused = new Map();
    this.times = new Map();
    this.places = new Map();
    this.marks = [];
  }

  /** Take in a message of the feed. */
  take(data) {
    this.trouble = data.trouble ?? "";
    this.since = data.since ?? null;
    if (this.trouble) return;
    if (data.whole) {
      this.clear();
      this.line = data.line;
      for (const arm of data.line.arms) {
        this.loss.set(arm.name, []);
        this.pings.set(arm.name, []);
      }
      for (const { name } of data.line.links) this.shared.set(name, []);
    }
    for (const row of data.rows) this.add(row);
    this.leftOut.push(...(data.left_out ?? []));
    this.complete = data.complete;
    this.now = data.now;
    if (this.rows.length > KEPT * this.line.most) this.#forget();
  }

  /** Take in versions from `from` to `to`, and the runs that are left out of them. */
  takePart({ rows, left_out: runs }, from, to) {
    const all = new Map([...this.rows, ...rows].map((row) => [row.version, row]));
    const outside = this.leftOut.flatMap(([first, last]) => [[first, Math.min(last, from - 1)], [Math.max(first, to + 1), last]]);
    this.leftOut = [...outside.filter(([first, last]) => first <= last), ...runs].sort((a, b) => a[0] - b[0]);
    this.#addAll([...all.values()].sort((a, b) => a.version - b.version));
    if (this.rows.length > KEPT * this.line.most) this.#forget();
  }

  /** Forget every other version but the newest and the events: what was enlarged, and what came while the page was open. */
  #forget() {
    const kept = this.rows.filter((row, i) => i % 2 === 0 || i >= this.rows.length - NEWEST || (row.clients === null && row.version > 0));
    const known = new Set(kept.map((row) => row.version));
    this.leftOut.push(...this.rows.filter((row) => !known.has(row.version)).map((row) => [row.version, row.version]));
    this.leftOut = joinedRuns(this.leftOut, known);
    this.#addAll(kept);
  }

  #addAll(rows) {
    const series = [this.loss, this.pings, this.shared].map((map) => [...map.keys()]);
    this.#empty();
    [this.loss, this.pings, this.shared].forEach((map, i) => series[i].forEach((name) => map.set(name, [])));
    for (const row of rows) this.add(row);
  }

  /** How many versions the server has, as far as they can be read. */
  get versions() {
    return this.rows.length + this.leftOut.reduce((sum, [first, last]) => sum + last - first + 1, 0);
  }

  /** Whether there are versions between two that this page has not. */
  lacks(from, to) {
    const runs = this.leftOut;
    let [low, high] = [0, runs.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (runs[middle][1] < from) low = middle + 1;
      else high = middle;
    }
    return low < runs.length && runs[low][0] <= to;
  }

  /** Whether nothing but versions that were left out is between two that this page has, so that a line joins them. */
  joins(version, next) {
    return this.places.get(next) - this.places.get(version) === 1 && this.lacks(version, next);
  }

  /** A row's losses and pings belong to iteration `version - 1`, whose pings made the version. */
  add(row) {
    const iteration = row.version - 1;
    this.marks.push(...happened(row, this.newest));
    this.places.set(row.version, this.rows.length);
    this.rows.push(row);
    this.times.set(row.version, Date.parse(row.created));
    for (const { name, by_weight } of this.line.links) {
      if (!by_weight && row.links[name][0] !== null) this.shared.get(name).push([row.version, row.links[name][0]]);
    }
    if (row.clients === null) return;
    for (const [name, arm] of Object.entries(row.arms)) {
      this.pings.get(name)?.push([iteration, arm.pings]);
      const loss = lossOf(arm);
      if (loss !== null) this.loss.get(name)?.push([iteration, loss]);
    }
    this.clients.push([iteration, row.clients]);
    if (row.stable !== null) this.stable.push([iteration, 100 * row.stable]);
    if (row.influence) this.influence.push({ iteration, clients: row.clients, ...row.influence });
    for (const [reason, pings] of Object.entries(row.counts)) {
      if (AS_MEANT.has(reason)) continue;
      if (!this.unused.has(reason)) this.unused.set(reason, []);
      this.unused.get(reason).push([iteration, pings]);
    }
  }

  get newest() {
    return this.rows.at(-1) ?? null;
  }

  /** The number of the newest version that is known, whose row may not have come yet; null before any. */
  get newestVersion() {
    return this.newest && Math.max(this.newest.version, this.now?.newest ?? 0);
  }

  /** The newest row made by a round. */
  get lastRound() {
    return this.rows.findLast((row) => row.clients !== null) ?? null;
  }

  /** Seconds between rounds: the median of the newest; null if there are fewer than two. */
  get interval() {
    const times = this.rows
      .slice(-PACED - 1)
      .filter((row) => row.origin === "round")
      .map((row) => Date.parse(row.created) / 1000);
    const apart = times.slice(1).map((time, k) => time - times[k]);
    return apart.length ? median(apart) : null;
  }

  /** The health of the line: {verdict, headline, findings} as judged by the server; "reading" until all rows have come. */
  get health() {
    if (this.trouble) return { verdict: "problem", headline: "This page can't read its store.", findings: [{ severity: "problem", sentence: this.trouble, since: this.since }] };
    if (!this.now) return { verdict: "reading", headline: "Reading the versions …", findings: [] };
    if (this.complete) return this.now.health;
    return { verdict: "reading", headline: `Reading the versions: ${this.rows.length} so far …`, findings: [] };
  }

  /** The age of the newest version in intervals; null if the interval is unknown. */
  lateness(at) {
    const interval = this.interval;
    return interval ? (at - Date.parse(this.newest.created)) / 1000 / interval : null;
  }
}

/** The line's event at a version, where figures have a mark: at the first iteration of that version. */
function happened(row, before) {
  const found = [];
  if (row.origin === "rollback") found.push({ words: `rolled back to ${row.restored}` });
  if (row.origin === "continued") found.push({ words: `continued from ${row.restored} of a backup` });
  if (before && row.settings !== before.settings) found.push({ words: "other settings" });
  if (before && row.code !== before.code) found.push({ words: `fedping ${row.code}` });
  return found.map((one) => ({ x: row.version, at: Date.parse(row.created), ...one }));
}

/** Runs of versions that are not known, in order, those that touch as one. */
function joinedRuns(runs, known) {
  const joined = [];
  for (const [first, last] of runs.sort((a, b) => a[0] - b[0])) {
    const before = joined.at(-1);
    if (before && first <= before[1] + 1 && !known.has(before[1] + 1)) before[1] = Math.max(before[1], last);
    else joined.push([first, last]);
  }
  return joined;
}

const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};
