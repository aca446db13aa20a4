"""Reads a store and its landing folder: versions' digests, their recomputation, and each line's next round."""

import contextlib
from pathlib import Path
from typing import Any

from fedping.model_store import ModelStore, open_store
from fedping.protocol.errors import FedpingError
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.golden.reading.common import LATER, digest

ENGINE = NumpyEngine()


def read(folder: Path) -> dict[str, Any]:
    store, landing = open_store(folder / "store"), folder / "landing"
    places = [(study, line.name) for study in store.studies.names() for line in store.study(study).lines]
    return {
        "studies": {name: told_of(store, name) for name in store.studies.names()},
        "versions": {f"{study}/{line}": versions(store, landing, study, line) for study, line in places},
        "next": {f"{study}/{line}": goes_on(folder, study, line) for study, line in places},
        "after": {f"{study}/{line}": versions(store, landing, study, line) for study, line in places},
    }


def told_of(store: ModelStore, study: str) -> dict[str, Any]:
    """Return the state of a study, and its history."""
    declared = store.studies.declared(study)
    return {
        "digest": store.study(study).digest,
        "state": declared.state,
        "simulated": declared.simulated,
        "history": [
            [entry.number, entry.kind, entry.at, entry.by, entry.because, list(entry.told)]
            for entry in store.studies.history(study)
        ],
        "settings": [store.studies.settings(study, entry.settings)[1].digest for entry in store.studies.history(study)],
    }


def versions(store: ModelStore, landing: Path, study: str, line: str, **more: Any) -> dict[str, Any]:
    """Return a line's versions by number, with whether they are recomputed to the bit."""
    found: dict[str, Any] = {}
    for number in store.iterations(study, line):
        version = store.version(study, line, number)
        again: Any = None
        with contextlib.suppress(FedpingError):  # its pings are deleted
            again = recompute(store, landing, study, line, number, ENGINE, **more)
        found[str(number)] = {
            "digest": version.digest,
            "public": digest(store.public.document(study, line, number)),
            "weights": list(version.weights[:4]),
            "origin": version.lineage.origin,
            "counts": version.lineage.counts,
            "identical": None if again is None else again.identical,
            "noise": None if again is None else again.noise,
            "given": None if again is None else bool(again.given),
        }
    held = store.held.held_version(study, line)
    found["held"] = None if held is None else {"number": held.iteration, "digest": held.digest}
    found["trouble"], found["notes"] = store.lines.trouble(study, line), len(store.lines.notes(study, line))
    return found


def goes_on(folder: Path, study: str, line: str, **more: Any) -> dict[str, Any]:
    """Run a line's next round; return its result and the documents that clients then fetch."""
    store, settings = open_store(folder / "store"), {"clock": lambda: LATER, "code_version": "golden", **more}
    result = run_round(store, folder / "landing", study, line, ENGINE, RoundOptions(**settings))
    latest = folder / "store" / study / line / "public" / "latest.json"
    return {
        "status": result.status,
        "counts": result.counts,
        "clients": result.clients,
        "restored": result.restored,
        "alarms": len(result.alarms),
        "latest": digest(latest.read_bytes()),
    }
