// @ts-check
/**
 * The page for studies of models that rank pages: an invented history to search, and the results of a choice.
 *
 * @import { Client } from "../client.js"
 * @import { Observed } from "../study/ping.js"
 * @import { Shown } from "../study/learning.js"
 * @import { Crowd, PageSettings } from "./study_page.js"
 * @import { Choice } from "./view/steps.js"
 */

import { madeHistory, matching } from "./history.js";
import { MOST_SHOWN, letChoose } from "./people.js";
import { WORDS } from "./sites.js";
import { StudyPage } from "./study_page.js";
import { Combobox } from "./view/combobox.js";
import { byId, counted, el, told } from "./view/dom.js";
import { arrived, computed, leaving, staying } from "./view/steps.js";
import { visitorIn } from "./visitor.js";

export class DemoPage extends StudyPage {
  /** @type {Choice | null} */
  #choice = null;

  /** @param {PageSettings} settings */
  constructor(settings) {
    super(settings);
    this.history = madeHistory(this.seed, Date.now());
    this.box = new Combobox({
      input: byId("query", HTMLInputElement),
      list: byId("suggestions"),
      said: byId("said"),
      rank: (typed) => this.#rank(typed),
      onChoice: (shown, observed) => this.#onChoice(shown, observed),
    });
    byId("words").append(...WORDS.map((word) => this.#word(word)));
    byId("forget").addEventListener("click", () => void this.#forget());
    byId("searching").hidden = false;
  }

  get #visitor() {
    return /** @type {Client} */ (this.client);
  }

  async join() {
    const client = visitorIn(this.visiting);
    await client.start();
    return client;
  }

  /** @param {Crowd} crowd */
  letChoose(crowd) {
    return letChoose(crowd);
  }

  about() {
    const pages = counted(this.history.length, "made-up page");
    return [`The history: ${pages} of seed ${this.seed}; `, this.another("another history")];
  }

  refresh() {
    this.box.refresh();
  }

  leaves() {
    const choice = this.#choice;
    return choice && { ping: choice.ping, leaving: leaving(choice, this.sent, this.addressOf(choice.ping?.type)) };
  }

  drawModel() {
    const { model } = this;
    if (model !== null) {
      const shown = this.#choice?.shown ?? this.#rank("");
      this.drawVersion(model.version.version);
      byId("arrived").replaceChildren(...arrived({ ...model, shown, choice: this.#choice }));
      this.#drawOwn();
    }
  }

  /** @param {string} typed */
  #rank(typed) {
    return this.#visitor.rank(matching(this.history, typed), MOST_SHOWN);
  }

  /**
   * @param {Shown} shown
   * @param {Observed} observed
   */
  #onChoice(shown, observed) {
    const client = this.#visitor;
    const typed = byId("query", HTMLInputElement).value.trim();
    const composed = client.compose(shown, observed);
    this.#choice = { shown, chosen: observed.chosen, typed, ping: composed?.ping ?? null };
    this.documentId = composed?.documentId ?? "";
    this.sent = null;
    if (composed !== null) {
      client.send(composed);
    }
    void client.learn(shown, observed.chosen).then(() => this.#drawOwn());
    byId("computed").replaceChildren(...computed(this.#choice));
    this.drawPing();
    this.drawModel();
    const loss = composed === null ? "no ping leaves" : `the loss is ${told(composed.ping.payload.loss)}, and the ping is sent`;
    byId("said").textContent = `Chosen: ${/** @type {any} */ (shown.pages[observed.chosen]).title}; ${loss}.`;
  }

  async #forget() {
    await this.#visitor.forgetPersonal();
    this.box.refresh();
    this.#drawOwn();
    byId("said").textContent = "Forgotten. This browser ranks as everyone's again, and still takes part.";
  }

  /** @param {string} word */
  #word(word) {
    const button = el("button", { type: "button", class: "word" }, word);
    button.addEventListener("click", () => this.box.type(word));
    return button;
  }

  /** Draw the personal model; nothing in an arm that is not personal. */
  #drawOwn() {
    const client = this.#visitor;
    const { personal } = client;
    byId("own").hidden = personal === null;
    if (personal !== null) {
      const { pages, now } = this.#choice?.shown ?? this.#rank("");
      const shared = client.rankShared(pages, pages.length, now);
      const own = client.rank(shared.pages, pages.length, now);
      byId("stays").replaceChildren(...staying({ personal, shared, own, choice: this.#choice }));
      byId("forget").hidden = personal.trained === 0;
    }
  }
}
