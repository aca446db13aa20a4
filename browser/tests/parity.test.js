// @ts-check
/** The shared core computes what Python computes, to the last bit; see `tests/browser/vectors.py`. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { checkParity, same } from "./parity.js";
import { VECTORS } from "./support.js";

test("every vector is computed to the last bit", () => {
  let compared = 0;
  for (const { name, got, expected } of checkParity(VECTORS)) {
    assert.deepEqual(got, expected, name);
    assert.ok(same(got, expected), name);
    compared += 1;
  }
  assert.ok(compared > 300);
});

test("the comparison sees a last bit, a sign of zero, and a missing number", () => {
  assert.ok(!same([0.1 + 0.2], [0.3]));
  assert.ok(!same([0], [-0]));
  assert.ok(!same([1, 2], [1]));
  assert.ok(!same({ a: [1] }, { a: [2] }));
  assert.ok(same({ a: [1, { b: null }] }, { a: [1, { b: null }] }));
});
