// @ts-check
/**
 * The last moment when a page surely runs: when it is hidden. Tabs that are closed, pages that are left and telephones
 * that are locked all pass through it; `pagehide` is for browsers in which they once did not.
 *
 * @typedef {{ addEventListener: Function, removeEventListener: Function }} Target
 */

/**
 * Call `leave` when the page is hidden, and `back` when it is seen again. Returns what ends it.
 *
 * @param {Target & { visibilityState: string }} document
 * @param {Target} window
 * @param {() => void} leave
 * @param {() => void} back
 */
export function onLeaving(document, window, leave, back) {
  const changed = () => (document.visibilityState === "hidden" ? leave() : back());
  document.addEventListener("visibilitychange", changed);
  window.addEventListener("pagehide", leave);
  return () => {
    document.removeEventListener("visibilitychange", changed);
    window.removeEventListener("pagehide", leave);
  };
}
