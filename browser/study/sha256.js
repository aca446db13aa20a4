// @ts-check
/**
 * SHA-256 of a short text (FIPS 180-4), synchronous and available everywhere: the browser's own digest is asynchronous,
 * and missing on pages that were not loaded over HTTPS.
 */

/**
 * The first 64 primes, from whose roots the constants are computed.
 *
 * @type {number[]}
 */
const PRIMES = [];
for (let n = 2; PRIMES.length < 64; n += 1) {
  if (PRIMES.every((prime) => n % prime !== 0)) {
    PRIMES.push(n);
  }
}

/**
 * The first 32 bits of the fractions of roots. No root of these primes is close enough to the next integer for a
 * double's rounding to matter: in units of the last of these bits, the nearest is .02 away, and a double's last bit is
 * worth .000004.
 *
 * @param {number[]} roots
 */
const fractions = (roots) => roots.map((root) => Math.floor((root % 1) * 2 ** 32));

const INITIAL = fractions(PRIMES.slice(0, 8).map((prime) => Math.sqrt(prime)));
const ROUND = fractions(PRIMES.map((prime) => Math.cbrt(prime)));

const BLOCK = 64;

/**
 * The digest of a text's UTF-8 bytes, as eight numbers of 32 bits each, the first bits first.
 *
 * @param {string} text
 * @returns {Uint32Array}
 */
export function sha256(text) {
  return digestOf(new TextEncoder().encode(text));
}

/**
 * The digest of bytes, as 32 bytes.
 *
 * @param {Uint8Array} bytes
 */
export function sha256Bytes(bytes) {
  const view = new DataView(new ArrayBuffer(32));
  digestOf(bytes).forEach((word, i) => view.setUint32(4 * i, word));
  return new Uint8Array(view.buffer);
}

/** @param {Uint8Array} bytes */
function digestOf(bytes) {
  const message = padded(bytes);
  const state = Uint32Array.from(INITIAL);
  const schedule = new Int32Array(BLOCK);
  for (let start = 0; start < message.byteLength; start += BLOCK) {
    expand(message, start, schedule);
    compress(state, schedule);
  }
  return state;
}

/** @param {Uint8Array} bytes */
function padded(bytes) {
  const blocks = Math.ceil((bytes.length + 9) / BLOCK);
  const view = new DataView(new ArrayBuffer(blocks * BLOCK));
  new Uint8Array(view.buffer).set(bytes);
  view.setUint8(bytes.length, 0x80);
  view.setUint32(view.byteLength - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(view.byteLength - 4, (bytes.length * 8) >>> 0);
  return view;
}

/**
 * @param {DataView} message
 * @param {number} start
 * @param {Int32Array} schedule
 */
function expand(message, start, schedule) {
  for (let t = 0; t < 16; t += 1) {
    schedule[t] = message.getInt32(start + 4 * t);
  }
  for (let t = 16; t < BLOCK; t += 1) {
    const a = schedule[t - 15];
    const b = schedule[t - 2];
    const small0 = turn(a, 7) ^ turn(a, 18) ^ (a >>> 3);
    const small1 = turn(b, 17) ^ turn(b, 19) ^ (b >>> 10);
    schedule[t] = schedule[t - 16] + small0 + schedule[t - 7] + small1;
  }
}

/**
 * @param {Uint32Array} state
 * @param {Int32Array} schedule
 */
function compress(state, schedule) {
  let [a, b, c, d, e, f, g, h] = state;
  for (let t = 0; t < BLOCK; t += 1) {
    const big1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25);
    const choice = (e & f) ^ (~e & g);
    const first = (h + big1 + choice + ROUND[t] + schedule[t]) | 0;
    const big0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22);
    const majority = (a & b) ^ (a & c) ^ (b & c);
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + big0 + majority) | 0];
  }
  [a, b, c, d, e, f, g, h].forEach((value, i) => {
    state[i] += value;
  });
}

/**
 * @param {number} word
 * @param {number} bits
 */
function turn(word, bits) {
  return (word >>> bits) | (word << (32 - bits));
}
