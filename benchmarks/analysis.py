"""Time of `fedping analyze` on a study of the size of 2018, warm, and of SciPy on the collected columns.

    python -m benchmarks.analysis [--json] [--pings 3674063] [--clients 306200] [--repeats 3]

The analysis has three pairs of arms and two metrics, by client and by ping. For comparison, on the same files: pyarrow
collects the columns into one process, drops duplicates, and SciPy computes the same six tests by ping (without effect
sizes, intervals or results by client). The p-values of both are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds
from scipy.stats import mannwhitneyu

from benchmarks.landing_data import ARMS, StudyTraffic, land_study
from fedping.analysis.study import METRICS, StudyTally, count_study
from fedping.analysis.verdict import Plan, Verdict, all_pairs, reach_verdict
from fedping.commands.analyze import SECOND_COMPILER
from fedping.protocol.study import Arm, Study
from fedping.server_jobs.spark.session import spark_session
from fedping.server_jobs.spark.settings import SparkSettings

STUDY = Study(name="firefox-2018", arms=tuple(Arm(name=name, share=share) for name, share in ARMS.items()))


@dataclass(frozen=True)
class Row:
    """A measurement.

    ``driver_rows`` is the number of rows that reached this process, ``peak_mib`` its peak memory up to then.
    """

    case: str
    pings: int
    seconds: float
    driver_rows: int
    peak_mib: float


def peak_mib() -> float:
    """Return the peak of this process's memory so far in MiB, without the JVM."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def driver_rows(tally: StudyTally) -> int:
    """Return the number of value counts in a tally."""
    metrics = [metric for arm in tally.arms.values() for metric in arm.metrics.values()]
    return sum(len(metric.pings.values) + len(metric.clients.values) for metric in metrics)


def measure_spark(landings: dict[int, Path], repeats: int) -> tuple[list[Row], Verdict]:
    """Measure the first analysis in a session, then warm ones; the smaller study comes first, for its peak memory."""
    rows: list[Row] = []
    with spark_session(SparkSettings(driver_java_options=SECOND_COMPILER)) as session:
        for pings, landing in sorted(landings.items()):
            times = []
            for _ in range(repeats + 1):
                began = time.perf_counter()
                tally = count_study(session, landing, STUDY, METRICS[:2])
                verdict = reach_verdict(STUDY, Plan(metrics=METRICS[:2], pairs=all_pairs(STUDY)), tally)
                times.append(time.perf_counter() - began)
            made = [
                (f"Spark, first of {repeats + 1}", times[0]),
                ("Spark, warm (median)", statistics.median(times[1:])),
            ]
            rows += [Row(case, pings, seconds, driver_rows(tally), peak_mib()) for case, seconds in made]
    return rows, verdict


def measure_scipy(landing: Path, pings: int) -> tuple[list[Row], dict[tuple[str, str, str], float]]:
    """Measure the collection of the columns and SciPy's six tests on them; return the p-values too."""
    began = time.perf_counter()
    names = ["document_id", "study_variation", "rank_selected", "num_chars_typed"]
    table = ds.dataset(landing).to_table(columns=names, filter=pc.field("rank_selected") >= 0)
    first = np.unique(np.asarray(table.column("document_id").to_pylist(), dtype="S16"), return_index=True)[1]
    table = table.take(first)
    arms = np.asarray(table.column("study_variation").to_pylist())
    collected = time.perf_counter()
    p = {}
    for metric in METRICS[:2]:
        values = table.column(metric.name).to_numpy()
        for a, b in combinations(ARMS, 2):
            p[metric.name, a, b] = float(mannwhitneyu(values[arms == a], values[arms == b], method="asymptotic").pvalue)
    tested = time.perf_counter()
    rows = [
        Row("pyarrow: collect, drop duplicates", pings, collected - began, table.num_rows, peak_mib()),
        Row("SciPy: six tests by ping", pings, tested - collected, table.num_rows, peak_mib()),
    ]
    return rows, p


def largest_difference(verdict: Verdict, p: dict[tuple[str, str, str], float]) -> float:
    """Return the largest difference between our log10 p by ping and SciPy's, where SciPy's p is above 0."""
    ours = {(one.metric.name, *one.pair): one.pings.test.log10_p for one in verdict.comparisons if one.pings}
    return max(abs(ours[key] - math.log10(theirs)) for key, theirs in p.items() if theirs > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pings", type=int, default=3_674_063)
    parser.add_argument("--clients", type=int, default=306_200)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        landings = {}
        for part in (10, 1):
            pings, clients = options.pings // part, options.clients // part
            landings[pings] = Path(name, str(part))
            traffic = StudyTraffic(pings=pings, clients=clients, effect={"treatment": 0.99}, line="none")
            # In a separate process, so that its memory doesn't count as the analysis'.
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                pool.submit(land_study, landings[pings], traffic, 1).result()
        rows, verdict = measure_spark(landings, options.repeats)
        plain, p = measure_scipy(landings[options.pings], options.pings)
    difference = largest_difference(verdict, p)
    if options.json:
        print(
            json.dumps({"rows": [asdict(row) for row in [*rows, *plain]], "log10_p_difference": difference}, indent=1)
        )
        return
    print(f"{'case':<36} {'pings':>10} {'seconds':>8} {'rows on the driver':>19} {'peak MiB':>9}")
    for row in [*rows, *plain]:
        print(f"{row.case:<36} {row.pings:>10,} {row.seconds:>8.2f} {row.driver_rows:>19,} {row.peak_mib:>9,.0f}")
    print(f"log10 p by ping: ours and SciPy's differ by at most {difference:.1e}")


if __name__ == "__main__":
    main()
