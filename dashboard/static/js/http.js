// Requests to the server; a refusal becomes an Error with the server's sentence.

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

/** The JSON at an address, within so many milliseconds if given; null if there is nothing new (204). */
export const getJSON = (url, withinMs) => asked(url, withinMs ? { signal: AbortSignal.timeout(withinMs) } : {});

/** Request a change: JSON both ways, with the token that proves that one of our pages asks. */
export const post = (url, body = {}) =>
  asked(url, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": TOKEN() },
    body: JSON.stringify(body),
  });
