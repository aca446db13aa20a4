// The Live page: follows a line, and draws it.

import { el } from "/static/js/dom.js";
import { figure } from "/static/js/figures.js";
import { count } from "/static/js/format.js";
import { getJSON } from "/static/js/http.js";
import { followNotes, notedTable } from "/static/js/notes.js";
import { follow } from "/static/js/stream.js";

import * as arms from "./drawings/arms.js";
import { view } from "./drawings/common.js";
import { featureTable } from "./drawings/features.js";
import * as influence from "./drawings/influence.js";
import * as weights from "./drawings/weights.js";
import { showHealth } from "./health.js";
import { Line } from "./line.js";
import { lineage } from "./lineage.js";
import { parts } from "./part.js";
import { showRefused } from "./refused.js";
import { rollingBack } from "./rolling_back.js";
import { Stopwatch } from "./stopwatch.js";
import { showTakingPart } from "./taking_part.js";

const at = (id) => document.getElementById(id);
const line = new Line();

const stopwatch = new Stopwatch("fedping:draw");
const figures = Object.entries({
  loss: arms.loss,
  pings: arms.pings,
  weights: weights.weights,
  stable: weights.stable,
  signs: weights.signs,
  clients: arms.clients,
  "left-out": arms.leftOut,
  norms: influence.norms,
  sway: influence.sway,
  newcomers: influence.newcomers,
})
  .filter(([id]) => at(id)) // a private line has no place for some
  .map(([id, parts]) => drawn(at(id), parts));
if (at("features")) figures.push(featureTable(at("features")));
let links = [];
let shownLinks = "";

function drawn(place, { table, ...rest }) {
  const noted = table && ((data) => notedTable(table(data), data.notes, data.line?.line, data.times));
  const withNote = noted && ((data) => ({ ...noted(data), note: data.leftOut.length ? "Of the versions that are shown; CSV has all of them." : "" }));
  return figure(place, { ...rest, table: withNote, whole, draw: stopwatch.timed(rest.draw) });
}

/** The line with all its versions, for a file. */
async function whole(line) {
  if (!line.leftOut.length) return line;
  const { rows, ...rest } = await getJSON("history.json");
  const all = new Line();
  all.notes = line.notes;
  all.take({ whole: true, line: rest, rows, complete: true, now: line.now });
  return all;
}

/** Make a card for each display of the line's chain. */
function showLinks() {
  const wanted = JSON.stringify(line.line.links);
  if (wanted === shownLinks) return;
  shownLinks = wanted;
  for (const card of document.querySelectorAll("#drawings > .link")) card.remove();
  links = line.line.links.map((shown, k) => {
    const card = el("section", { class: "card link", id: `link-${k}` });
    at("stability").before(card);
    return drawn(card, weights.link(shown));
  });
}

function draw() {
  for (const one of [...figures, ...links]) one.update(line);
}

const { need, again } = parts(line, () => {
  showThinned();
  draw();
});
view.need = need;

/** Words on the versions that are not shown; empty if all are. */
function showThinned() {
  const place = at("thinned");
  place.hidden = !line.leftOut.length || !line.newest;
  const which = line.line.thorough ? ", with the highest and lowest losses and the newest events" : "";
  place.textContent = `${count(line.rows.length)} of ${count(line.versions)} versions are drawn${which}. To draw every version of a part, drag along it in a chart.`;
}

const versions = lineage((version) => {
  const marked = version === line.newest?.version ? null : version;
  view.need(version, version);
  if (marked === view.chosen) return;
  view.chosen = marked;
  draw();
});
view.onChoose = versions.choose;
rollingBack(versions.chosen);

at("one-scale").addEventListener("change", (event) => {
  view.oneScale = event.target.checked;
  draw();
});

function take(data) {
  const began = performance.now();
  line.take(data);
  if (data.whole) showLinks();
  showHealth(line);
  showRefused(line);
  showTakingPart(line);
  if (at("influence")) {
    at("influence").hidden = !line.influence.length;
    at("newcomers").hidden = !influence.counted(line).length;
  }
  at("drawings").hidden = at("lineage").hidden = !line.newest;
  if (!line.newest) return;
  if (data.trouble || (!data.whole && !data.rows.length)) return;
  versions.grown(line.newest.version);
  if (data.whole) again();
  showThinned();
  stopwatch.add(performance.now() - began);
  draw();
}

follow("changes", { onChange: take });
followNotes((notes) => {
  line.notes = notes;
  if (line.newest) draw();
}, () => line.newestVersion);
setInterval(() => showHealth(line), 1000);
