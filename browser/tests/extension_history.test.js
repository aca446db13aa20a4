// @ts-check
/** The user's own pages: what is found for what is typed, in which order, and that it is what the browser has. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { frecency2018, PageTable, FRECENCY_START, VisitType } from "../fedping.js";
import { entryOf, isListed, kept, restored, visitType } from "../extension/history/entries.js";
import { PageIndex } from "../extension/history/page_index.js";
import { marked, needlesOf, searchText } from "../extension/history/words.js";
import { NOW, installed } from "./extension_support.js";
import { seeded } from "./support.js";

const DAY = 86_400_000;

/** @param {string} typed @param {string} title @param {string} url */
function finds(typed, title, url) {
  const text = searchText(title, url);
  return needlesOf(typed).every((needle) => text.includes(needle));
}

test("every word typed begins a word of the title or the address", () => {
  const page = /** @type {const} */ ([
    "Issues · acme/Widgets",
    "https://www.github.com/acme/widgets/issues?q=is%3Aopen",
  ]);
  for (const typed of ["i", "iss", "widgets git", "acme/wid", "github.com/ac", "ISSUES", "  open  "]) {
    assert.ok(finds(typed, ...page), typed);
  }
  for (const typed of ["ssues", "hub", "issues gitlab", "https", "www"]) {
    assert.ok(!finds(typed, ...page), typed);
  }
});

test("accents make no difference, and scripts without spaces match anywhere", () => {
  assert.ok(finds("koln", "Köln – Wikipedia", "https://de.wikipedia.org/wiki/K%C3%B6ln"));
  assert.ok(finds("KÖLN", "", "https://de.wikipedia.org/wiki/K%C3%B6ln"));
  assert.ok(finds("都", "東京都 - Wikipedia", "https://ja.wikipedia.org/"));
  assert.ok(
    finds("python", "Python入門", "https://example.org/") && finds("python入", "Python入門", "https://example.org/"),
  );
  assert.ok(!finds("ython", "Python入門", "https://example.org/"));
  assert.ok(finds("2", "", "https://example.org/2024") && !finds("024", "", "https://example.org/2024"));
  assert.ok(!finds("k%C3", "", "https://example.org/100%"));
});

test("what is marked, put together, is the text, and the marks begin as the words typed do", () => {
  assert.deepEqual(marked("Issues · github.com", "git iss"), [
    ["Iss", true],
    ["ues · ", false],
    ["git", true],
    ["hub.com", false],
  ]);
  assert.deepEqual(marked("Köln", "ko"), [
    ["Kö", true],
    ["ln", false],
  ]);
  assert.deepEqual(marked("東京都", "京"), [
    ["東", false],
    ["京", true],
    ["都", false],
  ]);
  const draw = seeded(7);
  const signs = [..."ab Äß京.%/ﬁe\u0301😀"];
  for (let i = 0; i < 500; i += 1) {
    const [text, typed] = [12, 3].map((most) =>
      Array.from({ length: draw.whole(0, most) }, () => signs[draw.whole(0, signs.length - 1)]).join(""),
    );
    assert.equal(
      marked(text, typed)
        .map(([piece]) => piece)
        .join(""),
      text,
    );
  }
});

test("matching gives what looking at every page and sorting gives", () => {
  const draw = seeded(3);
  const index = new PageIndex();
  const words = ["news", "new", "mail", "map", "maps", "shop"];
  const draws = () => words[draw.whole(0, words.length - 1)];
  for (let i = 0; i < 300; i += 1) {
    const url = `https://${draws()}.example.org/${draws()}/${draw.whole(0, 99)}`;
    index.put({ ...restored([url, draws(), 1, 0, i, []]), score: draw.whole(-1, 5) });
  }
  index.remove(index.entries.filter(() => draw.fraction() < 0.2).map(({ url }) => url));
  for (const typed of ["", "n", "ma", "new shop", "map mail news", "zzz", "../"]) {
    const needles = needlesOf(typed);
    const all = index.entries.filter(({ text }) => needles.every((needle) => text.includes(needle)));
    const expected = all.sort((a, b) => b.score - a.score || b.lastVisit - a.lastVisit).slice(0, 10);
    assert.deepEqual(index.matching(typed, 10), typed === "../" ? [] : expected, typed);
  }
});

