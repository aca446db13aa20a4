"""Robust aggregations in fedping, Flower and ByzFL, on the same updates: `python -m benchmarks.peers.robust`.

    python -m benchmarks.peers.robust [--clients 200] [--weights 22] [--python Flower=BINARY] [--python ByzFL=BINARY]

The libraries' own functions run in their environments (`benchmarks.peers.environments`), or in those of ``--python``. A
tenth of the clients sends values a million times as large, so only a robust result is near the honest mean. Printed are
the CPU milliseconds (the minimum of five) and the largest difference of any weight from ours, relative to the largest
weight of the result; the exit code is 1 if a difference is above 1e-6.

ByzFL's Krum counts one neighbour more than the paper's, which equals ours with one hostile client less. Its geometric
median takes three steps from 0 by default; it is compared with three and with a thousand steps.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.environments import PEERS, Peer, python_of
from fedping.protocol.pipeline import CenteredClip, GeometricMedian, Krum
from fedping.server_jobs.round.clipping import norms_of, shortened
from fedping.server_jobs.round.robust import (
    centered_clip_of,
    geometric_median_of,
    krum_of,
    median_of,
    trimmed_mean_of,
)

WORKER = "robust_worker.py"
LIBRARIES = (PEERS[0], Peer("ByzFL", ("byzfl==0.0.11",), WORKER))

SHORTER = "geometric median, as it comes"
"""Name of a result that is reported but need not agree."""

RADIUS = 2.0


def ours(updates: NDArray[np.float32], hostile: int) -> dict[str, Callable[[], NDArray[np.float64]]]:
    """Return our aggregation rules by name, for a number of hostile updates."""
    n = len(updates)
    votes = np.full(n, 1 / n)

    def krum(hostile: int, keep: int) -> NDArray[np.float64]:
        return krum_of(updates, votes, Krum(hostile=hostile / n, keep=keep))

    return {
        "clipped mean": lambda: shortened(updates, norms_of(updates), RADIUS).astype(np.float64).mean(axis=0),
        "median": lambda: median_of(updates, votes),
        "trimmed mean": lambda: trimmed_mean_of(updates, votes, hostile / n),
        "geometric median": lambda: geometric_median_of(updates, votes, GeometricMedian(iterations=1000)),
        "centered clip": lambda: centered_clip_of(
            updates, votes, np.zeros(updates.shape[1]), CenteredClip(radius=RADIUS)
        ),
        "Krum": lambda: krum(hostile, 1),
        "multi-Krum": lambda: krum(hostile, n - hostile),
        "Krum, a neighbour more": lambda: krum(hostile - 1, 1),
        "multi-Krum, a neighbour more": lambda: krum(hostile - 1, n - hostile),
    }


def timed(way: Callable[[], NDArray[np.float64]]) -> tuple[NDArray[np.float64], float]:
    """Return a rule's result and its time in milliseconds."""
    taken = []
    for _ in range(5):
        began = time.process_time()
        found = way()
        taken.append(time.process_time() - began)
    return found, 1000 * min(taken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--weights", type=int, default=22)
    parser.add_argument("--python", action="append", default=[], help="a library's interpreter: Flower=BINARY")
    options = parser.parse_args()
    pythons = dict(each.split("=", 1) for each in options.python)
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(options.clients, options.weights)).astype(np.float32)
    hostile = options.clients // 10
    updates[:hostile] *= -1e6
    mine = {name: timed(way) for name, way in ours(updates, hostile).items()}
    for name, (_, milliseconds) in mine.items():
        print(f"fedping, {name}: {milliseconds:.2f} ms")
    worst = 0.0
    for peer in LIBRARIES:
        with tempfile.TemporaryDirectory() as folder:
            sent, found = Path(folder) / "updates.npy", Path(folder) / "found.npz"
            np.save(sent, updates)
            python = pythons.get(peer.name) or python_of(peer)
            worker = Path(__file__).parent / WORKER
            subprocess.run([python, worker, peer.name, sent, found, str(hostile)], check=True)
            with np.load(found) as theirs:
                for name in theirs["names"]:
                    result = mine["geometric median" if name == SHORTER else name][0]
                    apart = float(np.abs(result - theirs[name]).max() / np.abs(result).max())
                    print(f"{peer.name}, {name}: {theirs[f'{name} ms']:.2f} ms, {apart:.1e} from ours")
                    worst = worst if name == SHORTER else max(worst, apart)
    return int(worst > 1e-6)


if __name__ == "__main__":
    sys.exit(main())
