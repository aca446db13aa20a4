// @ts-check
/**
 * Upload links: what a client does to an update before it sends it, link by link, as its line asks for in `upload`.
 *
 * A link makes another update of an update, or encodes it: makes bytes of it. At most one encodes, and it is the last; a
 * mask may stand before it, and is a part of the encoding then. Its tag goes with the bytes. Without one, the update is sent
 * as an array of numbers. What the server does with it is the server's: a file of `protocol/encodings/` has both ends of each.
 *
 * @import { Randomness } from "./encodings/randomness.js"
 *
 * @typedef {object} UploadLink A link as the study has it: its name and its settings.
 * @property {string} link The name; "own" for one that is somebody's extension, whose name is in `name`.
 * @property {string} [name]
 * @property {Record<string, any>} [settings] Of an extension, all of them.
 *
 * @typedef {object} ClientEnd What a link does here, with either of two functions.
 * @property {(settings: any, update: readonly number[]) => number[]} [transform] Makes another update of as many numbers.
 * @property {(settings: any, update: readonly number[], randomness: Randomness) => Uint8Array} [encode] Makes its payload.
 * @property {(settings: any) => string} [tag] What goes with the payload, where that is not the link's name.
 * @property {(settings: any) => string | null} [trouble] Why this client cannot do it with these settings, in words that
 *   follow the link's name; null if it can.
 *
 * @typedef {ClientEnd & { encode: NonNullable<ClientEnd["encode"]> }} Encoder One that encodes.
 *
 * @typedef {{ encoding: string, payload: string }} EncodedUpdate The payload in base64.
 *
 * @typedef {{ name: string, settings: any, end: ClientEnd | undefined }} Stage A link with what it does here, or a mask
 *   together with the link after it.
 */

import { FLOAT32 } from "./encodings/float32.js";
import { LEVELS } from "./encodings/levels.js";
import { MASK, maskThen } from "./encodings/mask.js";
import { SYSTEM } from "./encodings/randomness.js";
import { ROTATION } from "./encodings/rotation.js";
import { SIGN, SIGNS } from "./encodings/signs.js";
import { STEPS } from "./encodings/steps.js";
import { mayTravel } from "./ping.js";

/** Links that may encode what a mask has kept. */
const AFTER_A_MASK = new Map([
  ["float32", FLOAT32],
  ["levels", LEVELS],
  ["steps", STEPS],
]);

const OURS = new Map(
  /** @type {[string, ClientEnd][]} */ ([
    ...AFTER_A_MASK,
    ["dense", {}],
    ["mask", MASK],
    ["rotation", ROTATION],
    ["sign", SIGN],
    ["signs", SIGNS],
  ]),
);

/** @type {Map<string, ClientEnd>} */
const REGISTERED = new Map();

/**
 * Register this client's end of a link; studies that have been read name it as `{ link: "own", name, settings }`.
 *
 * @param {string} name
 * @param {ClientEnd} end
 * @throws {TypeError} It has no function, or both.
 */
export function registerLink(name, end) {
  if ((end.transform === undefined) === (end.encode === undefined)) {
    throw new TypeError(`the upload link '${name}' has to have 'transform' or 'encode', not both`);
  }
  REGISTERED.set(name, end);
}

/**
 * Why this client cannot take part in a line with these links; null if it can.
 *
 * @param {any} upload What the study says.
 * @returns {string | null}
 */
export function uploadTrouble(upload) {
  if (!Array.isArray(upload)) {
    return "its upload links are no list";
  }
  const stages = stagesOf(upload);
  for (const [place, { name, settings, end }] of stages.entries()) {
    if (end === undefined) {
      return `it has the upload link '${name}', which this client does not have`;
    }
    if (end.transform === undefined && place < stages.length - 1) {
      return `its upload link '${name}' encodes updates and is not the last`;
    }
    const trouble = end.trouble?.(settings) ?? null;
    if (trouble !== null) {
      return `its upload link '${name}' ${trouble}`;
    }
  }
  return null;
}

/**
 * An update as it is sent; null if a number is beyond what may travel after the links that change it.
 *
 * @param {readonly UploadLink[]} upload Links that this client has ({@link uploadTrouble}).
 * @param {readonly number[]} update
 * @param {Randomness} [randomness] For seeds and to round by; tests give their own.
 * @returns {number[] | EncodedUpdate | null}
 */
export function sentUpdate(upload, update, randomness = SYSTEM) {
  const stages = stagesOf(upload);
  const numbers = stages.reduce((made, { settings, end }) => end?.transform?.(settings, made) ?? made, [...update]);
  if (!mayTravel(numbers)) {
    return null;
  }
  const { name = "", settings, end } = stages.at(-1) ?? {};
  if (end?.encode === undefined) {
    return numbers;
  }
  return { encoding: end.tag?.(settings) ?? name, payload: base64(end.encode(settings, numbers, randomness)) };
}

/**
 * @param {readonly any[]} upload
 * @returns {Stage[]}
 */
function stagesOf(upload) {
  const [mask, last] = upload.slice(-2);
  const values = AFTER_A_MASK.get(last?.link);
  return mask?.link === "mask" && values !== undefined
    ? [...upload.slice(0, -2).map(stageOf), { name: "mask", settings: mask, end: maskThen(values, last) }]
    : upload.map(stageOf);
}

/**
 * @param {any} link
 * @returns {Stage}
 */
function stageOf(link) {
  return link?.link === "own"
    ? { name: String(link.name), settings: link.settings ?? {}, end: REGISTERED.get(link.name) }
    : { name: String(link?.link), settings: link, end: OURS.get(link?.link) };
}

/** How many bytes become text at once; a multiple of three, which are four letters, and fewer than arguments may be. */
const PART = 8190;

/** @param {Uint8Array} bytes */
export function base64(bytes) {
  let text = "";
  for (let start = 0; start < bytes.length; start += PART) {
    text += btoa(String.fromCharCode.apply(null, /** @type {any} */ (bytes.subarray(start, start + PART))));
  }
  return text;
}
