"""Fleets of studies of lists over a real ingest: a ping of each list, outcomes at the choice and later, and rounds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
from msgspec.structs import replace

import fedping
from fedping.client_sim.fleet import FleetSettings, IterationSummary, join_study
from fedping.client_sim.fleet.examples import ExampleSettings, examples_for
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.learning.checking import check_clients
from fedping.client_sim.learning.registry import learner_for
from fedping.client_sim.rehearsal.settings import OutcomeLaw, Rehearsal
from fedping.main import main
from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.features import Category, Flag, Number
from fedping.protocol.links import Levels
from fedping.protocol.outcomes import CountOutcome, FlagOutcome, NumberOutcome, Outcome
from fedping.protocol.personalization import FineTune
from fedping.protocol.pipeline import Pipeline, RProp
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, Study, public_study
from fedping.protocol.training import OneGradient
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, engine_named, run_round
from tests.support.faulty_server import faulty_server
from tests.support.fleets import fleet_study
from tests.support.ingest_server import running_ingest

STEP = Step(start=0.1, min=0.01, max=1.0)
WEIGHTS = tuple(Weight(name=name, start=0.0, step=STEP) for name in ("a", "b", "c"))
WHEN = "2026-01-01T00:00:00.000+00:00"
OUTCOMES: tuple[Outcome, ...] = (
    FlagOutcome(name="basket"),
    CountOutcome(name="opened", most=5),
    NumberOutcome(name="paid", low=0.0, high=500.0, round=0.01, within="48h", linked=True),
    FlagOutcome(name="returned", within="14d"),
)
SPEC = ModelSpec(
    name="shop",
    model="features",
    features=(
        Number(name="shop_score", start=1.0),
        Number(name="price", center=50.0, spread=30.0),
        Flag(name="fresh"),
        Category(name="colour", values=("red", "blue"), other=True),
    ),
    places=6,
)
"""The spec of a shop whose own score matches its users' preferences poorly."""


def study_of(spec: ModelSpec = SPEC, **line: Any) -> Study:
    pipeline = Pipeline(optimizer=RProp(), min_clients=1)
    return Study(
        name="shop",
        pings="list-update",
        enrolment="hash",
        outcomes=OUTCOMES,
        arms=(
            Arm(name="ranked", share=0.6, line="main", applies=True, submits=True, personal="training" in line),
            Arm(name="control", share=0.4, line="main"),
        ),
        lines=(Line(name="main", spec=spec, pipeline=pipeline, **line),),
    )


def rehearsal(folder: Path, **settings: Any) -> Rehearsal:
    rng = np.random.default_rng(4)
    colours = ("red", "blue", "pink")
    rows = [
        f"{rng.normal():.3f},{rng.uniform(5, 120):.2f},{('true', 'false')[rng.integers(2)]},{colours[rng.integers(3)]}"
        for _ in range(40)
    ]
    (folder / "items.csv").write_text("\n".join(["shop_score,price,fresh,colour", *rows]) + "\n")
    truth = {"shop_score": 0.3, "price": -1.5, "fresh": 1.0, "colour=red": 0.8}
    laws = {
        "basket": OutcomeLaw(level=-1.0, slope=0.5),
        "opened": OutcomeLaw(level=0.3),
        "paid": OutcomeLaw(chance=0.4, level=3.0, spread=0.4, after=5.0),
        "returned": OutcomeLaw(chance=0.5),
    }
    own = {"items": str(folder / "items.csv"), "shown": 6, "truth": truth, "leave": 0.2, "outcomes": laws}
    return Rehearsal(**{**own, **settings})


