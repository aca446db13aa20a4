// What each iteration saw: losses and pings by arm, clients, and the pings that were left out.

import { armColour, armDashes } from "/static/js/colours.js";
import { el } from "/static/js/dom.js";
import { count, number } from "/static/js/format.js";
import { linePlot } from "/static/js/plots.js";

import { SMOOTHED } from "../line.js";
import { NO_ROUND, rounds, waiting } from "./common.js";

const armLines = (line, values) =>
  line.line.arms
    .filter((arm) => values(arm.name).length)
    .map((arm) => ({ name: arm.name, colour: armColour(arm.place), dashes: armDashes(arm.place) }));

export const loss = {
  title: "Loss by arm",
  describe: (line) => lossWords(line) || NO_ROUND,
  draw(line, width) {
    const series = armLines(line, (name) => line.loss.get(name).points).map((one) => ({ ...one, ...line.loss.get(one.name) }));
    if (!series.length) return waiting(NO_ROUND);
    return linePlot({ series, x: "iteration", y: "mean loss", zero: true, width });
  },
  note(line) {
    const back = line.rollbacks.map((row) => `version ${row.version} repeats ${row.restored}`).slice(-5).join(", ");
    const words = `Thin: as measured on the pings of each iteration before they train. Thick: mean of the last ${SMOOTHED}.`;
    return back ? `${words} Rolled back: ${back}.` : words;
  },
  table(line) {
    const arms = line.line.arms.map((arm) => arm.name);
    return {
      head: ["iteration", ...arms],
      rows: rounds(line).map((row) => [row.version - 1, ...arms.map((name) => row.arms[name]?.loss ?? null)]),
    };
  },
};

function lossWords(line) {
  return line.line.arms
    .map((arm) => [arm.name, line.loss.get(arm.name).smooth.at(-1)])
    .filter(([, last]) => last)
    .map(([name, [iteration, value]]) => `${name} ${number(value)} at iteration ${iteration} (mean of ${SMOOTHED})`)
    .join("; ");
}

export const pings = {
  title: "Pings by arm",
  describe: (line) =>
    line.line.arms.map((arm) => `${arm.name} ${count(line.pings.get(arm.name).at(-1)?.[1])}`).join("; ") + " in the last iteration",
  draw(line, width) {
    const series = armLines(line, (name) => line.pings.get(name)).map((one) => ({ ...one, points: line.pings.get(one.name) }));
    return series.length ? linePlot({ series, x: "iteration", y: "pings", zero: true, width }) : waiting(NO_ROUND);
  },
  note: () => "Each document once, with and without a choice.",
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
  draw(line, width) {
    if (!line.clients.length) return waiting(NO_ROUND);
    const rules = [{ name: "least", y: line.line.min_clients }];
    return linePlot({ series: [{ name: "clients", points: line.clients }], rules, x: "iteration", y: "clients", zero: true, width });
  },
  note(line) {
    const training = line.line.arms.filter((arm) => arm.submits).map((arm) => arm.name).join(", ");
    return `Of the arms that train (${training}). Dashed: without ${count(line.line.min_clients)} there is no step.`;
  },
  table: (line) => ({ head: ["iteration", "clients"], rows: line.clients }),
};

export const leftOut = {
  title: "Pings that rounds left out",
  describe(line) {
    const row = line.lastRound;
    return row ? outcomes(row).map(([reason, n]) => `${reason} ${count(n)}`).join("; ") || "none in the last round" : NO_ROUND;
  },
  draw(line, width) {
    const some = [...line.leftOut].filter(([, points]) => points.some(([, n]) => n > 0));
    if (!line.clients.length) return waiting(NO_ROUND);
    if (!some.length) return waiting("Rounds have used every ping of the arms that train.");
    const series = some.map(([name, points]) => ({ name, points }));
    const [legend, plot] = linePlot({ series, x: "iteration", y: "pings", zero: true, width });
    return plot ? [legend, plot] : [el("p", { class: "note" }, some[0][0]), legend];
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
