// @ts-check
/** The shared core computes what Python computes, to the last bit; see `docs/conformance/README.md`. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Sender } from "../delivery/sender.js";
import { checkParity, checkSharing, same } from "./parity.js";
import { VECTORS, fakeBrowser } from "./support.js";

test("every vector is computed to the last bit", () => {
  let compared = 0;
  for (const { name, got, expected } of checkParity(VECTORS)) {
    assert.deepEqual(got, expected, name);
    assert.ok(same(got, expected), name);
    compared += 1;
  }
  assert.ok(compared > 300);
});

test("every offer is judged, and every share is sealed, to the last byte", async () => {
  let compared = 0;
  for await (const { name, got, expected } of checkSharing(VECTORS)) {
    assert.deepEqual(got, expected, name);
    compared += 1;
  }
  assert.ok(compared > 50);
});

test("an answer to a ping means what it means everywhere", async () => {
  assert.ok(VECTORS.retry.answers.length > 0);
  for (const [status, retryAfter, delivery, seconds] of VECTORS.retry.answers) {
    const headers = retryAfter === null ? {} : { "Retry-After": retryAfter };
    const { environment } = fakeBrowser({ answer: () => new Response(null, { status, headers }) });
    const sender = new Sender({ address: "https://ingest.example/submit", mode: "cors", beacon: false, environment });
    const expected = delivery === "retry" ? { delivery, retryAfter: seconds } : { delivery };
    assert.deepEqual(await sender.send("id", "{}", false), expected, `${status}, Retry-After: ${retryAfter}`);
  }
});

test("the comparison sees a last bit, a sign of zero, and a missing number", () => {
  assert.ok(!same([0.1 + 0.2], [0.3]));
  assert.ok(!same([0], [-0]));
  assert.ok(!same([1, 2], [1]));
  assert.ok(!same({ a: [1] }, { a: [2] }));
  assert.ok(same({ a: [1, { b: null }] }, { a: [1, { b: null }] }));
});
