// @ts-check
/**
 * `node browser/benchmarks/uploads.js [weights]`: measures encoding an update by each link: minimum and median
 * milliseconds, and the bytes of base64. The default is 1,000,000 weights.
 */

import { sentUpdate } from "../study/upload.js";

const RUNS = 15;
const WARM_UP = 3;
const LINKS = {
  none: [],
  float32: [{ link: "float32" }],
  signs: [{ link: "signs", zero: "abstain" }],
  "signs up": [{ link: "signs", zero: "up" }],
  "mask .01": [{ link: "mask", keep: 0.01 }],
  "mask .1, levels 4": [{ link: "mask", keep: 0.1 }, { link: "levels", bits: 4 }],
  "levels 1": [{ link: "levels", bits: 1 }],
  "levels 4": [{ link: "levels", bits: 4 }],
  "levels 1, rotated": [{ link: "levels", bits: 1, rotate: true }],
  steps: [{ link: "steps", size: 1 }],
  "rotation, steps": [{ link: "rotation", seed: 1 }, { link: "steps", size: 1 }],
};

const weights = Number(process.argv[2] ?? 1_000_000);
const update = Array.from({ length: weights }, (_, k) => Math.sin(k * k) ** 9);

for (const [name, upload] of Object.entries(LINKS)) {
  /** @type {any} */
  let sent = null;
  const times = Array.from({ length: RUNS }, () => {
    const begin = performance.now();
    sent = sentUpdate(upload, update);
    return performance.now() - begin;
  });
  const sorted = times.slice(WARM_UP).sort((a, b) => a - b);
  const told = [sorted[0], sorted[sorted.length >> 1]].map((time) => `${time.toFixed(2).padStart(8)} ms`);
  const bytes = Array.isArray(sent) ? JSON.stringify(sent).length : sent.payload.length;
  console.log(name.padEnd(20), ...told, bytes.toLocaleString("en").padStart(12), "bytes");
}
