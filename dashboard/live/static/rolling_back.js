// Publishing by hand, a rollback or what becomes of a held version: what would happen is shown, and the visitor types
// the version's number to confirm.

import { el, fill } from "/static/js/dom.js";
import { sentence } from "/static/js/format.js";
import { getJSON, post } from "/static/js/http.js";

import { changesTable } from "./lineage.js";

const at = (id) => document.getElementById(id);

/** @param {() => number | null} chosen the version to roll back to */
export function rollingBack(chosen) {
  const [dialog, typed, go, wrong] = [at("rollback"), at("rollback-typed"), at("rollback-go"), at("rollback-wrong")];
  let plan = null;
  let asked = null;

  /** @param {{ plan: string, address: string, wish: object, where: string, done: (made: any) => string }} what */
  async function open(what) {
    asked = what;
    plan = null;
    at(what.where).hidden = true;
    typed.value = "";
    wrong.textContent = "";
    ready();
    try {
      show(await getJSON(what.plan));
    } catch (error) {
      fill(at("rollback-plan"));
      wrong.textContent = error.message;
    }
    if (!dialog.open) dialog.showModal();
    typed.focus();
  }

  function show(found) {
    plan = found;
    at("rollback-title").textContent = plan.title;
    fill(
      at("rollback-plan"),
      el("p", {}, plan.sentence),
      el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Weights that change" }, changesTable(plan.changes, "now", "then")),
    );
    at("rollback-ask").textContent = `Type ${plan.typed} to confirm`;
    go.textContent = `Publish version ${plan.next}`;
  }

  const ready = () => (go.disabled = plan === null || typed.value.trim() !== String(plan.typed));

  async function publish(event) {
    event.preventDefault();
    ready();
    if (go.disabled) return;
    go.disabled = true;
    try {
      const made = await post(asked.address, { ...asked.wish, seen: plan.seen });
      dialog.close();
      at(asked.where).textContent = asked.done(made);
      at(asked.where).hidden = false;
    } catch (error) {
      wrong.textContent = sentence(error.message);
      plan = null;
    }
  }

  at("version-back").addEventListener("click", () => {
    const to = chosen();
    const done = ({ published, repeats }) => `Version ${published} is published; it repeats version ${repeats}.`;
    open({ plan: `rollback.json?to=${to}`, address: "rollback", wish: { to }, where: "rollback-done", done });
  });
  for (const choice of ["release", "discard"]) {
    const done = ({ published }) => `Version ${published} is published.`;
    at(`held-${choice}`)?.addEventListener("click", () =>
      open({ plan: `held.json?choice=${choice}`, address: "held", wish: { choice }, where: "held-done", done }),
    );
  }
  at("rollback-stop").addEventListener("click", () => dialog.close());
  typed.addEventListener("input", ready);
  at("rollback-form").addEventListener("submit", publish);
}