test("kinds of visits are those that the browsers name, and all others links", () => {
  const given = [
    "link",
    "typed",
    "auto_bookmark",
    "auto_subframe",
    "manual_subframe",
    "reload",
    "generated",
    "keyword",
    "form_submit",
  ];
  const { LINK, TYPED, BOOKMARK, EMBED, FRAMED_LINK, RELOAD } = VisitType;
  assert.deepEqual(given.map(visitType), [LINK, TYPED, BOOKMARK, EMBED, FRAMED_LINK, RELOAD, LINK, LINK, LINK]);
});

test("a page keeps its ten newest visits, and comes back from storage as it was", () => {
  const visits = Array.from({ length: 15 }, (_, i) => ({
    visitTime: NOW - ((i * 7) % 15) * DAY,
    transition: i === 7 ? "typed" : "link",
  }));
  const entry = entryOf({ url: "https://example.org/", title: "A", visitCount: 40, lastVisitTime: NOW }, visits, true);
  assert.deepEqual(
    entry.visits.map(({ time }) => (NOW - time) / DAY),
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
  );
  assert.ok(entry.bookmarked);
  assert.deepEqual(restored(JSON.parse(JSON.stringify(kept({ ...entry, typed: true })))), { ...entry, typed: true });
});

test("pages that an extension cannot open, and scripts, are not listed", () => {
  assert.deepEqual(
    [
      "https://a.org/",
      "http://b/",
      "file:///etc",
      "javascript:alert(1)",
      "about:config",
      `https://a.org/${"x".repeat(2000)}`,
      undefined,
    ].map(isListed),
    [true, true, false, false, false, false, false],
  );
});

test("the history and the bookmarks are read, ranked by the start values, and found", async () => {
  const extension = installed();
  const { api } = extension;
  api.visit("https://often.org/", {
    title: "Wiki",
    visits: [
      [NOW - DAY, "typed"],
      [NOW - 2 * DAY, "link"],
    ],
  });
  api.visit("https://once.org/", { title: "Wiki", visits: [[NOW - 60 * DAY, "link"]] });
  api.shown.bookmarks.push({ url: "https://marked.org/", title: "My wiki" });
  await extension.worker.started();
  const { listed, urls } = await extension.search("wiki");
  assert.deepEqual(urls, ["https://often.org/", "https://marked.org/", "https://once.org/"]);
  const table = PageTable.of(listed.pages, listed.now);
  assert.deepEqual([...listed.scores], [...frecency2018.scores(FRECENCY_START, table)]);
  assert.equal(listed.study, "");
});

test("a search asks the browser for nothing, also after the background script was ended", async () => {
  const extension = installed();
  for (let i = 0; i < 300; i += 1) {
    extension.api.visit(`https://example.org/${i}`, { title: `Page ${i}` });
  }
  await extension.worker.started();
  const before = { ...extension.api.shown.asked };
  const { urls } = await extension.search("page 12");
  extension.reborn();
  assert.deepEqual((await extension.search("page 12")).urls, urls);
  assert.equal(urls.length, 10);
  assert.deepEqual(extension.api.shown.asked, before);
});

test("kept scores are the scores of all pages, and are made anew for another day", async () => {
  const extension = installed();
  const { api, browser } = extension;
  for (let i = 0; i < 40; i += 1) {
    api.visit(`https://example.org/${i}`, { visits: [[browser.environment.now() - i * DAY, "link"]] });
  }
  await extension.worker.started();
  const scores = async () => {
    const all = await api.storage.local.get(null);
    return Object.keys(all)
      .filter((key) => /^pages\/\d/.test(key))
      .flatMap((key) =>
        all[key].map((/** @type {any} */ page, /** @type {number} */ i) => [
          page[0],
          all[key.replace("pages", "scores")][i],
        ]),
      )
      .sort();
  };
  const expected = () =>
    extension.worker.library
      .matching("", 100)
      .map((page) => [page.url, extension.worker.participation.scores([page])[0]])
      .sort();
  assert.deepEqual(await scores(), expected());
  const first = await scores();
  await browser.pass(20 * DAY);
  await extension.reborn().alarm({ name: "history" });
  assert.deepEqual(await scores(), expected());
  assert.notDeepEqual(await scores(), first);
});

