// Colours by the theme's CSS variables, so that light and dark need no redrawing, except on canvases.

const ARMS = 8;

/** The colour of the arm (variant) at a place. */
export const armColour = (place) => `var(--arm-${place % ARMS})`;

const DASHES = [null, "6 3", "2 2.5", "7 2.5 1.5 2.5", "12 3 2 3 2 3"];

/** Its line style, null for a solid line; it changes whenever the colours repeat. */
export const armDashes = (place) => DASHES[Math.floor(place / ARMS) % DASHES.length];

const SYMBOLS = ["square", "triangle", "circle", "diamond", "star", "cross", "wye"];

/** The symbol on its line, null for none; it changes whenever colours and styles repeat: 320 lines differ. */
export function armSymbol(place) {
  const before = Math.floor(place / (ARMS * DASHES.length));
  return before === 0 ? null : SYMBOLS[(before - 1) % SYMBOLS.length];
}

/** A colour from --cold (−limit) over --neutral (0) to --warm (+limit), as CSS. */
export function diverging(value, limit) {
  const share = limit > 0 ? Math.max(-1, Math.min(1, value / limit)) : 0;
  const end = share < 0 ? "var(--cold)" : "var(--warm)";
  return `color-mix(in oklab, ${end} ${(100 * Math.sqrt(Math.abs(share))).toFixed(1)}%, var(--neutral))`;
}

/** The present value of a variable, as [r, g, b], for canvases; ask again after the event "fedping:theme". */
export function rgb(variable) {
  const probe = document.createElement("span");
  probe.hidden = true;
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return (found.match(/[\d.]+/g) ?? [0, 0, 0]).slice(0, 3).map(Number);
}
