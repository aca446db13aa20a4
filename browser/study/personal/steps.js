// @ts-check
/**
 * Local steps of a personal model along a client's gradients. They only add, multiply, divide and compare, so that the
 * bits are the same as in Python (`client_sim/learning/descent.py`, `local_optimizers.py`).
 *
 * @typedef {object} Stepping
 * @property {number} rate
 * @property {number} [steps] The number of steps; 1 by default.
 * @property {number} [proximal] λ, which pulls the movement back towards 0.
 * @property {any} [optimizer] The optimizer; plain descent by default.
 *
 * @typedef {{ rate: number[], sign: number[] }} Memory RProp's state for each number: the size of its last step, and
 *   its sign.
 */

/** The maximum number of steps, as in the protocol. */
const MOST_STEPS = 1_000_000;

/** RProp's default settings. */
const RPROP = { alpha: 1.2, beta: 0.5, step: { start: 0.1, min: 1e-6, max: 50 }, keep: false };

/**
 * The reason why this client can't take such steps, in words that follow "its personal models"; null if it can.
 *
 * @param {any} stepping
 * @returns {string | null}
 */
export function steppingTrouble({ rate, steps = 1, proximal = 0, optimizer }) {
  const { optimizer: name = "gradient_descent" } = optimizer ?? {};
  if (name !== "gradient_descent" && name !== "rprop") {
    return `step by the optimizer '${name}', which this client does not have`;
  }
  const { alpha, beta, step } = settingsOf(optimizer);
  const numbers = [rate, proximal, alpha, beta, step.start, step.min, step.max];
  const counts = Number.isSafeInteger(steps) && steps >= 0 && steps <= MOST_STEPS;
  return counts && numbers.every((number) => Number.isFinite(number) && number >= 0)
    ? null
    : `have steps that this client cannot take: ${steps} of size ${rate}`;
}

/**
 * The optimizer's state between trainings; null for an optimizer without one.
 *
 * @param {Stepping} stepping
 * @param {number} count The number of trained numbers.
 * @returns {Memory | null}
 */
export function memoryOf({ optimizer }, count) {
  return optimizer?.optimizer === "rprop" && settingsOf(optimizer).keep ? begun(settingsOf(optimizer), count) : null;
}

/**
 * Take the steps of one training.
 *
 * @param {Stepping} stepping
 * @param {(moved: Float64Array) => ArrayLike<number>} descent Returns the direction of descent after a movement.
 * @param {Float64Array} moved The movement so far from the point that `proximal` pulls to.
 * @param {Memory | null} memory The state left by an earlier training.
 * @returns {{ moved: Float64Array, memory: Memory | null }} New values; the arguments stay unchanged.
 */
export function steps({ rate, steps: count = 1, proximal = 0, optimizer }, descent, moved, memory) {
  const rprop = optimizer?.optimizer === "rprop" ? settingsOf(optimizer) : null;
  const known = rprop && (memory === null ? begun(rprop, moved.length) : structuredClone(memory));
  const now = Float64Array.from(moved);
  for (let step = 0; step < count; step += 1) {
    const down = descent(now);
    for (let k = 0; k < now.length; k += 1) {
      if (known) {
        now[k] += rate * stepOf(rprop, known, k, proximal ? down[k] - proximal * now[k] : down[k]);
      } else {
        now[k] += rate * down[k];
        if (proximal) {
          now[k] /= 1 + rate * proximal;
        }
      }
    }
  }
  return { moved: now, memory: rprop?.keep ? known : null };
}

/**
 * @param {any} rprop
 * @param {Memory} memory The state, updated in place.
 * @param {number} k
 * @param {number} down
 */
function stepOf({ alpha, beta, step }, memory, k, down) {
  const sign = Math.sign(down) + 0;
  const agreement = sign * memory.sign[k];
  if (agreement !== 0) {
    memory.rate[k] = Math.min(Math.max(memory.rate[k] * (agreement > 0 ? alpha : beta), step.min), step.max);
  }
  memory.sign[k] = sign;
  return memory.rate[k] * sign;
}

/** @param {any} optimizer */
function settingsOf(optimizer) {
  return { ...RPROP, ...optimizer, step: { ...RPROP.step, ...optimizer?.step } };
}

/**
 * @param {any} rprop
 * @param {number} count
 * @returns {Memory}
 */
function begun({ step }, count) {
  return { rate: Array(count).fill(step.start), sign: Array(count).fill(0) };
}
