"""SCAFFOLD as in the paper (Karimireddy et al. 2020, algorithm 1, option II), with NumPy and a loop over clients."""

# mypy: ignore-errors
from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import work

task = work.task_from_arguments()
now = work.clock_of(task)

all_x, all_y = (np.array(values) for values in work.load_data(task.data))
# --- what a user writes (and the model's gradients, in work.py)
x = work.start_weights(task.model)
c = [np.zeros_like(w) for w in x]
own = [[np.zeros_like(w) for w in x] for _ in range(task.clients)]


def one_round() -> None:
    """Train every client, and add the means to weights and control variate."""
    global x, c
    moves, changes = [np.zeros_like(w) for w in x], [np.zeros_like(w) for w in x]
    for i in range(task.clients):
        y = [w.copy() for w in x]
        for _ in range(task.steps):
            gradients = work.gradients_of(task.model)(y, all_x[i], all_y[i])
            for w, g, c_i, c_all in zip(y, gradients, own[i], c, strict=True):
                w -= work.RATE * (g - c_i + c_all)
        for j in range(len(x)):
            new = own[i][j] - c[j] + (x[j] - y[j]) / (task.steps * work.RATE)
            moves[j] += (y[j] - x[j]) / task.clients
            changes[j] += (new - own[i][j]) / task.clients
            own[i][j] = new
    x = [w + move for w, move in zip(x, moves, strict=True)]
    c = [w + change for w, change in zip(c, changes, strict=True)]


# --- to here (and the calls of one_round below)
seconds = []
for number in range(task.rounds):
    begin = now()
    one_round()
    seconds.append(now() - begin)
    work.keep_weights_of_round(task, number + 1, x)
digest, norm = work.digest_of_weights(x)
work.report(work.Measured(seconds[1:], 0.0, digest, norm))
