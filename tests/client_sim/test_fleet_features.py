"""Fleets of a study with features and a real ingest: rounds of all kinds change the weights by the updates."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
from msgspec.structs import replace

from fedping.client_sim.fleet import FleetSettings, join_study
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.learning.checking import check_study
from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.features import Category, Counts, Cross, Equal, Hashed, Number, Spline
from fedping.protocol.guard import Guard, Stage
from fedping.protocol.links import Levels, Sign
from fedping.protocol.personalization import FineTune, PartlyLocal, Vector
from fedping.protocol.pipeline import Adam, GradientDescent, MeanOfSigns, Pipeline, RProp
from fedping.protocol.privacy import Privacy
from fedping.protocol.spec import ModelSpec, NonNegative
from fedping.protocol.study import Arm, Line, Study
from fedping.protocol.training import OneGradient, Training
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, engine_named, run_round
from tests.support.ingest_server import running_ingest
from tests.support.private import CENTRAL

WHEN = "2026-01-01T00:00:00.000+00:00"
FEATURES = (
    Number(name="shop_score", start=1.0),
    Category(name="colour", values=("red", "blue"), other=True, missing=True),
    Spline(name="price", knots=(0.0, 10.0, 100.0)),
    Category(name="device", on="query", values=("phone", "desk")),
    Cross(name="device.colour", of=("device", "colour")),
    Hashed(name="brand", buckets=30),
    Counts(name="visits", values=("home", "cart")),
    Equal(name="same", query="category", item="category"),
)


def shop(**more: Any) -> ModelSpec:
    return ModelSpec(name="shop", model="features", features=FEATURES, **more)


GRADIENT = OneGradient()


def study_of(spec: ModelSpec, pipeline: Pipeline, training: Training = GRADIENT, **line: Any) -> Study:
    personal = getattr(training, "personal", None) is not None
    private = line.get("privacy") is not None
    return Study(
        name="shop",
        pings="private-update" if private else "model-update",
        enrolment="hash",
        arms=(
            Arm(name="treatment", share=0.8, line="main", applies=True, submits=True, personal=personal),
            Arm(name="control", share=0.2, line="main"),
        ),
        lines=(Line(name="main", spec=spec, training=training, pipeline=pipeline, **line),),
    )


def trained(folder: Path, study: Study, iterations: int = 2) -> list[np.ndarray]:
    """Return the weights of each version published from a fleet's pings."""
    store, _ = rounds_of(folder, study, iterations)
    return [np.array(store.version("shop", "main", number).weights) for number in range(iterations + 1)]


def rounds_of(folder: Path, study: Study, iterations: int) -> tuple[ModelStore, list[str]]:
    """Return the store after some iterations of a fleet with a round each, and the outcomes of the rounds."""
    check_study(study)
    store = open_store(folder / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    server = running_ingest(folder / "store", folder / "landing", "--workers", "1")
    options = RoundOptions(clock=lambda: WHEN, code_version="test")
    ended = []
    with server as ingest, asyncio.Runner() as runner, engine_named("numpy") as engine:
        fleet = runner.run(join_study(HttpTransport(ingest.url), "shop", FleetSettings(clients=80, seed=1)))
        for _ in range(iterations):
            runner.run(fleet.run_iteration())
            ingest.flush()
            ended.append(run_round(store, folder / "landing", "shop", "main", engine, options).status)
        runner.run(fleet.close())
    return store, ended


def updates_of(folder: Path) -> np.ndarray:
    """Return the clients' updates of version 0."""
    rows = ds.dataset(folder / "landing", partitioning="hive").to_table().to_pylist()
    of_start = [row["update"] for row in rows if row["model_version"] == 0 and row["update"] is not None]
    return np.array([np.frombuffer(update, "<f4") for update in of_start], np.float64)


@pytest.mark.parametrize("loss", ["softmax", "hinge", "pairwise"])
def test_a_round_adds_what_clients_of_a_features_study_send(tmp_path: Path, loss: Any) -> None:
    pipeline = Pipeline(optimizer=GradientDescent(rate=0.5), min_clients=1, weighting="client")
    spec = shop(loss=loss, margin=1.0, places=3, hidden=2)
    start, first, *_ = trained(tmp_path, study_of(spec, pipeline))
    assert start.tolist() == list(spec.start)
    updates = updates_of(tmp_path)
    assert len(updates) > 30
    np.testing.assert_allclose(first, start + 0.5 * updates.mean(axis=0), rtol=1e-6, atol=1e-8)


def test_rprop_adam_and_constraints_move_features_as_the_signs_of_the_mean_say(tmp_path: Path) -> None:
    spec = shop(places=3, constraints=(NonNegative(weights=("colour", "brand")),))
    bounded = spec.positions(("colour", "brand"))
    for name, optimizer, step in (("rprop", RProp(), 0.1), ("adam", Adam(rate=0.01), 0.01)):
        pipeline = Pipeline(optimizer=optimizer, min_clients=1, weighting="client")
        start, first, *_ = trained(tmp_path / name, study_of(spec, pipeline), 1)
        mean = updates_of(tmp_path / name).mean(axis=0)
        expected = start + step * np.sign(mean)
        expected[bounded] = np.maximum(expected[bounded], 0.0)
        certain = (np.abs(mean) > 1e-4) | (mean == 0)
        np.testing.assert_allclose(first[certain], expected[certain], rtol=1e-3, atol=1e-6)


WAYS: dict[str, dict[str, Any]] = {
    "levels": {"upload": (Levels(bits=4),)},
    "signs": {"upload": (Sign(),), "pipeline": Pipeline(min_clients=1, aggregate=MeanOfSigns())},
    "fine-tuning": {"training": OneGradient(personal=FineTune(rate=0.3))},
    "vector": {"training": OneGradient(personal=Vector(rate=0.3))},
    "private": {"privacy": Privacy(central=CENTRAL, loss=(0.0, 50.0)), "pipeline": Pipeline(min_clients=1)},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_sending_publishes_versions_of_a_features_study(tmp_path: Path, way: str) -> None:
    settings = dict(WAYS[way])
    pipeline = settings.pop("pipeline", Pipeline(optimizer=GradientDescent(rate=0.5), min_clients=1))
    start, first, second = trained(tmp_path, study_of(shop(places=3), pipeline, **settings))
    assert (first != start).sum() > 10
    assert (second != first).sum() > 10


def test_versions_of_a_features_study_are_staged(tmp_path: Path) -> None:
    pipeline = Pipeline(optimizer=GradientDescent(rate=0.5), min_clients=1, weighting="client")
    guard = Guard(rounds=100, window=100, stage=Stage(share=0.3, clients=5, most=1.5))
    store, ended = rounds_of(tmp_path, study_of(shop(), pipeline, guard=guard), 3)
    assert ended == ["staged", "published", "staged"]
    assert store.version("shop", "main", 1).weights != shop().start


def test_blocks_of_a_features_study_cannot_stay_with_clients() -> None:
    training = OneGradient(personal=PartlyLocal(local=("brand",), rate=0.3))
    with pytest.raises(InvalidSettings, match="blocks can't stay"):
        check_study(study_of(shop(), Pipeline(), training))


def test_a_features_study_takes_no_pings_of_pages() -> None:
    study = study_of(shop(), Pipeline())
    with pytest.raises(InvalidSettings, match="model-update"):
        check_study(replace(study, pings="frecency-update"))
