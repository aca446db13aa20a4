// Colours by the theme's CSS variables, so that light and dark need no second drawing, except on canvases.

const ARMS = 8;
const DASHES = [null, "6 3", "2 2.5"];

/** The colour of the arm (variant) at a place. */
export const armColour = (place) => `var(--arm-${place % ARMS})`;

/** Its line style: the second for those that have used up the colours, and so on. */
export const armDashes = (place) => DASHES[Math.floor(place / ARMS) % DASHES.length];

/** A colour from --cold (−limit) over --neutral (0) to --warm (+limit), as CSS. */
export function diverging(value, limit) {
  const share = limit > 0 ? Math.max(-1, Math.min(1, value / limit)) : 0;
  const end = share < 0 ? "var(--cold)" : "var(--warm)";
  return `color-mix(in oklab, ${end} ${(100 * Math.sqrt(Math.abs(share))).toFixed(1)}%, var(--neutral))`;
}

/** What a variable comes to at this moment, as [r, g, b], for canvases; ask again after the event "fedping:theme". */
export function rgb(variable) {
  const probe = document.createElement("span");
  probe.hidden = true;
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return (found.match(/[\d.]+/g) ?? [0, 0, 0]).slice(0, 3).map(Number);
}
