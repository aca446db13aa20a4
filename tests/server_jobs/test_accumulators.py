"""A user's own aggregation, optimizer and constraint, added from outside: their results and failures."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from msgspec import Struct

import fedping.model_store.studies
import fedping.protocol.digest
import fedping.server_jobs.round.accumulator
import fedping.server_jobs.round.shard
from fedping.experiments.laboratory.rounds import Rounds, ServerRounds, Updates
from fedping.experiments.laboratory.rounds.study import LINE, STUDY, study_of
from fedping.experiments.laboratory.rounds.updates import repetitions
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.pipeline import GradientDescent, Mean, Pipeline
from fedping.protocol.study import Study
from fedping.server_jobs.optimize import BrokenLink
from fedping.server_jobs.optimize.constraints import CONSTRAINTS
from fedping.server_jobs.optimize.optimizers import OPTIMIZERS
from fedping.server_jobs.round import Engine, NumpyEngine, RoundOptions, recompute, run_round
from fedping.server_jobs.round.accumulator import ACCUMULATORS
from fedping.server_jobs.round.spark_engine import SparkEngine
from tests.support.laboratory_rounds import file_rounds, memory_rounds
from tests.support.own_links import (
    AtMost,
    Broken,
    NoisyMedian,
    SignStep,
    TrimmedMean,
    at_most,
    failing,
    register_own,
    sign_step,
)
from tests.support.rounds import WHEN, crowd, land, line_of, store_with
from tests.support.versions import small_study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

M, CLIENTS = 5, 300


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    register_own(monkeypatch.setitem)


def ids() -> Any:
    return np.random.default_rng(7).integers(0, 256, (CLIENTS, 16), dtype=np.uint8)


def study_with(aggregate: Any, optimizer: Any = None, constraints: tuple[Any, ...] = (), m: int = M) -> Study:
    line = line_of(m, optimizer=optimizer or GradientDescent(rate=0.5), aggregate=aggregate, min_clients=1)
    spec = msgspec.structs.replace(line.spec, constraints=constraints)
    return study_of(msgspec.structs.replace(line, spec=spec))


def cohort(round_: int, weights: np.ndarray, pings: int = 200, block: int = 64) -> Iterator[Updates]:
    """Yield noisy updates that pull the weights to 1; some clients send twice, some have no examples."""
    random = np.random.default_rng(round_)
    clients = np.sort(random.integers(0, CLIENTS, pings))
    repeats, of_client = repetitions(clients)
    examples = random.integers(0, 20, CLIENTS)[clients]
    pulled = (1 - weights) + random.normal(size=(pings, len(weights)))
    updates = np.where(examples[:, None] > 0, pulled, 0).astype(np.float32)
    for low in range(0, pings, block):
        at = slice(low, low + block)
        losses = np.where(examples[at] > 0, 0.5, 0.0)
        yield Updates(clients[at], repeats[at], of_client[at], updates[at], losses, examples[at])


def play(rounds: Rounds, count: int = 3, **more: int) -> list[bytes]:
    """Run some rounds; return the weights after each."""
    played = []
    for number in range(count):
        rounds.run(cohort(number, rounds.weights, **more))
        played.append(rounds.weights.tobytes())
    return played


def open_unions(study: Study, patch: pytest.MonkeyPatch) -> None:
    """Let a store accept a study whose settings have types that a file can't name."""
    closed = fedping.protocol.digest.canonical_json

    def canonical_json(value: Struct) -> bytes:
        try:
            return closed(value)
        except msgspec.ValidationError:
            return msgspec.json.encode(value, order="sorted")

    patch.setattr(fedping.protocol.digest, "canonical_json", canonical_json)
    patch.setattr(fedping.model_store.studies, "canonical_json", canonical_json)
    patch.setattr(fedping.model_store.studies.Studies, "created", lambda self, name: study)


def through_files(folder: Path, study: Study, engine: Engine, patch: pytest.MonkeyPatch) -> ServerRounds:
    """Return rounds over files."""
    folder.mkdir()
    open_unions(study, patch)
    return file_rounds(folder, study, engine, ids())


