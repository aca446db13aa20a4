// @ts-check
/**
 * Sealing a share for the helper: HPKE (RFC 9180) in base mode with DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and AES-128-GCM.
 *
 * X25519 and AES are the browser's own; HKDF is a few calls of HMAC. Only what a client needs is here: it seals one message
 * for each key that it encapsulates, and opens none.
 */

import { joined, utf8 } from "../bytes.js";
import { hmac } from "../hmac.js";

/** The ways to seal that a browser has. There is no ML-KEM in any. */
export const SEALS = Object.freeze(["x25519"]);

export const KEY_BYTES = 32;

/** By how many bytes what is sealed is longer: the encapsulated key, and the tag of the cipher. */
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
 * @param {Uint8Array} info What it belongs to.
 * @param {{ bound?: Uint8Array, pair?: CryptoKeyPair }} [given] What else is bound (the additional data of the cipher), and the
 *   key pair to encapsulate by; tests give these.
 * @returns {Promise<Uint8Array>} The encapsulated key, and then what was sealed.
 * @throws {DOMException} The key is none, or the browser cannot do it.
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
 * Bytes as the browser's own functions ask for them.
 *
 * @param {Uint8Array} bytes
 */
function bytesOf(bytes) {
  return /** @type {Uint8Array<ArrayBuffer>} */ (bytes);
}

/** Whether this browser has what lines of shares need: X25519 to seal, and Ed25519 to know the helper by its signature. */
export async function canShare() {
  try {
    await crypto.subtle.generateKey(CURVE, false, ["deriveBits"]);
    await crypto.subtle.generateKey({ name: "Ed25519" }, false, ["sign", "verify"]);
    return true;
  } catch {
    return false; // also on pages that were not loaded over HTTPS, which have no such functions
  }
}
