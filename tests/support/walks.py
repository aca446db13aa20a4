"""A line with many versions, as if from rounds but without pings: a seeded walk of the real optimizer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from fedping.model_store import Aggregate, ArmSummary, Lineage, ModelStore, Version, open_store
from fedping.model_store.documents import sealed
from fedping.model_store.versions import version_key
from fedping.protocol.spec import published
from fedping.protocol.study import Study
from fedping.server_jobs.optimize import first_versions
from tests.support.steps import next_weights

CLOCK = np.datetime64("2026-01-01T00:00:00.000", "ms")
INTERVAL = np.timedelta64(30, "m")


def walked_store(folder: Path, study: Study, versions: int, seed: int = 1) -> ModelStore:
    """Create a store whose lines have ``versions`` versions after version 0, published one by one."""
    store = open_store(folder, create=True)
    store.create_study(study, first_versions(study, created=created_at(0), code_version="test"))
    for line in study.lines:
        rng = np.random.default_rng(seed)
        head = store.head(study.name, line.name)
        for _ in range(versions):
            head = following(study, head, rng)
            store.publish(head)
    return store


def walk_on(folder: Path, study: Study, versions: int, seed: int = 1) -> None:
    """Add versions to a line; only the last is published, the others are just written, which is fast."""
    store, rng = open_store(folder), np.random.default_rng(seed)
    head = store.head(study.name, study.lines[0].name)
    for _ in range(versions - 1):
        head = following(study, head, rng)
        file = folder / version_key(head.study, head.line, head.iteration)
        file.write_bytes(sealed(msgspec.json.encode(head)))
    store.publish(following(study, head, rng))


def following(study: Study, head: Version, rng: np.random.Generator) -> Version:
    """Return the version after ``head``: noisy updates pull each weight towards its own target."""
    line = study.line(head.line)
    weights, m = np.array(head.weights), line.spec.m
    goal = np.array(line.spec.start) * (1 + np.sin(np.arange(m))) + 10
    clients = int(1000 + rng.normal(0, 40))
    error = np.abs(goal) * 0.02 / np.sqrt(clients) + 0.02
    made = Aggregate(
        pings=clients + int(rng.integers(0, 400)),
        clients=clients,
        weight=float(clients),
        mean=tuple((np.clip((goal - weights) * 0.01, -1, 1) + rng.normal(0, error)).tolist()),
        m2=tuple((error**2 * clients * (clients - 1)).tolist()),
    )
    then, state = next_weights(line, head.weights, head.state, made)
    distance = float(np.mean(np.abs(goal - weights) / np.abs(goal)))
    return msgspec.structs.replace(
        head,
        iteration=head.iteration + 1,
        parent=head.iteration,
        parent_digest=head.digest,
        created=created_at(head.iteration + 1),
        weights=then,
        model=published(line.spec, then),
        state=state,
        lineage=_lineage(study, head, made, distance, rng),
    )


def created_at(number: int) -> str:
    """Return the publication time of a version of the walk."""
    return f"{CLOCK + number * INTERVAL}+00:00"


def _lineage(study: Study, head: Version, made: Aggregate, distance: float, rng: np.random.Generator) -> Lineage:
    arms = {
        arm.name: ArmSummary(
            pings=(n := int(2500 * arm.share + rng.normal(0, 60) + 200)),
            examples=n - n // 20,
            loss=float(40 + 200 * (distance if arm.applies else 0.9) + rng.normal(0, 8)),
            rank_selected=float(rng.uniform(0.2, 0.5)),
        )
        for arm in study.arms
        if arm.line == head.line
    }
    trained = [arm.name for arm in study.arms if arm.submits]
    counts = {
        "used": made.pings,
        "duplicate": int(rng.integers(0, 5)),
        "other_arm": sum(summary.pings for name, summary in arms.items() if name not in trained),
        "no_example": int(rng.integers(20, 80)),
        "bad_update": int(rng.integers(0, 3)),
        "stale": int(rng.integers(0, 60)),
        "future": 0,
    }
    window = int((CLOCK + (head.iteration + 1) * INTERVAL).astype(np.int64)) - 4000
    return Lineage(
        origin="round",
        code_version="test",
        config_digest=head.lineage.config_digest,
        counts=counts,
        arms=arms,
        aggregate=made,
        window_end_ms=window,
    )
