// @ts-check
/** The hash is SHA-256, and arms get their shares. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { enrol, position } from "../fedping.js";
import { uuid } from "../delivery/environment.js";
import { sha256 } from "../study/sha256.js";
import { fakeBrowser, seeded } from "./support.js";

test("it is SHA-256 for texts of every length and alphabet", () => {
  const draw = seeded(4);
  const letters = ["a", "\n", "\0", "é", "語", "😀"];
  for (let length = 0; length < 300; length += 1) {
    const text = Array.from({ length }, () => letters[draw.whole(0, letters.length - 1)]).join("");
    const hex = Array.from(sha256(text), (word) => word.toString(16).padStart(8, "0")).join("");
    assert.equal(hex, createHash("sha256").update(text).digest("hex"));
  }
});

test("arms get their shares, and the remainder is not enrolled", () => {
  const { environment } = fakeBrowser({ seed: 11 });
  const arms = [0.5, 0.2, 0.1].map((share, i) => ({
    ...{ name: `arm${i}`, share, line: null },
    ...{ applies: false, submits: false, decays: false },
  }));
  const study = { name: "shares", pings: "frecency-update", arms, lines: [] };
  const clients = Array.from({ length: 20_000 }, () => uuid(environment));
  const counts = new Map();
  for (const client of clients) {
    const name = enrol(study, client)?.name ?? "none";
    counts.set(name, (counts.get(name) ?? 0) + 1);
    assert.ok(position("shares", client) >= 0 && position("shares", client) < 1);
  }
  const expected = { arm0: 0.5, arm1: 0.2, arm2: 0.1, none: 0.2 };
  for (const [name, share] of Object.entries(expected)) {
    const deviation = Math.sqrt(share * (1 - share) * clients.length); // four of them: 1 in 15,000 seeds
    assert.ok(Math.abs(counts.get(name) - share * clients.length) < 4 * deviation, `${name}: ${counts.get(name)}`);
  }
});

test("a UUID is one of version 4, and differs from the next", () => {
  const { environment } = fakeBrowser();
  const drawn = Array.from({ length: 500 }, () => uuid(environment));
  drawn.forEach((id) => assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/));
  assert.equal(new Set(drawn).size, drawn.length);
});
