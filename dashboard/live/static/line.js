// The data of a line on the page: rows as they come, and the series drawn from them, updated row by row.

/** The number of rounds from which the interval between rounds is computed. */
const PACED = 10;

/** Outcomes of pings that are no loss: those in the mean, and those of arms that only report. */
const AS_MEANT = new Set(["used", "other_arm"]);

/** The loss that decisions go by: the winsorised mean by client where it is told, else the mean; null without any. */
export const lossOf = (arm) => arm?.winsorised?.loss ?? arm?.loss ?? null;

export class Line {
  constructor() {
    this.line = null;
    this.now = null;
    this.trouble = "";
    this.notes = [];
    this.clear();
  }

  clear() {
    this.rows = [];
    this.complete = false;
    this.loss = new Map();
    this.pings = new Map();
    this.clients = [];
    this.stable = [];
    this.influence = [];
    this.shared = new Map();
    this.leftOut = new Map();
    this.times = new Map();
    this.marks = [];
  }

  /** Take in a message of the feed. */
  take(data) {
    this.trouble = data.trouble ?? "";
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
    this.complete = data.complete;
    this.now = data.now;
  }

  /** A row's losses and pings belong to iteration `version - 1`, whose pings made the version. */
  add(row) {
    const iteration = row.version - 1;
    this.marks.push(...happened(row, this.newest));
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
      if (!this.leftOut.has(reason)) this.leftOut.set(reason, []);
      this.leftOut.get(reason).push([iteration, pings]);
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
    if (this.trouble) return { verdict: "problem", headline: sentence(this.trouble), findings: [] };
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

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;

/** The line's event at a version, where figures have a mark: at the first iteration of that version. */
function happened(row, before) {
  const found = [];
  if (row.origin === "rollback") found.push({ words: `rolled back to ${row.restored}` });
  if (row.origin === "continued") found.push({ words: `continued from ${row.restored} of a backup` });
  if (before && row.settings !== before.settings) found.push({ words: "other settings" });
  if (before && row.code !== before.code) found.push({ words: `fedping ${row.code}` });
  return found.map((one) => ({ x: row.version, at: Date.parse(row.created), ...one }));
}

const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};
