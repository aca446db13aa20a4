// @ts-check
/**
 * Words of titles and addresses, and their match with the typed text.
 *
 * Every typed word must begin a word of the title or the address: `git iss` finds "Issues · github.com". Case and
 * accents are ignored. Scripts without spaces between words match anywhere.
 */

const ASCII = /^[\x00-\x7f]*$/;
const NO_SPACES =
  /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]+/u;
const RUNS_WITHOUT_SPACES = new RegExp(NO_SPACES, "gu");
const LONGEST = 500;

/**
 * A text in lower case, without accents.
 *
 * @param {string} text
 */
function folded(text) {
  return (ASCII.test(text) ? text : text.normalize("NFKD").replace(/\p{M}/gu, "")).toLowerCase();
}

/**
 * The words of a text.
 *
 * @param {string} text
 * @returns {string[]}
 */
export function wordsOf(text) {
  const plain = folded(text);
  const words = ASCII.test(plain)
    ? plain.split(/[^a-z0-9]+/)
    : plain.replace(RUNS_WITHOUT_SPACES, " $& ").split(/[^\p{L}\p{N}]+/u);
  return words.filter((word) => word !== "");
}

/**
 * A word with its beginning marked: by a capital letter where the script has one, else by a space. Capital letters are
 * searched faster, because every word has a space.
 *
 * @param {string} word
 */
function begun(word) {
  const first = word.charCodeAt(0);
  return first >= 97 && first <= 122 ? String.fromCharCode(first - 32) + word.slice(1) : ` ${word}`;
}

/**
 * An address as people read it: without scheme, `www.` and escapes.
 *
 * @param {string} url
 */
export function readable(url) {
  const bare = url.replace(/^[a-z]+:\/\/(www\.)?/, "").replace(/\/$/, "");
  try {
    return bare.includes("%") ? decodeURIComponent(bare) : bare;
  } catch {
    return bare; // not a valid escape
  }
}

/**
 * The searched text of a page: its words, each with its beginning marked.
 *
 * @param {string} title
 * @param {string} url
 */
export function searchText(title, url) {
  const words = [...wordsOf(readable(url).slice(0, LONGEST)), ...wordsOf(title.slice(0, LONGEST))];
  return words.map(begun).join("");
}

/**
 * The strings that a search text must all contain.
 *
 * @param {string} typed
 * @returns {string[]}
 */
export function needlesOf(typed) {
  const needles = wordsOf(typed).map((word) => (NO_SPACES.test(word) ? word : begun(word)));
  return [...new Set(needles)].sort((a, b) => b.length - a.length); // long ones first: they are rarer
}

/**
 * A text in pieces, each with whether it matches the typed text: `[["GitHub", true], [" Issues", false]]`.
 *
 * @param {string} text
 * @param {string} typed
 * @returns {[string, boolean][]}
 */
export function marked(text, typed) {
  const sought = wordsOf(typed);
  /** @type {[string, boolean][]} */
  const pieces = [];
  const add = (/** @type {string} */ piece, /** @type {boolean} */ isMarked) => {
    const last = pieces.at(-1);
    if (last && last[1] === isMarked) {
      last[0] += piece;
    } else if (piece !== "") {
      pieces.push([piece, isMarked]);
    }
  };
  for (const [, gap, word] of text.matchAll(/([^\p{L}\p{N}\p{M}]*)([\p{L}\p{N}\p{M}]*)/gu)) {
    const [from, to] = found(word, sought);
    add(gap + word.slice(0, from), false);
    add(word.slice(from, to), true);
    add(word.slice(to), false);
  }
  return pieces;
}

/**
 * The start and end of the longest sought word within a word of a text; [0, 0] for none.
 *
 * @param {string} word
 * @param {string[]} sought
 * @returns {[number, number]}
 */
function found(word, sought) {
  const plain = folded(word);
  let best = /** @type {[number, number]} */ ([0, 0]);
  for (const each of sought) {
    const at = NO_SPACES.test(each) ? plain.indexOf(each) : plain.startsWith(each) ? 0 : -1;
    if (at >= 0 && each.length > best[1] - best[0]) {
      // If folding has changed the length, positions no longer match, and the whole word is marked.
      best = plain.length === word.length ? [at, at + each.length] : [0, word.length];
    }
  }
  return best;
}
