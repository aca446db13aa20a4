// Tables as CSV.

/** What a spreadsheet takes for a formula, unless it is a number. */
const FORMULA = /^[=+\-@\t\r]/;

/** Rows as CSV (RFC 4180); a text that a spreadsheet would compute has an apostrophe in front, as people write it there. */
export const csv = ({ head, rows }) => [head, ...rows].map((row) => row.map(cell).join(",") + "\r\n").join("");

function cell(value) {
  const text = value == null ? "" : harmless(String(value));
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const harmless = (text) => (FORMULA.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text);
