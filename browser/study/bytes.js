// @ts-check
/** Functions that join bytes, and convert them to and from hexadecimal digits. */

/** @param {...Uint8Array} parts */
export function joined(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

/** @param {string} text */
export function utf8(text) {
  return new TextEncoder().encode(text);
}

/** @param {string} digits */
export function fromHex(digits) {
  return Uint8Array.from({ length: digits.length / 2 }, (_, i) => Number.parseInt(digits.slice(2 * i, 2 * i + 2), 16));
}

/** @param {Uint8Array} bytes */
export function toHex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Whether a value is a number of bytes in hexadecimal digits, in lower case.
 *
 * @param {unknown} value
 * @param {number} bytes
 */
export function isHex(value, bytes) {
  return typeof value === "string" && value.length === 2 * bytes && /^[0-9a-f]+$/.test(value);
}
