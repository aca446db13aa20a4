// @ts-check
/** The settings: whether to take part, in which study, and what would be sent. */

import { api, originNamesInstallation } from "../api.js";
import { ask, byId, element, told, whenChanged } from "../ask.js";
import { LACKS_PERMISSION, agree, decline, notReached, outcome } from "../consent.js";
import { KEPT } from "../taking_part/sent.js";
import { hostPattern, serverAddress, studyName } from "../taking_part/settings.js";
import { drawWouldSend, inJson } from "../would_send.js";

const message = byId("message");
/** Whether the user is editing the study; then its fields keep the typed text. */
let isEditing = false;

/** @param {any} state */
function draw(state) {
  if (!isEditing) {
    byId("ingest").value = state.ingest;
    byId("study").value = state.study;
  }
  byId("saved").textContent = state.ingest && state.study ? `study “${state.study}” at ${state.ingest}` : "no study";
  if (byId("newest").textContent !== newestInWords(state.newest)) {
    byId("newest").textContent = newestInWords(state.newest); // a screen reader reads it out only then
  }
  byId("on").checked = state.on;
  byId("consent").checked = state.consent === "given";
  byId("consent").disabled = !state.ingest || !state.study;
  byId("no-study").hidden = !byId("consent").disabled;
  byId("version").textContent = state.version < 0 ? "start values" : String(state.version);
  byId("arm").textContent = state.arm ?? "none";
  byId("outbox").textContent = String(state.waiting);
  byId("pages").textContent = state.reading
    ? `${state.pages}; your history is being read: ${state.reading.done} of ${state.reading.of}`
    : String(state.pages);
  byId("fetch").disabled = !state.takesPart;
  byId("waiting").hidden = state.waiting === 0;
  byId("trouble").hidden = state.trouble === null;
  byId("trouble").textContent = state.trouble === null ? "" : `Nothing is sent for now: ${state.trouble}.`;
  drawStays(state);
}

/** @param {import("../taking_part/newest_choice.js").Newest | null} newest */
function newestInWords(newest) {
  return newest === null ? "" : `Your newest choice was at ${TIME.format(newest.at)}; it ${newest.words}.`;
}

let drawnStays = "";

/** Draw the personal model of this browser. @param {any} state */
function drawStays({ takesPart, arm, personal }) {
  const text = JSON.stringify([takesPart, arm, personal]);
  if (text === drawnStays) {
    return;
  }
  drawnStays = text;
  byId("stays-words").textContent = staying(takesPart && arm !== null, personal);
  byId("stays").hidden = !personal?.trained;
  byId("stays-weights").replaceChildren(
    ...(personal?.weights ?? []).map((/** @type {any} */ { name, shared, own }) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, element("code", {}, name)),
        element("td", {}, NUMBER.format(shared)),
        element("td", {}, NUMBER.format(own)),
      ),
    ),
  );
}

/** Weights are of very different sizes. */
const NUMBER = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 2 });

/**
 * @param {boolean} enrolled
 * @param {import("../fedping.js").Staying | null} personal
 */
function staying(enrolled, personal) {
  if (!enrolled) {
    return "This browser learns nothing until you take part in a study.";
  }
  if (personal === null) {
    return "Your group ranks with the model that everyone gets. This browser learns nothing for itself.";
  }
  if (personal.trained === 0) {
    return "In your group, this browser fits the ranking to your choices. Until you choose a page, it is the one that everyone gets.";
  }
  const times = personal.trained === 1 ? "once" : `${personal.trained} times`;
  const differ = personal.weights.length === 0 ? "All weights are still those that everyone gets." : "The weights below differ from those that everyone gets.";
  return `In your group, this browser fits the ranking to your choices. It has done so ${times}. ${differ} What it learns stays in this browser and is in no message. It is deleted when you decline, switch off or change the study, and when the study ends.`;
}

/** @param {any} state */
async function drawAll(state) {
  draw(state);
  const waiting = await ask({ ask: "waiting" });
  byId("waiting-json").textContent = JSON.stringify(waiting, null, 2);
  await drawSent();
  await drawWouldSend();
}

let drawnSent = "";

