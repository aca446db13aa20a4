// @ts-check
/**
 * Rank by your own features, and report your own outcomes:
 *
 *     import { Ranker } from "fedping/ranker";
 *
 *     const shop = new Ranker({ ingest: "https://telemetry.example.org", study: "shop" });
 *     const list = shop.rank(products, { device: "phone" }, 20);
 *     list.choose(product, { basket: true });
 *     list.outcome({ paid: 49.9 });
 *
 * @import { ListState } from "./product/list.js"
 * @import { Choice } from "./product/list.js"
 * @import { Feature } from "./features/layout.js"
 * @import { ShownList } from "./features/learning.js"
 * @import { Role } from "./study/parts.js"
 * @import { Version } from "./study/study.js"
 *
 * @typedef {import("./product/product.js").Trouble} Trouble
 * @typedef {import("./product/product.js").TroubleCode} TroubleCode
 * @typedef {import("./delivery/storage.js").ClientStorage} ClientStorage
 *
 * @typedef {object} Shape A product's own types: the fields of an item and of a query, and the outcomes.
 * @property {Record<string, any>} item
 * @property {Record<string, any>} query
 * @property {Record<string, any>} outcomes
 *
 * @typedef {object} OfLists
 * @property {(item: any) => unknown} [key] A value that distinguishes items, such as an id.
 *
 * @typedef {import("./product/product.js").ProductSettings & OfLists} RankerSettings
 */

import { uniform, uuid } from "./delivery/environment.js";
import { orderOf, swapped } from "./features/ranking.js";
import { oddityOf } from "./product/checking.js";
import { RankedList, stateOf } from "./product/list.js";
import { Product } from "./product/product.js";
import { mayTravel, sentBy } from "./study/links.js";
import { LISTS, LIST_TYPE } from "./product/lists.js";
import { descentOfList, itemScores, learnedOfList } from "./features/lists.js";
import { columnsOf, outcomeId, outcomePing } from "./study/outcomes.js";
import { sha256 } from "./study/sha256.js";
import { NO_VERSION, roleOf, startWeights } from "./study/study.js";

export { RankedList } from "./product/list.js";
export { indexedStorage, memoryStorage, webStorage } from "./delivery/storage.js";

const OUTCOME_TYPE = "outcome";

/** The maximum number of items in a ping. */
const MOST_CANDIDATES = 1000;

/** The maximum number of a list's items whose fields are checked. */
const MOST_CHECKED = 50;

/** @template {Shape} [S=Shape] */
export class Ranker extends Product {
  /** @type {(item: any) => unknown} */
  #key;
  #lists;

