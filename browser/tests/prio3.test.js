// @ts-check
/** Proofs that a vector is of bits: what the VDAF draft's own cases make, and what its field is. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fromHex, toHex } from "../study/bytes.js";
import { P, add, mul, otherValues, power, sub } from "../study/sharing/field.js";
import { RAND_BYTES, shard, shortest } from "../study/sharing/prio3.js";
import { seeded } from "./support.js";

const FILE = "../../tests/protocol/vectors/draft-irtf-cfrg-vdaf-18.Prio3SumVecWithMultiproof_0.json";
const DRAFT = JSON.parse(readFileSync(new URL(FILE, import.meta.url), "utf8"));

test("shares and proofs are those of the draft, to the last byte", () => {
  const bits = Math.log2(DRAFT.max_measurement + 1);
  const circuit = { length: bits * DRAFT.length, chunk: DRAFT.chunk_length, proofs: 3 };
  assert.ok(DRAFT.reports.length > 0);
  for (const { measurement, nonce, rand, input_shares: expected, public_share: both } of DRAFT.reports) {
    const given = measurement.flatMap((/** @type {number} */ number) => Array.from({ length: bits }, (_, bit) => (number >> bit) & 1));
    const made = shard(circuit, given, fromHex(nonce), fromHex(rand), fromHex(DRAFT.ctx));
    assert.deepEqual([toHex(made.leader), toHex(made.helper)], expected);
    assert.equal(toHex(made.public), both);
  }
});

test("another context, nonce or vector makes other shares, of the same length", () => {
  const circuit = shortest(52);
  assert.deepEqual(circuit, { length: 52, chunk: 8, proofs: 3 });
  const draw = seeded(3);
  const [nonce, rand] = [draw.bytes(16), draw.bytes(RAND_BYTES)];
  const bits = Array.from({ length: 52 }, () => draw.whole(0, 1));
  const flipped = [1 - bits[0], ...bits.slice(1)];
  const made = [
    shard(circuit, bits, nonce, rand, new Uint8Array(0)),
    shard(circuit, bits, nonce, rand, Uint8Array.of(1)),
    shard(circuit, bits, draw.bytes(16), rand, new Uint8Array(0)),
    shard(circuit, flipped, nonce, rand, new Uint8Array(0)),
  ];
  assert.equal(new Set(made.map(({ leader }) => toHex(leader))).size, 4);
  assert.equal(new Set(made.map((each) => toHex(each.public))).size, 4);
  assert.deepEqual(new Set(made.map(({ leader }) => leader.length)), new Set([8 * (52 + 3 * (16 + 15)) + 32]));
});

test("the field is one, at its edges too", () => {
  const edges = [0n, 1n, 2n, 2n ** 32n - 1n, 2n ** 32n, P - 2n, P - 1n];
  for (const a of edges) {
    for (const b of edges) {
      assert.equal(sub(add(a, b), b), a);
      assert.equal(add(a, b), (a + b) % P);
      assert.equal(mul(a, b), (a * b) % P);
    }
    assert.equal(a === 0n ? 1n : mul(a, power(a, P - 2n)), 1n);
  }
});

test("a polynomial is followed between the points that it is given by", () => {
  const draw = seeded(5);
  const root = (/** @type {bigint} */ order) => power(power(7n, 2n ** 32n - 1n), 2n ** 32n / order);
  for (const n of [1, 2, 4, 8, 16]) {
    const coefficients = Array.from({ length: n }, () => BigInt(draw.whole(0, 2 ** 32)) ** 2n % P);
    const at = (/** @type {bigint} */ point) => coefficients.reduceRight((sum, each) => add(mul(sum, point), each), 0n);
    const omega = root(BigInt(2 * n));
    const values = Array.from({ length: 2 * n }, (_, k) => at(power(omega, BigInt(k))));
    assert.deepEqual(otherValues(values.filter((_, k) => k % 2 === 0)), values.filter((_, k) => k % 2 === 1));
  }
});
