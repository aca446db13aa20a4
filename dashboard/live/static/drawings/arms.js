// The pings of each iteration: losses and pings by arm, clients, and the pings that were left out.

import { count, number } from "/static/js/format.js";

import { lossOf } from "../line.js";
import { lineOfIterations, measured, NO_ROUND, rounds, waiting } from "./common.js";

const armLines = (line, values) =>
  line.line.arms
    .filter((arm) => values(arm.name).length)
    .map(({ name, place }) => ({ name, place, points: measured(line, values(name)) }));

/** Of more lines than this, the few that matter are drawn at first: those without the model, and the best and the worst. */
const MANY = 12;
const FEW = 4;

/** The names of the lines that are hidden at first, by the last measurement of each. */
function hiddenAtFirst(line, series) {
  if (series.length <= MANY) return [];
  const last = new Map(series.map(({ name, points }) => [name, points.at(-1)[1]]));
  const control = new Set(line.line.arms.filter((arm) => !arm.applies).slice(0, FEW).map(({ name }) => name));
  const applied = series.map(({ name }) => name).filter((name) => !control.has(name)).sort((a, b) => last.get(a) - last.get(b));
  const kept = new Set([...control, ...applied.slice(0, FEW), ...applied.slice(-FEW)]);
  return [...last.keys()].filter((name) => !kept.has(name));
}

const manyWords = (line) =>
  line.line.arms.length > MANY ? `Of ${count(line.line.arms.length)} arms, those with the lowest and the highest last values are drawn at first; find others above. ` : "";

/** How many iterations the loss averages initially, as in the analysis. */
const SMOOTHED = 5;

export const loss = {
  title: "Loss by arm",
  describe: (line) => lossWords(line) || NO_ROUND,
  draw(line, width, stage) {
    const series = armLines(line, (name) => line.loss.get(name));
    if (!series.length) return waiting(NO_ROUND);
    return lineOfIterations(line, stage, { series, hidden: hiddenAtFirst(line, series), y: "mean loss", smooth: SMOOTHED, width });
  },
  note: (line) =>
    manyWords(line) +
    (line.line.private ? "From sums with noise. " : "") +
    (line.newest && Object.values(line.newest.arms).some((arm) => arm.winsorised)
      ? "By client and winsorised: the most extreme clients on either side count as the next one inside. "
      : "") +
    "The thin line is the loss on the pings of each iteration, before they train; the thick line is the mean of the last few. Iterations without a measurement, such as the last one before a rollback, are gaps, and the mean restarts after them.",
  table(line) {
    const arms = line.line.arms.map((arm) => arm.name);
    return {
      head: ["iteration", ...arms],
      rows: rounds(line).map((row) => [row.version - 1, ...arms.map((name) => lossOf(row.arms[name]))]),
    };
  },
};

function lossWords(line) {
  const told = line.line.arms
    .map((arm) => [arm.name, line.loss.get(arm.name).at(-1)])
    .filter(([, last]) => last)
    .map(([name, [iteration, value]]) => `${name} ${number(value)} at iteration ${iteration}`);
  return few(told);
}

/** Facts by arm as one text: the first of many, for those who hear them. */
const few = (told, between = "; ") => told.slice(0, MANY).join(between) + (told.length > MANY ? `${between}and ${told.length - MANY} more` : "");

/** What to know of counts of a private line. */
const noisy = (line) =>
  line.now?.privacy?.noise
    ? `Each client sends one ping. Counts carry noise with a standard deviation of ${count(Math.round(line.now.privacy.noise))} clients in each arm; negative ones are shown as 0.`
    : "Each client sends one ping, and adds noise to everything else in it.";

export const pings = {
  title: "Pings by arm",
  describe: (line) => few(line.line.arms.map((arm) => `${arm.name} ${count(line.pings.get(arm.name).at(-1)?.[1])}`)) + " in the last iteration",
  draw(line, width, stage) {
    const series = armLines(line, (name) => line.pings.get(name));
    if (!series.length) return waiting(NO_ROUND);
    return lineOfIterations(line, stage, { series, hidden: hiddenAtFirst(line, series), y: "pings", width });
  },
  note: (line) => manyWords(line) + (line.line.private ? noisy(line) : "Each document counts once, with or without a choice."),
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
  describe: (line) => `${count(line.clients.at(-1)?.[1])} in the last round; a step needs ${count(line.line.min_clients)}`,
  draw(line, width, stage) {
    if (!line.clients.length) return waiting(NO_ROUND);
    const rules = [{ name: "least for a step", y: line.line.min_clients }];
    return lineOfIterations(line, stage, { series: [{ name: "clients", points: measured(line, line.clients) }], rules, y: "clients", width });
  },
  note(line) {
    const training = line.line.arms.filter((arm) => arm.submits).map((arm) => arm.name);
    return `${line.line.private ? `${noisy(line)} ` : ""}Clients of the arms that train (${few(training, ", ")}). The dashed line is the minimum for a step: ${count(line.line.min_clients)}.`;
  },
  table: (line) => ({ head: ["iteration", "clients"], rows: line.clients }),
};

export const leftOut = {
  title: "Pings that rounds left out",
  describe(line) {
    const row = line.lastRound;
    return row ? outcomes(row).map(([reason, n]) => `${words(reason)} ${count(n)}`).join("; ") || "none in the last round" : NO_ROUND;
  },
  draw(line, width, stage) {
    const some = [...line.unused].filter(([, points]) => points.some(([, n]) => n > 0));
    if (!line.clients.length) return waiting(NO_ROUND);
    if (!some.length) return waiting("Rounds have used all pings of the arms that train.");
    const series = some.map(([name, points]) => ({ name: words(name), points: measured(line, points) }));
    return lineOfIterations(line, stage, { series, y: series.length > 1 ? "pings" : `pings: ${series[0].name}`, width });
  },
  note: () => "Each ping counts under the first reason that applies. Pings of arms that only report are measured, not merged, and don't count here. What a reason means is said of every version, in “What became of every ping”.",
  table(line) {
    const reasons = [...new Set(line.rows.flatMap((row) => Object.keys(row.counts)))];
    return {
      head: ["iteration", ...reasons],
      rows: rounds(line).map((row) => [row.version - 1, ...reasons.map((reason) => row.counts[reason] ?? 0)]),
    };
  },
};

/** A reason as people read it; tables and files have its name. */
const words = (reason) => reason.replaceAll("_", " ");

const outcomes = (row) =>
  Object.entries(row.counts).filter(([reason, n]) => n && reason !== "used" && reason !== "other_arm");
