// What a feed adds to its page: rank the articles, report what is opened, and later for how long it was read.
import { Ranker } from "./fedping/ranker.js";
import { after, draw, footer, itemsOf, state, trouble } from "./page.js";

const feed = new Ranker({
  ingest: "http://127.0.0.1:8080", // also in the content security policy of page.html
  study: "{{study}}",
  key: (article) => article.id,
  onTrouble: ({ sentence }) => trouble(sentence),
});
const articles = await itemsOf("items.csv");
let last = "world"; // the topic that this reader opened last: a field of the query

function show() {
  const list = feed.rank(articles, { last }, 12);
  const open = (article) => {
    const began = Date.now();
    list.choose(article);
    last = article.topic;
    const close = (finished) => (list.outcome({ seconds: (Date.now() - began) / 1000, finished }), show());
    after(`You read: ${article.title} (${article.minutes} min).`, { "Close it": () => close(false), "Close it at the end": () => close(true) });
  };
  draw(list.items, {
    words: ({ title, topic, minutes, hours, video }) => [title, `${topic} · ${minutes} min · ${hours} h ago${video ? " · video" : ""}`],
    actions: { Open: open },
    onSeen: (count) => list.seen(count),
  });
  footer({
    "Nothing for me": () => (list.choose(null), show()),
    "Ask for the newest model": async () => (await feed.fetchModel()) && show(),
    "Be another reader": async () => (await feed.forget(), await feed.start(), show()),
  });
  after("");
  state(feed);
}

await feed.ready;
show();
setInterval(() => state(feed), 500);
