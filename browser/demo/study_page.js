// @ts-check
/**
 * The common part of pages to try a study with: the visitor's client in an arm, the last choice, and the server's state, which
 * is polled.
 *
 * @import { Ping } from "../study/ping.js"
 * @import { PublicStudy, Version } from "../study/study.js"
 * @import { Made } from "./people.js"
 * @import { LineState, State } from "./server.js"
 * @import { Answered, Posted } from "./visitor.js"
 *
 * @typedef {{ posted: Posted, answered: Answered }} Sent
 * @typedef {{ version: Version, before: Version | null }} Held The newest version, and the one before, if it can be
 *   fetched.
 * @typedef {{ stop(): void, fetchModel(): Promise<boolean>, deliver(): Promise<void>, counts: { waiting: number } }} AnyClient
 * @typedef {{ ingest: string, study: string, seed: string, count: number, onProgress: (done: number) => void }} Crowd
 *
 * @typedef {object} PageSettings
 * @property {string} ingest
 * @property {PublicStudy} study
 * @property {State} state
 * @property {string} seed
 * @property {number | null} every Seconds between rounds, if known.
 * @property {(text: string) => void} notice
 */

import { browserEnvironment, memoryStorage, webStorage } from "../fedping.js";
import { untilNextRound } from "./explaining.js";
import { Away, Refused, askState, askVersion } from "./server.js";
import { byId, el } from "./view/dom.js";
import { answer, others, waiting } from "./view/steps.js";

const ASK_EVERY = 1500;
const PEOPLE = 50;
const AWAY = "The server does not answer. This tab keeps your choices, and sends them when the server is back; the page continues by itself.";

export class StudyPage {
  /** @type {Held | null} */
  model = null;
  /** @type {Sent | null} */
  sent = null;
  documentId = "";
  #away = false;

  /** @param {PageSettings} settings */
  constructor({ ingest, study, state, seed, every, notice }) {
    this.ingest = ingest;
    this.study = study;
    this.state = state;
    this.seed = seed;
    this.every = every;
    this.notice = notice;
    this.storage = keptWithTheTab();
    this.arms = study.arms.filter(({ share }) => share > 0);
    this.arm = this.arms.find((arm) => arm.applies && arm.submits) ?? this.arms[0];
    /** @type {AnyClient | null} */
    this.client = null;
  }

  /**
   * A client in the visitor's arm, which takes part.
   *
   * @returns {Promise<AnyClient>}
   */
  join() {
    throw new TypeError("each page has clients of its own");
  }

  /**
   * Let invented people choose.
   *
   * @param {Crowd} _crowd
   * @returns {Promise<Made>}
   */
  letChoose(_crowd) {
    throw new TypeError("each page has people of its own");
  }

  /** A description of the invented data, with a link to other invented data. @returns {(string | HTMLElement)[]} */
  about() {
    return [];
  }

  /** Show the open choices again, under a new model. */
  refresh() {}

  /** Show the newest model. */
  drawModel() {}

  /** The ping of the last choice; null without one. @returns {{ ping: any, leaving: Node[] } | null} */
  leaves() {
    return null;
  }

