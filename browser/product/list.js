// @ts-check
/**
 * A shown list: the version that ranked it, its choice, and the outcomes.
 *
 * @import { Composed } from "../delivery/participant.js"
 * @import { Role } from "../study/parts.js"
 * @import { Version } from "../study/study.js"
 *
 * @typedef {object} Lists The functions of a ranker that its lists need.
 * @property {(list: ListState, choice: Choice) => boolean} choose
 * @property {(list: ListState, values: Record<string, any>) => boolean} outcome
 * @property {(code: any, sentence: string) => void} tell
 * @property {() => number} now
 * @property {string} study
 * @property {(a: any, b: any) => boolean} same Whether two values are the same item.
 * @property {(id: string) => string | null} mark Returns a mark that identifies a list's client, without its id.
 *
 * @typedef {object} Choice
 * @property {number} place From 0; -1 for none.
 * @property {number} at Milliseconds since 1970, by this device's clock.
 * @property {Record<string, any>} outcomes
 *
 * @typedef {object} ListState
 * @property {string} id The document id of its ping.
 * @property {string} secret The secret from which the ids of later outcomes are derived; never sent.
 * @property {string | null} mark The mark of the list's client; null if it was not known yet.
 * @property {string | null} arm
 * @property {Version} held The version; its weights are empty if they are no longer known.
 * @property {Role | null} role Null if it must be looked up again.
 * @property {readonly any[]} items In displayed order.
 * @property {any} query
 * @property {ReadonlySet<number>} pinned
 * @property {boolean} swapped
 * @property {number | null} seen
 * @property {{ place: number, at: number } | null} choice
 */

/** The maximum number of weights that a list takes to another page. */
const MOST_WEIGHTS = 1000;

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/**
 * @template {Record<string, any>} Item
 * @template {Record<string, any>} Outcomes
 */
export class RankedList {
  /** @type {Lists} */
  #lists;
  /** @type {ListState} */
  #state;

  /**
   * @param {Lists} lists
   * @param {ListState} state
   */
  constructor(lists, state) {
    this.#lists = lists;
    this.#state = state;
  }

  /** The items in display order. @returns {readonly Item[]} */
  get items() {
    return this.#state.items;
  }

  /** The model version that ranked it; -1 for the product's own order, before any version. */
  get version() {
    return this.#state.held.version;
  }

  /** Whether a choice was reported. */
  get isChosen() {
    return this.#state.choice !== null;
  }

  /**
   * Report the number of items, from the top, that the user has seen so far. The client learns nothing from items that
   * were never on the screen.
   *
   * @param {number} count
   */
  seen(count) {
    const { seen, items } = this.#state;
    this.#state.seen = Math.max(seen ?? 0, Math.min(Math.max(Math.floor(count) || 0, 0), items.length));
  }

  /**
   * Report the choice of an item; null for a list that the user left without a choice. Returns whether it is reported:
   * only the first choice of a list counts.
   *
   * @param {Item | null} item
   * @param {Partial<Outcomes>} [outcomes] The outcomes that the study declares at the choice.
   */
  choose(item, outcomes = {}) {
    const { items, choice } = this.#state;
    if (choice !== null) {
      this.#lists.tell("chosen_already", "this list already has a choice; only the first is sent");
      return false;
    }
    const place = item === null ? -1 : this.#placeOf(item);
    if (item !== null && place < 0) {
      this.#lists.tell("not_in_list", "the chosen item is not in this list; pass one of 'items', or set 'key' in the ranker's settings");
      return false;
    }
    if (items.length === 0) {
      return false;
    }
    const at = this.#lists.now();
    this.#state.choice = { place, at };
    return this.#lists.choose(this.#state, { place, at, outcomes: outcomes ?? {} });
  }

  /**
   * Report later outcomes of the choice, also from a later page. Returns whether all are sent; a repetition has the
   * same document id.
   *
   * @param {Partial<Outcomes>} outcomes The outcomes that the study declares with `within`.
   */
  outcome(outcomes) {
    if (this.#state.choice === null) {
      this.#lists.tell("not_chosen", "an outcome needs a choice, and this list has none; call 'choose' first");
      return false;
    }
    return this.#lists.outcome(this.#state, outcomes ?? {});
  }

  /**
   * The JSON with which another page continues: `shop.resume(JSON.stringify(list))`. It contains the items until one is
   * chosen.
   */
  toJSON() {
    const { items, query, pinned, role, held, mark, ...small } = this.#state;
    const weights = held.weights.length <= MOST_WEIGHTS ? held.weights : [];
    const open = this.#state.choice === null ? { items, query, pinned: [...pinned], weights } : {};
    return { fedping: 1, study: this.#lists.study, ...small, ...open, mark: mark ?? this.#lists.mark(small.id), version: held.version };
  }

  /** @param {Item} item */
  #placeOf(item) {
    const { items } = this.#state;
    const place = items.indexOf(item);
    return place >= 0 ? place : items.findIndex((each) => this.#lists.same(each, item));
  }
}

/**
 * The state of a list from its JSON; null if it is not a list of this study.
 *
 * @param {any} given The JSON text, or its parsed value.
 * @param {string} study
 * @returns {ListState | null}
 */
export function stateOf(given, study) {
  try {
    const { fedping, study: of, version, weights = [], pinned = [], ...more } = typeof given === "string" ? JSON.parse(given) : given;
    const { id, secret, mark, arm, items = [], query = {}, swapped, seen, choice } = more;
    const texts = UUID.test(id) && typeof secret === "string" && [mark, arm].every((each) => each === null || typeof each === "string");
    const chosen = choice === null || (Number.isSafeInteger(choice?.place) && Number.isFinite(choice.at));
    const counts = Number.isSafeInteger(version) && (seen === null || Number.isSafeInteger(seen)) && typeof swapped === "boolean";
    const lists = [items, weights, pinned].every(Array.isArray) && weights.every(Number.isFinite);
    const rows = lists && [...items, query].every((each) => each !== null) && typeof query === "object";
    if (fedping !== 1 || of !== study || !texts || !chosen || !counts || !rows) {
      return null;
    }
    return { id, secret, mark, arm, held: { version, weights }, role: null, items, query, pinned: new Set(pinned), swapped, seen, choice };
  } catch {
    return null;
  }
}
