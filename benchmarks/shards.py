"""Cost of more shards in a round: CPU time relative to a round of sixteen, over the same pings.

    python -m benchmarks.shards [--json] [--pings 1000000] [--rows-per-file 200000] [--repeats 5]

Rounds run on the NumPy engine in one thread, which does the work of all tasks of a cluster, with the default clip of a
study of 22 weights. Pings are landed as by ingest for a study of 16, 64 and 256 shards; some are then read with another
number of shards, as after a change of the setting. The ways take turns; a ratio is the median over the turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.aggregation import clipped_rules
from benchmarks.landing_data import Traffic, landed_tables
from fedping.protocol.landing import SHARDS, groups_for, write_landed
from fedping.server_jobs.round.aggregate import RoundAggregate, combined
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.plan import Work

COUNTS = (16, 64, 256)
WAYS = (*((count, count) for count in COUNTS), (16, 64), (16, 256), (256, 16))
"""Ways: the number of shards that the files were landed for, and the round's number of shards."""

BOUND = 5.0


@dataclass(frozen=True)
class Row:
    """Result for one of :data:`WAYS`: CPU seconds, and the ratio to 16 shards over files of 16 (median over turns)."""

    landed_for: int
    row_groups: int
    shards: int
    seconds: float
    ratio: float


def measure(where: Path, pings: int, rows_per_file: int, repeats: int, seed: int) -> list[Row]:
    files: dict[int, list[str]] = {count: [] for count in COUNTS}
    traffic = Traffic(pings=pings, clients=max(1, pings // 8))
    for number, table in enumerate(landed_tables(traffic, seed, rows_per_file)):
        for count, paths in files.items():
            paths.append(str(write_landed(where / str(count), table, number, shards=count)))
    seconds: dict[tuple[int, int], list[float]] = {way: [] for way in WAYS}
    counts = []
    for repeat in range(repeats + 1):  # the first warms up
        for landed_for, shards in WAYS:
            began = time.process_time()
            found = aggregate(files[landed_for], pings, shards)
            if repeat:
                seconds[landed_for, shards].append(time.process_time() - began)
            else:
                counts.append(found.counts)
    assert all(each == counts[0] for each in counts), "what counts depends on the shards"
    first = seconds[WAYS[0]]
    rows = min(rows_per_file, pings)
    return [
        Row(
            landed_for,
            groups_for(rows, landed_for),
            shards,
            statistics.median(seconds[landed_for, shards]),
            statistics.median(a / b for a, b in zip(seconds[landed_for, shards], first, strict=True)),
        )
        for landed_for, shards in WAYS
    ]


def aggregate(paths: Sequence[str], pings: int, shards: int) -> RoundAggregate:
    rules = replace(clipped_rules(BOUND), shards=shards)
    return combined(NumpyEngine().partials(Work(paths=tuple(paths), rows=pings, rules=rules)), rules)


def table_of(rows: Sequence[Row], pings: int) -> Table:
    table = Table(title=f"Shards: rounds of {pings:,} pings, processor time")
    for heading in ("shards", "landed for", "row groups a file", "seconds", f"of {SHARDS} shards"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row.shards:,}", f"{row.landed_for:,}", f"{row.row_groups:,}", f"{row.seconds:.2f}", f"{row.ratio:.2f}"
        )
    return table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--pings", type=int, default=1_000_000)
    parser.add_argument("--rows-per-file", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), options.pings, options.rows_per_file, options.repeats, options.seed)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        Console().print(table_of(rows, options.pings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
