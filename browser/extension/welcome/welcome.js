// @ts-check
/** The page that opens once after installation: it explains the extension, and asks whether to take part. */

import { ask, byId, told, whenChanged } from "../ask.js";
import { agree, decline, outcome } from "../consent.js";
import { drawWouldSend } from "../would_send.js";

/** @param {() => Promise<any>} decide */
function decided(decide) {
  return told(byId("message"), async () => {
    const state = await decide();
    await drawWouldSend();
    return outcome(state);
  });
}

byId("agree").addEventListener("click", () => decided(agree));
byId("decline").addEventListener("click", () => decided(decline));

async function draw() {
  const { ingest, study, consent } = await ask({ ask: "state" });
  const isSet = Boolean(ingest && study);
  byId("which-study").textContent = isSet ? `The study “${study}” at ${ingest} asks. ${DECIDED[/** @type {keyof typeof DECIDED} */ (consent)]}` : NO_STUDY;
  byId("choice").hidden = !isSet;
  await drawWouldSend();
}

const DECIDED = Object.freeze({
  unasked: "You have not decided yet.",
  given: "You have agreed.",
  declined: "You have declined.",
});
const NO_STUDY =
  "No study is set yet, so there is nothing to agree to, and nothing is sent. A study's organiser gives you its address and name. Enter them in the settings; then you are asked.";

await draw();
whenChanged(draw);