  /** @param {RankerSettings} settings */
  constructor(settings) {
    super(settings, LISTS, "key");
    this.#key = settings.key ?? textOf;
    this.#lists = {
      study: this.study,
      now: () => this.environment.now(),
      tell: (/** @type {any} */ code, /** @type {string} */ sentence) => this.tell(code, sentence),
      same: (/** @type {any} */ a, /** @type {any} */ b) => this.#key(a) === this.#key(b),
      mark: (/** @type {string} */ id) => this.#mark(id),
      choose: (/** @type {ListState} */ list, /** @type {Choice} */ choice) => this.#choose(list, choice),
      outcome: (/** @type {ListState} */ list, /** @type {Record<string, any>} */ values) =>
        this.#later(list, values, this.environment.now()),
    };
  }

  /**
   * Rank items: the list to show, best first. It never waits: until the study has loaded, items stay in the order given.
   *
   * @template {S["item"]} I
   * @param {readonly I[]} items
   * @param {S["query"]} [query] Fields that are equal for all items, such as the device.
   * @param {number} [most] The maximum number of items shown.
   * @param {(item: I) => boolean} [isPinned] Whether an item keeps its given place, as an advertisement does.
   * @returns {RankedList<I, S["outcomes"]>}
   */
  rank(items, query = {}, most = items.length, isPinned = () => false) {
    this.takePart();
    const { role, held } = this.#now();
    const fixed = placesOf(items, isPinned);
    if (role === null) {
      return this.#list(items.slice(0, most), query, fixed, { role, held, isSwapped: false });
    }
    const { own, parts } = this.participant;
    const mine = parts.personal && own?.kept ? { part: parts.personal, kept: own.kept } : null;
    const order = orderOf(itemScores(role, held, query, items, mine), fixed).slice(0, most);
    const { explore = 0 } = /** @type {any} */ (role.spec);
    const draws = /** @type {const} */ ([uniform(this.environment), uniform(this.environment)]);
    const shown = explore > 0 && role.arm !== null ? swapped(order, fixed, explore, draws) : order;
    const isSwapped = shown.some((item, place) => item !== order[place]);
    const list = this.#list(shown.map((item) => items[item]), query, fixed, { role, held, isSwapped });
    this.#check(role, list.items, query);
    return list;
  }

  /**
   * A list that is already on the screen, such as a server-rendered one: it stays unchanged, and the client learns from its choice.
   *
   * @template {S["item"]} I
   * @param {readonly I[]} items In displayed order.
   * @param {S["query"]} [query]
   * @param {(item: I) => boolean} [isPinned] Whether the product chose an item's place regardless of its score, as for
   *   an advertisement.
   * @returns {RankedList<I, S["outcomes"]>}
   */
  displayed(items, query = {}, isPinned = () => false) {
    this.takePart();
    const { role, held } = this.#now();
    if (role !== null) {
      this.#check(role, items, query);
    }
    return this.#list(items, query, placesOf(items, isPinned), { role, held, isSwapped: false });
  }

  /**
   * A list of an earlier page, from its JSON; null, with a reported trouble, if it is not of this study.
   *
   * @param {unknown} json
   * @returns {RankedList<S["item"], S["outcomes"]> | null}
   */
  resume(json) {
    this.takePart();
    const state = stateOf(json, this.study);
    if (state === null) {
      this.tell("list_unfit", `the resumed value is no list of the study '${this.study}'; store the whole JSON.stringify(list)`);
      return null;
    }
    return new RankedList(this.#lists, state);
  }

  /** The client's current role; none until the study is known. */
  #now() {
    const { study, role, held } = this.participant.membership;
    return study === null ? { role: null, held: { version: NO_VERSION, weights: [] } } : { role, held };
  }

  /**
   * @param {readonly any[]} items
   * @param {any} query
   * @param {ReadonlySet<number>} pinned
   * @param {{ role: Role | null, held: Version, isSwapped: boolean }} by
   * @returns {RankedList<any, any>}
   */
  #list(items, query, pinned, { role, held, isSwapped }) {
    const id = uuid(this.environment);
    const [mark, secret] = [this.#mark(id), uuid(this.environment)];
    const state = { id, secret, mark, arm: role?.arm?.name ?? null, role, held, items, query, pinned, swapped: isSwapped };
    return new RankedList(this.#lists, { ...state, seen: null, choice: null });
  }

  /**
   * A mark that identifies a list's client, without its id.
   *
   * @param {string} id
   */
  #mark(id) {
    const { clientId } = this.participant.membership;
    return clientId && sha256(`${clientId}\n${id}`)[0].toString(16);
  }

  /**
   * Send the choice of a list as soon as the study is known. Returns whether it will be sent.
   *
   * @param {ListState} list
   * @param {Choice} choice
   */
  #choose(list, choice) {
    if (this.hasLeft()) {
      return false;
    }
    if (this.participant.membership.study === null) {
      this.whenKnown(() => void this.#report(list, choice));
      return this.participant.maySend();
    }
    return this.#report(list, choice);
  }

  /**
   * @param {ListState} list
   * @param {Choice} choice
   */
  #report(list, choice) {
    const shown = this.#shownAs(list);
    const { clientId, study } = this.participant.membership;
    const { role, held } = shown ?? {};
    if (!role?.arm || !held || clientId === null || study === null || this.participant.isPrivate) {
      return false;
    }
    const { place, outcomes } = choice;
    if (list.items.length > MOST_CANDIDATES) {
      const count = list.items.length;
      this.tellOnce("", "list_long", () => `a list has ${count} items; a ping covers the first ${MOST_CANDIDATES}, so show fewer`);
      if (place >= MOST_CANDIDATES) {
        return false;
      }
    }
    const of = this.#shownList(list, place);
    const { own, privateLine } = this.participant;
    const { loss, update } = learnedOfList(role, held, of, own?.sends({ role, held }));
    const columns = this.#columns(outcomes, study.outcomes ?? []);
    const composed =
      role.privacy === null
        ? this.#composed(list, of, { role, held, clientId, type: study.pings, loss, update, columns })
        : privateLine?.compose(study, { role, held }, { chosen: place, loss, update });
    const sent = Boolean(composed && this.post(composed, study.pings));
    this.participant.awaits(this.participant.learn({ role, held }, () => descentOfList(role.spec, of)));
    this.#later(list, outcomes, choice.at, false);
    return sent;
  }

  /**
   * @param {ListState} list
   * @param {ShownList} of
   * @param {{ role: Role, held: Version, clientId: string, type: string, loss: number, update: number[] | null, columns: any }} by
   */
  #composed({ id, swapped: isSwapped }, { items, chosen, seen, pinned }, { role, held, clientId, type, loss, update, columns }) {
    const sent = update && sentBy(role.upload, update, this.participant.parts.links);
    if (!mayTravel([loss, ...(update ?? [])]) || (update !== null && sent === null)) {
      const what = "the loss or the update of a list is no finite number, so its choice is not sent";
      this.tell("not_finite", `${what}; scale the numbers of its items`);
      return null;
    }
    const isChosen = chosen >= 0;
    const learned = { model_version: held.version, study_variation: role.arm?.name, update: sent, loss };
    const shown = {
      place: chosen + 1,
      candidates: items.length,
      ...(seen === null || seen === undefined ? {} : { seen: Math.max(seen, chosen + 1) }),
      swapped: isSwapped,
      ...(isChosen ? { pinned: pinned?.has(chosen) ?? false } : {}),
    };
    const payload = type === LIST_TYPE ? { ...learned, ...shown, ...columns } : { ...learned, examples: isChosen ? 1 : 0 };
    return { documentId: id, ping: { clientId, type, payload } };
  }

  /**
   * The first part of a list, which a ping covers.
   *
   * @param {ListState} list
   * @param {number} chosen
   * @returns {ShownList}
   */
  #shownList({ items, query, pinned, seen }, chosen) {
    const looked = seen === null ? null : Math.min(seen, MOST_CANDIDATES);
    return { items: items.slice(0, MOST_CANDIDATES), query, chosen, seen: looked, pinned };
  }

  /**
   * The role and version of a list; null, with a reported trouble, if it is another client's or unknown.
   *
   * @param {ListState} list
   * @returns {{ role: Role, held: Version } | null}
   */
  #shownAs(list) {
    const { study, role, held, parts, clientId } = this.participant.membership;
    if (study === null || clientId === null || (list.mark !== null && list.mark !== this.#mark(list.id))) {
      this.tell("forgotten", `this list's client has left the study '${this.study}'; its choice is not sent`);
      return null;
    }
    const arm = study.arms.find(({ name }) => name === list.arm);
    const as = list.role?.arm ? list.role : arm ? roleOf(study, arm, parts.product) : role;
    if (list.held.weights.length > 0) {
      if (list.held.weights.length !== as.spec.weights.length) {
        this.tell("list_unfit", `a list of an earlier page has other weights than the study '${this.study}'`);
        return null;
      }
      return { role: as, held: list.held };
    }
    if (list.held.version === NO_VERSION) {
      return { role: as, held: { version: NO_VERSION, weights: startWeights(as.spec) } };
    }
    if (list.choice === null || list.items.length > 0) {
      if (list.held.version !== held.version) {
        const { version } = list.held;
        this.tell("list_unfit", `version ${version}, which ranked a list of an earlier page, is no longer served; report choices sooner`);
        return null;
      }
    }
    return { role: as, held: { version: list.held.version, weights: held.weights } };
  }

  /**
   * Send outcomes that follow a choice. Returns whether all will be sent.
   *
   * @param {ListState} list
   * @param {Record<string, any>} values
   * @param {number} at
   * @param {boolean} [alone] Whether outcomes at the choice are rejected.
   * @returns {boolean}
   */
  #later(list, values, at, alone = true) {
    const { study, clientId } = this.participant.membership;
    if (this.hasLeft()) {
      return false;
    }
    if (study === null) {
      this.whenKnown(() => this.participant.membership.study !== null && this.#later(list, values, at, alone));
      return this.participant.maySend();
    }
    const shown = this.#shownAs(list);
    if (!shown?.role.arm || clientId === null || list.choice === null) {
      return false;
    }
    const of = { clientId, arm: shown.role.arm.name, version: shown.held.version, choice: list.id, chosen: list.choice.at };
    const sent = Object.entries(values).map(([name, value]) => {
      const outcome = (study.outcomes ?? []).find((each) => each.name === name);
      if (outcome === undefined || !outcome.within) {
        return alone ? this.#undeclared(name, outcome !== undefined) : true;
      }
      if (!this.#fits(outcome, value)) {
        return false;
      }
      const ping = outcomePing(outcome, value, of, at);
      if (ping === null) {
        this.tell("outcome_late", `the outcome '${name}' came later than '${outcome.within}' after its choice, and is not sent`);
        return false;
      }
      return this.post({ documentId: outcomeId(list.id, name, outcome.linked ? null : list.secret), ping }, OUTCOME_TYPE);
    });
    return sent.every(Boolean);
  }

  /**
   * The columns of a choice, without undeclared outcomes and those of another type.
   *
   * @param {Record<string, any>} given
   * @param {readonly import("./study/outcomes.js").Outcome[]} outcomes
   */
  #columns(given, outcomes) {
    const declared = new Map(outcomes.map((each) => [each.name, each]));
    const fit = Object.entries(given).filter(([name, value]) => {
      const outcome = declared.get(name);
      return outcome === undefined ? this.#undeclared(name, false) : outcome.within || this.#fits(outcome, value);
    });
    return columnsOf(outcomes, Object.fromEntries(fit));
  }

  /**
   * @param {string} name
   * @param {boolean} isAtChoice
   */
  #undeclared(name, isAtChoice) {
    const what = isAtChoice
      ? "is one at the choice; give it to 'choose'"
      : "is not declared; add it with 'fedping study change'";
    this.tell("outcome_undeclared", `the outcome '${name}' of the study '${this.study}' ${what}. It is not sent`);
    return false;
  }

  /**
   * Whether a value is of an outcome's type; values beyond its bounds count as the bound.
   *
   * @param {import("./study/outcomes.js").Outcome} outcome
   * @param {unknown} value
   */
  #fits(outcome, value) {
    const { kind, name } = outcome;
    const type = kind === "flag" ? "boolean" : kind === "category" ? "string" : "number";
    if (typeof value !== type || Number.isNaN(value)) {
      this.tell("outcome_type", `the outcome '${name}' is a ${type}, not a ${typeof value}; it is not sent`);
      return false;
    }
    if (kind === "category" && !outcome.values.includes(/** @type {string} */ (value))) {
      this.tell("outcome_unlisted", `the outcome '${name}' has a text that the study does not list; it is not sent`);
      return false;
    }
    return true;
  }

  /**
   * Report the problems in items' fields, once for each feature.
   *
   * @param {Role} role
   * @param {readonly any[]} items
   * @param {any} query
   */
  #check({ spec }, items, query) {
    const features = /** @type {{ features: readonly Feature[] }} */ (/** @type {unknown} */ (spec)).features;
    for (const feature of features) {
      if (feature.kind === "cross") {
        continue;
      }
      for (const item of feature.on === "query" ? [{}] : items.slice(0, MOST_CHECKED)) {
        const odd = oddityOf(feature, query, item);
        if (odd !== null) {
          const { code, field, is } = odd;
          this.tellOnce(feature.name, code, () => `${field} (feature '${feature.name}' of the study '${this.study}') ${is}`);
        }
      }
    }
  }
}

/**
 * The value that distinguishes items without a key: their whole content. A cyclic item, which has no text, equals only itself.
 *
 * @param {any} item
 */
function textOf(item) {
  try {
    return JSON.stringify(item);
  } catch {
    return item;
  }
}

/**
 * @template I
 * @param {readonly I[]} items
 * @param {(item: I) => boolean} isPinned
 */
function placesOf(items, isPinned) {
  return new Set(items.flatMap((item, place) => (isPinned(item) ? [place] : [])));
}
