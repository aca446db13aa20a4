"""Simulated clients learn every kind of model with a real ingest: examples, updates, arms and memory."""

import asyncio
import base64
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pyarrow.dataset as ds
import pytest

from fedping.client_sim.fleet import FleetSettings, IterationSummary, join_study
from fedping.client_sim.fleet import learning_round as rounds
from fedping.client_sim.fleet.examples import ExampleSettings, examples_for
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.learning import LEARNERS, cohort_updates, learner_for, model_spec
from fedping.client_sim.learning.checking import check_study
from fedping.client_sim.learning.models.matrix_factorization import USER as OF_USER
from fedping.client_sim.learning.states import MemoryStates, StatesOf, in_memory
from fedping.client_sim.upload import sent_updates
from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.links import OwnLink, Sign
from fedping.protocol.personalization import PartlyLocal, Reconstruct
from fedping.protocol.pipeline import GradientDescent, MeanOfSigns, Pipeline, Recluster
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm, Line, Study
from fedping.protocol.training import LocalSteps, OneGradient, Training
from fedping.protocol.upload import sending
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, engine_named, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.spark_engine import SparkEngine
from tests.support.fleets import PlannedTransport, fleet_study, seen
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.links import line_with
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STUDY = "any"
WHEN = "2026-01-01T00:00:00.000+00:00"
SETTINGS: dict[str, dict[str, Any]] = {
    "linear-regression": {"features": 4},
    "logistic-regression": {"features": 4},
    "network": {"features": 4, "classes": 3, "hidden": 5},
    "matrix-factorization": {"items": 6, "factors": 2},
    "k-means": {"features": 2, "clusters": 3},
    "svm-ranking": {"features": 4},
    "frecency-2018": {},
    "linear-15": {},
    "cnn": {"features": 16, "classes": 2, "layout": "rodriguez-barroso-2020"},
    "lstm": {"features": 5, "classes": 4, "units": 3, "precision": "float64"},
    "transformer": {"features": 5, "classes": 4, "width": 4, "layers": 1, "dropout": 0.0, "precision": "float64"},
}


def spec_of(model: str) -> ModelSpec:
    return model_spec(model, SETTINGS[model])


ONE_GRADIENT = OneGradient()


def study_of(spec: ModelSpec, training: Training = ONE_GRADIENT, **pipeline: Any) -> Study:
    chosen = Pipeline(**{"optimizer": GradientDescent(rate=0.5), "min_clients": 1, "weighting": "examples", **pipeline})
    personal = getattr(training, "personal", None) is not None
    return Study(
        name=STUDY,
        pings="model-update",
        arms=(
            Arm(name="treatment", share=0.5, line="main", applies=True, submits=True, personal=personal),
            Arm(name="watching", share=0.2, line="main", applies=True),
            Arm(name="teaching", share=0.1, line="main", submits=True),
            Arm(name="plain", share=0.2),
        ),
        lines=(Line(name="main", spec=spec, training=training, pipeline=chosen),),
    )


