"""Cost of a round that starts its own Spark, as under cron: by `spark-submit.sh`, and by Spark's own spark-submit.

    python -m benchmarks.spark_start [--json] [--pings 10000] [--repeat 5]

Four ways are measured in turns, with the same round of the same pings on the same Java:

- untuned: Spark's own `spark-submit`, with its own settings;
- the script without its archive of Spark's classes, as in the first run on a machine;
- the script from its second run on;
- the script without new pings, which starts no JVM.

Wall time is from the start of the process to the end of all processes that it started, as median and minimum. CPU
seconds are in a separate column, since other load disturbs them less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.landing_data import Traffic, land
from fedping.model_store.store import open_store
from fedping.protocol.landing import partition
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, Study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.spark.archive import make_archive
from fedping.server_jobs.spark.installation import find_java, spark_home

ROOT = Path(__file__).parents[1]
M = 22
Command = tuple[list[str], dict[str, str]]


@dataclass(frozen=True)
class Row:
    """Costs of a way to run the round: wall seconds, CPU seconds, and wall time relative to the untuned way."""

    way: str
    median: float
    fastest: float
    cpu: float
    of_untuned: float


def untuned() -> Command:
    """Return the command of Spark's own program for the same entry point, with the required settings."""
    made = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_HOME": str(spark_home())}
    return [str(spark_home() / "bin" / "spark-submit"), str(ROOT / "server_jobs" / "spark" / "entry.py")], made


def script(archive: str) -> Command:
    """Return the command of `spark-submit.sh` with an archive of Spark's classes."""
    return [str(ROOT / "spark-submit.sh"), "--"], {"FEDPING_PYTHON": sys.executable, "FEDPING_SPARK_ARCHIVE": archive}


def prepare(folder: Path, pings: int) -> None:
    """Make a store with version 0, and land pings of this version in files as large as ingest's."""
    weights = tuple(Weight(name=f"w{i}", start=100.0, step=Step(start=1, min=0.1, max=3)) for i in range(M))
    line = Line(name="main", spec=ModelSpec(name="bench", model="frecency-22", weights=weights), pipeline=Pipeline())
    arms = (Arm(name="treatment", share=0.8, line="main", applies=True, submits=True), Arm(name="control", share=0.2))
    study = Study(name="bench", arms=arms, lines=(line,))
    store = open_store(folder / "store", create=True)
    store.create_study(study, first_versions(study, created="2026-01-01T00:00:00.000+00:00", code_version="bench"))
    land(partition(folder / "landing", "bench", "main", 0), Traffic(pings=pings, clients=pings // 4), seed=1)


def run(command: Command, folder: Path, store: Path) -> tuple[float, float]:
    """Run a round to its end; return wall and CPU seconds."""
    words, variables = command
    words = [*words, "round", "--store", str(store), "--landing", str(folder / "landing"), "bench", "main"]
    environment = os.environ | {"JAVA_HOME": str(find_java().home()), "SPARK_LOCAL_IP": "127.0.0.1"} | variables
    cpu, start = _cpu_of_children(), time.perf_counter()
    ran = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True)
    wall = time.perf_counter() - start
    if ran.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{ran.stderr}")
    return wall, _cpu_of_children() - cpu


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(folder: Path, repeat: int, say: Callable[[str], None]) -> list[Row]:
    """Run the ways in turns, each on its own store, and check that they publish the same weights."""
    ways = {
        "untuned spark-submit": untuned(),
        "spark-submit.sh, first run (no archive)": script("off"),
        "spark-submit.sh": script("on"),
        "spark-submit.sh, nothing to do": script("on"),
    }
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    published = set()
    for number in range(repeat):
        store = folder / "store"
        for way, command in ways.items():
            say(f"{number + 1}/{repeat}: {way}")
            if way != "spark-submit.sh, nothing to do":  # this way uses the store of the previous way again
                store = shutil.copytree(folder / "store", folder / f"{number}-{way}")
            taken[way].append(run(command, folder, store))
            published.add(open_store(store).version("bench", "main", 1).weights)
    if len(published) != 1:
        raise SystemExit("the ways do not publish the same weights")
    base = statistics.median(wall for wall, _ in taken["untuned spark-submit"])
    return [_row(way, runs, base) for way, runs in taken.items()]


def _row(way: str, runs: list[tuple[float, float]], base: float) -> Row:
    walls, cpus = zip(*runs, strict=True)
    median = statistics.median(walls)
    return Row(way, round(median, 2), round(min(walls), 2), round(statistics.median(cpus), 2), round(median / base, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--pings", type=int, default=10_000, help="landed pings of the round (default: 10000)")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each way (default: 5)")
    given = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    say("making the archive of Spark's classes where it is missing")
    make_archive()
    with tempfile.TemporaryDirectory(prefix="fedping-bench-") as name:
        prepare(Path(name), given.pings)
        rows = measure(Path(name), given.repeat, say)
    if given.json:
        print(json.dumps({"java": find_java().version, "pings": given.pings, "rows": [asdict(row) for row in rows]}))
        return
    print(f"One round of {given.pings:,} pings (m = {M}), Java {find_java().version}, median of {given.repeat}")
    print(f"{'':<42}{'wall s':>8}{'fastest':>9}{'CPU s':>8}{'of untuned':>12}")
    for row in rows:
        print(f"{row.way:<42}{row.median:>8.2f}{row.fastest:>9.2f}{row.cpu:>8.2f}{row.of_untuned:>12.2f}")


if __name__ == "__main__":
    main()
