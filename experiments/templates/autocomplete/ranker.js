// What a form adds to its page: rank the suggestions for what is typed, report the one that was taken, and later if it was corrected.
import { Ranker } from "./fedping/ranker.js";
import { after, draw, footer, itemsOf, state, trouble } from "./page.js";

const form = new Ranker({
  ingest: "http://127.0.0.1:8080", // also in the content security policy of page.html
  study: "{{study}}",
  key: (city) => city.id,
  onTrouble: ({ sentence }) => trouble(sentence),
});
const cities = await itemsOf("items.csv");
const [input, country] = ["city", "country"].map((id) => document.getElementById(id));
const usesOf = ({ id }) => Number(localStorage.getItem(`uses/${id}`) ?? 0); // how often this browser has taken it; never sent

function show() {
  const typed = input.value.trim().toLowerCase();
  const found = cities.filter(({ name }) => name.toLowerCase().includes(typed));
  const given = found.map((city) => ({ ...city, begins: city.name.toLowerCase().startsWith(typed), uses: usesOf(city) }));
  const list = form.rank(given, { country: country.value }, 6);
  const take = (city) => {
    list.choose(city, { typed: input.value.length });
    localStorage.setItem(`uses/${city.id}`, usesOf(city) + 1);
    input.value = city.name;
    const again = () => ((input.value = ""), show(), input.focus());
    after(`To ${city.name}, ${city.country}.`, { "It was another one": () => (list.outcome({ corrected: true }), again()), "Another journey": again });
  };
  draw(list.items, {
    words: ({ name, country: where, uses }) => [name, `${where}${uses ? ` · taken ${uses} times` : ""}`],
    actions: { Take: take },
  });
  after("");
  state(form);
}

await form.ready;
document.getElementById("list").className = "narrow";
show();
input.addEventListener("input", show);
country.addEventListener("change", show);
setInterval(() => state(form), 500);
footer({
  "Ask for the newest model": async () => (await form.fetchModel()) && show(),
  "Be another traveller": async () => (await form.forget(), localStorage.clear(), await form.start(), show()),
});
