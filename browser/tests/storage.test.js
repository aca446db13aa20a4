// @ts-check
/** Every storage keeps what it is given, by the same rules. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { extensionStorage, memoryStorage, webStorage } from "../fedping.js";
import { forgiving } from "../delivery/storage.js";

/** What a page's `localStorage` is. */
class FakeArea {
  /** @type {Map<string, string>} */
  kept = new Map();
  get length() {
    return this.kept.size;
  }
  /** @param {number} i */
  key(i) {
    return [...this.kept.keys()][i] ?? null;
  }
  /** @param {string} key */
  getItem(key) {
    return this.kept.get(key) ?? null;
  }
  /** @param {string} key @param {string} value */
  setItem(key, value) {
    this.kept.set(key, value);
  }
  /** @param {string} key */
  removeItem(key) {
    this.kept.delete(key);
  }
}

/** What `browser.storage.local` is. */
function fakeExtensionArea() {
  /** @type {Record<string, any>} */
  let kept = {};
  return {
    get: async (/** @type {any} */ keys) => (keys === null ? { ...kept } : keys in kept ? { [keys]: kept[keys] } : {}),
    set: async (/** @type {any} */ items) => void (kept = { ...kept, ...structuredClone(items) }),
    remove: async (/** @type {string} */ key) => void delete kept[key],
  };
}

/** The same, of a browser that gives keys alone. */
function fakeExtensionAreaWithKeys() {
  const area = fakeExtensionArea();
  const get = (/** @type {any} */ keys) => (keys === null ? Promise.reject(new Error("all values were read")) : area.get(keys));
  return { ...area, get, getKeys: async () => Object.keys(await area.get(null)) };
}

const STORAGES = {
  memory: memoryStorage,
  web: () => webStorage(/** @type {any} */ (new FakeArea())),
  extension: () => extensionStorage(fakeExtensionArea()),
  "extension with keys": () => extensionStorage(fakeExtensionAreaWithKeys()),
  forgiving: () => forgiving(memoryStorage()),
};

for (const [name, made] of Object.entries(STORAGES)) {
  test(`${name}: what is set is got, listed and removed`, async () => {
    const storage = made();
    const value = { text: "ä\n😀", numbers: [0.1, 1e300], nothing: null };
    assert.equal(await storage.get("a/1"), undefined);
    await storage.set("a/1", value);
    await storage.set("a/2", 2);
    await storage.set("b", "3");
    value.numbers.push(3); // what was set is a copy
    assert.deepEqual(await storage.get("a/1"), { ...value, numbers: [0.1, 1e300] });
    assert.deepEqual((await storage.keys("a/")).sort(), ["a/1", "a/2"]);
    await storage.remove("a/1");
    await storage.remove("a/1");
    assert.equal(await storage.get("a/1"), undefined);
    assert.deepEqual(await storage.keys("a/"), ["a/2"]);
    assert.equal(await storage.get("b"), "3");
  });
}

test("web storage keeps at once, and reads what is no JSON as nothing", () => {
  const area = new FakeArea();
  const storage = webStorage(/** @type {any} */ (area));
  void storage.set("key", [1]);
  assert.equal(area.getItem("key"), "[1]");
  area.setItem("key", "{half");
  assert.equal(storage.get("key"), undefined);
});

test("a forgiving storage swallows what is thrown and what is rejected", async () => {
  const fail = () => {
    throw new Error("full");
  };
  const reject = () => Promise.reject(new Error("full"));
  for (const failing of [fail, reject]) {
    const storage = forgiving({ get: failing, set: failing, remove: failing, keys: failing });
    assert.equal(await storage.get("a"), undefined);
    assert.deepEqual(await storage.keys("a"), []);
    await storage.set("a", 1);
    await storage.remove("a");
  }
});
