// @ts-check
/** The packed folder is whole: what is asked for is in it, nothing comes from elsewhere, and it is the same every time. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, relative, resolve } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

const PACK = fileURLToPath(new URL("../extension/pack.py", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "fedping-extension-"));
const out = join(folder, "extension");

/** @param {string} ending */
const files = (ending) =>
  readdirSync(out, { recursive: true })
    .map(String)
    .filter((name) => name.endsWith(ending))
    .map((name) => join(out, name));
const text = (/** @type {string} */ path) => readFileSync(path, "utf8");
const pack = (/** @type {string} */ to) => spawnSync("python3", [PACK, to], { encoding: "utf8" });

before(() => {
  const run = pack(out);
  assert.equal(run.status, 0, run.stderr);
});
after(() => rmSync(folder, { recursive: true }));

test("every import is of a file in the folder", () => {
  const scripts = files(".js");
  assert.ok(scripts.length > 30);
  for (const script of scripts) {
    for (const [, from] of text(script).matchAll(/^(?:import|export)\b[^;]*?\bfrom "([^"]+)";/gms)) {
      const path = resolve(dirname(script), from);
      assert.ok(from.startsWith(".") && existsSync(path), `${script}: ${from}`);
      assert.ok(!relative(out, path).startsWith(".."), `${script}: ${from}`);
    }
  }
});

test("every file that the manifest and the pages name is in the folder, and nothing is inline or from elsewhere", () => {
  const manifest = JSON.parse(text(join(out, "manifest.json")));
  const { background, options_ui: options, icons } = manifest;
  const named = [background.service_worker, ...background.scripts, options.page, ...Object.values(icons)];
  named.forEach((name) => assert.ok(existsSync(join(out, name)), name));
  for (const page of files(".html")) {
    const html = text(page);
    for (const [, path] of html.matchAll(/(?:src|href)="([^"]+)"/g)) {
      assert.ok(existsSync(resolve(dirname(page), path)), `${page}: ${path}`);
    }
    assert.ok(
      ![...html.matchAll(/<script([^>]*)>(.*?)<\/script>/gs)].some(
        ([, given, body]) => !given.includes("src=") || body,
      ),
    );
    assert.ok(!/<style|\sstyle=|\son[a-z]+=|https?:\/\/(?!telemetry\.example\.org)/.test(html), page);
  }
  for (const style of files(".css")) {
    assert.ok(!/url\(|@import/.test(text(style)), style);
  }
  const policy = manifest.content_security_policy.extension_pages;
  assert.ok(
    policy.includes("default-src 'none'") && policy.includes("script-src 'self';") && !policy.includes("unsafe"),
  );
  assert.equal(manifest.incognito, "not_allowed");
  assert.ok(!manifest.host_permissions);
});

test("packing again gives the same bytes, and the stores' zips are for one browser each", () => {
  const zips = () =>
    readdirSync(folder)
      .filter((name) => name.endsWith(".zip"))
      .sort();
  assert.equal(zips().length, 3);
  const first = zips().map((name) => readFileSync(join(folder, name)));
  assert.equal(pack(out).status, 0);
  assert.deepEqual(
    zips().map((name) => readFileSync(join(folder, name))),
    first,
  );
  const script = "import sys, zipfile; print(zipfile.ZipFile(sys.argv[1]).read('manifest.json').decode())";
  const [chromium, firefox] = zips().map((name) =>
    JSON.parse(spawnSync("python3", ["-c", script, join(folder, name)], { encoding: "utf8" }).stdout),
  );
  assert.deepEqual(
    [Object.keys(chromium.background), Object.keys(firefox.background)],
    [
      ["service_worker", "type"],
      ["scripts", "type"],
    ],
  );
  assert.ok(
    !chromium.browser_specific_settings && firefox.browser_specific_settings.gecko.id === "fedping@fedping.example",
  );
  assert.ok(!chromium.key && !firefox.key);
});

test("a folder with other things in it is not written over", () => {
  const other = join(folder, "other");
  mkdirSync(other);
  writeFileSync(join(other, "letter.txt"), "dear");
  const run = pack(other);
  assert.equal(run.status, 1);
  assert.match(run.stderr, /is not a folder that this made/);
  assert.equal(text(join(other, "letter.txt")), "dear");
});
