"""Cost of each encoding of updates: bits per weight, and the time to encode, read and add up payloads.

    python -m benchmarks.encodings [--json] [--m 22 --m 10000 --m 1000000] [--repeats 15] [--seed 1] [--link NAME]

Payloads of updates of normal numbers are read in batches as large as a round's (`fedping.server_jobs.round.shard`), and
their moments computed. *Times dense* is the time for this relative to dense updates. Both are measured in turns, in CPU
time of all threads; the minimum counts, since other load can only slow them down. Payloads are made once.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.encodings.dense import dense_payloads
from fedping.protocol.encodings.payloads import payload_lengths
from fedping.protocol.link_ends import Sparse
from fedping.protocol.links import Eden, Float32, Levels, LowRank, Mask, Signs, Steps, Upload
from fedping.protocol.spec import Block, ModelSpec, Step
from fedping.protocol.study import Line
from fedping.protocol.upload import Receiving, receiving, sending
from fedping.server_jobs.optimize.transformation import Vector
from fedping.server_jobs.round.accumulator import Moments, moments_of, moments_of_few
from fedping.server_jobs.round.shard import batch_rows, read_updates

SIZES = (22, 10_000, 1_000_000)

LINKS: dict[str, Upload] = {
    "float32": (Float32(),),
    "signs": (Signs(),),
    "signs-up": (Signs(zero="up"),),
    "mask .1": (Mask(keep=0.1),),
    "mask .01": (Mask(keep=0.01),),
    "levels 1": (Levels(bits=1),),
    "levels 2": (Levels(bits=2),),
    "levels 4": (Levels(bits=4),),
    "levels 8": (Levels(bits=8),),
    "levels 1, rotated": (Levels(bits=1, rotate=True),),
    "levels 4, rotated": (Levels(bits=4, rotate=True),),
    "mask .1, levels 4": (Mask(keep=0.1), Levels(bits=4)),
    "steps 1": (Steps(size=1.0),),
    "steps 2": (Steps(size=2.0),),
    "eden 1": (Eden(bits=1),),
    "eden 2": (Eden(bits=2),),
    "eden 3": (Eden(bits=3),),
    "eden 4": (Eden(bits=4),),
    "low rank 2": (LowRank(rank=2),),
}
"""Upload links of a line by name; each has a row of the table."""


@dataclass(frozen=True)
class Row:
    """Costs of an encoding for updates of m weights: nanoseconds per weight, and the ratio to dense updates."""

    link: str
    m: int
    bits: float
    encode: float
    decode: float
    decode_and_moments: float
    times_dense: float


def line_of(upload: Upload, m: int) -> Line:
    """Return a line whose model is one matrix of m weights, as square as possible."""
    rows = next(rows for rows in range(math.isqrt(m), 0, -1) if m % rows == 0)
    block = Block(name="W", shape=(rows, m // rows), step=Step(start=1, min=1, max=1))
    return Line(name="main", spec=ModelSpec(name="benchmark", model="own", blocks=(block,)), upload=upload)


def measured(link: str, m: int, repeats: int, seed: int) -> Row:
    """Return an encoding's costs, measured in turns with dense updates."""
    k = batch_rows(m)
    updates = np.random.default_rng(seed).normal(size=(k, m)).astype(np.float32)
    keys, votes, dense = child_keys(root_key(seed), np.arange(k)), np.ones(k), dense_payloads(updates)
    encode, server = sending(line_of(LINKS[link], m)).encode, receiving(line_of(LINKS[link], m))
    assert encode is not None
    plain, began = receiving(line_of((), m)), time.process_time()
    payloads = encode(updates, keys)
    encoding = time.process_time() - began
    whole, decoding, of_dense = fastest_in_turns(
        repeats,
        lambda: moments_as_in_rounds(server, payloads, votes, m),
        lambda: server.decode(payloads, m),
        lambda: moments_of(plain.decode(dense, m)[0], votes),
    )
    a_weight = 1e9 / (k * m)
    return Row(
        link=link,
        m=m,
        bits=8 * float(payload_lengths(payloads).mean()) / m,
        encode=encoding * a_weight,
        decode=decoding * a_weight,
        decode_and_moments=whole * a_weight,
        times_dense=whole / of_dense,
    )


def moments_as_in_rounds(server: Receiving, payloads: pa.BinaryArray, votes: Vector, m: int) -> Moments:
    """Return the moments of updates, as rounds do, without writing out the zeros of sparse updates."""
    found = read_updates(server, payloads, m, few=True)
    return moments_of_few(found, m, votes) if isinstance(found, Sparse) else moments_of(found[0], votes)


def fastest_in_turns(repeats: int, *ways: Callable[[], object]) -> list[float]:
    """Return the minimum CPU seconds of each way over a number of turns, after one turn to warm up."""
    fastest = [float("inf")] * len(ways)
    for repeat in range(repeats + 1):
        for place, way in enumerate(ways):
            began = time.process_time()
            way()
            if repeat:
                fastest[place] = min(fastest[place], time.process_time() - began)
    return fastest


def table_of(rows: list[Row]) -> Table:
    """Return the rows as a table for the terminal."""
    table = Table(title="Encodings of updates; ns a weight, all threads", box=SIMPLE_HEAD)
    for heading in ("link", "m", "bits", "encode", "decode", "decode + moments", "times dense"):
        table.add_column(heading, justify="left" if heading == "link" else "right")
    for row in rows:
        times = [f"{each:.1f}" for each in (row.encode, row.decode, row.decode_and_moments)]
        table.add_row(row.link, f"{row.m:,}", f"{row.bits:.2f}", *times, f"{row.times_dense:.2f}")
    return table


def main(argv: list[str] | None = None) -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--m", type=int, action="append", help="weights of an update; may be given several times")
    parser.add_argument("--link", action="append", choices=LINKS, help="one of the rows; may be given several times")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    rows = []
    for m in options.m or SIZES:
        for link in options.link or LINKS:
            rows.append(measured(link, m, options.repeats, options.seed))
            print(f"{link}: {rows[-1].times_dense:.2f} times dense at m = {m:,}", file=sys.stderr)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        Console().print(table_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
