// @ts-check
/**
 * SHAKE128 (FIPS 202) and TurboSHAKE128 (RFC 9861): hash functions with an output of any length.
 *
 * Each of the 25 lanes of 64 bits is stored as two 32-bit numbers, the low half first, which is about ten times as fast
 * as BigInt.
 */

const RATE = 168;
const ROUNDS = 24;
const TURBO_ROUNDS = 12;
const SHAKE_DOMAIN = 0x1f;

/**
 * The target of each lane under π, from lane 1 on, and the number of bits by which ρ rotates it (FIPS 202, 3.2.2 and
 * 3.2.3).
 */
const WAY = (() => {
  const way = [];
  for (let t = 0, x = 1, y = 0; t < 24; t += 1) {
    [x, y] = [y, (2 * x + 3 * y) % 5];
    way.push({ lane: x + 5 * y, turn: (((t + 1) * (t + 2)) / 2) % 64 });
  }
  return way;
})();
const LANES = Uint8Array.from(WAY, ({ lane }) => 2 * lane);
const TURNS = Uint8Array.from(WAY, ({ turn }) => turn);

/** The constant of each round, low half and high half, from a shift register of 8 bits (FIPS 202, 3.2.5). */
const CONSTANTS = (() => {
  const constants = new Int32Array(2 * ROUNDS);
  let register = 1;
  for (let round = 0; round < ROUNDS; round += 1) {
    for (let j = 0; j < 7; j += 1) {
      const bit = 2 ** j - 1;
      if (register & 1) {
        constants[2 * round + (bit >> 5)] ^= 1 << (bit & 31);
      }
      register = ((register << 1) ^ ((register >> 7) * 0x71)) & 0xff;
    }
  }
  return constants;
})();

const columns = new Int32Array(10);
const row = new Int32Array(20);

/**
 * The last rounds of Keccak-f[1600], in place.
 *
 * @param {Int32Array} state 50 halves of lanes.
 * @param {number} rounds
 */
function permute(state, rounds) {
  for (let round = ROUNDS - rounds; round < ROUNDS; round += 1) {
    for (let x = 0; x < 10; x += 1) {
      columns[x] = state[x] ^ state[x + 10] ^ state[x + 20] ^ state[x + 30] ^ state[x + 40];
    }
    for (let x = 0; x < 10; x += 2) {
      const before = x === 0 ? 8 : x - 2;
      const after = x === 8 ? 0 : x + 2;
      const low = columns[before] ^ ((columns[after] << 1) | (columns[after + 1] >>> 31));
      const high = columns[before + 1] ^ ((columns[after + 1] << 1) | (columns[after] >>> 31));
      for (let lane = x; lane < 50; lane += 10) {
        state[lane] ^= low;
        state[lane + 1] ^= high;
      }
    }
    let low = state[2];
    let high = state[3];
    for (let t = 0; t < 24; t += 1) {
      const lane = LANES[t];
      const turn = TURNS[t];
      const first = turn < 32 ? low : high;
      const second = turn < 32 ? high : low;
      low = state[lane];
      high = state[lane + 1];
      state[lane] = (first << turn) | ((second >>> 1) >>> (31 - (turn & 31))); // a shift counts by its last 5 bits
      state[lane + 1] = (second << turn) | ((first >>> 1) >>> (31 - (turn & 31)));
    }
    for (let y = 0; y < 50; y += 10) {
      for (let x = 0; x < 10; x += 1) {
        row[x] = row[x + 10] = state[y + x];
      }
      for (let x = 0; x < 10; x += 1) {
        state[y + x] = row[x] ^ (~row[x + 2] & row[x + 4]);
      }
    }
    state[0] ^= CONSTANTS[2 * round];
    state[1] ^= CONSTANTS[2 * round + 1];
  }
}

/** @param {Int32Array} state @param {number} place @param {number} byte */
function mixIn(state, place, byte) {
  state[place >> 2] ^= byte << (8 * (place & 3));
}

/**
 * The output of a message: a function that returns the next bytes.
 *
 * @param {Uint8Array} message
 * @param {number} domain The byte after the message, which separates uses.
 * @param {number} rounds
 * @returns {(length: number) => Uint8Array}
 */
function squeezed(message, domain, rounds) {
  const state = new Int32Array(50);
  let place = 0;
  for (const byte of message) {
    mixIn(state, place, byte);
    place += 1;
    if (place === RATE) {
      permute(state, rounds);
      place = 0;
    }
  }
  mixIn(state, place, domain);
  mixIn(state, RATE - 1, 0x80);
  place = RATE;
  return (length) => {
    const made = new Uint8Array(length);
    for (let i = 0; i < length; i += 1, place += 1) {
      if (place === RATE) {
        permute(state, rounds);
        place = 0;
      }
      made[i] = state[place >> 2] >>> (8 * (place & 3));
    }
    return made;
  };
}

/**
 * @param {Uint8Array} message
 * @param {number} length The number of bytes to return.
 */
export function shake128(message, length) {
  return squeezed(message, SHAKE_DOMAIN, ROUNDS)(length);
}

/**
 * @param {Uint8Array} message
 * @param {number} domain From 1 to 127.
 * @returns {(length: number) => Uint8Array} A function that returns the next bytes.
 */
export function turboShake128(message, domain) {
  return squeezed(message, domain, TURBO_ROUNDS);
}
