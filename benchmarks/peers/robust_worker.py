"""Runs a library's robust aggregations on a file of updates, for `benchmarks.peers.robust`."""

# mypy: ignore-errors
from __future__ import annotations

import sys
import time

import numpy as np

RADIUS = 2.0


def byzfl_ways(updates, hostile):
    """Return ByzFL's aggregation rules by name."""
    import byzfl

    return {
        "clipped mean": lambda: byzfl.Clipping(RADIUS)(updates.copy()).mean(axis=0),
        "median": lambda: byzfl.Median()(updates),
        "trimmed mean": lambda: byzfl.TrMean(hostile)(updates),
        "geometric median": lambda: byzfl.GeometricMedian(nu=1e-6, T=1000)(updates),
        "geometric median, as it comes": lambda: byzfl.GeometricMedian()(updates),
        "centered clip": lambda: byzfl.CenteredClipping(L=3, tau=RADIUS)(updates),
        "Krum, a neighbour more": lambda: byzfl.Krum(hostile)(updates),
        "multi-Krum, a neighbour more": lambda: byzfl.MultiKrum(hostile)(updates),
    }


def flower_ways(updates, hostile):
    """Return Flower's aggregation rules by name."""
    from flwr.server.strategy.aggregate import aggregate_krum, aggregate_median, aggregate_trimmed_avg

    results = [([each], 1) for each in updates]
    return {
        "median": lambda: aggregate_median(results)[0],
        "trimmed mean": lambda: aggregate_trimmed_avg(results, hostile / len(results))[0],
        "Krum": lambda: aggregate_krum(results, hostile, 0)[0],
        "multi-Krum": lambda: aggregate_krum(results, hostile, len(results) - hostile)[0],
    }


def main(library, sent, found, hostile):
    """Write each rule's result, and its minimum time of five, to a file."""
    ways = {"ByzFL": byzfl_ways, "Flower": flower_ways}[library](np.load(sent).astype(np.float64), int(hostile))
    told = {"names": list(ways)}
    for name, way in ways.items():
        taken = []
        for _ in range(5):
            began = time.process_time()
            told[name] = way()
            taken.append(time.process_time() - began)
        told[f"{name} ms"] = 1000 * min(taken)
    np.savez(found, **told)


if __name__ == "__main__":
    main(*sys.argv[1:])
