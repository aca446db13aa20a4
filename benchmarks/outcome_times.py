"""Time of a verdict for each additional outcome, relative to an existing metric, for millions of clients.

    python -m benchmarks.outcome_times [--clients 5000000] [--repeats 2]

Each client of two arms has one list; a tenth of the clients have a later outcome. Times are for counting and for the
verdict, warm.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedping.analysis.study import METRICS, Means, Metric, count_study, metric_named, ratio_named
from fedping.analysis.verdict import Plan, all_pairs, reach_verdict
from fedping.commands.analyze import SECOND_COMPILER
from fedping.protocol.landed_table import id_column, landed_table
from fedping.protocol.landing import outcome_folder, partition, write_landed
from fedping.protocol.outcomes import CountOutcome, FlagOutcome, NumberOutcome
from fedping.protocol.study import Arm, Study
from fedping.server_jobs.spark.session import spark_session
from fedping.server_jobs.spark.settings import SparkSettings

HOUR = 3_600_000
START = 1_790_000_000_000 // HOUR * HOUR
ROWS = 500_000
STUDY = Study(
    name="shop",
    pings="list-update",
    arms=tuple(Arm(name=name, share=0.5) for name in ("treatment", "control")),
    outcomes=(
        FlagOutcome(name="basket"),
        CountOutcome(name="opened", most=20),
        NumberOutcome(name="paid", low=0.0, high=500.0, round=0.01, within="48h"),
    ),
)


def land(folder: Path, clients: int) -> None:
    """Land the lists and later outcomes."""
    assert STUDY.later_outcomes is not None
    rng = np.random.default_rng(1)
    for begun in range(0, clients, ROWS):
        n = min(ROWS, clients - begun)
        ids = rng.integers(0, 256, (n, 16), dtype=np.uint8)
        own = {
            "loss": pa.array(rng.gamma(2, 1, n)),
            "place": pa.array(rng.geometric(0.4, n).clip(1, 20)),
            "candidates": pa.array(np.full(n, 20)),
            "basket": pa.array(rng.random(n) < 0.2),
            "opened": pa.array(rng.poisson(2, n).clip(0, 20)),
        }
        table = landed_table(STUDY.document, {**_columns(rng, ids, 0), **own}, None)
        write_landed(partition(folder, "shop", None, 1), table, START, token=f"{begun}")
        amounts = pa.array(np.round(rng.lognormal(3, 1, n // 10).clip(0, 500), 2))
        later = {"age": pa.array(np.ones(n // 10, np.int32)), "paid": amounts}
        table = landed_table(STUDY.later_outcomes, {**_columns(rng, ids[: n // 10], 24), **later}, None)
        write_landed(outcome_folder(folder, "shop", "2026-09-21"), table, START, token=f"{begun}")


def _columns(rng: np.random.Generator, ids: np.ndarray, hours: int) -> dict[str, pa.Array]:
    n = len(ids)
    received = START + rng.integers(hours * HOUR, (hours + 20) * HOUR, n)
    received[0] += 4 * hours * HOUR  # so that all clients are ripe
    arms = np.where(np.arange(n) % 2, "treatment", "control").tolist()
    return {
        "document_id": id_column(rng.integers(0, 256, (n, 16), dtype=np.uint8)),
        "client_id": id_column(ids),
        "received_at": pa.array(received),
        "model_version": pa.array(np.ones(n, np.int32)),
        "study_variation": pa.array(arms).dictionary_encode(),
    }


def seconds(session: object, landing: Path, metrics: Sequence[Metric], means: Means, repeats: int) -> float:
    """Return the median seconds of counting and reaching the verdict."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        plan = Plan(metrics=tuple(metrics), pairs=all_pairs(STUDY), means=means)
        reach_verdict(STUDY, plan, count_study(session, landing, STUDY, plan.metrics, means=means))  # type: ignore[arg-type]
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    loss, place, opened, basket, paid = (
        metric_named(name, STUDY) for name in ("loss", "place", "opened", "basket", "paid")
    )
    ratio = Means(ratios=(ratio_named("opened/choices", STUDY),))
    cases = {
        "one metric (place)": ((place,), Means()),
        "and the loss": ((place, loss), Means()),
        "and a count": ((place, opened), Means()),
        "and a count and a flag": ((place, opened, basket), Means()),
        "and a count, capped": ((place, opened), Means(cap=0.99)),
        "and a ratio": ((place, opened), ratio),
        "and a later outcome": ((place, paid), Means()),
    }
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        land(Path(name), given.clients)
        with spark_session(SparkSettings(driver_java_options=SECOND_COMPILER)) as session:
            seconds(session, Path(name), METRICS[2:], Means(), 1)  # warms up
            base = 0.0
            for case, (metrics, means) in cases.items():
                took = seconds(session, Path(name), metrics, means, given.repeats)
                base = base or took
                print(f"{case:<28} {took:>7.1f} s  {took - base:>+7.1f} s  {took / base:>5.2f}", flush=True)


if __name__ == "__main__":
    main()
