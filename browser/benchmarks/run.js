// @ts-check
/** `node browser/benchmarks/run.js`: print the figures of `measure.js` in Node. */

import { measure } from "./measure.js";

for (const [name, figures] of Object.entries(measure(200))) {
  const told = Object.entries(figures).map(([which, figure]) => `${which} ${figure.toFixed(2).padStart(7)} ms`);
  console.log(name.padEnd(20), told.join("   "));
}
