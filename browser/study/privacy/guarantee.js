// @ts-check
/**
 * A study's published privacy guarantee in plain words, and the check whether this client can keep it.
 *
 * @import { ModelSpec } from "../study.js"
 * @import { Privacy } from "./vectors.js"
 */

import { isHex } from "../bytes.js";
import { KEY_BYTES, SEALS } from "../sharing/sealing.js";
import { completed } from "../sharing/shares.js";

const KEYS = ["central", "contribution", "contributions", "delay_minutes", "left_out", "local", "loss", "shared"];
const SHARED_KEYS = ["helper", "min_batch", "proofs", "seal"];
const MECHANISMS = new Map([
  ["one-sign", ["epsilon", "mechanism"]],
  ["gaussian", ["delta", "epsilon", "mechanism"]],
]);
const CONTRIBUTIONS = new Map([
  ["signs", ["by"]],
  ["norm", ["by", "norm"]],
  ["kind", ["by", "norms"]],
  ["layer", ["by", "norm"]],
]);
const DAY_MINUTES = 1440;

/**
 * The reason why this client can't take part in a line with these privacy settings; null if it can. Unknown settings
 * are rejected, because an overlooked setting might be a protection.
 *
 * @param {any} privacy The study's value, unchecked.
 * @param {ModelSpec} spec
 * @returns {string | null}
 */
export function privacyTrouble(privacy, spec) {
  const { central, local, contribution, contributions, delay_minutes: delay, left_out: leftOut, loss } = privacy ?? {};
  const shared = privacy?.shared ? completed(privacy.shared) : null;
  const unknown = Object.keys(privacy ?? {}).find((key) => !KEYS.includes(key));
  if (unknown !== undefined) {
    return `its privacy has '${unknown}', which this client does not know`;
  }
  const protects = (central !== null && isPositive(central?.epsilon) && isPositive(central?.delta)) || local || shared;
  const names = new Set(spec.weights.map((weight) => weight.name));
  const kinds = spec.weights.map((weight) => /** @type {any} */ (weight).kind);
  const norms = contribution?.by === "kind" ? kinds.map((kind) => contribution.norms?.[kind]) : [contribution?.norm];
  const checks = [
    [protects, "protects nobody"],
    [!central || isPositive(central.rounds), "has no number of rounds"],
    [!shared || hasKeys(shared, SHARED_KEYS), "has settings of two servers that this client does not know"],
    [!shared || isHex(shared.helper, KEY_BYTES), "does not name its helper properly"],
    [!shared || (Number.isInteger(shared.min_batch) && shared.min_batch >= 2), "does not give the number of clients in a sum"],
    [!shared || SEALS.includes(shared.seal), `asks for shares that are sealed by '${shared?.seal}', which no browser can do yet`],
    [!shared || typeof shared.proofs === "boolean", "does not say whether clients prove what they send"],
    [!shared?.proofs || (!local && contribution?.by === "signs"), "asks for proofs without votes"],
    [!shared || !central || isPositive(central.noise_multiplier), "does not give its servers' noise"],
    [!shared || !central || central.sampling === undefined || central.sampling === 1, "counts on a coin that two servers see"],
    [!local || hasKeys(local, MECHANISMS.get(local.mechanism)), "asks for noise that this client does not know"],
    [!local || isPositive(local.epsilon), "has no epsilon"],
    [local?.mechanism !== "gaussian" || isPositive(local.delta), "has no delta"],
    [local?.mechanism !== "one-sign" || contribution?.by === "signs", "asks for one sign of contributions other than signs"],
    [hasKeys(contribution, CONTRIBUTIONS.get(contribution?.by)), "asks for a contribution that this client does not know"],
    [contribution?.by === "signs" || norms.every(isPositive), "does not say how long a contribution may be"],
    [Array.isArray(loss) && loss.length === 2 && loss.every(Number.isFinite) && loss[0] < loss[1], "has no range of losses"],
    [Array.isArray(leftOut) && leftOut.every((name) => names.has(name)), "leaves out unknown weights"],
    [Array.isArray(leftOut) && new Set(leftOut).size < names.size, "leaves out all weights"],
    [contributions === null || Number.isSafeInteger(contributions), "has no number of contributions"],
    [Number.isFinite(delay) && delay >= 0 && delay <= DAY_MINUTES, "has no delay"],
  ];
  const failed = checks.find(([holds]) => !holds);
  return failed === undefined ? null : `its privacy ${failed[1]}`;
}

/**
 * The privacy settings that a study's clients rely on, as one text: equal texts mean equal guarantees. Settings that
 * later releases add to published studies are not included.
 *
 * @param {Privacy} privacy
 * @returns {string}
 */
