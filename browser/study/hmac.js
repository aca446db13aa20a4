// @ts-check
/** HMAC-SHA256 (RFC 2104), synchronous, for keys of at most 64 bytes. */

import { joined } from "./bytes.js";
import { sha256Bytes } from "./sha256.js";

const BLOCK = 64;

/**
 * @param {Uint8Array} key
 * @param {Uint8Array} message
 * @returns {Uint8Array} 32 bytes.
 */
export function hmac(key, message) {
  const padded = new Uint8Array(BLOCK);
  padded.set(key);
  const inner = sha256Bytes(joined(padded.map((byte) => byte ^ 0x36), message));
  return sha256Bytes(joined(padded.map((byte) => byte ^ 0x5c), inner));
}
