"""Cost of new studies' safe defaults: whole rounds of a study with them and of a plain one, in turns.

    python -m benchmarks.default_round [--json] [--pings 5700000] [--repeats 3] [--engine numpy] [--engine spark]
        [--seed 1] [--keep FOLDER]

Both studies train the same 22 weights by RProp on the same landed pings, with one vote per client. The new one has the
defaults that `protected` fills in: the clip in units of steps, limits, a guard, and arms by the hash of the client's
id. A round goes from the listing to the published version. The line's second round counts, since the first reads its
updates twice; the first is measured as well. The median ratio of the turns counts, by the clock and, where the round is
in this process, by the processor's time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.aggregation import PINGS_A_CLIENT, WHEN, M, opened_folder, study_of
from benchmarks.landing_data import Traffic, land
from fedping.model_store.store import open_store
from fedping.protocol.enrolment import hash_assignment
from fedping.protocol.landing import partition
from fedping.protocol.study import Study, protected
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import Engine, RoundOptions, run_round
from fedping.server_jobs.round.engine import ENGINES, engine_named

FIRST_PINGS = 20_000
"""Number of pings in the round before the measured one."""

PLAIN = "plain"


@dataclass(frozen=True)
class Row:
    """Median costs of a round: wall seconds, CPU seconds, and the ratios to the plain study's round."""

    what: str
    engine: str
    pings: int
    seconds: float
    cpu: float
    ratio: float
    cpu_ratio: float


def landed(where: Path, pings: int, iteration: int, seed: int) -> Path:
    """Return a landing folder with pings of a version; create it if missing."""
    landing = where / f"version-{iteration}-{pings}-{seed}"
    folder = partition(landing, "benchmark", "main", iteration)
    if not folder.is_dir():
        clients = max(1, pings // PINGS_A_CLIENT)
        dealt = hash_assignment(protected(study_of(M)))
        land(folder, Traffic(pings=pings, clients=clients, m=M, model_version=iteration, dealt=dealt), seed)
    return landing


def timed_round(study: Study, landings: list[Path], engine: Engine, where: Path) -> tuple[float, float]:
    """Return the wall seconds and CPU seconds of the last of a line's rounds, in a new store."""
    with tempfile.TemporaryDirectory(dir=where) as folder:
        store = open_store(Path(folder), create=True)
        store.create_study(study, first_versions(study, created="", code_version=""))
        for landing in landings:
            wall, cpu = time.perf_counter(), time.process_time()
            result = run_round(
                store, landing, "benchmark", "main", engine, RoundOptions(clock=lambda: WHEN, code_version="")
            )
            assert result.status == "published", result
        return time.perf_counter() - wall, time.process_time() - cpu


def measure(where: Path, pings: int, repeats: int, seed: int, name: str) -> Iterator[Row]:
    plain, new = study_of(M), protected(study_of(M))
    before, first, second = (landed(where, *each, seed) for each in ((FIRST_PINGS, 0), (pings, 0), (pings, 1)))
    ways = {
        PLAIN: (plain, [before, second]),
        "new study": (new, [before, second]),
        "new study, its first": (new, [first]),
    }
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    with engine_named(name) as engine:
        timed_round(plain, [before], engine, where)  # warms up
        for _ in range(repeats):
            for way, (study, landings) in ways.items():
                taken[way].append(timed_round(study, landings, engine, where))
    for way, times in taken.items():
        pairs = list(zip(times, taken[PLAIN], strict=True))
        yield Row(
            way,
            name,
            pings,
            seconds=statistics.median(one[0] for one in times),
            cpu=statistics.median(one[1] for one in times),
            ratio=statistics.median(one[0] / other[0] for one, other in pairs),
            cpu_ratio=statistics.median(one[1] / other[1] for one, other in pairs),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--pings", type=int, default=5_700_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the landed pings, kept and used again")
    options = parser.parse_args()
    with opened_folder(options.keep) as where:
        sizes = (options.pings, options.repeats, options.seed)
        rows = [row for name in options.engine or ENGINES for row in measure(where, *sizes, name)]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{options.pings:,} pings of {M} weights; median of {options.repeats} turns")
    for row in rows:
        cpu = f", {row.cpu_ratio:.2f} of the processor ({row.cpu:.2f} s)" if row.engine == "numpy" else ""
        print(f"  {row.engine}, {row.what}: {row.seconds:.2f} s, {row.ratio:.2f} of the plain round{cpu}")


if __name__ == "__main__":
    main()
