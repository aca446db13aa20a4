"""Cost of one ping, from the request to the round: the unit costs of `fedping plan fleet`.

    python -m benchmarks.unit_costs [--json] [--case firefox-2018] [--pings 40000]

A real ingest with one worker accepts pings over HTTP, one per request, and lands them when it stops. The cost is the
difference between many pings and few, in CPU time of all of its processes, so that its start doesn't count. Bytes are
measured for the request's body, the journal before it is compacted, and the landed files. Rounds use the NumPy engine
over landed files: the increase of their time per ping is the cost of a ping, and the rest is the fixed cost of a
version.

`firefox-2018` has pings of 22 weights as numbers; `million` has updates of 1,000,000 weights encoded by `steps` of size
2. Pass the output of `--json` to `fedping plan fleet --costs FILE` to plan with your own machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.aggregation import clipped_rules
from benchmarks.encoded_rounds import run as encoded_round
from benchmarks.encoded_rounds import study_of
from benchmarks.encodings import LINKS
from benchmarks.ingest import CONNECTIONS, make_store
from benchmarks.landing_data import Traffic, land
from benchmarks.load import distinct_requests, http_post, run_load
from fedping.client_sim.fleet.pings import encoded_pings
from fedping.experiments.server_process import ingest_process
from fedping.model_store.store import open_store
from fedping.protocol.draws import bits
from fedping.protocol.landed_table import ModelPings
from fedping.protocol.update import Payloads
from fedping.protocol.upload import sending
from fedping.server_jobs.fleet_plan import UnitCosts
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round.aggregate import combined
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.plan import Work

M = 1_000_000
LINK = "steps 2"
GOES = 3
SECONDS = 600.0
WHEN = "2026-01-01T00:00:00+00:00"


@dataclass(frozen=True)
class Taken:
    """An ingest's work: pings, their bytes as sent, in the journal and landed, and CPU seconds."""

    pings: int
    sent: int
    journal: int
    landed: int
    seconds: float


def taken(store: Path, requests: list[bytes]) -> Taken:
    """Start an ingest, send requests of one ping each, stop it, and return its work."""
    before = _children_seconds()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal, landing = folder / "journal", folder / "landing"
        options = ("--journal", str(journal), "--workers", "1", "--compact-every", "3600", "--roll-mib", "1024")
        with ingest_process(store, landing, folder / "log", *options) as ingest:
            port = urlsplit(ingest.address).port
            assert port is not None
            outcome = run_load("127.0.0.1", port, CONNECTIONS, iter(requests), SECONDS)
            assert outcome.accepted == len(requests), outcome.statuses
            kept = sum(path.stat().st_size for path in journal.glob("*.open"))
        landed = sum(path.stat().st_size for path in landing.rglob("*.parquet"))
    sent = sum(len(each) - each.index(b"\r\n\r\n") - 4 for each in requests)
    return Taken(len(requests), sent, kept, landed, _children_seconds() - before)


def _quickest(store: Path, requests: Callable[[], list[bytes]]) -> Taken:
    """Return the repeat with the least CPU time, because other load can only add to it."""
    made = requests()
    return min((taken(store, made) for _ in range(GOES)), key=lambda each: each.seconds)


def _children_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def firefox(pings: int, few: int) -> UnitCosts:
    """Measure pings of 22 weights as numbers."""
    with tempfile.TemporaryDirectory() as name:
        store = Path(name) / "store"
        make_store(store)
        found = [_quickest(store, lambda n=n: list(distinct_requests(n))) for n in (few, pings)]
        model = _model_bytes(store)
        files = {n: _landed(Path(name), n) for n in (20_000, 520_000)}
        rounds = {n: min(_round_seconds(paths, n) for _ in range(5)) for n, paths in files.items()}
    a_ping = (rounds[520_000] - rounds[20_000]) / 500_000
    return _costs("firefox-2018", found, model, round_seconds=a_ping, fixed=max(0.0, rounds[20_000] - 20_000 * a_ping))


