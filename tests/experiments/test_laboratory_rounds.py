"""Rounds in memory, over files and over HTTP: the same updates give the same model."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedping.client_sim.upload import sent_updates
from fedping.experiments.laboratory.rounds import Rounds, ServerRounds, Updates
from fedping.experiments.laboratory.rounds.landed import document_ids, new_line, over_http
from fedping.experiments.laboratory.rounds.study import LINE, STUDY, study_of
from fedping.experiments.laboratory.rounds.updates import repetitions
from fedping.experiments.server_process import ingest_process
from fedping.experiments.simulate.people import uuid_bytes
from fedping.model_store.store import open_store
from fedping.protocol.links import Sign
from fedping.protocol.pipeline import Adam, GradientDescent, MeanOfSigns, Momentum, Pipeline, RProp
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Line, Study
from fedping.protocol.upload import sending
from fedping.server_jobs.round import Engine
from fedping.server_jobs.round.engine import engine_named
from tests.support.laboratory_rounds import file_rounds, memory_rounds
from tests.support.links import line_with

M = 5
CLIENTS = 300


def study(pipeline: Pipeline) -> Study:
    step = Step(start=0.1, min=1e-6, max=50.0)
    weights = tuple(Weight(name=f"w{i}", start=0.25 * i, step=step, integer=i == 4) for i in range(M))
    return study_of(Line(name=LINE, spec=ModelSpec(name="five", model="any", weights=weights), pipeline=pipeline))


def ids() -> Any:
    return uuid_bytes(np.arange(CLIENTS, dtype=np.uint64))


def cohort(round_: int, weights: np.ndarray, block: int = 64) -> Iterator[Updates]:
    """Yield noisy updates that pull the weights to 1; some clients send twice, some have no examples."""
    random = np.random.default_rng(round_)
    clients = np.sort(random.integers(0, CLIENTS, 200))
    repeats, pings = repetitions(clients)
    examples = random.integers(0, 20, CLIENTS)[clients]
    updates = np.where(examples[:, None] > 0, (1 - weights) + random.normal(size=(200, M)), 0).astype(np.float32)
    for low in range(0, 200, block):
        rows = slice(low, low + block)
        losses = np.where(examples[rows] > 0, random.random(len(clients[rows])), 0.0)
        yield Updates(clients[rows], repeats[rows], pings[rows], updates[rows], losses, examples[rows])


def run(rounds: Rounds, count: int = 3) -> list[Any]:
    return [(rounds.run(cohort(number, rounds.weights)), rounds.weights.tolist()) for number in range(count)]


def run_over_http(folder: Path, made: Study, engine: Engine) -> list[Any]:
    line = new_line(made, folder, engine)
    with (
        ingest_process(folder / "store", line.landing, folder / "log") as ingest,
        over_http(line, ids(), ingest) as channel,
    ):
        return run(ServerRounds(channel))


PIPELINES = [
    Pipeline(optimizer=GradientDescent(rate=0.5), weighting="examples", min_clients=1),
    Pipeline(optimizer=Adam(rate=0.1), weighting="client", min_clients=1),
    Pipeline(optimizer=Momentum(rate=0.1), weighting="ping", min_clients=1),
    Pipeline(optimizer=RProp(), aggregate=MeanOfSigns(), min_clients=1),
]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda each: type(each.optimizer).__name__)
def test_files_and_memory_come_to_the_same_bits(tmp_path: Path, pipeline: Pipeline) -> None:
    made = study(pipeline)
    with engine_named("numpy") as engine:
        rounds = file_rounds(tmp_path, made, engine, ids())
        through_files = run(rounds)
    assert through_files == run(memory_rounds(made.lines[0], ids()))
    head = open_store(tmp_path / "store").head(STUDY, LINE)
    assert (head.iteration, list(head.model)) == (3, through_files[-1][1])
    assert through_files[0][0].clients < through_files[0][0].pings < 200


@pytest.mark.parametrize("zero", ["up", "abstain"])
def test_signs_as_bits_come_to_the_same_from_files_as_in_memory(tmp_path: Path, zero: Any) -> None:
    upload = (Sign(zero=zero),)
    plain = study(PIPELINES[0])
    made = study_of(msgspec.structs.replace(plain.lines[0], upload=upload))

    def encoded(number: int, weights: np.ndarray) -> Iterator[Updates]:
        for block in cohort(number, weights):
            keys = np.zeros(len(block.clients), np.uint64)
            yield replace(block, updates=sent_updates(sending(line_with(upload)), block.updates, keys))

    def reports(rounds: Rounds) -> list[Any]:
        return [(rounds.run(encoded(number, rounds.weights)), rounds.weights.tolist()) for number in range(3)]

    with engine_named("numpy") as engine:
        rounds = file_rounds(tmp_path, made, engine, ids())
        through_files = reports(rounds)
    assert through_files == reports(memory_rounds(made.lines[0], ids()))
    first = through_files[0][0]
    assert first.update_bytes == first.pings * (1 if zero == "up" else 2)


def test_http_and_memory_come_to_the_same_model(tmp_path: Path) -> None:
    made = study(PIPELINES[0])
    with engine_named("numpy") as engine:
        through_ingest = run_over_http(tmp_path, made, engine)
    in_memory = run(memory_rounds(made.lines[0], ids()))
    for (posted, _), (told, _) in zip(through_ingest, in_memory, strict=True):
        assert replace(posted, posted_bytes=0, fetched_bytes=0) == replace(told, posted_bytes=0, fetched_bytes=0)
        assert 0 < posted.posted_bytes < told.posted_bytes / 2, "batches are compressed"
        assert posted.fetched_bytes == pytest.approx(told.fetched_bytes, rel=0.02)
    # Ingest lands pings in different files, whose parts are merged in another order.
    np.testing.assert_allclose([w for _, w in through_ingest], [w for _, w in in_memory], rtol=1e-12)


def test_a_limit_on_examples_is_the_same_in_memory_over_files_and_over_http(tmp_path: Path) -> None:
    """Numbers of examples go up to 19, and a ping counts for at most 5, as in a study's round."""
    plain = study(PIPELINES[0]).lines[0]
    made = study_of(plain, most_examples=5)
    in_memory = run(memory_rounds(made.lines[0], ids(), most_examples=5))
    believed = run(memory_rounds(made.lines[0], ids()))
    assert np.abs(np.subtract(in_memory[-1][1], believed[-1][1])).max() > 0.01
    with engine_named("numpy") as engine:
        through_files = run(file_rounds(tmp_path / "files", made, engine, ids()))
        assert through_files == in_memory
        through_ingest = run_over_http(tmp_path, made, engine)
    np.testing.assert_allclose([w for _, w in through_ingest], [w for _, w in in_memory], rtol=1e-12)


