"""Rounds with hostile clients, in memory and over files, and the numbers that such clients send."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedping.experiments.laboratory.rounds import Rounds, ServerRounds, Updates
from fedping.experiments.laboratory.rounds.study import study_of
from fedping.experiments.laboratory.rounds.updates import repetitions
from fedping.protocol.pipeline import GradientDescent
from fedping.protocol.study import Study
from fedping.server_jobs.round import Engine
from tests.support.laboratory_rounds import file_rounds
from tests.support.rounds import line_of

M, CLIENTS = 5, 300
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)

Spoil = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Function from clients, shape (k,), and their updates, shape (k, m), to the sent updates."""


def ids() -> np.ndarray:
    """Return each client's id, shape (CLIENTS, 16)."""
    return np.random.default_rng(7).integers(0, 256, (CLIENTS, 16), dtype=np.uint8)


def study_with(m: int = M, **pipeline: Any) -> Study:
    """Return a study of one line that starts at zero weights, with these pipeline settings."""
    settings = {"optimizer": GradientDescent(rate=0.5), "min_clients": 1, **pipeline}
    line = line_of(m, **settings)
    return study_of(line)


def untouched(clients: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """Return the updates unchanged, as honest clients send them."""
    return updates


def by_clients(share: float, sent: Any) -> Spoil:
    """Let this share of the clients send ``sent``: one number, or one for each weight."""

    def spoil(clients: np.ndarray, updates: np.ndarray) -> np.ndarray:
        return np.where(clients[:, None] < share * CLIENTS, np.float32(sent), updates)

    return spoil


def cohort(
    number: int, weights: np.ndarray, spoil: Spoil = untouched, pings: int = 200, block: int = 64
) -> Iterator[Updates]:
    """Yield noisy updates that pull the weights to 1; some clients send twice, some have no examples."""
    random = np.random.default_rng(number)
    clients = np.sort(random.integers(0, CLIENTS, pings))
    repeats, of_client = repetitions(clients)
    examples = random.integers(0, 20, CLIENTS)[clients]
    pulled = spoil(clients, ((1 - weights) + random.normal(size=(pings, len(weights)))).astype(np.float32))
    updates = np.where(examples[:, None] > 0, pulled, np.float32(0))
    for low in range(0, pings, block):
        at = slice(low, low + block)
        losses = np.where(examples[at] > 0, 0.5, 0.0)
        yield Updates(clients[at], repeats[at], of_client[at], updates[at], losses, examples[at])


def play(rounds: Rounds, count: int = 3, spoil: Spoil = untouched, **more: int) -> list[bytes]:
    """Run some rounds; return the weights after each."""
    played = []
    for number in range(count):
        rounds.run(cohort(number, rounds.weights, spoil, **more))
        played.append(rounds.weights.tobytes())
    return played


def through_files(folder: Path, study: Study, engine: Engine) -> ServerRounds:
    """Return rounds over files, in a new folder."""
    folder.mkdir()
    return file_rounds(folder, study, engine, ids())


EXTREME = [0.0, -0.0, 1.0, -1.0, 1e30, -1e30, LARGEST, -LARGEST, SMALLEST, -SMALLEST, 1e-38, 3.5e-20]


def float32s() -> st.SearchStrategy[float]:
    """Return numbers as a client may send them."""
    return (
        st.sampled_from(EXTREME)
        | st.floats(-10, 10, width=32)
        | st.floats(width=32, allow_nan=False, allow_infinity=False)
    )


def updates_and_votes(most: int = 12, m: int = 3) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    """Return some updates, shape (k, m), and their votes, shape (k,)."""

    def of(k: int) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
        votes = st.sampled_from([1.0, 1.0, 0.5, 1 / 3, 1 / 40, 3.0])
        return st.tuples(arrays(np.float32, (k, m), elements=float32s()), arrays(np.float64, k, elements=votes))

    return st.integers(1, most).flatmap(of)