  /** Show the page, and keep it in sync with the server while it is open. */
  async start() {
    byId("arms").append(...this.arms.map((arm) => this.#armChoice(arm)));
    byId("about").append(`Study ${this.study.name}. `, ...this.about(), ".");
    await this.#enter(this.arm);
    byId("demo").hidden = false;
    byId("others").addEventListener("click", () => void this.#letOthersChoose());
    setInterval(() => this.#drawNext(), 1000);
    await this.#keepUp();
  }

  /** The settings of the visitor's client. */
  get visiting() {
    return {
      ingest: this.ingest,
      study: this.study,
      arm: this.arm.name,
      storage: this.storage,
      environment: browserEnvironment(),
      onAnswer: (/** @type {Posted} */ posted, /** @type {Answered} */ answered) => this.onAnswer(posted, answered),
    };
  }

  /** A link to this page with another seed. @param {string} text */
  another(text) {
    const address = new URL(location.href);
    address.searchParams.set("seed", String(Number(this.seed) + 1 || 1));
    return el("a", { href: address.search }, text);
  }

  /** The arm's line; for an arm without one, the study's first. */
  get line() {
    const { lines } = this.study;
    return lines.find(({ name }) => name === this.arm.line) ?? lines[0];
  }

  /** @returns {LineState | undefined} */
  get lineState() {
    return this.state.lines.find(({ name }) => name === this.line?.name);
  }

  /** The address to which the ping of the last choice is posted. @param {string | undefined} type */
  addressOf(type) {
    return `${this.ingest}/submit/${this.study.name}/${type}/1/${this.documentId}`;
  }

  /**
   * @param {Posted} posted
   * @param {Answered} answered
   */
  onAnswer(posted, answered) {
    if (posted.url.endsWith(`/${this.documentId}`)) {
      this.sent = { posted, answered };
      // The client counts its stored pings after this request.
      setTimeout(() => this.drawPing(), 0);
    }
  }

  drawPing() {
    const leaves = this.leaves();
    if (leaves !== null) {
      const isOpen = byId("ping").querySelector("details")?.open ?? false;
      byId("ping").replaceChildren(...leaves.leaving);
      byId("ping").querySelector("details")?.toggleAttribute("open", isOpen);
      byId("answer").replaceChildren(...(leaves.ping === null ? [] : answer(this.sent, this.client?.counts.waiting ?? 0)));
    }
  }

  /** Show which model is in use. @param {number} version */
  drawVersion(version) {
    const stays = this.arm.applies ? "" : `; clients of “${this.arm.name}” still rank with version 0, to compare with`;
    byId("model").replaceChildren("Model in use: ", el("strong", { id: "version", "data-version": version }, `version ${version}`), `${stays}.`);
  }

  /**
   * Become a client of another arm.
   *
   * @param {PublicStudy["arms"][number]} arm
   */
  async #enter(arm) {
    this.client?.stop();
    this.arm = arm;
    this.client = await this.join();
    await this.client.fetchModel(); // a stored model may be from another run of the server
    await this.#follow(true);
  }

  async #letOthersChoose() {
    const button = byId("others", HTMLButtonElement);
    const made = byId("made");
    button.disabled = true;
    const key = `demo/presses/${this.study.name}/${this.seed}`;
    const press = Number((await this.storage.get(key)) ?? 0);
    await this.storage.set(key, press + 1);
    try {
      made.textContent = `${PEOPLE} made-up people choose …`;
      const onProgress = (/** @type {number} */ done) => void (button.textContent = `${done} of ${PEOPLE} have chosen`);
      const crowd = { ingest: this.ingest, study: this.study.name, seed: `${this.seed}/${press}`, count: PEOPLE, onProgress };
      made.textContent = others(await this.letChoose(crowd));
    } finally {
      button.disabled = false;
      button.textContent = `Make ${PEOPLE} more choices for me`;
    }
  }

  /** Poll the state; show when the server is unreachable, and continue when it answers. */
  async #keepUp() {
    for (;;) {
      try {
        this.state = await askState(this.study.name);
        await this.#cameBack();
        await this.#follow();
      } catch (error) {
        if (!(error instanceof Refused || error instanceof Away)) {
          throw error;
        }
        this.#away = error instanceof Away;
        this.notice(error instanceof Away ? AWAY : `The server refuses: ${error.message}.`);
      }
      await new Promise((resolve) => setTimeout(resolve, ASK_EVERY));
    }
  }

  async #cameBack() {
    this.notice("");
    if (this.#away) {
      this.#away = false;
      await this.client?.deliver();
      this.drawPing();
    }
  }

  /**
   * Fetch the published version, if the client doesn't hold it yet.
   *
   * @param {boolean} [anew] Draw the model even if it is unchanged.
   */
  async #follow(anew = false) {
    const state = this.lineState;
    if (state !== undefined) {
      byId("waiting").replaceChildren(...waiting(state));
      this.#drawNext();
    }
    if (state === undefined || (!anew && state.iteration === this.model?.version.version)) {
      return;
    }
    const [version, before] = await Promise.all([this.#version(state.iteration), this.#version(state.iteration - 1)]);
    if (version === null || !(await this.client?.fetchModel())) {
      return; // the next poll asks again
    }
    const isNew = this.model !== null && this.model.version.version !== version.version;
    this.model = { version, before };
    this.refresh();
    this.drawModel();
    if (isNew) {
      byId("said").textContent = `Version ${version.version} of the model has arrived.`;
      flash(byId("arrived"));
    }
  }

  /** @param {number} number */
  async #version(number) {
    return number < 0 ? null : askVersion(this.ingest, this.study.name, this.line, number);
  }

  /** @param {PublicStudy["arms"][number]} arm */
  #armChoice(arm) {
    const input = el("input", { type: "radio", name: "arm", value: arm.name, checked: arm === this.arm });
    input.addEventListener("change", () => void this.#enter(arm));
    return el("label", {}, input, arm.name);
  }

  #drawNext() {
    const next = byId("next");
    next.textContent =
      this.every === null
        ? "A round runs when the operator starts it."
        : `A round runs every ${this.every} seconds, the next in ${untilNextRound(Date.now(), this.every)} s.`;
  }
}

/** A storage that survives a reload and is separate for each tab; in memory, if the browser offers none. */
function keptWithTheTab() {
  try {
    return webStorage(sessionStorage);
  } catch {
    return memoryStorage();
  }
}

/** Draw the eye to something that has just changed. @param {HTMLElement} element */
function flash(element) {
  const card = element.closest("section");
  card?.classList.remove("new");
  void card?.offsetWidth; // so that the animation begins again
  card?.classList.add("new");
}
