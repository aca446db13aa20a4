// @ts-check
/** A browser around the extension that is a few variables: its history, bookmarks, storage, alarms, and who listens. */

import { browserEnvironment } from "../fedping.js";
import { Worker } from "../extension/worker.js";
import { fakeBrowser, fakeIngest, settled } from "./support.js";

export const NOW = 1_800_000_000_000;
const DAY = 86_400_000;

/** What `browser.storage.local` or `.session` is: it keeps JSON, as Chromium does. */
function fakeArea() {
  /** @type {Map<string, string>} */
  const kept = new Map();
  const area = {
    kept,
    writes: 0,
    get: async (/** @type {any} */ keys) => {
      const asked = keys === null ? [...kept.keys()] : [keys].flat();
      return Object.fromEntries(
        asked.filter((key) => kept.has(key)).map((key) => [key, JSON.parse(kept.get(key) ?? "")]),
      );
    },
    set: async (/** @type {any} */ items) => {
      area.writes += 1;
      Object.entries(items).forEach(([key, value]) => kept.set(key, JSON.stringify(value)));
    },
    remove: async (/** @type {any} */ keys) => [keys].flat().forEach((key) => kept.delete(key)),
    getKeys: async () => [...kept.keys()],
  };
  return area;
}

/**
 * @param {object} [settings]
 * @param {boolean} [settings.firefox]
 */
export function fakeApi({ firefox = false } = {}) {
  /** @type {Map<string, any>} What was visited by address: `{ item, visits }`. */
  const history = new Map();
  /** @type {{ url: string, title: string }[]} */
  const bookmarks = [];
  /** @type {Map<string, any>} */
  const alarms = new Map();
  /** @type {any[]} */
  const opened = [];
  const asked = { getVisits: 0, search: 0 };
  const permissions = { origins: new Set(), data_collection: new Set() };
  return {
    // What tests look at and change.
    shown: { history, bookmarks, alarms, opened, asked, permissions },
    /** @param {string} url @param {{ title?: string, visits?: [number, string][], typedCount?: number }} [page] */
    visit(url, { title = "", visits = [[NOW - DAY, "link"]], typedCount } = {}) {
      const all = [
        ...(history.get(url)?.visits ?? []),
        ...visits.map(([visitTime, transition]) => ({ visitTime, transition })),
      ];
      const lastVisitTime = Math.max(...all.map(({ visitTime }) => visitTime));
      const item = {
        url,
        title,
        visitCount: all.length,
        lastVisitTime,
        ...(typedCount === undefined ? {} : { typedCount }),
      };
      history.set(url, { item, visits: all });
      return item;
    },
    // What the extension uses.
    runtime: { getURL: (/** @type {string} */ path) => `${firefox ? "moz" : "chrome"}-extension://id/${path}` },
    extension: { inIncognitoContext: false },
    storage: { local: fakeArea(), session: fakeArea() },
    history: {
      search: async (/** @type {any} */ { startTime, maxResults }) => {
        asked.search += 1;
        const items = [...history.values()].map(({ item }) => ({ ...item }));
        return items
          .filter(({ lastVisitTime }) => lastVisitTime >= startTime)
          .sort((a, b) => b.lastVisitTime - a.lastVisitTime)
          .slice(0, maxResults);
      },
      getVisits: async (/** @type {any} */ { url }) => {
        asked.getVisits += 1;
        return history.get(url)?.visits ?? [];
      },
    },
    bookmarks: {
      getTree: async () => [{ children: [{ title: "a folder", children: bookmarks.map((each) => ({ ...each })) }] }],
    },
    alarms: {
      create: (/** @type {string} */ name, /** @type {any} */ when) => void alarms.set(name, when),
      get: async (/** @type {string} */ name) => alarms.get(name),
      clear: async (/** @type {string} */ name) => alarms.delete(name),
    },
    permissions: {
      contains: async (/** @type {{ origins?: string[] }} */ { origins = [] }) =>
        origins.every((origin) => permissions.origins.has(origin)),
      getAll: async () => ({
        origins: [...permissions.origins],
        ...(firefox ? { data_collection: [...permissions.data_collection] } : {}),
      }),
    },
    omnibox: { setDefaultSuggestion: () => {} },
    tabs: {
      update: async (/** @type {any[]} */ ...given) => void opened.push(given.at(-1).url),
      create: async (/** @type {any} */ { url }) => void opened.push(url),
    },
  };
}

/**
 * The extension in a browser, which may end its background script and awaken it anew.
 *
 * @param {object} [settings]
 * @param {boolean} [settings.firefox]
 * @param {any} [settings.ingest]
 */
export function installed({ firefox = false, ingest = fakeIngest() } = {}) {
  const api = fakeApi({ firefox });
  const browser = fakeBrowser({ answer: (url, init) => ingest.answer(url, init) });
  const environment = { ...browserEnvironment(), ...browser.environment };
  const extension = {
    api,
    browser,
    ingest,
    worker: new Worker({ api, environment }),
    /** The background script is ended, and begins anew. */
    reborn() {
      extension.worker = new Worker({ api, environment });
      return extension.worker;
    },
    /** @param {any} message */
    ask: (message) => extension.worker.answer(message, {}),
    /** Take part in the study that the ingest has. */
    async takePart() {
      await extension.ask({ ask: "study", ingest: "https://ingest.example.org", study: "pings" });
      await extension.ask({ ask: "consent", agreed: true });
      await settled();
    },
    /** @param {string} typed */
    async search(typed) {
      const { listed } = await extension.ask({ ask: "search", typed });
      return { listed, urls: listed.pages.map((/** @type {any} */ page) => page.url) };
    },
  };
  return extension;
}
