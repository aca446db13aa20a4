// @ts-check
/**
 * Storage for data that must outlive the page: the random id, the model, and pings that no server has accepted yet.
 *
 * Values are JSON. Every method may answer at once or with a promise. A storage that writes at once (`webStorage`) has
 * stored a ping before the call returns, even if the tab closes immediately. Each ping has its own key, so that tabs
 * which share a storage don't overwrite each other's pings.
 *
 * @typedef {object} ClientStorage
 * @property {(key: string) => any} get The value, or undefined.
 * @property {(key: string, value: any) => void | Promise<void>} set
 * @property {(key: string) => void | Promise<void>} remove
 * @property {(prefix: string) => string[] | Promise<string[]>} keys The keys with a prefix.
 *
 * @typedef {object} ExtensionArea
 * @property {(keys: any) => Promise<any>} get
 * @property {(items: any) => Promise<void>} set
 * @property {(key: any) => Promise<void>} remove
 * @property {() => Promise<string[]>} [getKeys]
 */

/**
 * A storage in memory, which ends with the page.
 *
 * @returns {ClientStorage}
 */
export function memoryStorage() {
  /** @type {Map<string, string>} */
  const kept = new Map();
  return {
    get: (key) => parsed(kept.get(key)),
    set: (key, value) => void kept.set(key, JSON.stringify(value)),
    remove: (key) => void kept.delete(key),
    keys: (prefix) => [...kept.keys()].filter((key) => key.startsWith(prefix)),
  };
}

/**
 * A storage in `localStorage`, or an object with the same interface.
 *
 * @param {Storage} area
 * @returns {ClientStorage}
 */
export function webStorage(area) {
  return {
    get: (key) => parsed(area.getItem(key)),
    set: (key, value) => area.setItem(key, JSON.stringify(value)),
    remove: (key) => area.removeItem(key),
    keys: (prefix) =>
      Array.from({ length: area.length }, (_, i) => area.key(i) ?? "").filter((key) => key.startsWith(prefix)),
  };
}

/**
 * A storage in an extension's `browser.storage.local`, or another area.
 *
 * @param {ExtensionArea} area
 * @returns {ClientStorage}
 */
export function extensionStorage(area) {
  return {
    get: async (key) => (await area.get(key))[key],
    set: (key, value) => area.set({ [key]: value }),
    remove: (key) => area.remove(key),
    keys: async (prefix) => (await allKeys(area)).filter((key) => key.startsWith(prefix)),
  };
}

/**
 * Reads only the keys where the browser can (Chromium 130, Firefox 143), because an extension may store much other
 * data.
 *
 * @param {ExtensionArea} area
 */
async function allKeys(area) {
  return area.getKeys ? area.getKeys() : Object.keys(await area.get(null));
}

/**
 * A storage in IndexedDB, which service workers also have.
 *
 * @param {string} name The name of the database.
 * @returns {ClientStorage}
 */
export function indexedStorage(name) {
  /** @type {Promise<IDBDatabase> | null} */
  let opened = null;
  const open = () =>
    (opened ??= new Promise((done, fail) => {
      const asked = indexedDB.open(name, 1);
      asked.onupgradeneeded = () => asked.result.createObjectStore("kept");
      asked.onsuccess = () => done(asked.result);
      asked.onerror = () => fail(asked.error);
    }));
  /** @param {IDBTransactionMode} mode @param {(kept: IDBObjectStore) => IDBRequest} act @returns {Promise<any>} */
  const asked = async (mode, act) => {
    const request = act((await open()).transaction("kept", mode).objectStore("kept"));
    return new Promise((done, fail) => {
      request.onsuccess = () => done(request.result);
      request.onerror = () => fail(request.error);
    });
  };
  return {
    get: (key) => asked("readonly", (kept) => kept.get(key)),
    set: (key, value) => asked("readwrite", (kept) => kept.put(value, key)),
    remove: (key) => asked("readwrite", (kept) => kept.delete(key)),
    keys: (prefix) => asked("readonly", (kept) => kept.getAllKeys(IDBKeyRange.bound(prefix, `${prefix}\uffff`))),
  };
}

/**
 * @typedef {ClientStorage & { lacks: (key: string) => boolean | Promise<boolean> }} ForgivingStorage `lacks` returns
 *   whether a key is missing; false if the storage can't be read.
 */

/**
 * The same storage, but it never fails: if it is full or blocked, data is lost but the page keeps working.
 *
 * @param {ClientStorage} storage
 * @returns {ForgivingStorage}
 */
export function forgiving(storage) {
  return {
    lacks: (key) => attempt(() => then(storage.get(key), (value) => value === undefined), false),
    get: (key) => attempt(() => storage.get(key), undefined),
    set: (key, value) => attempt(() => storage.set(key, value), undefined),
    remove: (key) => attempt(() => storage.remove(key), undefined),
    keys: (prefix) => attempt(() => storage.keys(prefix), []),
  };
}

/**
 * Apply a function to a value: at once, or when its promise resolves.
 *
 * @template T, U
 * @param {T | Promise<T>} value
 * @param {(value: T) => U | Promise<U>} next
 * @returns {U | Promise<U>}
 */
export function then(value, next) {
  return value instanceof Promise ? value.then(next) : next(value);
}

/**
 * @template T
 * @param {() => T | Promise<T>} action
 * @param {T} otherwise
 * @returns {T | Promise<T>}
 */
function attempt(action, otherwise) {
  try {
    const result = action();
    return result instanceof Promise ? result.catch(() => otherwise) : result;
  } catch {
    return otherwise;
  }
}

/** @param {string | null | undefined} json */
function parsed(json) {
  try {
    return json === null || json === undefined ? undefined : JSON.parse(json);
  } catch {
    return undefined; // written by another program
  }
}
