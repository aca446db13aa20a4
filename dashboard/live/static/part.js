// Versions that the server has left out, requested once a part is enlarged or one of them is chosen.

import { getJSON } from "/static/js/http.js";

const WAIT_MS = 120;

/** Parts that are remembered: the newest. */
const AT_MOST = 8;

/**
 * @param {import("./line.js").Line} line
 * @param {() => void} redraw
 * @returns {{need: (from: number, to: number) => void, again: () => void}} requests the versions between two, unless they
 *   are there
 */
export function parts(line, redraw) {
  const wanted = [];
  let asked = [];
  let timer = 0;
  let busy = false;

  async function load() {
    if (busy) return;
    busy = true;
    while (wanted.length) {
      const [from, to] = wanted.pop();
      if (!line.lacks(from, to)) continue;
      try {
        const found = await getJSON(`part.json?from=${from}&to=${to}`);
        line.takePart(found, from, Math.min(to, found.through));
        if (found.through < to && found.through >= from) wanted.push([found.through + 1, to]);
        redraw();
      } catch {
        wanted.length = 0; // the status of the page says what is wrong; the next choice asks again
      }
    }
    busy = false;
  }

  function need(from, to) {
    asked = [...asked, [from, to]].slice(-AT_MOST);
    if (!line.lacks(from, to)) return;
    wanted.push([from, to]);
    while (wanted.length > AT_MOST) wanted.shift();
    clearTimeout(timer);
    timer = setTimeout(load, WAIT_MS);
  }

  return {
    need,
    /** Request them again, after the page was sent everything anew. */
    again: () => asked.splice(0).forEach(([from, to]) => need(from, to)),
  };
}
