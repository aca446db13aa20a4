// @ts-check
/**
 * The page for studies of features: lists of invented items to choose from, and the results of a choice.
 *
 * @import { RankedList } from "../product/list.js"
 * @import { Crowd, PageSettings } from "./study_page.js"
 * @import { ListChoice } from "./view/list_steps.js"
 * @import { Ordered } from "./explaining.js"
 * @import { Item } from "./items.js"
 */

import { itemScores, layoutFor } from "../features/lists.js";
import { orderOf, scoreOf } from "../features/ranking.js";
import { valuesOf } from "../features/values.js";
import { madeItems, madeQuery, rowInWords, someOf } from "./items.js";
import { seedOf, seeded } from "./random.js";
import { SHOWN, featuresOf, letShop } from "./shoppers.js";
import { StudyPage } from "./study_page.js";
import { byId, told } from "./view/dom.js";
import { arrivedForList, computedOfList, itemRow, leavingOfList } from "./view/list_steps.js";
import { rankerIn } from "./visitor.js";

export class ListsPage extends StudyPage {
  /** @type {ListChoice | null} */
  #choice = null;
  /** @type {{ items: readonly Item[], query: Record<string, unknown> }} The open list, unranked. */
  #open;
  /** @type {RankedList<any, any> | null} */
  #list = null;

  /** @param {PageSettings} settings */
  constructor(settings) {
    super(settings);
    this.features = featuresOf(this.line.spec);
    this.items = madeItems(this.features, this.seed);
    this.draw = seeded(seedOf(`lists/${this.seed}`));
    this.#open = this.#drawn();
    byId("intro").textContent =
      "Choose an item of a list, and follow the result: the update that the browser computes, the ping that it sends, and the model that comes back. The items are made up from the study's features. The client is the same as in products. Its server is the one that serves this page.";
    byId("search-title").textContent = "Choose";
    byId("listing").hidden = false;
    byId("next-list").addEventListener("click", () => this.#next());
  }

  get #ranker() {
    return /** @type {import("../ranker.js").Ranker} */ (this.client);
  }

  async join() {
    return rankerIn(this.visiting).ready;
  }

  /** @param {Crowd} crowd */
  letChoose(crowd) {
    return letShop({ ...crowd, spec: this.line.spec, itemSeed: this.seed });
  }

  about() {
    return [`${this.items.length} made-up items of seed ${this.seed}; `, this.another("other items")];
  }

  refresh() {
    this.#drawList();
  }

  leaves() {
    const choice = this.#choice;
    return choice && { ping: choice.ping, leaving: leavingOfList(choice, this.sent, this.addressOf(choice.ping?.type)) };
  }

  drawModel() {
    const { model } = this;
    if (model !== null) {
      if (this.#list === null) {
        this.#drawList();
      }
      const { items, query } = this.#choice ?? this.#open;
      const chosen = this.#choice === null ? null : this.#choice.items[this.#choice.chosen];
      this.drawVersion(model.version.version);
      byId("arrived").replaceChildren(...arrivedForList(model, this.#role, (weights) => this.#ranked(items, query, weights), chosen));
    }
  }

  get #role() {
    return this.#ranker.participant.membership.role;
  }

  #drawn() {
    return { items: someOf(this.items, SHOWN, this.draw), query: madeQuery(this.features, this.draw) };
  }

  #next() {
    this.#open = this.#drawn();
    this.#drawList();
    byId("said").textContent = "Another list.";
  }

  #drawList() {
    const { items, query } = this.#open;
    const byRow = new Map(items.map((item) => [item.row, item]));
    const list = this.#ranker.rank(items.map(({ row }) => row), query, SHOWN);
    const shown = list.items.map((row) => /** @type {Item} */ (byRow.get(row)));
    const { role, held } = this.#ranker.participant.membership;
    const scores = itemScores(role, held, query, shown.map(({ row }) => row));
    this.#list = list;
    const words = rowInWords(query);
    byId("asked").textContent = words === "" ? "" : `The query: ${words}.`;
    const choose = (/** @type {number} */ place) => () => this.#onChoice(list, { items: shown, query, scores, chosen: place, role, ping: null });
    byId("items").replaceChildren(...shown.map((item, place) => itemRow(item, place, scores[place], choose(place))));
  }

  /**
   * @param {RankedList<any, any>} list
   * @param {ListChoice} choice
   */
  #onChoice(list, choice) {
    this.documentId = "";
    this.sent = null;
    this.#choice = choice;
    const before = new Set(this.#ranker.waiting.map(({ documentId }) => documentId));
    list.choose(list.items[choice.chosen]);
    const composed = this.#ranker.waiting.find(({ documentId }) => !before.has(documentId));
    choice.ping = composed?.ping ?? null;
    this.documentId = composed?.documentId ?? "";
    byId("computed").replaceChildren(...computedOfList(choice));
    this.drawPing();
    this.drawModel();
    const loss = choice.ping === null ? "no ping leaves" : `the loss is ${told(choice.ping.payload.loss)}, and the ping is sent`;
    this.#next();
    byId("said").textContent = `Chosen: ${choice.items[choice.chosen].title}; ${loss}.`;
  }

  /**
   * @param {readonly Item[]} items
   * @param {Record<string, unknown>} query
   * @param {readonly number[]} weights
   * @returns {Ordered}
   */
  #ranked(items, query, weights) {
    const layout = layoutFor(this.#role.spec);
    const values = valuesOf(layout, query, items.map(({ row }) => row));
    const scores = values.map((each) => scoreOf(layout, weights, each));
    const order = orderOf(scores);
    return { pages: order.map((i) => items[i]), scores: order.map((i) => scores[i]) };
  }
}
