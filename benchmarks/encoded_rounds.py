"""Cost of a round over encoded updates of a large model, relative to dense ones: seconds, memory, landed bytes.

    python -m benchmarks.encoded_rounds [--json] [--engine numpy] [--weights 1000000] [--pings 200]
        [--encodings dense signs 'steps 2' 'mask .01']

Each round runs in a separate process, from the listing to the published version, over pings of the same number of
clients. Updates are sparse and heavy-tailed, like networks' updates; only ten of them differ, since generating updates
takes longer than reading them. Memory is the process' peak; on Spark the JVM's peak is in a separate column, and
neither memory nor CPU seconds include Python workers. `--engine spark --pings 10000 --encodings 'steps 2'` needs 2 GB
of disk and some minutes. Dense updates of so many pings would need 40 GB, so run them with fewer pings: the time grows
with their number.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from benchmarks.encodings import LINKS, line_of
from fedping.model_store.store import open_store
from fedping.protocol.draws import bits
from fedping.protocol.encodings.dense import dense_payloads
from fedping.protocol.landed_table import ModelPings, landed_model_updates
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.links import Upload
from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.study import Arm, Study
from fedping.protocol.upload import sending
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import ENGINES, engine_named

WHEN = "2026-01-01T00:00:00Z"
DIFFERENT = 10
FILE_BYTES = 2**26
"""Maximum bytes of payloads in a landed file."""

UPLOADS: dict[str, Upload] = {"dense": (), **LINKS}


@dataclass(frozen=True)
class Row:
    """Costs of a round: seconds, CPU seconds, and the processes' peak memory in MiB."""

    encoding: str
    engine: str
    weights: int
    pings: int
    landed_mib: float
    seconds: float
    processor_seconds: float
    memory_mib: float
    largest_child_mib: float


def study_of(upload: Upload, m: int) -> Study:
    """Return a study whose line has these upload links and a model of one matrix of m weights."""
    pipeline = Pipeline(optimizer=GradientDescent(rate=0.1), min_clients=1)
    line = replace(line_of(upload, m), pipeline=pipeline)
    arms = (Arm(name="treatment", share=1.0, line="main", applies=True, submits=True),)
    return Study(name="benchmark", pings="model-update", arms=arms, lines=(line,))


def land(where: Path, study: Study, pings: int) -> float:
    """Land one ping per client, and return the pings' size in MiB."""
    line, rng = study.lines[0], np.random.default_rng(1)
    m = line.spec.m
    updates = (rng.standard_normal((DIFFERENT, m)) ** 3 * (rng.random((DIFFERENT, m)) < 0.5)).astype(np.float32)
    ends = sending(line)
    keys = bits(np.array([1], np.uint64), DIFFERENT)[0]
    sent = dense_payloads(updates) if ends.encode is None else ends.encode(updates, keys)
    per_file = max(1, FILE_BYTES // (sent.nbytes // DIFFERENT))
    size = 0
    for number, low in enumerate(range(0, pings, per_file)):
        n = min(per_file, pings - low)
        some = ModelPings(
            document_ids=rng.integers(0, 256, (n, 16), np.uint8),
            client_ids=rng.integers(0, 256, (n, 16), np.uint8),
            arm="treatment",
            version=0,
            updates=np.zeros((n, 1)),
            losses=np.ones(n),
            examples=np.ones(n, np.int64),
        )
        table = landed_model_updates(some, 0)
        tags = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([ends.encoding]))
        payloads = sent.cast(pa.binary()).take(pa.array(np.arange(low, low + n) % DIFFERENT))
        for name, column in (("update", payloads), ("update_encoding", tags)):
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(at), column)
        size += write_landed(partition(where, study.name, "main", 0), table, 1_700_000_000_000 + number).stat().st_size
    return size / 2**20


def measured(folder: Path, encoding: str, engine: str, m: int, pings: int, landed: float) -> Row:
    """Run one round in this process."""
    store = open_store(folder / "store")
    began, busy = time.perf_counter(), time.process_time()
    with engine_named(engine) as made:
        result = run_round(
            store, folder / "landing", "benchmark", "main", made, RoundOptions(clock=lambda: WHEN, code_version="b")
        )
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    assert result.status == "published", result.sentence
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    busy += children.ru_utime + children.ru_stime
    return Row(encoding, engine, m, pings, landed, seconds, busy, most, children.ru_maxrss / 1024)


def run(encoding: str, engine: str, m: int, pings: int) -> Row:
    """Land pings and run a round over them in a fresh process."""
    study = study_of(UPLOADS[encoding], m)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = open_store(folder / "store", create=True)
        store.create_study(study, first_versions(study, created=WHEN, code_version="b"))
        landed = land(folder / "landing", study, pings)
        command = [sys.executable, "-m", "benchmarks.encoded_rounds", "--in", name, "--landed", str(landed)]
        command += ["--engine", engine, "--weights", str(m), "--pings", str(pings), "--encodings", encoding]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return Row(**json.loads(said))


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--engine", choices=ENGINES, default="numpy")
    parser.add_argument("--weights", type=int, default=1_000_000)
    parser.add_argument("--pings", type=int, default=200)
    parser.add_argument("--encodings", nargs="+", choices=UPLOADS, default=["dense", "signs", "steps 2", "mask .01"])
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--landed", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder is not None:
        [encoding] = asked.encodings
        print(
            json.dumps(asdict(measured(asked.folder, encoding, asked.engine, asked.weights, asked.pings, asked.landed)))
        )
        return
    rows = [run(encoding, asked.engine, asked.weights, asked.pings) for encoding in asked.encodings]
    if asked.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    table = Table(*Row.__dataclass_fields__)
    for row in rows:
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else f"{value}" for value in asdict(row).values()))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
