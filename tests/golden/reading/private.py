"""Reads private lines: releases are recomputed, budgets continue, and helpers answer from their folders."""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from fedping.helper.folder import open_folder
from fedping.helper.records import adopt
from fedping.helper.requests import reply
from fedping.model_store import open_store
from fedping.protocol.sharing.exchange import Refused
from tests.golden.reading.common import LATER, answers, command, digest
from tests.golden.reading.runs import kernel
from tests.golden.reading.stores import goes_on, told_of, versions

KEY = bytes(range(32))
SHARED = {"shared": "helper", "bare": "helper-bare", "proven": "helper-proven"}
"""Studies of two-server lines, with their helpers' folders."""


@dataclass(frozen=True)
class NoNoise:
    """Reproducible numbers in place of noise, for lines declared as simulated."""

    seed: int

    def integers(self, sigma: float, d: int) -> NDArray[np.int64]:
        """Return d whole numbers that don't depend on σ, shape (d,)."""
        return np.random.default_rng(self.seed).integers(-3, 4, d) * (sigma > 0)


@dataclass(frozen=True)
class Way:
    """A connection to a helper in a folder; ``seen`` has requests with their answers."""

    folder: Path
    noise: NoNoise
    seen: list[tuple[bytes, bytes]] = field(default_factory=list)

    def answer(self, request: bytes, most: int) -> bytes:
        """Return the answer to a request."""
        data = said_by(self.folder, request, self.noise)
        assert len(data) <= most
        self.seen.append((request, data))
        return data


def read(folder: Path) -> dict[str, Any]:
    store, landing = open_store(folder / "store"), folder / "landing"
    found: dict[str, Any] = {"kernel": kernel("scipy", "dp-accounting")}  # which have the last digits of epsilon
    ways = {study: Way(folder / place, NoNoise(7)) for study, place in SHARED.items()}
    copies = {name: command("helper", "status", "--folder", folder / place)[0] for name, place in SHARED.items()}
    for way in ways.values():
        adopt(way.folder / "helper.sqlite")  # as if it were the original folder, not a copy
    for study in store.studies.names():
        more: dict[str, Any] = {"privacy_key": KEY} if study in (*SHARED, "sampled") else {}
        helper = {"helper": ways[study]} if study in SHARED else {}
        before = spending(folder, study)
        found[study] = {
            "told": told_of(store, study),
            "spent": before,
            "versions": versions(store, landing, study, "main", **more),
            "next": goes_on(folder, study, "main", noise=NoNoise(2), keep=study == "kept", **more, **helper),
            "spent after": spending(folder, study),
            "after": versions(store, landing, study, "main", **more),
            "left": len(list((landing / f"study={study}").rglob("*.parquet"))),
        }
    return found | {"copies": copies, "helpers": {name: helped(folder, name, ways[name]) for name in SHARED}}


def helped(folder: Path, study: str, way: Way) -> dict[str, Any]:
    """Return a helper's requests, whether it repeats its answers, and its answers from a backup and to a stranger."""
    [(request, answer)] = way.seen
    told: dict[str, Any] = {"request": digest(request), "answer": digest(answer)}
    told["again"] = way.answer(request, len(answer)) == answer
    [about] = answers("helper", "status", "--folder", way.folder)
    [line] = about["lines"]
    told["status"] = {key: line[key] for key in ("answers", "rounds", "newest", "documents", "first", "older_keys")}
    restored = folder / f"restored-{study}"
    backup = folder / f"backup-{study}"
    for first in (2, 3):
        place = restored / str(first)
        answers("helper", "restore", backup, "--from", f"{study}/main={first}", "--folder", place)
        told[f"restored from {first}"] = said(place, request)
    told["stranger"] = said(way.folder, b"no request")
    return told


def said(folder: Path, request: bytes) -> str:
    """Return the digest of a helper's answer, or the reason for none."""
    try:
        return digest(said_by(folder, request, NoNoise(7)))
    except Refused as refused:
        return refused.reason


def said_by(folder: Path, request: bytes, noise: NoNoise) -> bytes:
    """Return a helper's answer, which contains its time."""
    with patch("fedping.helper.requests.utc_now", lambda: LATER):
        return reply(open_folder(folder), request, datetime.fromisoformat(LATER), noise=noise).data


def spending(folder: Path, study: str) -> Any:
    """Return the spent budget of a line."""
    store = open_store(folder / "store")
    line = store.study(study).lines[0]
    event = store.head(study, "main").lineage.privacy
    if event is None or line.privacy is None or line.privacy.central is None:
        return None
    return {"releases": event.releases, "epsilon": event.epsilon, "sigma": event.sigma, "stepped": event.stepped}
