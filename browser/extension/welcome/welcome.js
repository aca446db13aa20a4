// @ts-check
/** The page that is opened once after installation: what the extension does, and the question whether to take part. */

import { ask, byId, told } from "../ask.js";
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

const { ingest, study } = await ask({ ask: "state" });
byId("which-study").textContent =
  ingest && study
    ? `The study that is set is “${study}” at ${ingest}.`
    : "No study is set yet. You agree to the first one that you set in the settings; for any other you are asked again.";
await drawWouldSend();
