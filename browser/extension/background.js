// @ts-check
/**
 * The background script: a service worker in Chromium, an event page in Firefox. Listeners are added at once, because
 * the browser starts the script for them.
 */

import { api } from "./api.js";
import { browserEnvironment } from "./fedping.js";
import { SEARCH_PAGE, WELCOME_PAGE, Worker } from "./worker.js";

const worker = new Worker({ api, environment: browserEnvironment() });

/**
 * The browser ignores what a listener returns, so errors are logged here, without naming the page.
 *
 * @param {(...given: any[]) => any} action
 */
function heard(action) {
  return (/** @type {any[]} */ ...given) => {
    Promise.resolve(action(...given)).catch((error) => console.error("fedping:", error?.message ?? error));
  };
}

api.runtime.onInstalled.addListener(
  heard(async ({ reason }) => {
    if (reason === "install") {
      await api.tabs.create({ url: api.runtime.getURL(WELCOME_PAGE) });
    }
    await worker.started();
  }),
);
api.runtime.onStartup.addListener(heard(() => worker.started()));
api.alarms.onAlarm.addListener(heard((alarm) => worker.alarm(alarm)));
api.permissions.onAdded.addListener(heard(() => worker.permissionsChanged()));
api.permissions.onRemoved.addListener(heard(() => worker.permissionsChanged()));

api.history.onVisited.addListener(heard((item) => worker.visited(item)));
api.history.onVisitRemoved.addListener(
  heard(async (removed) => (await worker.ready(), worker.library.removed(removed))),
);
for (const event of [api.bookmarks.onCreated, api.bookmarks.onRemoved, api.bookmarks.onChanged]) {
  event.addListener(heard(async () => (await worker.ready(), worker.library.bookmarksChanged())));
}

// There is no listener for cancelled input, because Chromium may report a cancellation just before the choice.
api.omnibox.onInputStarted.addListener(heard(async () => (await worker.ready(), worker.omnibox.begin())));
api.omnibox.onInputChanged.addListener(
  heard(async (typed, suggest) => (await worker.ready(), suggest(await worker.omnibox.changed(typed)))),
);
api.omnibox.onInputEntered.addListener(heard((text, disposition) => worker.entered(text, disposition)));

api.action.onClicked.addListener(heard(() => worker.show(api.runtime.getURL(SEARCH_PAGE), "newForegroundTab")));

api.runtime.onMessage.addListener(
  (/** @type {any} */ message, /** @type {any} */ sender, /** @type {any} */ respond) => {
    worker.answer(message, sender).then(
      (value) => respond({ value }),
      (error) => respond({ problem: error?.message ?? String(error) }),
    );
    return true; // the answer comes later
  },
);
