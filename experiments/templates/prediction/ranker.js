// What a product adds to its page: predict whether a visitor will finish the form, and learn from what turned out.
import { Predictor } from "./fedping/predictor.js";
import { after, draw, footer, itemsOf, state, trouble } from "./page.js";

const form = new Predictor({
  ingest: "http://127.0.0.1:8080", // also in the content security policy of page.html
  study: "{{study}}",
  labels: ["left", "finished"],
  fields: ["pages", "minutes", "returning", "phone"],
  onTrouble: ({ sentence }) => trouble(sentence),
});
const visitors = await itemsOf("items.csv");
// As large as each other: numbers that are much larger than 1 make training diverge.
const exampleOf = ({ pages, minutes, returning, phone }) => ({ pages: Math.log1p(pages) - 1.5, minutes: Math.log1p(minutes) - 1.5, returning: Number(returning), phone: Number(phone) });
const chanceOf = (visitor) => form.predict(exampleOf(visitor))?.probabilities[1];

function show() {
  const learn = (label) => (visitor) => {
    form.learn(exampleOf(visitor), label);
    after(`${visitor.name}: ${label}. The example stays in this browser until there are two; then an update of both leaves it.`, { "Back to the visitors": show });
  };
  draw(visitors, {
    words: (visitor) => [
      visitor.name,
      `${visitor.pages} pages · ${visitor.minutes} min · ${visitor.returning ? "was here before" : "new"} · ${visitor.phone ? "phone" : "desktop"} · finishes with ${Math.round(100 * (chanceOf(visitor) ?? 0.5))} %`,
    ],
    actions: { "Left": learn("left"), "Finished": learn("finished") },
  });
  after("");
  state(form);
}

await form.ready;
show();
setInterval(() => state(form), 500);
footer({
  "Ask for the newest model": async () => (await form.fetchModel()) && show(),
  "Be another browser": async () => (await form.forget(), await form.start(), show()),
});
