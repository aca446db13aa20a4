"""Writes a shop's study with three versions, ranked by its own features, with outcomes at the choice and later."""

import json
from pathlib import Path
from uuid import UUID

import numpy as np
from werkzeug.test import Client

from fedping.protocol.features import Category, Counts, Cross, Flag, Hashed, Number, Spline
from fedping.protocol.outcomes import linked_id
from fedping.protocol.pipeline import RProp
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Study
from fedping.server_jobs.ingest.application import Edge
from fedping.server_jobs.ingest.operations import Operations
from fedping.server_jobs.ingest.services import services_for
from fedping.server_jobs.ingest.settings import IngestSettings
from tests.golden.writing.common import eighths, ids, line, play, stored, study
from tests.support.ingest_app import IngestApp
from tests.support.outcomes import AFTER, AT_CHOICE

CLIENTS = 12
SPEC = ModelSpec(
    name="shop",
    model="features",
    features=(
        Number(name="shop_score", field="score", start=1.0, low=0.0, high=10.0, spread=2.0),
        Number(name="price", field="price", low=0.0, high=500.0, log=True, missing=True),
        Spline(name="rating", field="stars", knots=(1.0, 3.0, 5.0)),
        Flag(name="new", field="new"),
        Category(name="color", field="color", values=("red", "blue"), other=True),
        Hashed(name="brand", field="brand", buckets=8),
        Counts(name="tags", field="tags", values=("sale", "eco")),
        Category(name="device", field="device", on="query", values=("phone", "desktop")),
        Cross(name="device_color", of=("device", "color")),
    ),
    places=4,
)


def write(folder: Path) -> None:
    made = study("shop", [line("main", spec=SPEC, optimizer=RProp())], pings="list-update", outcomes=AT_CHOICE + AFTER)
    stored(folder, made)
    app = _ingest(folder)
    for version in range(3):
        _lists(app, made, version)
        _outcomes(app, made, version)
        app.land()
        if version < 2:
            play(folder, "shop", "main")


def _ingest(folder: Path) -> IngestApp:
    (folder / "journal").mkdir()
    (folder / "landing").mkdir()
    settings = IngestSettings(store=folder / "store", landing=folder / "landing", journal=folder / "journal")
    services = services_for(settings, "worker-0")
    edge = Edge(services)
    return IngestApp(settings, services, edge, Client(edge), Client(Operations(services)))


def _documents(*parts: object) -> list[str]:
    return [str(UUID(bytes=each.tobytes())) for each in ids(*parts, k=CLIENTS)]


def _lists(app: IngestApp, made: Study, version: int) -> None:
    """Post a list for each client, half in the non-training arm; some lists have no choice, one was swapped."""
    updates = eighths(np.random.default_rng(version), CLIENTS, made.lines[0].spec.m)
    _post(app, "list-update", [
        {
            "documentId": document,
            "clientId": client,
            "type": "list-update",
            "payload": {
                "model_version": version,
                "study_variation": "main-stays" if number % 2 else "main-trains",
                "update": None if number % 2 else (updates[number] * (number % 5 > 0)).tolist(),
                "loss": (1 + number / 16) * (number % 5 > 0),
                "place": number % 5,
                "candidates": 8,
                "seen": 6,
                **({"swapped": True} if number == 4 else {}),
                **({"pinned": True} if number == 6 else {}),
                "basket": number % 3 == 0,
                "opened": number,
                "seconds": number / 2,
                "device": ("phone", "desktop")[number % 2],
            },
        }
        for number, (document, client) in enumerate(
            zip(_documents("list", version), _documents("client"), strict=True)
        )
    ])  # fmt: skip


def _outcomes(app: IngestApp, made: Study, version: int) -> None:
    """Post the payments of every third client, and the returns of every fourth."""
    sent = []
    for number, (choice, client) in enumerate(zip(_documents("list", version), _documents("client"), strict=True)):
        arm = "main-stays" if number % 2 else "main-trains"
        about = {"model_version": version, "study_variation": arm}
        if number % 3 == 0:
            paid = {**about, "age": 5, "choice": choice, "paid": 10.25 * (number + 1)}
            sent.append({"documentId": str(linked_id(UUID(choice), "paid")), "clientId": client, "payload": paid})
        if number % 4 == 0:
            document = _documents("returned", version)[number]
            returned = {**about, "age": 30, "returned": number % 8 == 0}
            sent.append({"documentId": document, "clientId": client, "payload": returned})
    _post(app, "outcome", [{**each, "type": "outcome"} for each in sent])


def _post(app: IngestApp, kind: str, pings: list[dict[str, object]]) -> None:
    answer = app.post(f"/submit/shop/{kind}/1", "\n".join(map(json.dumps, pings)).encode())
    assert answer.json == {"accepted": len(pings), "rejected": []}, answer.json