OWN = [
    study_with(TrimmedMean()),
    study_with(NoisyMedian()),
    study_with(Mean(), SignStep(), (AtMost(),)),
    study_with(TrimmedMean(share=0.4), SignStep(rate=0.25), (AtMost(most=0.3),)),
]


@pytest.mark.parametrize("study", OWN, ids=["trimmed mean", "median of batches", "optimizer, constraint", "all"])
def test_what_is_added_does_the_same_in_memory_and_through_files(
    tmp_path: Path, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = play(memory_rounds(study.lines[0], ids()))
    assert play(through_files(tmp_path / "one", study, NumpyEngine(), monkeypatch)) == in_memory
    assert play(through_files(tmp_path / "three", study, NumpyEngine(threads=3), monkeypatch)) == in_memory
    assert in_memory != play(memory_rounds(study_with(Mean()).lines[0], ids()))
    store = open_store(tmp_path / "one" / "store")
    for number in range(4):
        assert recompute(store, tmp_path / "one" / "landing", STUDY, LINE, number, NumpyEngine()).identical


@pytest.mark.spark
@pytest.mark.parametrize(
    "study", [pytest.param(OWN[1], id="median of batches", marks=pytest.mark.long), pytest.param(OWN[3], id="all")]
)
def test_what_is_added_does_the_same_on_spark(
    tmp_path: Path, study: Study, monkeypatch: pytest.MonkeyPatch, spark: "SparkSession"
) -> None:
    engine = SparkEngine(lambda: nullcontext(spark))
    through_spark = play(through_files(tmp_path / "spark", study, engine, monkeypatch))
    assert through_spark == play(memory_rounds(study.lines[0], ids()))


def test_noise_is_other_in_every_round_and_the_same_when_a_version_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_with(NoisyMedian(noise=1.0))
    rounds = through_files(tmp_path / "files", study, NumpyEngine(), monkeypatch)
    quiet, noise = memory_rounds(study_with(NoisyMedian()).lines[0], ids()), []
    for number in range(2):
        noise.append(rounds.weights - quiet.weights)
        sent = list(cohort(number, np.zeros(M)))
        rounds.run(sent)
        quiet.run(sent)
    assert not np.array_equal(noise[0], noise[1])
    store = open_store(tmp_path / "files" / "store")
    for number in range(3):
        assert recompute(store, tmp_path / "files" / "landing", STUDY, LINE, number, NumpyEngine()).identical
    played = [play(memory_rounds(study.lines[0], ids(), seed)) for seed in (1, 1, 2)]
    assert played[0] == played[1]
    assert played[0] != played[2]


@pytest.mark.parametrize("pings", [3000, 6000], ids=["one row group", "sixteen shards"])
@pytest.mark.parametrize("aggregate", [Mean(), NoisyMedian()], ids=["mean", "median of batches"])
def test_memory_cuts_batches_as_files_do(
    tmp_path: Path, pings: int, aggregate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tested with shards of several batches, and with pings that don't count."""
    monkeypatch.setattr(fedping.server_jobs.round.shard, "BATCH_BYTES", 8 * M * 100)
    study = study_with(aggregate)
    files = play(through_files(tmp_path / "files", study, NumpyEngine(), monkeypatch), 2, pings=pings, block=pings)
    assert files == play(memory_rounds(study.lines[0], ids()), 2, pings=pings, block=pings)


def test_what_keeps_all_updates_is_bounded_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over files, excess pings are left out, because anyone can send them; in the laboratory, they are an error."""
    monkeypatch.setattr(fedping.server_jobs.round.accumulator, "MOST_KEPT_BYTES", 16 * 4 * M * 10)
    study = study_with(TrimmedMean())
    rounds = through_files(tmp_path / "files", study, NumpyEngine(), monkeypatch)
    rounds.run(cohort(0, rounds.weights, pings=1000))
    head = open_store(tmp_path / "files" / "store").head(STUDY, LINE)
    assert head.lineage.counts["over_capacity"] > 0
    assert head.lineage.counts["used"] <= 160
    with pytest.raises(FedpingError, match=r"'trimmed_mean' keeps all updates .* at most about 160 of 5 weights"):
        memory_rounds(study.lines[0], ids()).run(cohort(0, np.zeros(M), pings=1000))


RAISED = r"the aggregation 'mean' raised ZeroDivisionError: no such luck \(own_links.py, line \d+\)"
FAILURES = {
    "make": RAISED,
    "init": RAISED,
    "add": RAISED,
    "merge": RAISED,
    "finish": RAISED,
    "moments": RAISED,
    "wrong shape": r"the aggregation 'mean' returned a direction of shape \(1,\), not \(2,\)",
    "no number": "the aggregation 'mean' returned a direction that is nan at weight 'w0'",
    "nothing": "the aggregation 'mean' raised AttributeError: 'NoneType' object has no attribute 'direction'",
}


@pytest.mark.parametrize("how", FAILURES)
def test_an_aggregation_that_fails_is_named_and_nothing_is_published(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_with(tmp_path / "store", small_study())
    land(tmp_path / "landing", crowd(12))
    where = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing")]
    monkeypatch.setitem(ACCUMULATORS, Mean, failing(how))
    assert main(["round", "study", "main", "--engine", "numpy", *where]) == 3
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert re.search("version 1 of line 'main' of study 'study' was not published: " + FAILURES[how], told)
    assert "run the same command again, or create a new study" in told
    assert store.head("study", "main").iteration == 0


@pytest.mark.spark
def test_an_aggregation_that_fails_on_spark_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: "SparkSession"
) -> None:
    rounds = through_files(
        tmp_path / "files", study_with(Broken()), SparkEngine(lambda: nullcontext(spark)), monkeypatch
    )
    with pytest.raises(BrokenLink, match=r"version 1 of line 'main' .* 'broken' raised ZeroDivisionError"):
        rounds.run(cohort(0, rounds.weights))
    assert open_store(tmp_path / "files" / "store").head(STUDY, LINE).iteration == 0


def test_in_memory_it_is_named_with_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = memory_rounds(study_with(Mean()).lines[0], ids())
    rounds.run(cohort(0, rounds.weights))
    monkeypatch.setitem(ACCUMULATORS, Mean, failing("finish"))
    before = rounds.weights
    with pytest.raises(BrokenLink, match="round 2 failed: the aggregation 'mean' raised"):
        rounds.run(cohort(1, before))
    assert rounds.weights is before


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda step, weights: step[:1], r"returned a step of shape \(1,\), not \(2,\)"),
        (lambda step, weights: step * np.nan, "returned a step that is nan at position 0, from an input of"),
        (lambda step, weights: [{}], "raised TypeError"),
        (lambda step, weights: 1 / 0, "raised ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.parametrize("place", ["the optimizer 'sign_step'", "the constraint 'at_most'"])
def test_an_optimizer_and_a_constraint_that_fail_are_named(
    tmp_path: Path, place: str, made: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table: Any = OPTIMIZERS if "optimizer" in place else CONSTRAINTS
    study = small_study()
    line = study.lines[0]
    spec = msgspec.structs.replace(line.spec, constraints=(AtMost(most=100.0),))
    line = msgspec.structs.replace(line, spec=spec, pipeline=Pipeline(min_clients=1, optimizer=SignStep()))
    study = msgspec.structs.replace(study, lines=(line,))
    open_unions(study, monkeypatch)
    store = store_with(tmp_path / "store", study)
    land(tmp_path, crowd(12))
    with monkeypatch.context() as patch:
        kind, maker = (SignStep, sign_step) if table is OPTIMIZERS else (AtMost, at_most)
        update = lambda step, state, weights: (made(step, weights), state)  # noqa: E731
        patch.setitem(table, kind, lambda *given: maker(*given)._replace(update=update))
        with pytest.raises(BrokenLink, match=f"version 1 of line 'main' of study 'study' .*{place} {told}"):
            run_round(
                store, tmp_path, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="t")
            )
    assert store.head("study", "main").iteration == 0
    run_round(store, tmp_path, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="t"))
    assert store.head("study", "main").iteration == 1
