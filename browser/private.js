// @ts-check
/**
 * The part for private lines: vectors, local noise, shares for a second server.
 *
 *     import { privacy } from "fedping/private";
 *
 * @import { PrivatePart } from "./study/parts.js"
 */

import { PrivateLine } from "./delivery/private_line.js";
import { guaranteeInWords, privacyTrouble } from "./study/privacy/guarantee.js";
import { ENCODING } from "./study/privacy/vectors.js";
import { SHARED, completed } from "./study/sharing/shares.js";
import { metricOf } from "./study/sharing/votes.js";

/** @type {PrivatePart} */
export const privacy = Object.freeze({
  trouble: privateTrouble,
  inWords: guaranteeInWords,
  open: (settings) => new PrivateLine(settings),
});

/** @param {{ upload: any, privacy: any, spec: any }} line */
function privateTrouble({ upload, privacy, spec }) {
  const [link, ...more] = Array.isArray(upload) ? upload : [];
  const shared = privacy?.shared ? completed(privacy.shared) : null;
  if (link?.link !== (shared === null ? ENCODING : SHARED) || more.length > 0) {
    return shared === null ? "it is private, and does not send vectors" : "it has two servers, and does not send shares";
  }
  if (privacy?.contribution?.by === "layer" && spec.blocks?.length) {
    return "its privacy bounds each layer, which this client can't for blocks of weights";
  }
  const trouble = privacyTrouble(privacy, spec);
  if (trouble !== null || shared === null) {
    return trouble;
  }
  const { seal, proofs, metric = 0 } = /** @type {any} */ (completed(link));
  const agree = seal === shared.seal && proofs === shared.proofs && metric === metricOf(privacy, spec);
  return agree ? null : "its upload link and its privacy disagree on how shares are made";
}
