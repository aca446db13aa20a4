// Who moves the model: norms of updates, agreement of clients, clients behind half of a step, new clients.

import { count, number, percent } from "/static/js/format.js";

import { lineOfIterations, measured, NO_ROUND, waiting } from "./common.js";

/** A figure of every round that tells it, as points. */
const points = (line, of) =>
  line.influence.map((round) => [round.iteration, of(round)]).filter(([, value]) => value !== null && value !== undefined);

const drawnLines = (line, all) =>
  all.map(([name, of], place) => ({ name, place, points: measured(line, points(line, of)) })).filter((one) => one.points.length);

const NORMS = [
  ["median", (round) => round.norm_median],
  ["95 %", (round) => round.norm_high],
  ["longest", (round) => round.norm_most],
  ["clipped at", (round) => round.bound],
];

export const norms = {
  title: "Length of the updates",
  level: 3,
  describe(line) {
    const last = line.influence.at(-1);
    if (!last) return NO_ROUND;
    return `median ${number(last.norm_median)}, 95 % up to ${number(last.norm_high)}, longest ${number(last.norm_most)} at iteration ${last.iteration}`;
  },
  draw(line, width, stage) {
    const series = drawnLines(line, NORMS);
    if (!series.length) return waiting(NO_ROUND);
    return lineOfIterations(line, stage, { series, y: "Euclidean norm", zero: false, log: true, width });
  },
  note: () => "Norms before clipping, one per client; quantiles are accurate to one part in 16. Longer updates are clipped to the bound.",
  table: (line) => ({
    head: ["iteration", ...NORMS.map(([name]) => name)],
    rows: line.influence.map((round) => [round.iteration, ...NORMS.map(([, of]) => of(round))]),
  }),
};

const SWAY = [
  ["signs agree", ({ agreement }) => (agreement === null ? null : 100 * agreement)],
  ["clients behind half of the step", ({ half, clients }) => (100 * half) / clients],
  ["clipped", ({ bound, clipped }) => (bound === null ? null : 100 * clipped)],
];

export const sway = {
  title: "Influence and agreement",
  level: 3,
  describe(line) {
    const last = line.influence.at(-1);
    if (!last) return NO_ROUND;
    const clipped = last.bound === null ? "" : `; ${percent(last.clipped, 1)} of the updates were clipped`;
    return `half of the step at iteration ${last.iteration} came from ${count(last.half)} of ${count(last.clients)} clients${clipped}`;
  },
  draw(line, width, stage) {
    const series = drawnLines(line, SWAY);
    if (!series.length) return waiting(NO_ROUND);
    return lineOfIterations(line, stage, { series, y: "%", bounds: [0, 100], width });
  },
  note(line) {
    const last = line.influence.at(-1);
    const half = last ? `Half of the newest step came from ${count(last.half)} of ${count(last.clients)} clients. ` : "";
    return `${half}If a few clients account for half of a step, they control the model. A sudden rise in agreement may come from invented clients.`;
  },
  table: (line) => ({
    head: ["iteration", ...SWAY.map(([name]) => `${name}, %`), "clients behind half", "clients"],
    rows: line.influence.map((round) => [round.iteration, ...SWAY.map(([, of]) => of(round)), round.half, round.clients]),
  }),
};

/** The rounds that tell how many clients are new. */
export const counted = (line) => points(line, (round) => round.new_clients);

export const newcomers = {
  title: "New clients",
  level: 3,
  describe(line) {
    const last = counted(line).at(-1);
    return last ? `about ${count(last[1])} at iteration ${last[0]}` : NO_ROUND;
  },
  draw(line, width, stage) {
    const series = [{ name: "new clients", points: measured(line, counted(line)) }];
    return series[0].points.length ? lineOfIterations(line, stage, { series, y: "new clients", width }) : waiting(NO_ROUND);
  },
  note: () => "Clients with their first usable update. The number is approximate, because the server keeps no list of clients.",
  table: (line) => ({ head: ["iteration", "new clients"], rows: counted(line) }),
};
