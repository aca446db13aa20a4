"""Measures the computation of a round's aggregate, and other ways to compute it, on the same landed pings.

    python -m benchmarks.aggregation [--json] [--pings 1000000 --pings 5700000] [--repeats 5] [--seed 1] [--keep FOLDER]

- `spark`: the round's engine in a warm session: one vote per client, counts by reason, moments, losses by arm.
- `numpy`: the same computation in this process, in one thread.
- `spark, clipped` and `numpy, clipped`: both with the clip of new studies, in any round but the first, and with all
  figures of the clients' influence, new clients included; `numpy, first clipped` is the first round, which reads its
  updates twice.
- `pyarrow + NumPy alone`: drop duplicates, filter the arm, and average over pings; in memory, on all cores.
- `avg(update[i])`: Spark SQL on a copy with the updates as lists, in a second session with both JIT compilers (the
  round's session starts with the first only, which would slow it); without and with duplicates dropped, next to the
  round's engine on that session.

Variants in one session take turns, after one turn to warm up; the median counts. The means are compared, and the run
stops if they differ. Then follow the cost by the length of the update at 2,000 pings, and whole rounds of 50,000 pings.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.landing_data import Traffic, land
from fedping.model_store.store import open_store
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.pipeline import Clip, ClipByQuantile, Pipeline, Weighting
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, Study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import Engine, RoundOptions, run_round
from fedping.server_jobs.round.aggregate import RoundAggregate, combined
from fedping.server_jobs.round.clipping import first_bound
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.plan import Rules, Work, rules_for
from fedping.server_jobs.round.spark_engine import SparkEngine
from fedping.server_jobs.spark.session import spark_session
from fedping.server_jobs.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TRAINED = "treatment"
M = 22
LENGTHS = (22, 1_000, 10_000, 100_000)
PINGS_A_LENGTH = 2_000
ROUND_PINGS = 50_000
WHEN = "2026-01-01T00:00:00Z"
PINGS_A_CLIENT = 16


@dataclass(frozen=True)
class Row:
    """A measurement: median and fastest repeat in seconds, and the driver's peak memory in MB above idle."""

    what: str
    pings: int
    m: int
    seconds: float
    fastest: float
    driver_mb: float | None = None


def study_of(m: int, weighting: Weighting = "client", clip: Clip | None = None) -> Study:
    step = Step(start=1, min=0.1, max=3)
    spec = ModelSpec(
        name="benchmark", model="linear-15", weights=tuple(Weight(name=f"w{i}", start=0, step=step) for i in range(m))
    )
    arms = (
        Arm(name=TRAINED, share=0.8, line="main", applies=True, submits=True),
        Arm(name="control", share=0.2, line="main"),
    )
    pipeline = Pipeline(weighting=weighting, clip=clip)
    return Study(name="benchmark", arms=arms, lines=(Line(name="main", spec=spec, pipeline=pipeline),))


