// @ts-check
/**
 * Sealing a share for the helper: HPKE (RFC 9180) in base mode with DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and AES-128-GCM.
 *
 * X25519 and AES are the browser's; HKDF is a few calls of HMAC. Only the client's part is implemented: it seals one
 * message for each encapsulated key, and opens none.
 */

import { joined, utf8 } from "../bytes.js";
import { hmac } from "../hmac.js";

/** The kinds of sealing available in browsers. None has ML-KEM. */
export const SEALS = Object.freeze(["x25519"]);

export const KEY_BYTES = 32;

/** The bytes that sealing adds: the encapsulated key and the cipher's tag. */
export const OVERHEAD = 32 + 16;

const CURVE = { name: "X25519" };
const VERSION = utf8("HPKE-v1");
const KEM = joined(utf8("KEM"), Uint8Array.of(0x00, 0x20));
const SUITE = joined(utf8("HPKE"), Uint8Array.of(0x00, 0x20, 0x00, 0x01, 0x00, 0x01));
const BASE_MODE = 0;
const NOTHING = new Uint8Array(0);

/**
 * Seal data for the owner of a key.
 *
 * @param {Uint8Array} key The public key, 32 bytes.
 * @param {Uint8Array} what
 * @param {Uint8Array} info The context that the sealed data is bound to.
 * @param {{ bound?: Uint8Array, pair?: CryptoKeyPair }} [given] The cipher's additional data, and the key pair for
 *   the encapsulation; tests pass these.
 * @returns {Promise<Uint8Array>} The encapsulated key, then the ciphertext.
 * @throws {DOMException} The key is invalid, or the browser lacks X25519.
 */
export async function seal(key, what, info, { bound = NOTHING, pair } = {}) {
  const { subtle } = crypto;
  const { publicKey, privateKey } = pair ?? /** @type {CryptoKeyPair} */ (await subtle.generateKey(CURVE, false, ["deriveBits"]));
  const theirs = await subtle.importKey("raw", bytesOf(key), CURVE, true, []);
  const agreed = new Uint8Array(await subtle.deriveBits({ ...CURVE, public: theirs }, privateKey, 256));
  const encapsulated = new Uint8Array(await subtle.exportKey("raw", publicKey));
  const { aesKey, nonce } = schedule(sharedSecret(agreed, encapsulated, key), info);
  const cipher = await subtle.importKey("raw", bytesOf(aesKey), "AES-GCM", false, ["encrypt"]);
  const by = { name: "AES-GCM", iv: bytesOf(nonce), additionalData: bytesOf(bound) };
  return joined(encapsulated, new Uint8Array(await subtle.encrypt(by, cipher, bytesOf(what))));
}

/**
 * The secret of the encapsulation (RFC 9180, 4.1).
 *
 * @param {Uint8Array} agreed @param {Uint8Array} encapsulated @param {Uint8Array} key
 */
function sharedSecret(agreed, encapsulated, key) {
  return expanded(KEM, extracted(KEM, NOTHING, "eae_prk", agreed), "shared_secret", joined(encapsulated, key), 32);
}

/**
 * The key and the nonce of the first message (RFC 9180, 5.1), in base mode.
 *
 * @param {Uint8Array} secret @param {Uint8Array} info
 */
function schedule(secret, info) {
  const ids = extracted(SUITE, NOTHING, "psk_id_hash", NOTHING);
  const context = joined(Uint8Array.of(BASE_MODE), ids, extracted(SUITE, NOTHING, "info_hash", info));
  const key = extracted(SUITE, secret, "secret", NOTHING);
  return {
    aesKey: expanded(SUITE, key, "key", context, 16),
    nonce: expanded(SUITE, key, "base_nonce", context, 12),
  };
}

/**
 * LabeledExtract.
 *
 * @param {Uint8Array} suite @param {Uint8Array} salt @param {string} label @param {Uint8Array} secret
 */
function extracted(suite, salt, label, secret) {
  return hmac(salt, joined(VERSION, suite, utf8(label), secret));
}

/**
 * LabeledExpand, to at most 32 bytes.
 *
 * @param {Uint8Array} suite @param {Uint8Array} key @param {string} label @param {Uint8Array} info @param {number} length
 */
function expanded(suite, key, label, info, length) {
  const labeled = joined(Uint8Array.of(0, length), VERSION, suite, utf8(label), info);
  return hmac(key, joined(labeled, Uint8Array.of(1))).slice(0, length);
}

/**
 * Bytes in the type that the browser's functions expect.
 *
 * @param {Uint8Array} bytes
 */
function bytesOf(bytes) {
  return /** @type {Uint8Array<ArrayBuffer>} */ (bytes);
}

/**
 * Whether this browser has the cryptography of two-server lines: X25519 to seal, and Ed25519 to verify the helper's
 * signature.
 */
export async function canShare() {
  try {
    await crypto.subtle.generateKey(CURVE, false, ["deriveBits"]);
    await crypto.subtle.generateKey({ name: "Ed25519" }, false, ["sign", "verify"]);
    return true;
  } catch {
    return false; // also on pages not loaded over HTTPS, which lack these functions
  }
}
