"""The work with JAX: `vmap` over the clients, `grad` of a client's loss, and `jit` of a whole round.

Other ways use `jit` for 20 rounds, or for sums over chunks of clients whose updates fit in a processor's cache.
"""

# mypy: ignore-errors
from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import jax
import jax.numpy as jnp
import numpy as np
import work

task = work.task_from_arguments()
clock = work.clock_of(task)  # before JAX starts, at its first array


# --- what a user writes
def loss(weights, x, y):
    if task.model == "ranking":
        scores = x @ weights[0]
        chosen = jnp.take_along_axis(scores, y[:, None], axis=1)
        over = jax.nn.relu(scores + work.MARGIN - chosen)
        return (over.sum() - work.MARGIN * len(y)) / len(y)  # the hinge of the chosen item itself is always the margin
    if task.model == "logistic":
        z = x @ weights[0] + weights[1]
        return (jnp.logaddexp(0.0, z) - y * z).mean()
    w1, b1, w2, b2 = weights
    scores = jax.nn.relu(x @ w1 + b1) @ w2 + b2
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], axis=1).mean()


def train(weights, x, y):
    local = weights
    for _ in range(task.steps):
        gradients = jax.grad(loss)(local, x, y)
        local = jax.tree.map(lambda w, g: w - work.RATE * g, local, gradients)
    return local


def one_round(weights, x, y):
    trained = jax.vmap(train, in_axes=(None, 0, 0))(weights, x, y)
    return jax.tree.map(lambda w: w.mean(axis=0), trained)


def chunked_round(weights, x, y):
    def add(total, chunk):
        trained = jax.vmap(train, in_axes=(None, 0, 0))(weights, *chunk)
        return jax.tree.map(lambda t, w: t + w.sum(axis=0), total, trained), None

    chunks = jax.tree.map(lambda a: a.reshape(-1, CHUNK, *a.shape[1:]), (x, y))
    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, weights), chunks)
    return jax.tree.map(lambda w: w / len(x), total)


def many_rounds(weights, x, y):
    return jax.lax.fori_loop(0, AT_ONCE, lambda _, w: one_round(w, x, y), weights)


AT_ONCE, CHUNK = 20, 10
call = jax.jit({"round": one_round, "chunk": chunked_round, "scan": many_rounds}[task.way])
rounds_a_call = AT_ONCE if task.way == "scan" else 1
x, y = (jnp.asarray(np.array(values)) for values in work.load_data(task.data))
weights = [jnp.asarray(w, dtype=jnp.float32) for w in work.start_weights(task.model)]
# --- to here (and the calls of it below)

seconds = []
for _ in range(-(-task.rounds // rounds_a_call) + (rounds_a_call > 1)):
    begin = clock()
    weights = jax.block_until_ready(call(weights, x, y))
    seconds.append((clock() - begin) / rounds_a_call)
digest, norm = work.digest_of_weights(weights)
work.report(work.Measured(seconds[1:], 0.0, digest, norm))