def test_a_round_with_too_few_clients_makes_no_version_and_is_forgotten(tmp_path: Path) -> None:
    made = study(Pipeline(optimizer=GradientDescent(), weighting="examples", min_clients=100))
    few = [next(cohort(9, np.zeros(M), block=20))]
    with engine_named("numpy") as engine:
        rounds: list[Rounds] = [file_rounds(tmp_path, made, engine, ids()), memory_rounds(made.lines[0], ids())]
        for each in rounds:
            start = each.weights
            assert not each.run(few).stepped
            assert not each.run([]).stepped
            np.testing.assert_array_equal(each.weights, start)
            assert each.run(cohort(0, start)).stepped
    np.testing.assert_array_equal(rounds[0].weights, rounds[1].weights)


def test_a_clients_updates_do_not_depend_on_the_blocks_that_they_come_in() -> None:
    line = study(PIPELINES[0]).lines[0]
    whole, cut = memory_rounds(line, ids()), memory_rounds(line, ids())
    whole.run(cohort(0, whole.weights, block=200))
    cut.run(cohort(0, cut.weights, block=7))
    np.testing.assert_allclose(whole.weights, cut.weights, rtol=1e-12)


def test_every_ping_has_an_id_of_its_own() -> None:
    some = ids()[[0, 1, 1, 1, 2]]
    repeats = np.array([0, 0, 1, 2, 0])
    rounds = [document_ids(some, repeats, number * 1_800_000) for number in range(850_000, 850_003)]
    assert len(np.unique(np.concatenate(rounds), axis=0)) == 15


def test_who_is_drawn_repeatedly_is_told_apart() -> None:
    repeats, pings = repetitions(np.array([2, 5, 5, 5, 7, 7]))
    assert repeats.tolist() == [0, 0, 1, 2, 0, 1]
    assert pings.tolist() == [1, 3, 3, 3, 2, 2]
