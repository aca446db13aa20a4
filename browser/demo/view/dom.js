// @ts-check
/** Elements from names, attributes and children. Texts become text nodes and never markup. */

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, string | number | boolean | null>} [attributes] `true` sets an attribute without a value;
 *   `false` and null set none.
 * @param {...(Node | string | number | null)} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.filter((child) => child !== null).map(asNode));
  return element;
}

/** @param {Node | string | number | null} child */
function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

/**
 * The element with an id, which must exist.
 *
 * @template {HTMLElement} E
 * @param {string} id
 * @param {new () => E} [kind]
 * @returns {E}
 */
export function byId(id, kind) {
  const found = document.getElementById(id);
  if (found === null || (kind !== undefined && !(found instanceof kind))) {
    throw new TypeError(`the page has no ${kind?.name ?? "element"} #${id}`);
  }
  return /** @type {E} */ (found);
}

/**
 * A number for readers: integers in full, others with four significant digits.
 *
 * @param {number} value
 */
export function told(value) {
  const digits = Number.isInteger(value) || Math.abs(value) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 };
  return value.toLocaleString("en", digits).replace("-", "−");
}

/**
 * @param {number} value
 */
export function signed(value) {
  return (value > 0 ? "+" : "") + told(value);
}

/**
 * A number of things in words, such as "2 pages".
 *
 * @param {number} count
 * @param {string} thing
 * @param {string} [things]
 */
export function counted(count, thing, things = `${thing}s`) {
  return `${told(count)} ${count === 1 ? thing : things}`;
}

/**
 * @param {number} place From 0.
 */
export function ordinal(place) {
  const number = place + 1;
  const teen = number % 100 > 10 && number % 100 < 14;
  return `${number}${(!teen && ["th", "st", "nd", "rd"][number % 10]) || "th"}`;
}