export function promiseOf({ central, local, shared, contribution, loss, left_out: leftOut, contributions }) {
  const servers = shared ? completed(shared) : null;
  return JSON.stringify([
    central && [central.epsilon, central.delta, central.rounds, central.noise_multiplier, central.population],
    local && [local.mechanism, local.epsilon, local.delta],
    servers && [servers.helper, servers.min_batch, servers.seal, servers.proofs],
    [contribution.by, contribution.norm, contribution.norms, loss, leftOut, contributions],
  ]);
}

/**
 * The guarantee in plain words, a sentence each.
 *
 * @param {Privacy} privacy
 * @returns {string[]}
 */
export function guaranteeInWords({ central, local, shared, contributions, delay_minutes: delay }) {
  const said = [];
  if (local !== null) {
    said.push(
      local.mechanism === "one-sign"
        ? `Your browser sends one sign, up or down, for one weight of the ranking, and at random sometimes the wrong one. Each message is at most ${times(local.epsilon)} times as likely as if you had done something else (ε = ${local.epsilon} a message). You need not trust anyone for this.`
        : `Your browser adds noise to each number before it sends it. A message is at most ${times(local.epsilon)} times as likely as if you had done something else, except with probability ${local.delta} (ε = ${local.epsilon}, δ = ${local.delta} a message). You need not trust anyone for this.`,
    );
  }
  if (shared) {
    said.push(...sharedInWords(completed(shared), local !== null));
  }
  if (central !== null) {
    const [who, trust] =
      !shared
        ? [
            "The study's operator promises to add noise to the sum of all messages and to delete them after each round.",
            "For this you trust the operator, who sees the messages until then.",
          ]
        : [
            "Each of the two servers promises to add its own noise to the sum, and to delete its parts after each round.",
            "For this you trust one of the two, either one: its noise alone protects you from everyone else, including the other server.",
          ];
    said.push(
      `${who} Any result published after all ${central.rounds} rounds is at most ${times(central.epsilon)} times as likely as if you had not taken part, except with probability ${central.delta} (ε = ${central.epsilon}, δ = ${central.delta}). ${trust}`,
    );
  } else if (shared && local === null) {
    said.push("No noise is added: the two servers learn the exact sums, and publish what follows from them.");
  }
  said.push(
    contributions === null
      ? "At most one message is sent for each version of the ranking."
      : `At most one message is sent for each version of the ranking, and ${contributions} in all; your browser counts them itself, also when you switch off and on again.`,
    "Each has a new random number as its sender, so that the number links no two messages.",
  );
  if (delay > 0) {
    said.push(`A message waits for a random time of up to ${delay} minutes before it is sent.`);
  }
  said.push(
    "The guarantee is for one browser: a second one, or a new installation of this one, counts as another person. It hides neither that you take part nor your internet address.",
  );
  return said;
}

/**
 * A two-server line's meaning for the user, in words.
 *
 * @param {NonNullable<Privacy["shared"]>} shared
 * @param {boolean} noisy Whether the browser adds noise.
 */
function sharedInWords({ helper, min_batch: least, proofs }, noisy) {
  const together = noisy ? "together they could read it as it was sent, with your browser's noise" : "together they could read your message";
  return [
    "Your browser splits each message at random into two parts. Either alone is noise and says nothing about you. One is for the study's operator. The other is encrypted so that only a second server can read it, the helper, which someone else runs.",
    `Each server adds up the parts of the browsers of your group, and only the two sums together have meaning. The helper gives its sum only for ${least.toLocaleString("en")} browsers or more. So neither server sees what you did.`,
    ...(proofs ? [PROVEN] : []),
    `For this you trust that the two do not work together: ${together}, as long as both have kept their parts. Both can see how many browsers take part, and in which groups.`,
    `Your browser verifies the helper's signature, ${helper.slice(0, 16)}…, before it sends anything. The study names it; the helper's operator can confirm that it is theirs.`,
  ];
}

const PROVEN =
  "With each message your browser sends a proof that it contains only votes. The two servers check it together and learn nothing else from it. So no message counts for more than one.";

/** @param {number} epsilon */
function times(epsilon) {
  const factor = Math.exp(epsilon);
  return factor < 10 ? factor.toFixed(1) : Math.round(factor).toLocaleString("en");
}

/** @param {any} value */
function isPositive(value) {
  return Number.isFinite(value) && value > 0;
}

/** @param {any} value @param {readonly string[] | undefined} keys */
function hasKeys(value, keys) {
  return keys !== undefined && Object.keys(value).sort().join() === keys.join();
}