/** Draw the sent messages. Expanded ones stay expanded. */
async function drawSent() {
  const all = await ask({ ask: "sent" });
  const text = JSON.stringify(all);
  if (text === drawnSent) {
    return;
  }
  drawnSent = text;
  const open = new Set([...byId("sent").querySelectorAll("details[open]")].map((each) => each.dataset.address));
  byId("sent-words").textContent =
    all.length === 0
      ? "Nothing so far."
      : `The newest ${all.length === 1 ? "message" : `${all.length} messages`}, with the random number of each. This list of up to ${KEPT} messages is only in this browser, until you delete it.`;
  byId("forget-sent").hidden = all.length === 0;
  byId("sent").replaceChildren(
    ...all.map((/** @type {import("../taking_part/sent.js").Sent} */ { at, address, body, times, answer }) => {
      const sent = element(
        "details",
        { open: open.has(address) },
        element("summary", {}, `${WHEN.format(at)}: ${answer}${times > 1 ? `, tried ${times} times` : ""}`),
        ...(body.includes('"encoding":"shared"') ? [element("p", { className: "soft" }, SHARED_SENT)] : []),
        element("pre", {}, `POST ${address}\n\n${inJson(JSON.parse(body))}`),
      );
      sent.dataset.address = address;
      return sent;
    }),
  );
}

const SHARED_SENT =
  "This message is split into two parts, and each of the two servers can read one of them. So neither server can read what it says, and this list can't show it.";

/** The time of day in 24 hours, in the browser's time zone. */
const TIME = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium", hourCycle: "h23" });
const WHEN = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

/**
 * @param {() => Promise<any>} action Returns the state.
 * @param {(state: any) => string} say
 */
function does(action, say) {
  return told(message, async () => {
    try {
      const state = await action();
      await drawAll(state);
      return say(state);
    } catch (error) {
      await drawAll(await ask({ ask: "state" })); // resets a checkbox whose change failed
      throw error;
    }
  });
}

/** Save the study. Firefox also asks whether the extension may reach the server; that must come first. */
async function save() {
  const [ingest, study] = [serverAddress(byId("ingest").value), studyName(byId("study").value)];
  const asks = ingest !== "" && originNamesInstallation(api);
  if (asks && !(await api.permissions.request({ origins: [hostPattern(ingest)] }))) {
    throw new Error("Nothing was saved: the browser hasn't let the extension reach the server. Press Save again and allow it.");
  }
  const state = await ask({ ask: "study", ingest, study });
  isEditing = false;
  return state;
}

/** @param {any} state */
function saved(state) {
  if (!state.ingest || !state.study) {
    return "Saved. Without a server and a study, pages are ranked by the start values, and nothing is sent.";
  }
  if (state.consent !== "given") {
    return "Saved. Nothing is fetched or sent until you agree to this study.";
  }
  if (state.lacksPermission) {
    return LACKS_PERMISSION;
  }
  if (!state.on) {
    return "Saved. The extension is switched off, so nothing is sent.";
  }
  return state.arm === null ? `Saved. ${notReached(state)}` : `Saved. You take part in the study “${state.study}”.`;
}

/** @param {any} state */
function switched(state) {
  return state.on
    ? "Switched on."
    : "Switched off. Nothing is fetched or sent. Your random number, the model and waiting messages are deleted.";
}

/** @param {any} state */
function fetched({ version, arm, trouble }) {
  if (arm === null) {
    return notReached({ trouble });
  }
  return version < 0 ? "This browser's group has no model." : `Version ${version} is the newest.`;
}

byId("study-form").addEventListener("submit", (/** @type {Event} */ event) => {
  event.preventDefault();
  void does(save, saved);
});
byId("consent").addEventListener("change", (/** @type {any} */ event) => {
  void does(event.target.checked ? agree : decline, outcome);
});
byId("on").addEventListener("change", (/** @type {any} */ event) => {
  void does(() => ask({ ask: "on", on: event.target.checked }), switched);
});
byId("forget-sent").addEventListener("click", async () => {
  await ask({ ask: "forget sent" });
  await drawSent();
});
byId("forget-personal").addEventListener("click", () => {
  void does(() => ask({ ask: "forget personal" }), () => "Forgotten. Your pages are ranked as for everyone; you still take part.");
});
byId("fetch").addEventListener("click", () => void does(() => ask({ ask: "fetch" }), fetched));

for (const id of ["ingest", "study"]) {
  byId(id).addEventListener("input", () => {
    isEditing = true;
  });
}

await drawAll(await ask({ ask: "state" }));
whenChanged(async () => drawAll(await ask({ ask: "state" })));
setInterval(async () => draw(await ask({ ask: "state" })), 2000); // shows the progress of reading the history
