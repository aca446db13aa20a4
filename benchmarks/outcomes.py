"""Cost of outcomes in ingest: of lists with five outcomes at the choice, of lists without, and of later outcomes.

    python -m benchmarks.outcomes [--json] [--pings 20000] [--goes 5]

A real ingest with one worker accepts the pings over HTTP, one per request and in batches of 500, and lands them when it
stops. The cost is defined as in `benchmarks.unit_costs`: the CPU time of all of its processes, many pings minus few, so
that its start doesn't count. The kinds take turns within one run, and the minimum of several repeats counts, since
other load can only add to the cost. A ratio is the rate of a kind divided by the rate of lists without outcomes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.load import http_post
from benchmarks.unit_costs import taken
from fedping.model_store.store import open_store
from fedping.protocol.outcomes import CategoryOutcome, CountOutcome, FlagOutcome, NumberOutcome, Outcome
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, Study
from fedping.server_jobs.optimize import first_versions

M = 30
BATCH = 500
WHEN = "2026-01-01T00:00:00+00:00"
FIVE: tuple[Outcome, ...] = (
    FlagOutcome(name="basket"),
    FlagOutcome(name="wished"),
    CountOutcome(name="opened", most=20),
    NumberOutcome(name="seconds", low=0.0, high=600.0, round=0.5),
    CategoryOutcome(name="device", values=("phone", "tablet", "desktop")),
)
LATER: tuple[Outcome, ...] = (NumberOutcome(name="paid", low=0.0, high=500.0, round=0.01, within="48h"),)
STUDIES = {"lists": (), "lists, five outcomes": FIVE, "later outcomes": LATER}


@dataclass(frozen=True)
class Row:
    """The cost of a ping of a kind: CPU microseconds, and bytes as sent, in the journal and landed."""

    kind: str
    way: str
    microseconds: float
    ratio: float
    sent: float
    journal: float
    landed: float


def study_of(outcomes: tuple[Outcome, ...]) -> Study:
    """Return a study of a shop with a model of 30 weights."""
    weights = tuple(Weight(name=f"w{i}", start=1.0, step=Step(start=1, min=0.1, max=3)) for i in range(M))
    line = Line(name="main", spec=ModelSpec(name="shop", model="shop", weights=weights))
    arms = (Arm(name="treatment", share=1.0, line="main", applies=True, submits=True),)
    return Study(name="shop", pings="list-update", arms=arms, lines=(line,), outcomes=outcomes)


def ping(rng: np.random.Generator, kind: str) -> dict[str, Any]:
    """Return a ping as a client would send it."""
    payload: dict[str, Any] = {"model_version": 0, "study_variation": "treatment"}
    if kind == "later outcomes":
        payload |= {"age": int(rng.integers(0, 48)), "paid": int(rng.integers(0, 50_000)) * 0.01}
        return {"clientId": str(uuid.UUID(bytes=rng.bytes(16))), "type": "outcome", "payload": payload}
    payload |= {
        "update": [round(float(x), 4) for x in rng.normal(0, 1, M)],
        "loss": round(float(rng.exponential(2)), 4),
        "place": int(rng.integers(1, 9)),
        "candidates": 20,
        "seen": int(rng.integers(9, 20)),
    }
    if kind == "lists, five outcomes":
        payload |= {
            "basket": bool(rng.random() < 0.1),
            "wished": bool(rng.random() < 0.05),
            "opened": int(rng.integers(0, 5)),
            "seconds": float(rng.integers(0, 200)) * 0.5,
            "device": ("phone", "tablet", "desktop")[int(rng.integers(0, 3))],
        }
    return {"clientId": str(uuid.UUID(bytes=rng.bytes(16))), "type": "list-update", "payload": payload}


def requests(kind: str, pings: int, batch: int) -> list[bytes]:
    """Return requests with ``batch`` pings each, all different."""
    rng = np.random.default_rng(1)
    path = "/submit/shop/outcome/1" if kind == "later outcomes" else "/submit/shop/list-update/1"
    if batch == 1:
        return [
            http_post(f"{path}/{uuid.UUID(bytes=rng.bytes(16))}", json.dumps(ping(rng, kind)).encode())
            for _ in range(pings)
        ]
    lines = [
        json.dumps({"documentId": str(uuid.UUID(bytes=rng.bytes(16))), **ping(rng, kind)}).encode()
        for _ in range(pings)
    ]
    return [http_post(path, b"\n".join(lines[at : at + batch])) for at in range(0, pings, batch)]


def measured(pings: int, goes: int, tell: Callable[[str], None]) -> list[Row]:
    """Return the cost of each kind, one ping per request and in batches; the kinds take turns."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        stores = {kind: Path(name) / str(number) for number, kind in enumerate(STUDIES)}
        for kind, outcomes in STUDIES.items():
            study = study_of(outcomes)
            versions = first_versions(study, created=WHEN, code_version="b")
            open_store(stores[kind], create=True).create_study(study, versions)
        for way, batch, times in (("one a request", 1, 1), ("batches of 500", BATCH, 8)):
            few, many = max(BATCH, pings * times // 10), pings * times
            made = {kind: [requests(kind, n, batch) for n in (few, many)] for kind in STUDIES}
            least: dict[tuple[str, int], Any] = {}
            for go in range(goes):
                tell(f"{way}, go {go + 1} of {goes}")
                for kind in STUDIES:
                    for side in (0, 1):
                        found = taken(stores[kind], made[kind][side])
                        before = least.get((kind, side))
                        if before is None or found.seconds < before.seconds:
                            least[kind, side] = found
            of_lists = math.nan
            for kind in STUDIES:
                less, more = least[kind, 0], least[kind, 1]
                cost = (more.seconds - less.seconds) / (many - few) * 1e6
                of_lists = cost if kind == "lists" else of_lists
                sent = [(b - a) / (many - few) for a, b in ((less.sent, more.sent), (less.journal, more.journal))]
                rows.append(Row(kind, way, cost, of_lists / cost, *sent, (more.landed - less.landed) / (many - few)))
    return rows


def main(words: list[str]) -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pings", type=int, default=20_000)
    parser.add_argument("--goes", type=int, default=5)
    given = parser.parse_args(words)
    console = Console(stderr=True)
    rows = measured(given.pings, given.goes, lambda said: console.print(said, highlight=False))
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    table = Table("kind", "way", "µs a ping", "rate beside lists", "sent", "journal", "landed, bytes")
    for row in rows:
        numbers = f"{row.microseconds:.1f}", f"{row.ratio:.3f}", f"{row.sent:.0f}", f"{row.journal:.0f}"
        table.add_row(row.kind, row.way, *numbers, f"{row.landed:.0f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
