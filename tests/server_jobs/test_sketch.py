"""Medians of more updates than fit in memory: the bins' precision, and bits independent of the division of work."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedping.experiments.laboratory.rounds.study import LINE, STUDY
from fedping.model_store.store import open_store
from fedping.protocol.pipeline import Median, TrimmedMean
from fedping.server_jobs.round import NumpyEngine, recompute
from fedping.server_jobs.round import accumulator as accumulators
from fedping.server_jobs.round.accumulator import MOST_KEPT_BYTES, Sent
from fedping.server_jobs.round.aggregations import accumulator_for
from fedping.server_jobs.round.robust import (
    Sketch,
    bins_of,
    bits_for,
    columns_of_bins,
    folded,
    median_of,
    middles,
    trimmed_mean_of,
)
from tests.support.hostile_rounds import EXTREME, by_clients, float32s, ids, play, study_with, through_files
from tests.support.laboratory_rounds import memory_rounds
from tests.support.rounds import line_of

TINY = 2.0**-126


@pytest.mark.parametrize("bits", [2, 6, 10])
@given(values=st.lists(float32s(), min_size=1, max_size=20).map(lambda each: each + EXTREME))
def test_a_bin_knows_a_number_to_half_its_width_and_keeps_the_order(bits: int, values: list[float]) -> None:
    sent = np.sort(np.array(values, np.float32))
    bins = bins_of(sent, bits)
    assert (np.diff(bins) >= 0).all()
    assert bins.min() >= 0
    assert bins.max() < 2 ** (9 + bits)
    known = middles(bits)[bins]
    assert (np.abs(known - sent) <= 2.0 ** -(bits + 1) * np.abs(sent.astype(float)) + TINY).all()
    assert (known[sent == 0] == 0).all()


@settings(max_examples=50)
@given(arrays(np.float32, st.tuples(st.integers(1, 20), st.just(3)), elements=float32s()))
def test_a_median_and_a_trimmed_mean_of_bins_are_off_by_half_a_bin_at_most(updates: np.ndarray) -> None:
    k, bits = len(updates), bits_for(3)
    assert bits is not None
    error = 2.0 ** -(bits + 1)
    clients = np.arange(2 * k, dtype=np.uint64).reshape(-1, 2)
    line = line_of(3)
    for settings_of, exact in (
        (Median(), median_of(updates, np.ones(k))),
        (TrimmedMean(share=0.2), trimmed_mean_of(updates, np.ones(k), 0.2)),
    ):
        aggregation = accumulator_for(line_of(3, aggregate=settings_of))
        total = aggregation.add(aggregation.init(line), updates, np.ones(k), clients=clients)
        in_bins = type(total)(total.moments, folded(total.own, 3))
        found = aggregation.finish(in_bins, line, np.zeros(3), {}, b"").direction
        ordered = np.sort(np.abs(updates.astype(float)), axis=0)
        assert (np.abs(found - exact) <= error * ordered[-1] * (1 + 1e-9) + TINY).all()


def test_an_odd_median_of_bins_is_off_by_a_part_of_itself_whatever_else_is_sent() -> None:
    rng = np.random.default_rng(5)
    updates = (rng.normal(size=(1001, 22)) * 10.0 ** rng.integers(-20, 20, 22)).astype(np.float32)
    updates[:400] = 1e30
    exact = median_of(updates, np.ones(1001))
    bits = bits_for(22)
    assert bits == 6
    clients = np.zeros((1001, 2), np.uint64)
    columns = columns_of_bins(folded(Sketch((Sent(updates, np.ones(1001), clients),), 1001), 22))
    found = np.array([values[np.searchsorted(below[:, 0], 500.5), 0] for values, below in columns])
    assert (np.abs(found / exact - 1) <= 2.0**-7).all()


def test_memory_is_bounded_for_any_number_of_weights() -> None:
    for m in (1, 22, 100, 512, 513, 1_000_000):
        bits, room = bits_for(m), accumulator_for(line_of(1, aggregate=Median())).room(m)
        if m <= 512:
            assert room is None
            assert bits is not None
            assert 8 * m * 2 ** (9 + bits) <= MOST_KEPT_BYTES // 16
        else:
            assert bits is None
            assert room == max(1, MOST_KEPT_BYTES // 16 // (4 * m))


@pytest.mark.parametrize("aggregate", [Median(), TrimmedMean(share=0.2)], ids=["median", "trimmed mean"])
def test_of_more_than_fits_come_the_same_bits_however_it_is_divided(
    tmp_path: Path, aggregate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, spoil = study_with(aggregate=aggregate), by_clients(0.1, 1e30)
    exact = play(memory_rounds(study.lines[0], ids()), 3, spoil, pings=600)
    monkeypatch.setattr(accumulators, "MOST_KEPT_BYTES", 16 * 8 * 5 * 2**13)  # a sketch fits
    monkeypatch.setattr("fedping.server_jobs.round.robust.room_for_all", lambda m: 8 if m == 5 else 2**13)
    in_bins = play(memory_rounds(study.lines[0], ids()), 3, spoil, pings=600)
    assert in_bins != exact
    np.testing.assert_allclose(np.frombuffer(in_bins[0]), np.frombuffer(exact[0]), atol=0.1)
    for threads in (1, 3):
        files = through_files(tmp_path / str(threads), study, NumpyEngine(threads))
        assert play(files, 3, spoil, pings=600) == in_bins
    store = open_store(tmp_path / "1" / "store")
    for number in range(4):
        assert recompute(store, tmp_path / "1" / "landing", STUDY, LINE, number, NumpyEngine(2)).identical
