// @ts-check
/** Pseudorandom numbers seeded by a text, so that everything invented on the page is the same on every visit. */

/**
 * The seed of a text (its FNV-1a hash).
 *
 * @param {string} text
 */
export function seedOf(text) {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) {
    hash = Math.imul(hash ^ byte, 0x01000193);
  }
  return hash >>> 0;
}

/**
 * A generator of random draws from a seed (mulberry32).
 *
 * @param {number} seed
 */
export function seeded(seed) {
  let state = seed >>> 0;
  const fraction = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  /** @param {number} least @param {number} largest */
  const whole = (least, largest) => least + Math.floor(fraction() * (largest - least + 1));
  return {
    fraction,
    whole,
    /** @template T @param {readonly T[]} things */
    one: (things) => things[whole(0, things.length - 1)],
    /** @param {number} count */
    bytes: (count) => Uint8Array.from({ length: count }, () => whole(0, 255)),
  };
}

/** @typedef {ReturnType<typeof seeded>} Draw */
