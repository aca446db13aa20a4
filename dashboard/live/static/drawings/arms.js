// The pings of each iteration: losses and pings by arm, clients, and the pings that were left out.

import { count, number } from "/static/js/format.js";

import { lossOf } from "../line.js";
import { lineOfIterations, measured, NO_ROUND, rounds, waiting } from "./common.js";

const armLines = (line, values) =>
  line.line.arms
    .filter((arm) => values(arm.name).length)
    .map(({ name, place }) => ({ name, place, points: measured(line, values(name)) }));

/** How many iterations the loss averages initially, as in the analysis. */
const SMOOTHED = 5;

export const loss = {
  title: "Loss by arm",
  describe: (line) => lossWords(line) || NO_ROUND,
  draw(line, width, stage) {
    const series = armLines(line, (name) => line.loss.get(name));
    if (!series.length) return waiting(NO_ROUND);
    return lineOfIterations(line, stage, { series, y: "mean loss", smooth: SMOOTHED, width });
  },
  note: (line) =>
    (line.line.private ? "From sums with noise. " : "") +
    (line.newest && Object.values(line.newest.arms).some((arm) => arm.winsorised)
      ? "By client; of the clients at either end, each counts as the next one inside (winsorised). "
      : "") +
    "Thin: as measured on the pings of each iteration before they train. Thick: the mean of the last of them. An iteration without a measurement, as the last before a rollback, is a gap, after which the mean begins anew.",
  table(line) {
    const arms = line.line.arms.map((arm) => arm.name);
    return {
      head: ["iteration", ...arms],
      rows: rounds(line).map((row) => [row.version - 1, ...arms.map((name) => lossOf(row.arms[name]))]),
    };
  },
};

function lossWords(line) {
  return line.line.arms
    .map((arm) => [arm.name, line.loss.get(arm.name).at(-1)])
    .filter(([, last]) => last)
    .map(([name, [iteration, value]]) => `${name} ${number(value)} at iteration ${iteration}`)
    .join("; ");
}

/** What to know of counts of a private line. */
const noisy = (line) =>
  line.now?.privacy?.noise
    ? `One ping a client. Every count has noise, of a standard deviation of ${count(Math.round(line.now.privacy.noise))} clients in each arm; below 0 it is shown as 0.`
    : "One ping a client; clients add noise to all else that they send.";

export const pings = {
  title: "Pings by arm",
  describe: (line) =>
    line.line.arms.map((arm) => `${arm.name} ${count(line.pings.get(arm.name).at(-1)?.[1])}`).join("; ") + " in the last iteration",
  draw(line, width, stage) {
    const series = armLines(line, (name) => line.pings.get(name));
    return series.length ? lineOfIterations(line, stage, { series, y: "pings", width }) : waiting(NO_ROUND);
  },
  note: (line) => (line.line.private ? noisy(line) : "Each document once, with and without a choice."),
  table(line) {
    const arms = line.line.arms.map((arm) => arm.name);
    return {
      head: ["iteration", ...arms],
      rows: rounds(line).map((row) => [row.version - 1, ...arms.map((name) => row.arms[name]?.pings ?? null)]),
    };
  },
};

export const clients = {
  title: "Clients whose updates made a version",
  describe: (line) => `${count(line.clients.at(-1)?.[1])} in the last round; a step takes ${count(line.line.min_clients)}`,
  draw(line, width, stage) {
    if (!line.clients.length) return waiting(NO_ROUND);
    const rules = [{ name: "least for a step", y: line.line.min_clients }];
    return lineOfIterations(line, stage, { series: [{ name: "clients", points: measured(line, line.clients) }], rules, y: "clients", width });
  },
  note(line) {
    const training = line.line.arms.filter((arm) => arm.submits).map((arm) => arm.name).join(", ");
    return `${line.line.private ? `${noisy(line)} ` : ""}Of the arms that train (${training}). Dashed: without ${count(line.line.min_clients)} there is no step.`;
  },
  table: (line) => ({ head: ["iteration", "clients"], rows: line.clients }),
};

export const leftOut = {
  title: "Pings that rounds left out",
  describe(line) {
    const row = line.lastRound;
    return row ? outcomes(row).map(([reason, n]) => `${reason} ${count(n)}`).join("; ") || "none in the last round" : NO_ROUND;
  },
  draw(line, width, stage) {
    const some = [...line.unused].filter(([, points]) => points.some(([, n]) => n > 0));
    if (!line.clients.length) return waiting(NO_ROUND);
    if (!some.length) return waiting("Rounds have used every ping of the arms that train.");
    const series = some.map(([name, points]) => ({ name, points: measured(line, points) }));
    return lineOfIterations(line, stage, { series, y: series.length > 1 ? "pings" : `pings: ${series[0].name}`, width });
  },
  note: () => "By the first reason that applies. Arms that only report are not among them: their pings are measured, not merged.",
  table(line) {
    const reasons = [...new Set(line.rows.flatMap((row) => Object.keys(row.counts)))];
    return {
      head: ["iteration", ...reasons],
      rows: rounds(line).map((row) => [row.version - 1, ...reasons.map((reason) => row.counts[reason] ?? 0)]),
    };
  },
};

const outcomes = (row) =>
  Object.entries(row.counts).filter(([reason, n]) => n && reason !== "used" && reason !== "other_arm");