def created(folder: Path, study: Study) -> ModelStore:
    store = open_store(folder / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    return store


def trained(
    server: IngestServer, folder: Path, store: ModelStore, settings: FleetSettings, states_of: StatesOf = in_memory
) -> list[IterationSummary]:
    """Run two iterations with a round in between."""
    with asyncio.Runner() as runner, engine_named("numpy") as engine:
        fleet = runner.run(join_study(HttpTransport(server.url), STUDY, settings, states_of=states_of))
        found = [runner.run(fleet.run_iteration())]
        server.flush()
        done = run_round(
            store, folder / "landing", STUDY, "main", engine, RoundOptions(clock=lambda: WHEN, code_version="test")
        )
        assert done.status == "published"
        found.append(runner.run(fleet.run_iteration()))
        runner.run(fleet.close())
    server.flush()
    return found


SENT_HERE = ("k-means", "linear-15", "matrix-factorization")
"""One model of each kind: examples with an aggregate, searches, and private blocks."""


@pytest.mark.parametrize(
    "model", [pytest.param(each, marks=[pytest.mark.long] * (each not in SENT_HERE)) for each in sorted(SETTINGS)]
)
def test_every_model_is_learned_over_http(tmp_path: Path, model: str) -> None:
    training: Training = LocalSteps(epochs=1, rate=1.0) if model == "k-means" else OneGradient()
    more = {"aggregate": Recluster(), "optimizer": GradientDescent()} if model == "k-means" else {}
    study = study_of(spec_of(model), training, **more)
    store = created(tmp_path, study)
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as server:
        first, second = trained(server, tmp_path, store, FleetSettings(clients=60, seed=1))
    for one in (first, second):
        assert one.pings.rejected_by_reason == {}
        assert (one.pings.accepted, one.pings.undelivered) == (one.pings.generated, 0)
        assert {arm.arm: arm.clients for arm in one.arms} == {arm.arm: arm.pings for arm in one.arms}
    assert first.versions == {"main": 0}
    assert second.versions == {"main": 1}
    before, after = ({arm.arm: arm.loss for arm in one.arms} for one in (first, second))
    assert None not in before.values()
    if model not in ("frecency-2018", "linear-15", "network"):
        assert after["treatment"] < before["treatment"], "every client has the same examples, so the loss falls"
        assert after["watching"] < before["watching"]
        assert after["teaching"] == before["teaching"], "it trains the line, and applies the first version"
        assert after["plain"] == before["plain"]
    rows = ds.dataset(tmp_path / "landing", partitioning="hive").to_table().to_pandas()
    assert len(rows) == first.pings.accepted + second.pings.accepted
    for arm, sends in (("treatment", True), ("watching", False), ("teaching", True), ("plain", False)):
        here = rows[rows.study_variation == arm]
        assert len(here) > 0
        assert here["update"].notna().all() == sends
        assert (here["line"] == ("none" if arm == "plain" else "main")).all()
        assert set(here.model_version) == ({-1} if arm == "plain" else {0, 1})


USER = tuple(sorted(OF_USER))


@pytest.mark.parametrize(
    "method", [PartlyLocal(local=USER, rate=0.2), Reconstruct(local=USER, rate=0.2, steps=3)], ids=["kept", "fitted"]
)
def test_blocks_that_stay_with_the_client_are_nowhere_on_the_wire(
    tmp_path: Path, method: PartlyLocal | Reconstruct
) -> None:
    """After two trainings and a round, only the shared blocks were published, sent, landed and aggregated."""
    training = OneGradient(personal=method)
    spec = model_spec("matrix-factorization", {"items": 6, "factors": 2, "scale": 1.0}, training=training)
    assert (spec.m, [block.name for block in spec.blocks]) == (18, ["items", "item_biases"])
    study = study_of(spec, training)
    assert not [said for said in check_study(study) if "[lines.pipeline]" not in said]
    store = created(tmp_path, study)
    kept: list[MemoryStates] = []

    def states_of(owner: str, first: Any) -> MemoryStates:
        kept.append(MemoryStates(first))
        return kept[-1]

    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as server:
        settings = FleetSettings(clients=40, seed=1)
        first, second = trained(server, tmp_path, store, settings, states_of)
    assert first.pings.rejected_by_reason == second.pings.rejected_by_reason == {}
    assert second.versions == {"main": 1}
    assert len(store.version(STUDY, "main", 1).model) == 18
    rows = ds.dataset(tmp_path / "landing", partitioning="hive").to_table().to_pandas()
    sent = rows[rows["update"].notna()]["update"]
    assert {len(update) for update in sent} == {4 * 18}
    own = [one.snapshot()["of_own_weights"] for one in kept if "of_own_weights" in one.snapshot()]
    assert len(own) == (1 if isinstance(method, PartlyLocal) else 0)
    numbers = {number for update in sent for number in np.frombuffer(update, "<f4").tolist()}
    for weights in own:
        assert (weights != 0).all()
        assert not numbers & set(weights.ravel().tolist())


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("zero", [pytest.param("up", marks=pytest.mark.long), "abstain"])
def test_signs_sent_over_http_are_counted_by_spark_as_by_numpy(
    spark: "SparkSession", tmp_path: Path, zero: Literal["up", "abstain"]
) -> None:
    study = study_of(spec_of("logistic-regression"), aggregate=MeanOfSigns(zero=zero), weighting="client")
    lines = tuple(msgspec.structs.replace(line, upload=(Sign(zero=zero),)) for line in study.lines)
    study = msgspec.structs.replace(study, lines=lines)
    store = created(tmp_path, study)
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as server:
        with asyncio.Runner() as runner:
            fleet = runner.run(join_study(HttpTransport(server.url), STUDY, FleetSettings(clients=60, seed=4)))
            summary = runner.run(fleet.run_iteration())
            runner.run(fleet.close())
        server.flush()
    assert summary.pings.rejected_by_reason == {}
    landed = ds.dataset(tmp_path / "landing", partitioning="hive").to_table().to_pandas()
    sent = landed[landed["update"].notna()]
    assert set(sent.update_encoding) == {"sign"}
    assert set(sent["update"].map(len)) == {1 if zero == "up" else 2}  # 5 weights
    copy = open_store(Path(shutil.copytree(tmp_path / "store", tmp_path / "copy")))
    for at, engine in ((store, SparkEngine(lambda: nullcontext(spark))), (copy, NumpyEngine())):
        done = run_round(
            at, tmp_path / "landing", STUDY, "main", engine, RoundOptions(clock=lambda: WHEN, code_version="test")
        )
        assert (done.status, done.counts["used"], done.counts["bad_update"]) == ("published", len(sent), 0)
    by_spark, by_numpy = (at.version(STUDY, "main", 1) for at in (store, copy))
    assert by_spark == by_numpy
    assert by_spark.lineage.aggregate is not None
    assert any(by_spark.lineage.aggregate.mean)


def test_the_clients_follow_the_lines_training(tmp_path: Path) -> None:
    spec = spec_of("logistic-regression")
    training = LocalSteps(epochs=2, batch=3, rate=0.1, sign=True)
    sent = sent_by(study_of(spec, training), FleetSettings(clients=40, seed=2))
    teaching = [ping for ping in sent if ping.payload["update"] is not None]
    assert len(teaching) > 10
    assert {abs(number) for ping in teaching for number in ping.payload["update"]} <= {0.0, 1.0}


def test_an_update_is_that_of_the_learner_on_the_clients_own_examples() -> None:
    spec, settings = spec_of("svm-ranking"), FleetSettings(clients=30, seed=3)
    model = learner_for(spec)
    sent = {ping.client_id: ping for ping in sent_by(study_of(spec), settings) if ping.arm == "treatment"}
    transport = PlannedTransport(study_of(spec))
    roster = asyncio.run(joined_roster(transport, settings))
    data = examples_for(spec, model, settings.examples, settings.seed).of(np.arange(30), 0, spec.start_array)
    keys = child_keys(root_key(9), np.arange(30))  # a gradient of all examples draws nothing
    updates, losses, _ = cohort_updates(model, OneGradient(), spec.start_array, data.batch(np.arange(30)), keys)
    checked = 0
    for client, update, loss, size in zip(roster, updates, losses, data.sizes, strict=True):
        if client in sent:
            assert sent[client].payload["examples"] == size
            assert sent[client].payload["loss"] == pytest.approx(loss)
            assert sent[client].payload["update"] == pytest.approx(update.astype(np.float32).tolist(), rel=1e-6)
            checked += 1
    assert checked == len(sent) > 8


async def joined_roster(transport: PlannedTransport, settings: FleetSettings) -> list[Any]:
    return (await join_study(transport, STUDY, settings)).roster.ids


def sent_by(study: Study, settings: FleetSettings, iterations: int = 1) -> list[Any]:
    transport = PlannedTransport(study)

    async def go() -> None:
        fleet = await join_study(transport, STUDY, settings)
        for _ in range(iterations):
            await fleet.run_iteration()

    in_virtual_time(go())
    return seen([sent.body for sent in transport.sent])


def test_all_follows_from_the_seed_and_a_client_does_not_depend_on_the_others() -> None:
    study = study_of(spec_of("network"))
    few, many = (sent_by(study, FleetSettings(clients=n, seed=4, run=1)) for n in (20, 50))
    again = sent_by(study, FleetSettings(clients=20, seed=4, run=1))
    assert [ping.payload for ping in few] == [ping.payload for ping in again]
    by_client = {ping.client_id: ping.payload for ping in many}
    for ping in few:
        ours, theirs = ping.payload, by_client[ping.client_id]
        assert ours["examples"] == theirs["examples"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12)
    other = sent_by(study, FleetSettings(clients=20, seed=5, run=1))
    assert {p.client_id for p in other}.isdisjoint(p.client_id for p in few)


def test_a_client_may_have_no_example(tmp_path: Path) -> None:
    settings = FleetSettings(clients=80, seed=1, examples=ExampleSettings(least=0, most=1))
    sent = sent_by(study_of(model_spec("logistic-regression", {"features": 3, "l2": 0.1})), settings)
    idle = [ping.payload for ping in sent if ping.payload["examples"] == 0]
    assert 10 < len(idle) < len(sent)
    assert all(payload["loss"] == 0 and not any(payload["update"] or ()) for payload in idle)


def test_pings_are_sent_in_blocks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MOST_BYTES", 4000)
    study = study_of(spec_of("logistic-regression"))
    transport = PlannedTransport(study)
    held: list[int] = []

    async def go() -> IterationSummary:
        fleet = await join_study(transport, STUDY, FleetSettings(clients=200, seed=1, send_within=100.0))
        submit = transport.submit

        async def counted(study: str, document_id: Any, body: bytes) -> Any:
            held.append(fleet.undelivered)
            return await submit(study, document_id, body)

        transport.submit = counted  # type: ignore[method-assign]
        return await fleet.run_iteration()

    summary = in_virtual_time(go())
    assert summary.pings.accepted == len(transport.landed) == 200
    assert max(held) < 40
    at = [sent.at for sent in transport.sent]
    assert 80 < max(at) - min(at) <= 100, "all blocks together are spread over the time that one would be"


def test_a_data_set_is_drawn_from_standardised() -> None:
    spec = model_spec("logistic-regression", {"features": 30})
    settings = FleetSettings(clients=50, seed=1, examples=ExampleSettings(data="breast-cancer"))
    sent = sent_by(study_of(spec), settings)
    losses = [ping.payload["loss"] for ping in sent]
    assert losses == pytest.approx([np.log(2)] * 50), "the start weights are zero, whatever the examples"
    model = learner_for(spec)
    batch = examples_for(spec, model, settings.examples, 1).of(np.arange(50), 0, spec.start_array).batch(np.arange(50))
    x = batch.x[batch.weight > 0]  # type: ignore[attr-defined]
    assert np.abs(x.mean(axis=0)).max() < 0.3
    assert x.std() == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    ("spec", "data", "sentence"),
    [
        (model_spec("logistic-regression", {"features": 4}), "breast-cancer", "has 30 features, and the model"),
        (model_spec("logistic-regression", {"features": 10}), "diabetes", "is a number, and the model .* predicts 2"),
        (model_spec("network", {"features": 30, "classes": 5}), "breast-cancer", "is 2 classes, and the model"),
        (spec_of("logistic-regression"), "nothing", "there is no data set 'nothing'"),
        (spec_of("svm-ranking"), "digits", "has 64 features"),
        (spec_of("linear-15"), "digits", "learns from searches over pages, .* leave out --data"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused(spec: ModelSpec, data: str, sentence: str) -> None:
    with pytest.raises(InvalidSettings, match=sentence):
        sent_by(study_of(spec), FleetSettings(clients=5, examples=ExampleSettings(data=data)))


def own_study(model: str, **settings: Any) -> Study:
    spec = spec_of("linear-regression")
    return study_of(msgspec.structs.replace(spec, model=model, settings=settings))


@pytest.mark.parametrize(
    ("study", "sentence"),
    [
        (own_study("house-prices"), "do not have the model 'house-prices' of line 'main', only .* with --replay"),
        (own_study("own", function="os:abort", start="os:abort"), "do not have the model 'own' of line 'main'"),
        (own_study("logistic-regression", features=9), "has 10 weights .* but the spec has 5; .* with --replay"),
        (
            msgspec.structs.replace(study_of(spec_of("network")), arms=(Arm(name="a", share=1),), lines=()),
            "no model line",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused_before_anything_is_sent(study: Study, sentence: str) -> None:
    transport = PlannedTransport(study)
    with pytest.raises(InvalidSettings, match=sentence):
        in_virtual_time(join_study(transport, study.name, FleetSettings(clients=5)))
    assert transport.sent == []
    assert transport.closed


def test_browsers_send_signs_where_the_line_says_so() -> None:
    study = fleet_study()
    lines = tuple(msgspec.structs.replace(line, training=OneGradient(sign=True)) for line in study.lines)
    transport = PlannedTransport(msgspec.structs.replace(study, lines=lines))

    async def go() -> None:
        await (await join_study(transport, study.name, FleetSettings(clients=60, seed=1))).run_iteration()

    in_virtual_time(go())
    updates = [ping.payload["update"] for ping in seen([sent.body for sent in transport.sent])]
    numbers = {abs(number) for update in updates if update is not None for number in update}
    assert numbers == {0.0, 1.0}


@pytest.mark.parametrize("zero", ["up", "abstain"])
def test_browsers_send_signs_as_bits_where_the_line_has_the_link(zero: Any) -> None:
    """The bits equal the signs of the same browsers' updates without the link; the summary has their bytes."""

    def sent_of(study: Study) -> tuple[dict[str, Any], Any]:
        transport = PlannedTransport(study)

        async def go() -> Any:
            return await (await join_study(transport, study.name, FleetSettings(clients=40, seed=1))).run_iteration()

        summary = in_virtual_time(go())
        bodies = [(one.document_id, seen([one.body])[0].payload["update"]) for one in transport.sent]
        return dict(bodies), summary

    study, link = fleet_study(), Sign(zero=zero)
    lines = tuple(msgspec.structs.replace(line, upload=(link,)) for line in study.lines)
    dense, before = sent_of(study)
    bits, summary = sent_of(msgspec.structs.replace(study, lines=lines))
    assert dense.keys() == bits.keys()
    some = 0
    for document, update in dense.items():
        if update is None:
            assert bits[document] is None
            continue
        expected = sent_updates(sending(line_with((link,))), np.array([update]), np.zeros(1, np.uint64))
        payload = base64.b64encode(expected.column[0].as_py()).decode()
        assert bits[document] == {"encoding": "sign", "payload": payload}
        some += 1
    assert some
    for one, other in zip(before.arms, summary.arms, strict=True):
        if one.update_bytes:
            m = one.update_bytes // (4 * one.pings)
            assert other.update_bytes == one.pings * -(-(m if zero == "up" else 2 * m) // 8)
    assert any(arm.update_bytes for arm in before.arms)


def test_a_link_that_clients_do_not_have_is_refused_before_anything_is_sent() -> None:
    study = fleet_study()
    lines = tuple(msgspec.structs.replace(line, upload=(OwnLink(name="elsewhere", code=""),)) for line in study.lines)
    transport = PlannedTransport(msgspec.structs.replace(study, lines=lines))
    with pytest.raises(InvalidSettings, match="the upload link 'elsewhere'"):
        in_virtual_time(join_study(transport, study.name, FleetSettings(clients=5)))
    assert transport.sent == []


def test_every_learner_is_simulated_or_refused_by_name() -> None:
    assert set(SETTINGS) == set(LEARNERS) - {"own", "jax"}
    with pytest.raises(InvalidSettings, match="cannot have from 9 to 3 examples"):
        ExampleSettings(least=9, most=3)