def _landed(where: Path, pings: int) -> list[str]:
    return [str(path) for path in land(where / str(pings), Traffic(pings=pings, clients=pings // 5), 1, 200_000)]


def _round_seconds(paths: list[str], pings: int) -> float:
    rules = clipped_rules(5.0)
    began = time.process_time()
    combined(NumpyEngine().partials(Work(paths=tuple(paths), rows=pings, rules=rules)), rules)
    return time.process_time() - began


def million(pings: int, few: int) -> UnitCosts:
    """Measure encoded updates of a million weights."""
    study = study_of(LINKS[LINK], M)
    with tempfile.TemporaryDirectory() as name:
        store = Path(name) / "store"
        open_store(store, create=True).create_study(study, first_versions(study, created=WHEN, code_version="b"))
        found = [_quickest(store, lambda n=n: list(_encoded(n))) for n in (few, pings)]
        model = _model_bytes(store)
    less, more = (encoded_round(LINK, "numpy", M, n) for n in (20, 120))
    a_ping = (more.processor_seconds - less.processor_seconds) / 100
    fixed = max(0.0, less.processor_seconds - 20 * a_ping)
    return _costs("million", found, model, round_seconds=a_ping, fixed=fixed)


def _encoded(pings: int) -> Iterator[bytes]:
    """Yield requests of one ping each, whose updates are like those of networks and all different."""
    line, rng = study_of(LINKS[LINK], M).lines[0], np.random.default_rng(1)
    ends = sending(line)
    assert ends.encode is not None
    for number in range(pings):
        update = (rng.standard_normal((1, M)) ** 3 * (rng.random((1, M)) < 0.5)).astype(np.float32)
        one = ModelPings(
            document_ids=rng.integers(0, 256, (1, 16), np.uint8),
            client_ids=rng.integers(0, 256, (1, 16), np.uint8),
            arm="treatment",
            version=0,
            updates=Payloads(ends.encoding, ends.encode(update, bits(np.array([number], np.uint64), 1)[0])),
            losses=np.ones(1),
            examples=np.ones(1, np.int64),
        )
        for document, body in encoded_pings(one):
            yield http_post(f"/submit/benchmark/model-update/1/{document}", body)


def _model_bytes(store: Path) -> int:
    """Return the compressed bytes of a fetched model with arbitrary numbers, as after training."""
    [latest] = store.glob("*/main/public/latest.json")
    document = json.loads(latest.read_bytes())
    document["model"] = np.random.default_rng(1).standard_normal(len(document["model"])).tolist()
    return len(gzip.compress(msgspec.json.encode(document), 6))


def _costs(name: str, found: list[Taken], model: int, *, round_seconds: float, fixed: float) -> UnitCosts:
    few, many = found
    return UnitCosts(
        name=name,
        ping_bytes=round(many.sent / many.pings),
        ingest_us=round(1e6 * (many.seconds - few.seconds) / (many.pings - few.pings), 1),
        journal_bytes=round(many.journal / many.pings),
        landed_bytes=round(many.landed / many.pings),
        round_us=round(1e6 * round_seconds, 3),
        round_seconds=round(fixed, 2),
        model_bytes=model,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--case", choices=["firefox-2018", "million"], action="append")
    parser.add_argument(
        "--pings", type=int, default=40_000, help=("for firefox-2018; a two-hundredth of it for the other")
    )
    options = parser.parse_args(argv)
    made = []
    for case in options.case or ["firefox-2018", "million"]:
        pings = options.pings if case == "firefox-2018" else max(20, options.pings // 200)
        made.append({"firefox-2018": firefox, "million": million}[case](pings, max(1, pings // 20)))
    if options.json:
        print(json.dumps([msgspec.to_builtins(each) for each in made], indent=2))
        return 0
    table = Table(title="Unit costs")
    table.add_column("what")
    for each in made:
        table.add_column(each.name, justify="right")
    for field in UnitCosts.__struct_fields__[1:]:
        table.add_row(field, *(f"{getattr(each, field):,}" for each in made))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