test("visits, removals and bookmarks change what is found, and it is kept", async () => {
  const extension = installed();
  const { api } = extension;
  await extension.worker.started();
  const found = async () => {
    const now = (await extension.search("")).urls.sort();
    extension.reborn();
    assert.deepEqual((await extension.search("")).urls.sort(), now);
    return now;
  };
  await extension.worker.visited(api.visit("https://a.org/", { title: "A" }));
  await extension.worker.visited(api.visit("https://b.org/", { title: "B" }));
  assert.deepEqual(await found(), ["https://a.org/", "https://b.org/"]);
  api.shown.bookmarks.push({ url: "https://a.org/", title: "A" }, { url: "https://c.org/", title: "C" });
  await extension.worker.ready();
  await extension.worker.library.bookmarksChanged();
  assert.deepEqual(await found(), ["https://a.org/", "https://b.org/", "https://c.org/"]);
  const [bookmarked] = (await extension.search("a")).listed.pages;
  assert.ok(bookmarked.bookmarked);
  api.shown.history.clear();
  await extension.worker.ready();
  await extension.worker.library.removed({ allHistory: true });
  assert.deepEqual(await found(), ["https://a.org/", "https://c.org/"]); // bookmarks stay
  assert.deepEqual((await extension.search("a")).listed.pages[0].visits, []);
  api.shown.bookmarks.length = 0;
  await extension.worker.library.bookmarksChanged();
  assert.deepEqual(await found(), []);
});

test("what happened while nobody listened is found by comparing", async () => {
  const extension = installed();
  const { api } = extension;
  for (const name of ["gone", "stays", "more", "marked"]) {
    api.visit(`https://${name}.org/`, { title: "" });
  }
  api.shown.bookmarks.push({ url: "https://marked.org/", title: "Marked" });
  await extension.worker.started();
  const read = api.shown.asked.getVisits;
  api.shown.history.delete("https://gone.org/");
  api.shown.history.delete("https://marked.org/");
  api.visit("https://more.org/", { title: "More", visits: [[NOW, "typed"]] });
  api.visit("https://new.org/", { title: "New" });
  await extension.worker.alarm({ name: "history" });
  assert.deepEqual((await extension.search("")).urls.sort(), [
    "https://marked.org/",
    "https://more.org/",
    "https://new.org/",
    "https://stays.org/",
  ]);
  assert.deepEqual((await extension.search("more")).listed.pages[0].visits.length, 2);
  assert.equal(api.shown.asked.getVisits - read, 2); // what has not changed is not asked for
});

test("pages that only led on to others, and downloads, are not listed", async () => {
  const extension = installed();
  const { api } = extension;
  await extension.worker.started();
  const item = api.visit("https://short.org/1");
  api.shown.history.delete("https://short.org/1"); // told of, but not in the history that is searched
  await extension.worker.visited(item);
  const download = api.visit("https://files.org/1");
  download.visitCount = 0;
  await extension.worker.visited(download);
  await extension.worker.visited(api.visit("https://long.org/1"));
  await extension.worker.alarm({ name: "history" });
  assert.deepEqual((await extension.search("1")).urls, ["https://long.org/1"]);
});

test("a title that came after its visit is found soon", async () => {
  const extension = installed();
  const { api, browser } = extension;
  await extension.worker.started();
  const visits = /** @type {[number, string][]} */ ([[browser.environment.now(), "link"]]);
  await extension.worker.visited(api.visit("https://a.org/", { visits }));
  assert.ok(api.shown.alarms.has("title"));
  api.shown.history.get("https://a.org/").item.title = "Quokkas";
  await extension.reborn().alarm({ name: "title" });
  assert.deepEqual((await extension.search("quok")).urls, ["https://a.org/"]);
});

test("what Firefox says of typing at a visit is remembered", async () => {
  const extension = installed({ firefox: true });
  const { api } = extension;
  await extension.worker.visited(api.visit("https://a.org/", { typedCount: 1 }));
  delete api.shown.history.get("https://a.org/").item.typedCount;
  await extension.worker.alarm({ name: "history" });
  await extension.worker.visited(api.shown.history.get("https://a.org/").item);
  assert.ok((await extension.search("")).listed.pages[0].typed);
});
