// @ts-check
/**
 * exp and log of doubles by + - * / and exponent bits, with identical bits in every language; libraries' functions
 * differ in the last bit. The polynomials are fdlibm's (Sun Microsystems 1993), within one unit in the last place.
 */

const LN2_HIGH = 6.93147180369123816490e-1;
const LN2_LOW = 1.90821492927058770002e-10;
const PER_LN2 = 1.4426950408889634;
const ROOT_OF_HALF = 0.7071067811865476;
const LEAST_EXPONENT = -700;

const double = new DataView(new ArrayBuffer(8));

/**
 * e to the power of x, for x ≤ 0; 0 below -700.
 *
 * @param {number} x
 */
export function exp(x) {
  if (x < LEAST_EXPONENT) {
    return 0;
  }
  const k = Math.floor(x * PER_LN2 + 0.5);
  const high = x - k * LN2_HIGH;
  const low = k * LN2_LOW;
  const r = high - low;
  const t = r * r;
  let p = 4.13813679705723846039e-8;
  p = -1.6533902205465252e-6 + t * p;
  p = 6.6137563214379344e-5 + t * p;
  p = -2.7777777777015593e-3 + t * p;
  p = 1.6666666666666602e-1 + t * p;
  const c = r - t * p;
  return (1 - (low - (r * c) / (2 - c) - high)) * powerOfTwo(k);
}

/**
 * The natural logarithm of x, for x ≥ 1.
 *
 * @param {number} x
 */
export function log(x) {
  double.setFloat64(0, x);
  const top = double.getUint32(0);
  double.setUint32(0, (top & 0x000fffff) | 0x3fe00000); // in [0.5, 1)
  let fraction = double.getFloat64(0);
  let k = (top >>> 20) - 1022;
  if (fraction < ROOT_OF_HALF) {
    fraction += fraction;
    k -= 1;
  }
  const f = fraction - 1;
  const s = f / (2 + f);
  const z = s * s;
  let p = 1.479819860511658591e-1;
  p = 1.531383769920937332e-1 + z * p;
  p = 1.818357216161805012e-1 + z * p;
  p = 2.222219843214978396e-1 + z * p;
  p = 2.857142874366239149e-1 + z * p;
  p = 3.999999999940941908e-1 + z * p;
  p = 6.666666666666735130e-1 + z * p;
  const r = z * p;
  const half = 0.5 * f * f;
  return k * LN2_HIGH - (half - (s * (half + r) + k * LN2_LOW) - f);
}

/**
 * The natural logarithm of 1 + x, for x ≥ 0.
 *
 * @param {number} x
 */
export function log1p(x) {
  const u = 1 + x;
  return log(u) + (x - (u - 1)) / u;
}

/**
 * 2 to the power of a whole number from -1022 to 0.
 *
 * @param {number} k
 */
function powerOfTwo(k) {
  double.setUint32(0, (k + 1023) << 20);
  double.setUint32(4, 0);
  return double.getFloat64(0);
}
