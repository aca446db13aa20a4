// @ts-check
/**
 * SplitMix64 (Steele, Lea and Flood 2014): random bits from a key, the same as on the server (`protocol/draws.py`). A
 * 64-bit integer is stored as two 32-bit halves, because BigInt takes six times as long.
 *
 * @typedef {{ high: Uint32Array, low: Uint32Array }} Words 64-bit integers, as halves.
 */

const GOLDEN_HIGH = 0x9e3779b9;
const GOLDEN_LOW = 0x7f4a7c15;

/**
 * A seed's key.
 *
 * @param {number} seed A whole number from 0 to 2^53 - 1.
 * @returns {Words} A single word.
 */
export function keyOf(seed) {
  return { high: Uint32Array.of(seed / 2 ** 32), low: Uint32Array.of(seed) };
}

/**
 * The children of a key with the numbers 0, 1, and so on.
 *
 * @param {Words} key A single word.
 * @param {number} count
 * @returns {Words}
 */
export function childKeys(key, count) {
  const words = { high: Uint32Array.from(key.high), low: Uint32Array.from(key.low) };
  mix(words);
  const [high] = words.high;
  const [low] = words.low;
  const children = counted(0, 1, count);
  for (let k = 0; k < count; k += 1) {
    children.high[k] ^= high;
    children.low[k] ^= low;
  }
  return mix(children);
}

/**
 * The first random words of a key.
 *
 * @param {Words} key A single word.
 * @param {number} count
 * @returns {Words}
 */
export function draws(key, count) {
  const low = key.low[0] + GOLDEN_LOW;
  const high = key.high[0] + GOLDEN_HIGH + Math.floor(low / 2 ** 32);
  return mix(counted(high >>> 0, low >>> 0, count));
}

/**
 * The sequence of words that starts at a number and grows by the generator's golden ratio.
 *
 * @param {number} high
 * @param {number} low
 * @param {number} count
 * @returns {Words}
 */
function counted(high, low, count) {
  const words = { high: new Uint32Array(count), low: new Uint32Array(count) };
  for (let k = 0; k < count; k += 1) {
    words.high[k] = high;
    words.low[k] = low;
    const sum = low + GOLDEN_LOW;
    low = sum >>> 0;
    high = (high + GOLDEN_HIGH + (sum > 0xffffffff ? 1 : 0)) >>> 0;
  }
  return words;
}

/**
 * The generator's finaliser, in place.
 *
 * @param {Words} words
 */
function mix({ high, low }) {
  for (let k = 0; k < high.length; k += 1) {
    let h = high[k];
    let l = low[k];
    l ^= (l >>> 30) | (h << 2);
    h ^= h >>> 30;
    h = highOfProduct(l, 0x1ce4e5b9) + Math.imul(h, 0x1ce4e5b9) + Math.imul(l, 0xbf58476d);
    l = Math.imul(l, 0x1ce4e5b9);
    l ^= (l >>> 27) | (h << 5);
    h ^= h >>> 27;
    h = highOfProduct(l, 0x133111eb) + Math.imul(h, 0x133111eb) + Math.imul(l, 0x94d049bb);
    l = Math.imul(l, 0x133111eb);
    low[k] = l ^ ((l >>> 31) | (h << 1));
    high[k] = h ^ (h >>> 31);
  }
  return { high, low };
}

/**
 * The high half of the product of two 32-bit integers, from 16-bit products, which a double represents exactly.
 *
 * @param {number} one
 * @param {number} other
 */
function highOfProduct(one, other) {
  const a = one >>> 16;
  const b = one & 0xffff;
  const c = other >>> 16;
  const d = other & 0xffff;
  const middle = a * d + ((b * d) >>> 16);
  const upper = (middle / 65536) >>> 0;
  return (a * c + upper + ((((middle & 0xffff) + b * c) / 65536) >>> 0)) | 0;
}
