"""Cost of privacy in a round: whole rounds with NumPy in one thread, from the listing to the published version.

    python -m benchmarks.private_rounds [--json] [--clients 200000] [--repeats 15] [--seed 1]

Every client sends one ping of 22 weights, and arms are assigned by the clients' ids. The line without privacy takes the
mean of the updates; a second one has the defaults of new studies: a clip, a guard, and figures of clients' influence.
The private line uses the signs of all clients' updates, or those of one half, sampled secretly, whose rounds read half
as many updates. The ways take turns, each round on a fresh store, after one turn to warm up. Seconds are CPU seconds,
which other load disturbs less; ratios are between rounds of the same turn, reported as median and quartiles. `check
before a round` is all that a private round does before it lists the landed pings, after 100 rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.arrow import landed_schema
from fedping.protocol.encodings.dense import dense_payloads
from fedping.protocol.encodings.private import vector_payloads
from fedping.protocol.landing import open_landing, partition, write_landed
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.privacy import Central, Privacy, frame_of, vectors_of
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, Study, protected
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import NumpyEngine, RoundOptions, run_round
from fedping.server_jobs.round.context import open_line, run_stages
from fedping.server_jobs.round.helper_client import Helper
from fedping.server_jobs.round.private import PrivateState, check_guarantee, delete_earlier_pings, read_budget

M = 22
WHEN = "2026-01-01T00:00:00Z"
KEY = bytes(32)
ROUNDS_BEFORE = 100
FILES = 10


class Ratio(NamedTuple):
    """Ratio between two ways in the same turn: median and quartiles over the turns."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: list[float], theirs: list[float]) -> Ratio:
        """Return the ratio of the seconds of two ways, turn by turn."""
        low, median, high = np.quantile(np.divide(ours, theirs), (0.25, 0.5, 0.75)).tolist()
        return cls(median, low, high)

    def __str__(self) -> str:
        """Return the ratio as text for a table."""
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Row:
    """A measurement: median and fastest turn in CPU seconds, and ratios to two other ways."""

    what: str
    clients: int
    seconds: float
    fastest: float
    beside_plain: Ratio | None
    beside_new: Ratio | None


def study_of(sampling: float | None) -> Study:
    """Return a study with a private line, or without privacy if ``sampling`` is None."""
    step = Step(start=1, min=0.1, max=3)
    weights = tuple(Weight(name=f"w{i}", start=0, step=step) for i in range(M))
    line = Line(name="main", spec=ModelSpec(name="benchmark", model="any", weights=weights), pipeline=Pipeline())
    if sampling is not None:
        central = Central(
            epsilon=50, delta=1e-7, rounds=1000, population=10**6, sampling=sampling, noise_multiplier=10.0
        )
        line = replace(line, privacy=Privacy(central=central), upload=())
    arms = (
        Arm(name="treatment", share=0.5, line="main", applies=True, submits=True),
        Arm(name="control", share=0.5, line="main"),
    )
    pings = "model-update" if sampling is None else "private-update"
    return Study(name="benchmark", pings=pings, enrolment="hash", arms=arms, lines=(line,))  # type: ignore[arg-type]


CASES = {
    "without privacy": study_of(None),
    "without privacy, as new studies have it": protected(study_of(None)),
    "private": study_of(1.0),
    "private, half of the clients by the coin": study_of(0.5),
}


Sent: TypeAlias = Callable[["np.ndarray", "np.ndarray", "np.ndarray"], pa.BinaryArray]
"""Function from clients' (vectors, document ids, numbers of arms) to the payloads of their pings."""


