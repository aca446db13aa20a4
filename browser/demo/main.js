// @ts-check
/**
 * The demo page: shows a study's client at work. In its address, `study` names the study (default: the store's first),
 * `seed` the invented history, and `every` the seconds between rounds, if known.
 */

import { readStudy } from "../fedping.js";
import { LISTS, LIST_TYPE } from "../product/lists.js";
import { studyOf } from "../study/study.js";
import { ListsPage } from "./lists_page.js";
import { DemoPage } from "./page.js";
import { Away, Refused, askJson, askState } from "./server.js";
import { byId, el } from "./view/dom.js";
import { MORE } from "./visitor.js";

const TRY_AGAIN = 2000;
const FOR_OTHERS =
  "The page supports models that rank pages (frecency-2018 and linear-15), and features of your own with pings = \"list-update\". For predictions, 'fedping study init' writes a page.";

const asked = new URLSearchParams(location.search);
const ingest = new URL("..", location.href).href.replace(/\/$/, "");

/** Begin as soon as the server answers; show a sentence about any problem. */
async function begin() {
  try {
    const state = await askState(asked.get("study"));
    const given = await askJson(`${ingest}/models/${state.study}/study.json`);
    const study = readable(given, state);
    if (study !== null) {
      notice("");
      const Page = study.pings === LIST_TYPE ? ListsPage : DemoPage;
      await new Page({ ingest, study, state, seed: asked.get("seed") ?? "1", every: everySeconds(), notice }).start();
    }
  } catch (error) {
    if (error instanceof Refused) {
      notice(`${sentence(error.message)} Name a study of the store in the address: ?study=…`);
      return;
    }
    if (error instanceof Away) {
      notice("The server does not answer. This page continues when the server is back.");
      setTimeout(begin, TRY_AGAIN);
      return;
    }
    notice("The page has failed, because of a defect. The browser's console says where.");
    throw error;
  }
}

/**
 * The study; null, with a notice, for one that this page can't show.
 *
 * @param {any} given
 * @param {import("./server.js").State} state
 */
function readable(given, { study, studies }) {
  try {
    return given?.pings === LIST_TYPE ? studyOf(given, study, { ...LISTS, ...MORE }) : readStudy(given, study);
  } catch (error) {
    const why = error instanceof TypeError ? error.message : String(error);
    const others = studies.filter((name) => name !== study).map((name) => el("a", { href: `?study=${encodeURIComponent(name)}` }, name));
    notice(`The study '${study}' cannot be tried here: ${why}. ${FOR_OTHERS}`, others);
    return null;
  }
}

/** @param {string} text */
function sentence(text) {
  return `${text.slice(0, 1).toUpperCase()}${text.slice(1)}.`;
}

/** The seconds between rounds; null if they are not known. */
function everySeconds() {
  const seconds = Number(asked.get("every"));
  return Number.isInteger(seconds) && seconds > 0 && seconds <= 86_400 ? seconds : null;
}

/**
 * Show a problem; hide the notice without one.
 *
 * @param {string} text
 * @param {readonly HTMLElement[]} [others] Links to other studies.
 */
function notice(text, others = []) {
  const place = byId("notice");
  if (place.textContent !== text) {
    place.replaceChildren(text, ...(others.length > 0 ? [" Other studies here: "] : []), ...others.flatMap((link) => [link, " "]));
  }
  place.hidden = text === "";
}

await begin();
