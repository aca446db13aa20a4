"""Reads landing folders: accepted pings land, and damaged files are rejected or skipped as before."""

import json
import re
from pathlib import Path
from typing import Any

from fedping.model_store import open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import open_landing
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.golden.reading.common import LATER
from tests.golden.reading.stores import goes_on
from tests.support.ingest_app import landed_ids
from tests.support.ingest_server import running_ingest

DAMAGES = (
    "whole",
    "flipped",
    "cut",
    "empty",
    "text",
    "newer",
    "by-others",
    "other-columns",
    "other-names",
    "twice",
)
"""Lines named after the damage in their landing folders."""


def read(folder: Path) -> dict[str, Any]:
    damages = folder / "damages"
    return {
        "damages": {name: rounds(damages, name) for name in DAMAGES},
        "journal": lands(folder / "journal"),
    }


def rounds(folder: Path, name: str) -> Any:
    """Return the result of a round, or the kind of its error and the file concerned."""
    try:
        return goes_on(folder, "damages", name)
    except FedpingError as error:
        told = re.search(r"\d{13}-\w+\.parquet", str(error))
        return {"error": type(error).__name__, "file": told and told[0]}


def lands(folder: Path) -> dict[str, Any]:
    """Let ingest take over a journal, and run a round on the landed pings."""
    landing, journal = folder / "landing", folder / "journal"
    answered = json.loads((folder / "answered.json").read_bytes())
    found: dict[str, Any] = {"before": sorted(set(landed_ids(landing))), "answered": sorted(answered)}
    found["quarantine"] = len(list((journal / "quarantine").glob("*")))
    with running_ingest(folder / "store", landing, "--workers", "1", "--journal", str(journal)) as server:
        status = server.flush()
        found["status"] = {key: status[key] for key in ("missing", "quarantined", "pending")}
    # Ingest remembers landed pings for an hour. A ping landed before the kill lands again after that, and the round
    # counts it once.
    found["landed"] = sorted(set(landed_ids(landing)))
    found["quarantined"] = len(list((journal / "quarantine").glob("*")))
    found["refused"] = refused(folder)
    store = open_store(folder / "store")
    result = run_round(
        store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: LATER, code_version="golden")
    )
    head = store.head("study", "main")
    found["round"] = {
        "status": result.status,
        "counts": result.counts | {"duplicate": 0},
        "weights": list(head.weights),
    }
    found["identical"] = recompute(store, landing, "study", "main", 1, NumpyEngine()).identical
    assert len(open_landing(landing).all_files()) >= 2
    return found


def refused(folder: Path) -> list[str]:
    """Return the reasons in the logs of rejected pings."""
    logs = [path for path in folder.rglob("*.jsonl") if ".rejected" in path.parts]
    return sorted(json.loads(line)["reason"] for path in logs for line in path.read_text().splitlines())
