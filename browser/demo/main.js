// @ts-check
/** The demo page: a client of a study before one's eyes. */

import { Client, webStorage } from "../fedping.js";

const asked = new URLSearchParams(location.search).get("study");
const answer = await fetch(`state.json${asked === null ? "" : `?study=${encodeURIComponent(asked)}`}`);
const { study } = await answer.json();
const ingest = new URL("..", location.href).href;
const client = new Client({ ingest, study, storage: webStorage(sessionStorage) });
await client.start();
const model = /** @type {HTMLElement} */ (document.getElementById("model"));
model.textContent = `Study ${study}, arm ${client.arm}, version ${client.version} of its model.`;
