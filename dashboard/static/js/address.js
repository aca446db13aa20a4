// Choices that stay in the page's address, so that a link reopens the same view.

/** The value of a choice; null if the address has none. */
export const recalled = (name) => new URL(location.href).searchParams.get(name);

/** Keep a choice in the address; an empty value removes it. */
export function remember(name, value) {
  const address = new URL(location.href);
  if (address.searchParams.get(name) === (value || null)) return;
  if (value) address.searchParams.set(name, value);
  else address.searchParams.delete(name);
  history.replaceState(null, "", address);
}
