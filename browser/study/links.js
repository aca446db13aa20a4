// @ts-check
/**
 * Upload links: the steps that a client applies to an update before sending it, in the order of its line's `upload`.
 *
 * A link either transforms an update into another update, or encodes it as bytes. Only the last link may encode; a mask
 * directly before it becomes part of the encoding. The encoding's tag is sent with the bytes. Without an encoding link,
 * the update is sent as an array of numbers. The files of `protocol/encodings/` have both the client's and the server's
 * end of each link.
 *
 * @import { Randomness } from "./encodings/randomness.js"
 *
 * @typedef {object} UploadLink A link in a study: its name and settings.
 * @property {string} link The name; "own" for an extension, whose name is in `name`.
 * @property {string} [name]
 * @property {Record<string, any>} [settings] All settings of an extension.
 *
 * @typedef {object} ClientEnd The client's end of a link: either `transform` or `encode`.
 * @property {(settings: any, update: readonly number[]) => number[]} [transform] Returns another update of the same
 *   length.
 * @property {(settings: any, update: readonly number[], randomness: Randomness) => Uint8Array} [encode] Returns the
 *   payload.
 * @property {(settings: any) => string} [tag] The encoding's tag, if it is not the link's name.
 * @property {(settings: any) => string | null} [trouble] Returns the reason why this client can't apply the link with
 *   these settings, in words that follow the link's name; null if it can.
 * @property {(last: any) => ClientEnd | null} [before] Returns the combination with the link after it; null if they
 *   can't be combined.
 *
 * @typedef {ClientEnd & { encode: NonNullable<ClientEnd["encode"]> }} Encoder A client's end that encodes.
 *
 * @typedef {{ encoding: string, payload: string }} EncodedUpdate The payload in base64.
 *
 * @typedef {{ name: string, settings: any, end: ClientEnd | undefined }} Stage A link with its client's end, or a
 *   mask combined with the link after it.
 */

import { SYSTEM } from "./encodings/randomness.js";

/** The names of links that an entry point may lack. */
const ELSEWHERE = ["float32", "levels", "steps", "mask", "rotation", "sign", "signs"];

const LARGEST_NUMBER = 1e30;

/** @type {Map<string, ClientEnd>} */
const REGISTERED = new Map();

/**
 * Register this client's end of a link. Studies name it as `{ link: "own", name, settings }`.
 *
 * @param {string} name
 * @param {ClientEnd} end
 * @throws {TypeError} The end has neither function, or both.
 */
export function registerLink(name, end) {
  if ((end.transform === undefined) === (end.encode === undefined)) {
    throw new TypeError(`the upload link '${name}' needs either 'transform' or 'encode'`);
  }
  REGISTERED.set(name, end);
}

/**
 * Whether numbers may be sent: finite, and of a size that ingest accepts.
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
 * The reason why this client can't take part in a line with these links; null if it can.
 *
 * @param {any} upload The study's value, unchecked.
 * @param {ReadonlyMap<string, ClientEnd>} links The links that the client has.
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
 * An update as it is sent; null if the transformed update has a number that may not be sent.
 *
 * @param {readonly UploadLink[]} upload Links that this client has ({@link linksTrouble}).
 * @param {readonly number[]} update
 * @param {ReadonlyMap<string, ClientEnd>} links
 * @param {Randomness} [randomness] The source of seeds and of numbers for rounding; tests pass their own.
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

/**
 * The number of bytes converted to text at once: a multiple of three, which base64 writes as four characters, and below
 * the maximum number of arguments.
 */
const PART = 8190;

/** @param {Uint8Array} bytes */
export function base64(bytes) {
  let text = "";
  for (let start = 0; start < bytes.length; start += PART) {
    text += btoa(String.fromCharCode.apply(null, /** @type {any} */ (bytes.subarray(start, start + PART))));
  }
  return text;
}