def land(where: Path, study: Study, clients: int, seed: int, sent: Sent | None = None) -> None:
    """Land one ping per client; the clients and their updates are the same for every study.

    ``sent`` makes the payloads of the tag `shared`; without it, vectors are sent unchanged.
    """
    from fedping.protocol.enrolment import hash_assignment

    rng, dealt = np.random.default_rng(seed), hash_assignment(study)
    assert dealt is not None
    for number, n in enumerate([clients // FILES] * FILES):
        ids = np.frombuffer(rng.bytes(16 * n), np.uint8).reshape(n, 16)
        documents = np.frombuffer(rng.bytes(16 * n), np.uint8).reshape(n, 16)
        updates, losses = rng.normal(size=(n, M)).astype(np.float32), rng.uniform(0, 1, n)
        line, places = study.lines[0], dealt.places(ids)
        if line.privacy is not None:
            vectors = vectors_of(frame_of(line.privacy, line.spec), updates, losses, np.zeros(n), line.privacy.loss)
            payloads = sent(vectors, documents, places) if sent else vector_payloads(vectors)
            tag = "shared" if sent else "private"
        else:
            payloads, tag = dense_payloads(updates), "dense"
        columns = {
            "document_id": _ids(documents),
            "client_id": _ids(ids),
            "received_at": pa.array(np.arange(n)).cast(pa.timestamp("ms", tz="UTC")),
            "model_version": pa.array(np.zeros(n, np.int32)),
            "study_variation": _texts(places, dealt.arms),
            "update_encoding": _texts(np.zeros(n, int), (tag,)),
            "update": payloads,
            "loss": pa.array(losses),
            "examples": pa.array(np.ones(n, np.int32)),
        }
        schema = landed_schema(study.document)
        table = pa.table({name: columns[name] for name in schema.names}, schema=schema)
        write_landed(partition(where, study.name, "main", 0), table, 1_700_000_000_000 + number)


def _ids(ids: np.ndarray) -> pa.Array:
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, pa.py_buffer(ids.tobytes())])


def _texts(places: np.ndarray, texts: tuple[str, ...]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), pa.array(texts, pa.string()))


def a_round(where: Path, landed: Path, study: Study, helper: Helper | None = None) -> float:
    """Return the seconds of a round on a new store with its own landing folder, including the helper's seconds.

    A round records its releases in the landing folder, and with another store, the line's next round would be refused.
    """
    with tempfile.TemporaryDirectory(dir=where) as folder:
        landing, store = Path(folder) / "landing", _store(Path(folder) / "store", study)
        shutil.copytree(landed, landing, copy_function=os.link)
        began = time.process_time()
        result = run_round(
            store,
            landing,
            study.name,
            "main",
            NumpyEngine(),
            RoundOptions(clock=lambda: WHEN, code_version="", privacy_key=KEY, keep=True, helper=helper),
        )
        seconds = time.process_time() - began
    assert result.status == "published", result.sentence
    return seconds


def _store(folder: Path, study: Study) -> ModelStore:
    store = open_store(folder, create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version=""))
    return store


def measure(where: Path, clients: int, repeats: int, seed: int) -> Iterator[Row]:
    ways: dict[str, Callable[[], float]] = {}
    for number, (name, study) in enumerate(CASES.items()):
        land(where / str(number), study, clients, seed)
        ways[name] = partial(a_round, where, where / str(number), study)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            seconds = way()
            if repeat:
                taken[name].append(seconds)
    plain, new, *_ = taken.values()
    for name, each in taken.items():
        yield Row(name, clients, statistics.median(each), min(each), Ratio.of(each, plain), Ratio.of(each, new))
    yield check_before_a_round(where, repeats)


def check_before_a_round(where: Path, repeats: int) -> Row:
    study, landing = study_of(0.5), where / "empty"
    landing.mkdir()
    store = _store(where / "checked", study)
    options = RoundOptions(clock=lambda: WHEN, code_version="", privacy_key=KEY)
    for _ in range(ROUNDS_BEFORE):
        run_round(store, landing, study.name, "main", NumpyEngine(), options)
    context = open_line(store, open_landing(landing), study.name, "main", NumpyEngine(), options)
    checks = (read_budget, delete_earlier_pings, check_guarantee)
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        run_stages(checks, context, PrivateState(result=context.nothing))
        taken.append(time.process_time() - began)
    return Row("check before a round", 0, statistics.median(taken), min(taken), None, None)


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON, a row a measurement")
    parser.add_argument("--clients", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measure(Path(folder), given.clients, given.repeats, given.seed))
    if given.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    table = Table("what", "clients", "seconds", "fastest", "beside the first", "beside the second")
    for row in rows:
        ratios = [str(ratio or "") for ratio in (row.beside_plain, row.beside_new)]
        table.add_row(row.what, f"{row.clients:,}", f"{row.seconds:.4f}", f"{row.fastest:.4f}", *ratios)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
