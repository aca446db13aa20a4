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
 * @property {string} link The name; "own" for an extension, whose name is in `name`.
 * @property {string} [name]
 * @property {Record<string, any>} [settings] Of an extension, all of them.
 *
 * @typedef {object} ClientEnd What a link does here, with either of two functions.
 * @property {(settings: any, update: readonly number[]) => number[]} [transform] Makes another update of as many numbers.
 * @property {(settings: any, update: readonly number[], randomness: Randomness) => Uint8Array} [encode] Makes its payload.
 * @property {(settings: any) => string} [tag] The encoding's tag, if it is not the link's name.
 * @property {(settings: any) => string | null} [trouble] Why this client cannot do it with these settings, in words that
 *   follow the link's name; null if it can.
 * @property {(last: any) => ClientEnd | null} [before] Together with the link after it; null if it is no part of that one.
 *
 * @typedef {ClientEnd & { encode: NonNullable<ClientEnd["encode"]> }} Encoder One that encodes.
 *
 * @typedef {{ encoding: string, payload: string }} EncodedUpdate The payload in base64.
 *
 * @typedef {{ name: string, settings: any, end: ClientEnd | undefined }} Stage A link with what it does here, or a mask
 *   together with the link after it.
 */

import { SYSTEM } from "./encodings/randomness.js";

/** The names of links that an entry point may lack. */
const ELSEWHERE = ["float32", "levels", "steps", "mask", "rotation", "sign", "signs"];

const LARGEST_NUMBER = 1e30;

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
    throw new TypeError(`the upload link '${name}' needs either 'transform' or 'encode'`);
  }
  REGISTERED.set(name, end);
}

/**
 * Whether numbers may travel: finite, and of a size that ingest takes.
 *
 * @param {Iterable<number>} numbers
 */
export function mayTravel(numbers) {
  for (const number of numbers) {
    if (!(Math.abs(number) <= LARGEST_NUMBER)) {
      return false;
    }
  }
  return true;
}

/**
 * Why this client cannot take part in a line with these links; null if it can.
 *
 * @param {any} upload What the study says.
 * @param {ReadonlyMap<string, ClientEnd>} links Those that the client has.
 * @returns {string | null}
 */
export function linksTrouble(upload, links) {
  if (!Array.isArray(upload)) {
    return "its upload links are not a list";
  }
  const stages = stagesOf(upload, links);
  for (const [place, { name, settings, end }] of stages.entries()) {
    if (end === undefined) {
      const remedy = ELSEWHERE.includes(name) ? "; add the part of 'fedping/links'" : "";
      return `it has the upload link '${name}', which this client does not have${remedy}`;
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
 * @param {readonly UploadLink[]} upload Links that this client has ({@link linksTrouble}).
 * @param {readonly number[]} update
 * @param {ReadonlyMap<string, ClientEnd>} links
 * @param {Randomness} [randomness] For seeds and to round by; tests give their own.
 * @returns {number[] | EncodedUpdate | null}
 */
export function sentBy(upload, update, links, randomness = SYSTEM) {
  const stages = stagesOf(upload, links);
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
 * @param {ReadonlyMap<string, ClientEnd>} links
 * @returns {Stage[]}
 */
function stagesOf(upload, links) {
  const found = upload.map((each) => stageOf(each, links));
  const [mask, last] = upload.slice(-2);
  const end = upload.length > 1 ? found[upload.length - 2].end?.before?.(last) : null;
  return end ? [...found.slice(0, -2), { name: mask.link, settings: mask, end }] : found;
}

/**
 * @param {any} link
 * @param {ReadonlyMap<string, ClientEnd>} links
 * @returns {Stage}
 */
function stageOf(link, links) {
  return link?.link === "own"
    ? { name: String(link.name), settings: link.settings ?? {}, end: REGISTERED.get(link.name) }
    : { name: String(link?.link), settings: link, end: links.get(link?.link) };
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
