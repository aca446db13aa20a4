// @ts-check
/**
 * The user's decisions: the study's server, whether to take part, and the study agreed to.
 *
 * @typedef {object} Settings
 * @property {string} ingest The server's address; "" for none.
 * @property {string} study The study's name; "" for none.
 * @property {boolean} on The switch.
 * @property {"unasked" | "given" | "declined"} consent
 * @property {string} consentFor The study that was agreed to; "" for none.
 */

const KEY = "settings";

/** @type {Settings} */
const AT_FIRST = Object.freeze({ ingest: "", study: "", on: true, consent: "unasked", consentFor: "" });

/** Hosts for which an unencrypted connection stays on this machine. */
const LOCAL = new Set(["localhost", "127.0.0.1"]);

/** @param {any} area @returns {Promise<Settings>} */
export async function readSettings(area) {
  const kept = { ...AT_FIRST, ...(await area.get(KEY))[KEY] };
  // Earlier versions stored consent even without a study.
  return kept.consent === "given" && kept.consentFor === "" ? { ...kept, consent: "unasked" } : kept;
}

/** @param {any} area @param {Settings} settings */
export async function keepSettings(area, settings) {
  await area.set({ [KEY]: settings });
}

/**
 * A typed address in its normal form; "" for none.
 *
 * @param {string} typed
 * @throws {RangeError} Pings may not be sent to this address.
 */
export function serverAddress(typed) {
  if (typed.trim() === "") {
    return "";
  }
  const url = parsed(typed.trim());
  const isSafe = url !== null && (url.protocol === "https:" || (url.protocol === "http:" && LOCAL.has(url.hostname)));
  if (!isSafe) {
    throw new RangeError(`“${typed}” is not an address that the extension can use. Enter one that begins with https://.`);
  }
  if (url.username || url.password || url.search || url.hash) {
    throw new RangeError("The address has a user, a “?” or a “#” in it. Remove them.");
  }
  return `${url.origin}${url.pathname}`.replace(/\/+$/, "");
}

/**
 * A study's typed name; "" for none.
 *
 * @param {string} typed
 * @throws {RangeError} The name is not valid for a study.
 */
export function studyName(typed) {
  const name = typed.trim();
  if (!/^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$/.test(name)) {
    throw new RangeError(
      `“${name}” is not a valid study name. Use letters, digits, “-”, “_” and “.”, at most 64, beginning with a letter or digit.`,
    );
  }
  return name;
}

/**
 * The pattern of the hosts for which the browser must grant the extension access to a server.
 *
 * @param {string} ingest
 */
export function hostPattern(ingest) {
  const { protocol, hostname } = new URL(ingest);
  return `${protocol}//${hostname}/*`;
}

/** @param {Settings} settings */
export function studyOf({ ingest, study }) {
  return ingest && study ? `${ingest} ${study}` : "";
}

/**
 * Whether the client takes part: a study is set, the switch is on, and the user has agreed to this study.
 *
 * @param {Settings} settings
 */
export function takesPart(settings) {
  return settings.on && studyOf(settings) !== "" && settings.consent === "given";
}

/**
 * The settings with another server or study. Consent to one study is not consent to another.
 *
 * @param {Settings} settings
 * @param {string} ingest
 * @param {string} study
 * @returns {Settings}
 */
export function withStudy(settings, ingest, study) {
  const next = { ...settings, ingest, study };
  const isOther = settings.consentFor !== "" && studyOf(next) !== "" && studyOf(next) !== settings.consentFor;
  return settings.consent === "given" && !isOther
    ? { ...next, consentFor: studyOf(next) || settings.consentFor }
    : { ...next, consent: isOther ? "unasked" : settings.consent, consentFor: "" };
}

/**
 * The settings with the user's decision about the configured study.
 *
 * @param {Settings} settings
 * @param {boolean} agreed
 * @returns {Settings}
 * @throws {RangeError} No study is configured.
 */
export function withConsent(settings, agreed) {
  if (agreed && studyOf(settings) === "") {
    throw new RangeError("There is no study to agree to yet. Save one in the settings first.");
  }
  return { ...settings, consent: agreed ? "given" : "declined", consentFor: agreed ? studyOf(settings) : "" };
}

/** @param {string} text */
function parsed(text) {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}
