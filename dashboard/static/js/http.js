// Asking the server; what it refuses becomes an Error with its sentence.

const TOKEN = () => document.querySelector('meta[name="csrf-token"]')?.content ?? "";

async function answered(response) {
  if (response.status === 204) return null;
  const body = await response.json().catch(() => ({}));
  if (!response.ok) {
    const error = new Error(body.error ?? `the server answered ${response.status}; reload the page`);
    error.status = response.status;
    throw error;
  }
  return body;
}

async function asked(url, options) {
  let response;
  try {
    response = await fetch(url, { ...options, headers: { Accept: "application/json", ...options.headers } });
  } catch {
    throw new Error("the dashboard does not answer; it may have been stopped");
  }
  return answered(response);
}

/** The JSON at an address; null if there is nothing new (204). */
export const getJSON = (url) => asked(url, {});

/** Ask for a change: JSON there and back, with the token that proves that a page of ours asks. */
export const post = (url, body = {}) =>
  asked(url, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": TOKEN() },
    body: JSON.stringify(body),
  });
