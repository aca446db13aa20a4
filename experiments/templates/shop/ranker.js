// What a shop adds to its page: rank the products, report the choice, and later what was paid.
import { Ranker } from "./fedping/ranker.js";
import { after, draw, footer, itemsOf, state, trouble } from "./page.js";

const shop = new Ranker({
  ingest: "http://127.0.0.1:8080", // also in the content security policy of page.html
  study: "{{study}}",
  key: (product) => product.id,
  onTrouble: ({ sentence }) => trouble(sentence),
});
const products = await itemsOf("items.csv");

function show() {
  const list = shop.rank(products, { device: innerWidth < 600 ? "phone" : "desktop" }, 10);
  const choose = (product, basket) => {
    list.choose(product, { basket });
    const pay = { [`Pay € ${product.price}`]: () => (list.outcome({ paid: product.price }), after(`Paid: ${product.name}.`, { "Back to the shop": show })) };
    after(`${product.name}: ${basket ? "in the basket" : "looked at"}.`, { "Back to the shop": show, ...(basket ? pay : {}) });
  };
  draw(list.items, {
    words: ({ name, price, rating, condition, in_stock: there }) => [name, `€ ${price} · ${rating ? `${rating} of 5` : "no rating"} · ${condition}${there ? "" : " · sold out"}`],
    actions: { Look: (product) => choose(product, false), "Add to basket": (product) => choose(product, true) },
    onSeen: (count) => list.seen(count),
  });
  after("");
  state(shop);
}

await shop.ready;
show();
setInterval(() => state(shop), 500);
footer({
  "Ask for the newest model": async () => ((await shop.fetchModel()) && show()),
  "Be another visitor": async () => (await shop.forget(), await shop.start(), show()),
});
