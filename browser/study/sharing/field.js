// @ts-check
/**
 * Arithmetic modulo p = 2^64 - 2^32 + 1 (Field64 of the VDAF draft). Elements are BigInts from 0 to p - 1.
 *
 * A polynomial is represented by its values at 1, ω, ω², …, whose number n is a power of two; ω is the root of unity of
 * order n.
 */

export const P = 2n ** 64n - 2n ** 32n + 1n;

export const ELEMENT_BYTES = 8;

/** @param {bigint} a @param {bigint} b */
export function add(a, b) {
  return (a + b) % P;
}

/** @param {bigint} a @param {bigint} b */
export function sub(a, b) {
  return (a + P - b) % P;
}

/** @param {bigint} a @param {bigint} b */
export function mul(a, b) {
  return (a * b) % P;
}

/** @param {bigint} a @param {bigint} exponent */
export function power(a, exponent) {
  let result = 1n;
  for (let base = a, left = exponent; left > 0n; left >>= 1n, base = mul(base, base)) {
    result = left & 1n ? mul(result, base) : result;
  }
  return result;
}

const GENERATOR = power(7n, 2n ** 32n - 1n);

/** The root of unity of an order that is a power of two. @param {number} count */
function root(count) {
  return power(GENERATOR, 2n ** 32n / BigInt(count));
}

/** @param {bigint} a */
function inverse(a) {
  return power(a, P - 2n);
}

/**
 * The values of a polynomial of degree below n at the odd powers of the root of order 2n, from its n values at the even
 * powers.
 *
 * @param {readonly bigint[]} values
 */
export function otherValues(values) {
  const { omega, back, step, least } = constantsOf(values.length);
  let weight = least;
  const coefficients = transformed(values, back).map((number) => {
    const weighted = mul(number, weight);
    weight = mul(weight, step);
    return weighted;
  });
  return transformed(coefficients, omega);
}

/** @type {Map<number, { omega: bigint, back: bigint, step: bigint, least: bigint }>} */
const CONSTANTS = new Map();

/**
 * The root of unity of order n, its inverse, the root of order 2n, and 1 / n. They are cached, because computing them
 * takes longer than using them, and all polynomials of a proof share them.
 *
 * @param {number} n
 */
function constantsOf(n) {
  const found = CONSTANTS.get(n) ?? { omega: root(n), back: inverse(root(n)), step: root(2 * n), least: inverse(BigInt(n)) };
  CONSTANTS.set(n, found);
  return found;
}

/**
 * Σ values[j] ω^(jk) for k = 0, 1, …, where the order of ω is the number of values.
 *
 * @param {readonly bigint[]} values
 * @param {bigint} omega
 * @returns {bigint[]}
 */
function transformed(values, omega) {
  if (values.length === 1) {
    return [...values];
  }
  const half = (/** @type {number} */ start) =>
    transformed(values.filter((_, j) => j % 2 === start), mul(omega, omega));
  const [even, odd] = [half(0), half(1)];
  let turn = 1n;
  const turned = odd.map((number) => {
    const made = mul(number, turn);
    turn = mul(turn, omega);
    return made;
  });
  return [...even.map((number, k) => add(number, turned[k])), ...even.map((number, k) => sub(number, turned[k]))];
}

/**
 * Elements as bytes, in little-endian order.
 *
 * @param {readonly bigint[]} elements
 */
export function elementBytes(elements) {
  const view = new DataView(new ArrayBuffer(ELEMENT_BYTES * elements.length));
  elements.forEach((element, k) => view.setBigUint64(ELEMENT_BYTES * k, element, true));
  return new Uint8Array(view.buffer);
}
