// How this page reads and draws things. Nothing here is fedping's: your product has its own.

const byId = (id) => document.getElementById(id);

/** Make an element with a text and children. */
function element(name, text = "", ...children) {
  const made = document.createElement(name);
  made.append(text, ...children);
  return made;
}

/** The rows of a CSV file as objects: numbers, true and false are converted, and empty fields are left out. */
export async function itemsOf(file) {
  const [names, ...rows] = (await (await fetch(file)).text()).trim().split(/\r?\n/).map((line) => line.split(","));
  const converted = (text) => (text === "true" ? true : text === "false" ? false : Number.isNaN(Number(text)) ? text : Number(text));
  const filled = (row) => names.map((name, i) => [name, row[i] ?? ""]).filter(([, text]) => text !== "");
  return rows.map((row) => Object.fromEntries(filled(row).map(([name, text]) => [name, converted(text)])));
}

/** A row of buttons, by their labels; the last is the one to press first, if there is such a one. */
function buttons(actions, { hasFirst = true } = {}) {
  const row = element("div");
  row.className = "actions";
  for (const [label, act] of Object.entries(actions)) {
    const button = element("button", label);
    button.type = "button";
    button.className = hasFirst && label === Object.keys(actions).at(-1) ? "first" : "";
    button.addEventListener("click", async () => {
      button.disabled = true;
      await act();
      button.disabled = false;
    });
    row.append(button);
  }
  return row;
}

/**
 * Draw a list. `words` gives an item's title and what stands below it, `actions` what can be done with an item, by the labels of
 * the buttons; `onSeen` is called with the number of items, from the top, that have been on the screen.
 */
export function draw(items, { words, actions, onSeen = () => {} }) {
  const cards = items.map((item, i) => {
    const [title, below] = words(item);
    const place = element("span", `${i + 1}`);
    place.className = "place";
    const labels = Object.entries(actions).map(([label, act]) => [label, () => act(item)]);
    const card = element("li", "", element("h2", "", place, title), element("p", below), buttons(Object.fromEntries(labels)));
    card.className = "card";
    return card;
  });
  byId("list").replaceChildren(...cards);
  const watcher = new IntersectionObserver((entries) => {
    const seen = entries.filter((entry) => entry.isIntersecting).map((entry) => cards.indexOf(entry.target) + 1);
    onSeen(Math.max(0, ...seen));
  });
  cards.forEach((card) => watcher.observe(card));
}

/** Show what follows a choice in place of the list, with buttons; with an empty text, show the list. */
export function after(text, actions = {}) {
  byId("list").hidden = text !== "";
  byId("after").hidden = text === "";
  byId("after").replaceChildren(element("p", text), buttons(actions));
}

/** Show what the client does: its arm, the model version, and the pings of this page. */
export function state({ arm, version, counts }) {
  const who = arm === null ? "This browser takes no part yet" : `This browser is in the arm "${arm}" and holds version ${version} of the model`;
  byId("state").textContent = `${who}. Pings taken by the server: ${counts.accepted}; waiting: ${counts.waiting}.`;
}

/** Show a trouble to the developer; an empty text removes it. */
export function trouble(text) {
  byId("trouble").textContent = text;
}

/** Add buttons to the end of the page. */
export function footer(actions) {
  byId("more").replaceChildren(buttons(actions, { hasFirst: false }));
}
