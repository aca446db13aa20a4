"""RProp by majority (thesis 4.4): the sign of most votes, equal for updates and for signs, from landed files."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.protocol.pipeline import MeanOfSigns, Pipeline
from fedping.protocol.study import Study
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.aggregate import combined
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.plan import rules_for
from tests.support.rounds import WHEN, Ping, crowd, land, store_with, work_of
from tests.support.versions import small_study

component = st.one_of(st.just(0.0), st.floats(-100, 100, width=32))
votes = st.lists(
    st.builds(Ping, document=st.just(0), client=st.integers(0, 6), update=st.tuples(component, component)),
    min_size=1,
    max_size=25,
).map(lambda pings: [dataclasses.replace(ping, document=i) for i, ping in enumerate(pings)])


def majority_study(**more: Any) -> Study:
    study = small_study()
    line = msgspec.structs.replace(
        study.lines[0], pipeline=Pipeline(min_clients=1, aggregate=MeanOfSigns(**more), weighting="client")
    )
    return msgspec.structs.replace(study, lines=(line,))


def mean_of(sent: list[Ping], study: Study) -> tuple[float, ...]:
    with tempfile.TemporaryDirectory() as folder:
        rules = rules_for(study, "main", 0, key=b"")
        return combined(NumpyEngine().partials(work_of([land(Path(folder), sent)], rules)), rules).updates.mean


@settings(max_examples=60)
@given(votes, st.sampled_from(["abstain", "up"]))
def test_it_is_the_mean_of_the_clients_mean_signs(sent: list[Ping], zero: str) -> None:
    by_client: dict[int, list[list[float]]] = {}
    for ping in sent:
        signs = [(x > 0) - (x < 0) or (zero == "up") for x in ping.update]
        by_client.setdefault(ping.client, []).append(signs)
    expected = np.mean([np.mean(signs, axis=0) for signs in by_client.values()], axis=0)
    np.testing.assert_allclose(mean_of(sent, majority_study(zero=zero)), expected, rtol=1e-12, atol=1e-15)


@settings(max_examples=40)
@given(votes, st.sampled_from(["abstain", "up"]))
def test_signs_of_updates_and_updates_come_to_the_same_bits(sent: list[Ping], zero: str) -> None:
    signed = [dataclasses.replace(p, update=tuple(np.sign(p.update).tolist())) for p in sent]
    assert mean_of(signed, majority_study(zero=zero)) == mean_of(sent, majority_study(zero=zero))


def test_three_small_steps_outvote_one_giant(tmp_path: Path) -> None:
    """The first weight's mean is -24, but most clients want it to rise; the second weight's votes are two to two."""
    updates = [(1.0, 1.0), (1.0, 1.0), (2.0, -5.0), (-100.0, -5.0)]
    sent = [Ping(i, i, update) for i, update in enumerate(updates)]
    land(tmp_path / "landing", sent)
    ends = []
    for name, study in (("mean", small_study()), ("majority", majority_study())):
        store = store_with(tmp_path / name, study)
        run_round(
            store,
            tmp_path / "landing",
            "study",
            "main",
            NumpyEngine(),
            RoundOptions(clock=lambda: WHEN, code_version="t"),
        )
        head = store.head("study", "main")
        assert recompute(store, tmp_path / "landing", "study", "main", 1, NumpyEngine()).identical
        ends.append((head.weights, head.lineage.aggregate.mean))
    assert ends == [((9.0, 10.0), (-24.0, -2.0)), ((11.0, 11.0), (0.5, 0.0))]


@pytest.mark.parametrize(("zero", "mean"), [("abstain", (0.0, -0.5)), ("up", (1.0, 0.0))])
def test_a_zero_abstains_or_is_a_set_bit(zero: str, mean: tuple[float, float]) -> None:
    assert mean_of([Ping(1, 1, (0.0, -1.0)), Ping(2, 2, (0.0, 0.0))], majority_study(zero=zero)) == mean


def test_over_many_clients_it_is_what_the_engine_merges(tmp_path: Path) -> None:
    sent = crowd(3000, seed=5)
    found = mean_of(sent, majority_study())
    np.testing.assert_allclose(found, np.sign([p.update for p in sent]).mean(axis=0), rtol=1e-12)
