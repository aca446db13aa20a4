// @ts-check
/**
 * The last moment at which a page surely runs: when it becomes hidden. It precedes closing a tab, leaving a page and
 * locking a phone. `pagehide` is for older browsers, in which it did not.
 *
 * @typedef {{ addEventListener: Function, removeEventListener: Function }} Target
 */

/**
 * Call `leave` when the page is hidden, and `back` when it is visible again. Returns a function that stops this.
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
