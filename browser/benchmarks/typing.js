// @ts-check
/**
 * Measures the extension's work on a keystroke with 10,000 pages of ten visits each, in milliseconds; run `node
 * browser/benchmarks/typing.js`.
 *
 * `keystroke`: the work between the key and the list, for the slowest of three words: found in many, few and no pages.
 * `awakening`: a restarted background script loads everything in storage; `stretch` is the longest time in which it
 * answers nothing else. `rescoring`: the same for scoring all pages again.
 */

const PAGES = 10_000;
const ROUNDS = 100;
const DAY = 86_400_000;
const TYPED = ["e", "ex", "exa", "news", "news m", "news map 12", "page 9999", "wiki zu", "zzzz", "no such words here"];
const WORDS = ["news", "map", "mail", "wiki", "shop", "video", "docs", "issue", "music", "travel", "zürich", "weather"];

/**
 * @param {object} given
 * @param {any} given.Worker The extension's class.
 * @param {any} given.Shelf
 * @param {any} given.api The browser's API; its storage is overwritten.
 * @param {any} given.environment
 */
export async function measureTyping({ Worker, Shelf, api, environment }) {
  const { restored } = await import(placeOf(api, "history/entries.js"));
  const now = environment.now();
  const entries = Array.from({ length: PAGES }, (_, i) => restored(page(i, now)));
  const urls = entries.map(({ url }) => url);
  await new Shelf(api.storage.local).save(entries, urls);
  const worker = new Worker({ api, environment });
  const awakening = await stretches(() => worker.ready());
  const rescoring = await stretches(() => worker.rescore());
  const words = TYPED.map((typed) => summary(Array.from({ length: ROUNDS }, () => keystroke(worker, typed))));
  return {
    pages: worker.library.size,
    awakening,
    rescoring,
    keystroke: words.reduce((a, b) => (a.median > b.median ? a : b)),
  };
}

/** @param {any} worker @param {string} typed */
function keystroke(worker, typed) {
  const begin = performance.now();
  worker.list(typed, 10);
  return performance.now() - begin;
}

/**
 * The duration of some work, and the longest stretch in which nothing else could run.
 *
 * @param {() => Promise<any>} work
 */
async function stretches(work) {
  const { port1, port2 } = new MessageChannel();
  const begin = performance.now();
  let [last, stretch] = [begin, 0];
  port1.onmessage = () => {
    const now = performance.now();
    [last, stretch] = [now, Math.max(stretch, now - last)];
    port2.postMessage(0);
  };
  port2.postMessage(0);
  await work();
  const end = performance.now();
  port1.close();
  return { all: end - begin, stretch: Math.max(stretch, end - last) };
}

/** @param {any} api @param {string} path */
function placeOf(api, path) {
  return api.inNode ? `../extension/${path}` : api.runtime.getURL(path);
}

/** @param {number[]} times */
function summary(times) {
  const sorted = times.toSorted((a, b) => a - b);
  const at = (/** @type {number} */ share) => sorted[Math.floor(share * (sorted.length - 1))];
  return { least: at(0), median: at(0.5), p95: at(0.95) };
}

/** @param {number} i @param {number} now */
function page(i, now) {
  const word = (/** @type {number} */ step) => WORDS[(i * step + (i >> 5)) % WORDS.length];
  const visits = Array.from({ length: 10 }, (_, j) => [
    now - ((i * 7 + j * 13) % 300) * DAY - i,
    1 + ((i + 3 * j) % 3),
  ]);
  const url = `https://www.${word(1)}${i % 400}.example.org/${word(5)}/${word(7)}-${word(11)}/page-${i}?from=${word(3)}&session=${(i * 2654435761) % 1e9}`;
  return [
    url,
    `${word(5)} ${word(7)}: a title of usual length, page ${i} – ${word(1)}`,
    1 + (i % 60),
    i % 4,
    now - i,
    visits.flat(),
  ];
}

if (globalThis.process?.argv[1]?.endsWith("typing.js")) {
  const [{ Worker }, { Shelf }, { fakeApi }, { browserEnvironment }] = await Promise.all(
    ["../extension/worker.js", "../extension/history/shelf.js", "../tests/extension_support.js", "../fedping.js"].map(
      (path) => import(path),
    ),
  );
  const api = Object.assign(fakeApi(), { inNode: true });
  const { get } = api.storage.local;
  api.storage.local.get = (/** @type {any} */ keys) =>
    new Promise((resolve) => setImmediate(resolve)).then(() => get(keys));
  console.log(await measureTyping({ Worker, Shelf, api, environment: browserEnvironment() }));
}