def played(
    folder: Path, study: Study, examples: ExampleSettings, iterations: int = 1
) -> tuple[ModelStore, list[IterationSummary]]:
    """Return the store and the summaries after some iterations of a fleet, with a round after each."""
    store = open_store(folder / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    options = RoundOptions(clock=lambda: WHEN, code_version="test")
    summaries = []
    with (
        running_ingest(folder / "store", folder / "landing", "--workers", "1") as ingest,
        asyncio.Runner() as runner,
        engine_named("numpy") as engine,
    ):
        settings = FleetSettings(clients=120, seed=3, examples=examples)
        fleet = runner.run(join_study(HttpTransport(ingest.url), "shop", settings))
        for _ in range(iterations):
            summaries.append(runner.run(fleet.run_iteration()))
            ingest.flush()
            run_round(store, folder / "landing", "shop", "main", engine, options)
        runner.run(fleet.close())
    return store, summaries


def landed(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        ds.dataset(folder / "landing" / "study=shop", partitioning="hive").to_table().to_pylist()
    )
    return rows


def test_every_list_is_a_ping_with_its_outcomes_and_later_ones_name_their_choice(tmp_path: Path) -> None:
    examples = ExampleSettings(least=1, most=4, rehearsal=rehearsal(tmp_path))
    _, (summary,) = played(tmp_path, study_of(), examples)
    assert summary.pings.rejected == 0
    lists = landed(tmp_path)
    later = [row for batch in fedping.read_outcomes(tmp_path / "landing", "shop") for row in batch.to_pylist()]
    assert len(lists) + len(later) == summary.pings.accepted
    assert sum(arm.pings for arm in summary.arms) == len(lists)
    by_arm = {arm.arm: arm for arm in summary.arms}
    for row in lists:
        chosen = row["place"] > 0
        assert row["candidates"] == row["seen"] == 6
        assert (row["update"] is None) is (row["study_variation"] == "control")
        assert (row["basket"] is not None) is (row["opened"] is not None) is chosen
        if not chosen:
            assert row["loss"] == 0
            assert not np.frombuffer(row["update"] or b"", "<f4").any()
    left = np.mean([row["place"] == 0 for row in lists])
    assert left == pytest.approx(0.2, abs=0.08)
    assert by_arm["ranked"].selected == sum(row["place"] > 0 for row in lists if row["study_variation"] == "ranked")
    chosen_ids = {row["document_id"] for row in lists if row["place"] > 0}
    paid = [row for row in later if row["paid"] is not None]
    returned = [row for row in later if row["returned"] is not None]
    assert len(paid) + len(returned) == len(later)
    assert {row["choice"] for row in paid} <= chosen_ids
    assert {row["choice"] for row in returned} == {None}
    assert 0.2 < len(paid) / len(chosen_ids) < 0.6
    assert len({row["document_id"] for row in later}) == len(later)


@pytest.mark.long
def test_rounds_of_a_rehearsal_recover_what_users_want(tmp_path: Path) -> None:
    examples = ExampleSettings(least=3, most=6, rehearsal=rehearsal(tmp_path, leave=0.0))
    store, summaries = played(tmp_path, study_of(), examples, iterations=10)
    first, *_, last = (summary.recovered["main"] for summary in summaries)
    assert (first.version, first.gain) == (0, 0.0)
    assert last.version == 9
    assert last.gain is not None
    assert last.gain > 0.6
    assert last.ndcg > first.ndcg + 0.1
    assert last.mrr > first.mrr
    weights = dict(zip(SPEC.names, store.head("shop", "main").weights, strict=True))
    assert weights["price"] < 0 < weights["fresh"]


def test_small_updates_of_lists_land_and_a_list_without_a_choice_has_none(tmp_path: Path) -> None:
    examples = ExampleSettings(least=1, most=3, rehearsal=rehearsal(tmp_path, outcomes={}))
    study = study_of(upload=(Levels(bits=8),))
    store, (summary,) = played(tmp_path, study, examples)
    assert summary.pings.rejected == 0
    assert summary.pings.accepted > 100
    assert store.head("shop", "main").iteration == 1


def test_without_a_rehearsal_lists_have_random_items(tmp_path: Path) -> None:
    _, (summary,) = played(tmp_path, study_of(), ExampleSettings(least=1, most=2))
    assert summary.pings.rejected == 0
    assert {row["candidates"] for row in landed(tmp_path)} == {5}
    assert summary.recovered["main"].gain == 0.0


def test_clients_of_lists_keep_no_state_and_rank_by_features() -> None:
    study = study_of(training=OneGradient(personal=FineTune(rate=0.1, steps=2)))
    with pytest.raises(InvalidSettings, match="keeps state with its clients"):
        check_clients(public_study(study))
    own = replace(
        SPEC, model="shop-ranker", features=(), places=0, weights=(Weight(name="price", start=0.0, step=STEP),)
    )
    with pytest.raises(
        InvalidSettings, match="lists of items with features, and the model 'shop-ranker' of line 'main'"
    ):
        check_clients(public_study(study_of(own)))


def test_the_command_rehearses_a_file_and_tells_what_was_recovered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rehearsal(tmp_path)
    (tmp_path / "fleet.toml").write_text('items = "items.csv"\nshown = 6\n[truth]\nprice = -1\n')
    store = open_store(tmp_path / "store", create=True)
    store.create_study(study_of(), first_versions(study_of(), created=WHEN, code_version="test"))
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as ingest:
        words = ["fleet", ingest.url, "shop", "--clients", "50", "--rehearsal", str(tmp_path / "fleet.toml")]
        assert main([*words, "--json"]) == 0
        recovered = json.loads(capsys.readouterr().out.splitlines()[0])["recovered"]["main"]
        assert recovered.keys() == {"version", "gain", "cosine", "mrr", "ndcg", "clicks"}
        assert main(words) == 0
        assert "recovered: 0 % of the possible gain, MRR " in capsys.readouterr().out
        (tmp_path / "fleet.toml").write_text('items = "goods.csv"\n')
        assert main(words) == 1
        assert "there is no file" in capsys.readouterr().err
        (tmp_path / "fleet.toml").write_text('itmes = "items.csv"\n')
        assert main(words) == 2
        assert "itmes" in capsys.readouterr().err


def test_a_rehearsal_of_another_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.toml").write_text("shown = 6\n")
    with faulty_server(fleet_study()) as running:
        words = ["fleet", running.url, fleet_study().name, "--rehearsal", str(tmp_path / "fleet.toml")]
        assert main(words) == 2
        assert "--rehearsal has no effect" in capsys.readouterr().err
    model = ModelSpec(name="line", model="linear-regression", settings={"features": 2}, weights=WEIGHTS)
    with pytest.raises(InvalidSettings, match="has no features of items"):
        examples_for(model, learner_for(model, OneGradient()), ExampleSettings(rehearsal=Rehearsal()), 1)