def landed(where: Path, pings: int, m: int, seed: int, rows_per_file: int = 100_000) -> list[str]:
    """Return the landed files of a case; create them unless an earlier run with --keep did."""
    folder = partition(where / f"landing-{pings}-{m}-{seed}", "benchmark", "main", 0)
    if not folder.is_dir():
        land(folder, Traffic(pings=pings, clients=max(1, pings // PINGS_A_CLIENT), m=m), seed, rows_per_file)
    return [str(path) for path in landed_files(folder)]


def aggregate(engine: Engine, files: list[str], pings: int, rules: Rules) -> RoundAggregate:
    return combined(engine.partials(Work(paths=tuple(files), rows=pings, rules=rules)), rules)


def in_turns(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each way's repeats; the ways take turns, and the first turn is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if repeat:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def compare_sizes(where: Path, sizes: list[int], repeats: int, seed: int, engine: Engine) -> Iterator[Row]:
    for pings in sizes:
        files, rules = landed(where, pings, M, seed), _rules(M)
        by_ping, clipped = _rules(M, "ping"), clipped_rules(measured(NumpyEngine(), files, pings))
        ways: dict[str, Callable[[], object]] = {
            "spark": partial(aggregate, engine, files, pings, rules),
            "spark, clipped": partial(aggregate, engine, files, pings, clipped),
            "numpy": partial(aggregate, NumpyEngine(), files, pings, rules),
            "numpy, clipped": partial(aggregate, NumpyEngine(), files, pings, clipped),
            "numpy, first clipped": partial(first_clipped, NumpyEngine(), files, pings),
            "pyarrow + NumPy alone": partial(pyarrow_numpy_mean, files, TRAINED, M),
        }
        _same(aggregate(engine, files, pings, by_ping).updates.mean, pyarrow_numpy_mean(files, TRAINED, M))
        seconds = in_turns(ways, repeats)
        for name, taken in seconds.items():
            memory = _driver_mb(ways[name]) if name == "spark" else None
            yield Row(name, pings, M, statistics.median(taken), min(taken), memory)


def compare_sql(where: Path, sizes: list[int], repeats: int, seed: int) -> Iterator[Row]:
    """Measure the SQL in a session of its own, with the best settings for it."""
    settings = SparkSettings(driver_java_options=("-XX:TieredStopAtLevel=4",), conf={"spark.driver.memory": "4g"})
    with spark_session(settings) as session:
        engine = SparkEngine(lambda: nullcontext(session))
        for pings in sizes:
            files, folder = landed(where, pings, M, seed), where / f"lists-{pings}-{M}-{seed}"
            if not folder.is_dir():
                write_as_lists(files, folder, M)
            ways: dict[str, Callable[[], object]] = {
                "spark, second session": partial(aggregate, engine, files, pings, _rules(M)),
                "avg(update[i])": partial(spark_sql_mean, session, folder, TRAINED, M, once=False),
                "avg(update[i]), duplicates dropped": partial(spark_sql_mean, session, folder, TRAINED, M, once=True),
            }
            _same(spark_sql_mean(session, folder, TRAINED, M, once=True), pyarrow_numpy_mean(files, TRAINED, M))
            for name, taken in in_turns(ways, repeats).items():
                yield Row(name, pings, M, statistics.median(taken), min(taken))


def compare_lengths(where: Path, repeats: int, seed: int, engine: Engine) -> Iterator[Row]:
    for m in LENGTHS:
        files, rules = landed(where, PINGS_A_LENGTH, m, seed, rows_per_file=500), _rules(m)
        run = partial(aggregate, engine, files, PINGS_A_LENGTH, rules)
        taken = in_turns({"spark": run}, repeats)["spark"]
        yield Row("spark, by length", PINGS_A_LENGTH, m, statistics.median(taken), min(taken), _driver_mb(run))


def whole_rounds(where: Path, repeats: int, seed: int, engine: Engine) -> Row:
    """Measure whole rounds, from the listing to the published version, each on a fresh store."""
    landed(where, ROUND_PINGS, M, seed)
    landing, study = where / f"landing-{ROUND_PINGS}-{M}-{seed}", study_of(M)
    taken = []
    for _ in range(repeats + 1):
        with tempfile.TemporaryDirectory(dir=where) as folder:
            store = open_store(Path(folder), create=True)
            store.create_study(study, first_versions(study, created="", code_version=""))
            began = time.perf_counter()
            result = run_round(
                store, landing, "benchmark", "main", engine, RoundOptions(clock=lambda: WHEN, code_version="")
            )
            taken.append(time.perf_counter() - began)
            assert result.status == "published"
    return Row("whole round", ROUND_PINGS, M, statistics.median(taken[1:]), min(taken[1:]))


def _rules(m: int, weighting: Weighting = "client") -> Rules:
    return rules_for(study_of(m, weighting), "main", 0, key=b"")


def clipped_rules(bound: float | None) -> Rules:
    rules = rules_for(study_of(M, clip=ClipByQuantile(units="step", multiple=0.1)), "main", 0, key=b"")
    return replace(rules, bound=bound, sees=True, salt=bytes(16))


def measured(engine: Engine, files: list[str], pings: int) -> float:
    """Return a first round's clip norm."""
    rules = replace(clipped_rules(None), measures=True, sees=False, salt=b"")
    partials = sorted(engine.partials(Work(paths=tuple(files), rows=pings, rules=rules)), key=lambda each: each.shard)
    return first_bound(rules.line, (each.total for each in partials))


def first_clipped(engine: Engine, files: list[str], pings: int) -> RoundAggregate:
    return aggregate(engine, files, pings, clipped_rules(measured(engine, files, pings)))


def _same(one: object, other: object) -> None:
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-9, atol=1e-12)


def _driver_mb(run: Callable[[], object]) -> float | None:
    """Return the increase in MB of the driver's peak memory (this process without its JVM) by a run; Linux only."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    reset.write_text("5")
    before = _peak_kb(status)
    run()
    return (_peak_kb(status) - before) / 1024


def _peak_kb(status: Path) -> int:
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))


@contextmanager
def opened_folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def measure(where: Path, sizes: list[int], repeats: int, seed: int) -> Iterator[Row]:
    engine = SparkEngine(lambda: spark_session(SparkSettings()))
    try:
        yield from compare_sizes(where, sizes, repeats, seed, engine)
        yield from compare_lengths(where, repeats, seed, engine)
        yield whole_rounds(where, repeats, seed, engine)
    finally:
        engine.close()
    yield from compare_sql(where, sizes, repeats, seed)


def table_of(rows: list[Row]) -> Table:
    spark = {(row.pings, row.what.startswith("avg")): 0.0 for row in rows}
    for row in rows:
        if row.what in ("spark", "spark, second session"):
            spark[row.pings, row.what != "spark"] = row.seconds
    table = Table(title=f"Aggregation, {os.cpu_count()} cores; median of the repeats, warm")
    for heading in ("way", "pings", "m", "seconds", "fastest", "µs a ping", "spark / this way", "driver MB"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for row in rows:
        mine = spark[row.pings, row.what.startswith("avg")]
        ratio = "" if not mine else f"{mine / row.seconds:.2f}"
        memory = "" if row.driver_mb is None else f"{row.driver_mb:.1f}"
        each = f"{row.seconds / row.pings * 1e6:.2f}"
        table.add_row(
            row.what, f"{row.pings:,}", f"{row.m:,}", f"{row.seconds:.2f}", f"{row.fastest:.2f}", each, ratio, memory
        )
    return table


NEEDED = ["document_id", "study_variation", "rank_selected", "update"]


def pyarrow_numpy_mean(files: Sequence[str], arm: str, m: int) -> NDArray[np.float64]:
    """Return the mean update of an arm's selections, each document once, in memory and with pyarrow on all cores.

    The hash of pyarrow's ``group_by`` was the fastest exact way to drop duplicates: `numpy.unique` takes twice as long
    on words and three times as long on 16-byte strings; sorting by both words takes longer.
    """
    table = pq.read_table(list(files), columns=NEEDED)
    numbered = pa.table({"document": table["document_id"], "row": np.arange(len(table))})
    firsts = numbered.group_by("document").aggregate([("row", "min")])["row_min"].to_numpy()
    once = np.zeros(len(table), dtype=bool)
    once[firsts] = True
    chosen = pc.and_(
        pc.equal(table["study_variation"].cast(pa.string()), arm), pc.greater_equal(table["rank_selected"], 0)
    )
    updates = table["update"].filter(pc.and_(chosen, pa.array(once)))
    values = [np.frombuffer(c.buffers()[2], "<f4", m * len(c)).reshape(-1, m) for c in updates.chunks if len(c)]
    counts = np.array([len(v) for v in values])
    means = np.array([v.mean(axis=0, dtype=np.float64) for v in values])
    return np.asarray(counts @ means / counts.sum())


def write_as_lists(files: Sequence[str], folder: Path, m: int) -> None:
    """Write the SQL's input in the best form for Spark: a plain list of float32 per row, without a dictionary."""
    folder.mkdir(parents=True)
    for i, file in enumerate(files):
        table = pq.read_table(file, columns=NEEDED)
        update = table["update"].combine_chunks()
        update = update.chunk(0) if isinstance(update, pa.ChunkedArray) else update
        lengths = pc.fill_null(pc.binary_length(update), 0).to_numpy() // 4
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), mask=None)
        values = pa.array(np.frombuffer(b"".join(v for v in update.to_pylist() if v is not None), "<f4"))
        lists = pa.ListArray.from_arrays(offsets, values, mask=update.is_null())
        made = table.set_column(NEEDED.index("update"), "update", lists)
        made = made.set_column(1, "study_variation", table["study_variation"].cast(pa.string()))
        pq.write_table(made, folder / f"{i:05d}.parquet", compression="zstd", use_dictionary=["study_variation"])


def spark_sql_mean(session: SparkSession, folder: Path, arm: str, m: int, *, once: bool) -> NDArray[np.float64]:
    """Return the mean by ``avg(update[i])`` for every i; with ``once``, duplicates are dropped first."""
    pings = session.read.parquet(str(folder)).where(f"study_variation = '{arm}' and rank_selected >= 0")
    pings = pings.dropDuplicates(["document_id"]) if once else pings
    row = pings.selectExpr(*(f"avg(update[{i}]) as w{i}" for i in range(m))).collect()[0]
    return np.array(row, dtype=np.float64)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--pings", type=int, action="append", help="pings of a case; may be given several times")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the landed pings, kept and used again")
    options = parser.parse_args(argv)
    rows = []
    with opened_folder(options.keep) as where:
        for row in measure(where, options.pings or [1_000_000, 5_700_000], options.repeats, options.seed):
            print(f"{row.what}: {row.pings:,} pings of {row.m:,} weights in {row.seconds:.2f} s", file=sys.stderr)
            rows.append(row)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        Console().print(table_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
