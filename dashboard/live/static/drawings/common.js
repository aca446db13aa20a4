// Shared parts of the Live page's figures.

import { el } from "/static/js/dom.js";
import { lineChart } from "/static/js/line_chart.js";
import { iterationMarks } from "/static/js/notes.js";

/** The version being viewed, if it is not the newest; whether all weights share one colour scale. */
export const view = { chosen: null, oneScale: false, onChoose: () => {} };

/** The text where there is nothing to draw. */
export const waiting = (words) => [el("p", { class: "muted" }, words)];
export const NO_ROUND = "There is no round yet; the first one makes version 1.";

/** The rows of versions made by rounds. */
export const rounds = (line) => line.rows.filter((row) => row.clients !== null);

/** Lines over a line's iterations or versions, with marks for its events, and the clock of its versions. */
export const lineOfIterations = (line, stage, of) =>
  lineChart(stage, { x: "iteration", zero: true, marks: [...line.marks, ...iterationMarks(line.notes, line.line.line, line.times)].sort((a, b) => a.x - b.x), clock: (iteration) => line.times.get(iteration + 1), ...of });
