"""Clipping: the bound of updates' norms, its adaptation from round to round, and attackers' influence on it."""

import math
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fedping.experiments.laboratory.rounds.study import LINE, STUDY
from fedping.model_store.store import open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.links import Sign
from fedping.protocol.pipeline import (
    ClipByNorm,
    ClipByQuantile,
    GradientDescent,
    MeanOfSigns,
    Median,
    NoClip,
    Pipeline,
    Quorum,
    Recluster,
    RProp,
)
from fedping.protocol.spec import Step
from fedping.protocol.study import Line
from fedping.protocol.training import LocalSteps
from fedping.server_jobs.optimize import first_state
from fedping.server_jobs.round import ArrayRound, NumpyEngine, RoundOptions, recompute, run_round
from fedping.server_jobs.round.clipping import counted, measured, next_bound, norms_of, quantile, shortened
from fedping.server_jobs.round.spark_engine import SparkEngine
from fedping.server_jobs.round.step import MOST_HELD_BYTES, next_clip_bound
from tests.support.hostile_rounds import (
    LARGEST,
    SMALLEST,
    M,
    by_clients,
    float32s,
    ids,
    play,
    study_with,
    through_files,
    updates_and_votes,
)
from tests.support.laboratory_rounds import memory_rounds
from tests.support.rounds import WHEN, Ping, land, line_of, store_with
from tests.support.versions import small_study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = b"key"
BY_QUANTILE, BY_NORM = ClipByQuantile(), ClipByNorm(norm=1.0)


def direction(line: Line, updates: Any, state: Any = None, pings: Any = None) -> tuple[np.ndarray, Any]:
    """Return direction and state after a round of gradient descent with rate 1, with one update for each client."""
    sent = np.asarray(updates, np.float32)
    k = len(sent)
    before = first_state(line) if state is None else state
    round_ = ArrayRound(line, before)
    round_.add(
        (np.arange(k) % 16).astype(np.uint8),
        sent,
        examples=np.ones(k, np.int64),
        pings=np.ones(k, np.int64) if pings is None else np.asarray(pings),
    )
    return round_.stepped(np.zeros(sent.shape[1]), before, KEY)


def line_with(m: int = 2, **pipeline: Any) -> Line:
    return line_of(m, **{"optimizer": GradientDescent(rate=1.0), "min_clients": 1, **pipeline})


@given(updates_and_votes(), st.floats(1e-30, 1e30))
def test_nothing_is_longer_than_the_bound_and_what_is_shorter_keeps_its_bits(sent: Any, bound: float) -> None:
    updates, _ = sent
    norms = norms_of(updates)
    for update, norm in zip(updates, norms, strict=True):
        assert norm == pytest.approx(math.sqrt(math.fsum(float(x) ** 2 for x in update)), rel=1e-12)
    short = shortened(updates, norms, bound)
    assert short.dtype == np.float32
    assert (norms_of(short) <= bound * (1 + 1e-6) + 1e-44).all()  # a subnormal number is rounded by more
    for update, norm, now in zip(updates, norms, short, strict=True):
        if norm <= bound:
            assert now.tobytes() == update.tobytes()
        else:
            assert (np.abs(now - update * (bound / norm)) <= 1e-6 * bound + 1e-44).all()


@given(st.lists(float32s(), min_size=1, max_size=40), st.floats(0.5, 0.99))
def test_a_quantile_of_norms_is_known_to_one_part_in_sixteen(values: list[float], share: float) -> None:
    norms = norms_of(np.array(values, np.float32)[:, None])
    above = np.sort(norms[norms > 0])
    found = quantile(counted(norms, np.ones(len(norms))), share)
    if len(above) == 0:
        assert found is None
        return
    exact = above[max(0, math.ceil(share * len(above)) - 1)]
    assert found is not None
    assert exact <= found <= exact * (1 + 1 / 16)


def test_the_counts_of_norms_hold_the_largest_and_the_smallest_that_there_can_be() -> None:
    for value, m in ((LARGEST, 2_000_000), (SMALLEST, 1)):
        norms = norms_of(np.full((1, m), value, np.float32))
        found = quantile(counted(norms, np.ones(1)), 0.5)
        assert found is not None
        assert norms[0] <= found <= norms[0] * (1 + 1 / 16)


def test_one_client_of_any_length_counts_as_one_of_a_usual_length() -> None:
    updates = np.tile([1.0, 0.0], (101, 1))
    for hostile in (1e9, 1e30, LARGEST):
        updates[50] = [-hostile, hostile]
        plain, _ = direction(line_with(), updates)
        clipped, _ = direction(line_with(clip=BY_QUANTILE), updates)
        assert abs(plain[0]) > 1e6
        np.testing.assert_allclose(clipped, [1.0, 0.0], atol=0.03)


def in_steps(line: Line, *first: float) -> Line:
    """Return a line whose weights have these initial step sizes."""
    weights = tuple(
        replace(weight, step=Step(start=step, min=step, max=step))
        for weight, step in zip(line.spec.weights, first, strict=True)
    )
    return replace(line, spec=replace(line.spec, weights=weights))


def test_by_step_sizes_a_weight_with_small_gradients_is_nobodys_either() -> None:
    updates = np.tile([10.0, 0.1], (100, 1))
    updates[:5] = [0.0, -1e9]
    found = {}
    for units in ("weight", "step"):
        line = in_steps(line_with(clip=ClipByQuantile(units=units)), 1.0, 100.0)  # type: ignore[arg-type]
        found[units], _ = direction(line, updates)
    assert found["weight"][1] < 0, "five clients of a hundred decide what is counted in hundreds"
    assert found["step"][1] > 0.08
    assert found["step"][0] == pytest.approx(9.5, rel=1e-3)


def test_by_step_sizes_it_is_the_same_whatever_unit_a_weight_has() -> None:
    rng = np.random.default_rng(1)
    updates = rng.standard_cauchy((200, 2)).astype(np.float32)
    clip = ClipByQuantile(units="step")
    there, _ = direction(in_steps(line_with(clip=clip), 1.0, 1.0), updates)
    elsewhere, _ = direction(in_steps(line_with(clip=clip), 1.0, 1024.0), updates / np.float32([1.0, 1024.0]))
    np.testing.assert_allclose(elsewhere * [1.0, 1024.0], there, rtol=1e-6)


@given(st.integers(1, 5), st.integers(0, 2**32 - 1), st.sampled_from([1e30, -1e30, LARGEST, 1.0, -1e-3]))
def test_fewer_than_a_quorum_turn_no_sign_against_the_others(hostile: int, seed: int, sends: float) -> None:
    """Of 100 clients, a group of up to a twentieth moves a weight only in the direction of the others' clipped mean."""
    rng = np.random.default_rng(seed)
    updates = (rng.standard_cauchy((100, 3)) * [1, 10, 0.1] + rng.normal(size=3)).astype(np.float32)
    updates[:hostile] = np.float32(sends) * rng.permutation([1, 0, 0])
    line = line_with(3, clip=ClipByNorm(norm=0.5), optimizer=RProp(quorum=Quorum(decides=0.05)))
    moved, _ = direction(line, updates)
    others = shortened(updates[hostile:], norms_of(updates[hostile:]), 0.5).astype(np.float64).sum(axis=0)
    assert (np.sign(moved)[moved != 0] == np.sign(others)[moved != 0]).all()
    assert (moved[np.abs(others) > (0.05 * 100 + hostile) * 0.5 * (1 + 1e-5)] != 0).all()


def test_a_hundredth_that_pull_at_what_nobody_else_touches_move_nothing() -> None:
    """With step sizes as units and 1 as the first round's bound, for any duration of the attack."""
    updates = np.tile([1.0, 0.0], (200, 1))
    updates[:2] = [0.0, 1e9]
    clip = ClipByQuantile(units="step")
    for quorum, moves in ((None, True), (Quorum(), False)):
        line = in_steps(line_with(clip=clip, optimizer=RProp(quorum=quorum)), 1.0, 100.0)
        weights, state = np.zeros(2), first_state(line)
        for _ in range(4):
            moved, state = direction(line, updates, state)
            weights += moved
        assert weights[0] == 4
        assert (weights[1] != 0) == moves


def test_a_fixed_norm_is_the_same_in_every_round() -> None:
    line = line_with(clip=BY_NORM)
    there, state = direction(line, [[3.0, 4.0], [0.3, 0.4]])
    np.testing.assert_allclose(there, [0.45, 0.6], rtol=1e-6)
    again, _ = direction(line, [[3.0, 4.0], [0.3, 0.4]], state)
    assert again.tobytes() == there.tobytes()
    assert next_clip_bound(line, state) is None


def test_the_pings_of_one_client_are_one_client_to_the_bound() -> None:
    updates = np.concatenate([np.full((400, 2), 1e6), np.tile([1.0, 0.0], (10, 1))])
    for weighting in ("client", "ping", "examples"):
        line = line_with(clip=BY_QUANTILE, weighting=weighting)
        _, state = direction(line, updates, pings=[400] * 400 + [1] * 10)
        bound = next_clip_bound(line, state)
        assert bound is not None
        assert 1.0 <= bound <= 1.0625


def test_the_bound_moves_by_a_bounded_factor_whoever_sends_what() -> None:
    line = line_with(clip=ClipByQuantile(growth=1.5))
    _, state = direction(line, np.tile([1.0, 0.0], (20, 1)))
    began = next_clip_bound(line, state)
    assert began is not None
    for _ in range(3):
        _, state = direction(line, np.full((20, 2), LARGEST), state)
    assert next_clip_bound(line, state) == pytest.approx(began * 1.5**3)
    for _ in range(5):
        _, state = direction(line, np.full((20, 2), SMALLEST), state)
    assert next_clip_bound(line, state) == pytest.approx(began / 1.5**2)


def test_less_than_half_of_the_clients_move_the_bound_no_further_than_honest_norms_are_apart() -> None:
    honest = np.linspace(1.0, 2.0, 60)[:, None] * [1.0, 0.0]
    for hostile in (LARGEST, SMALLEST):
        line = line_with(clip=BY_QUANTILE)
        state: Any = None
        for _ in range(6):
            _, state = direction(line, [*honest, *[[hostile, 0.0]] * 59], state)
        bound = next_clip_bound(line, state)
        assert bound is not None
        assert 1.0 <= bound <= 2.0 * (1 + 1 / 16)


def test_without_any_length_nothing_is_clipped_and_the_next_round_measures_again() -> None:
    line = line_with(clip=BY_QUANTILE)
    there, state = direction(line, np.zeros((20, 2)))
    assert not there.any()
    assert next_clip_bound(line, state) is None
    _, state = direction(line, np.full((20, 2), 3.0), state)
    first = next_clip_bound(line, state)
    assert first is not None
    _, state = direction(line, np.zeros((20, 2)), state)
    assert next_clip_bound(line, state) == first


def test_clients_without_a_gradient_do_not_move_the_bound() -> None:
    updates = [[1.0, 0.0], [0.0, 0.0]] * 5 + [[0.0, 0.0]] * 20
    _, state = direction(line_with(clip=BY_QUANTILE), updates)
    assert next_clip_bound(line_with(clip=BY_QUANTILE), state) == pytest.approx(1.0, rel=1 / 16)


def test_the_next_bound_is_a_multiple_of_the_quantile() -> None:
    norms = measured(np.array([1.0, 2.0, 4.0, 8.0, 0.0]), np.ones(5))
    assert next_bound(ClipByQuantile(quantile=0.75, multiple=2.0), 7.0, norms) == pytest.approx(8.0, rel=1 / 16)


@pytest.mark.parametrize("speaking", [1, 2, 10, 60, 198])
def test_a_hundredth_do_not_raise_the_first_bound_however_few_others_have_something_to_say(speaking: int) -> None:
    """Two of 200 clients are hostile, most others send zeros: honest norms are at most 2, so clipped ones are too."""
    line = line_with(clip=BY_QUANTILE)
    updates = np.zeros((200, 2))
    updates[:2] = [0.0, 1e30]
    updates[2 : 2 + speaking] = np.linspace([1.0, 0.0], [2.0, 0.0], speaking)
    moved, _ = direction(line, updates)
    assert abs(moved[1]) <= 0.01 * 2 * (1 + 1 / 16)
    assert moved[0] > 0


@pytest.mark.parametrize("speaking", [1, 2, 10, 60, 198])
def test_a_hundredth_do_not_hold_a_line_up_by_tiny_updates_in_its_first_round(speaking: int) -> None:
    """Either the bound has a usual size, or it isn't kept and the next round measures again."""
    line = line_with(clip=BY_QUANTILE)
    updates = np.zeros((200, 2))
    updates[:2] = [0.0, 1e-30]
    updates[2 : 2 + speaking] = [1.0, 0.0]
    _, state = direction(line, updates)
    bound = next_clip_bound(line, state)
    assert bound is None if speaking <= 10 else bound == pytest.approx(1.0, rel=1 / 16)
    updates[:2] = 0
    moved, _ = direction(line, updates, state)
    assert moved[0] == pytest.approx(speaking / 200, rel=1 / 16)


STEPPED = study_with(clip=ClipByQuantile(units="step"))
CLIPPED = [
    study_with(clip=BY_QUANTILE),
    study_with(clip=BY_NORM, weighting="ping"),
    study_with(clip=ClipByQuantile(quantile=0.8, multiple=0.5), weighting="examples"),
    replace(STEPPED, lines=(in_steps(STEPPED.lines[0], *range(1, M + 1)),)),
    study_with(clip=ClipByQuantile(units="step", multiple=0.1), optimizer=RProp(quorum=Quorum(decides=0.1))),
]


@pytest.mark.parametrize("study", CLIPPED, ids=["quantile", "norm", "quantile, examples", "steps", "quorum"])
def test_the_same_bits_in_memory_and_over_files_however_they_are_divided(tmp_path: Path, study: Any) -> None:
    spoil = by_clients(0.1, 1e30)
    in_memory = play(memory_rounds(study.lines[0], ids()), 4, spoil)
    for threads in (1, 3):
        assert play(through_files(tmp_path / str(threads), study, NumpyEngine(threads)), 4, spoil) == in_memory
    store = open_store(tmp_path / "1" / "store")
    for number in range(5):
        assert recompute(store, tmp_path / "1" / "landing", STUDY, LINE, number, NumpyEngine(2)).identical


@pytest.mark.spark
@pytest.mark.long  # `test_robust` has clipping on Spark in a chain
def test_the_same_bits_on_spark(tmp_path: Path, spark: "SparkSession") -> None:
    engine = SparkEngine(lambda: nullcontext(spark))
    through_spark = play(through_files(tmp_path / "spark", CLIPPED[0], engine))
    assert through_spark == play(memory_rounds(CLIPPED[0].lines[0], ids()))


def test_rounds_in_memory_go_on_where_they_stopped() -> None:
    whole, halved = (memory_rounds(CLIPPED[0].lines[0], ids()) for _ in range(2))
    play(whole, 2)
    play(halved, 2)
    after = memory_rounds(CLIPPED[0].lines[0], ids())
    assert after.checkpoint is not None
    assert halved.checkpoint is not None
    after.checkpoint.restore(halved.checkpoint.snapshot())
    for rounds in (whole, after):
        play(rounds, 1)
    assert after.weights.tobytes() == whole.weights.tobytes()


class _Killed(Exception):
    pass


class _DiesAtLook(NumpyEngine):
    """An engine that dies at its first or second read of the files."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._left = number

    def partials(self, work: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            raise _Killed
        return super().partials(work)


def test_a_first_round_that_is_killed_anywhere_is_repeated_to_the_same_version(tmp_path: Path) -> None:
    study = replace(small_study(), lines=(line_with(clip=BY_QUANTILE),))
    land(tmp_path / "landing", [Ping(i, i, (float(i), -1.0)) for i in range(30)])
    made = {}
    for dies_at in (0, 1, 2):
        store = store_with(tmp_path / f"store {dies_at}", study)
        landing = tmp_path / "landing"
        options = RoundOptions(clock=lambda: WHEN, code_version="t")
        run = partial(run_round, store, landing, "study", "main", options=options)
        if dies_at:
            with pytest.raises(_Killed):
                run(_DiesAtLook(dies_at))
            assert store.head("study", "main").iteration == 0
        assert run(NumpyEngine()).status == "published"
        made[dies_at] = store.version("study", "main", 1).digest
    assert made[0] == made[1] == made[2]


def test_what_cannot_be_clipped_is_refused_with_a_sentence() -> None:
    for aggregate in (MeanOfSigns(), Recluster()):
        with pytest.raises(InvalidSettings, match="'clip' cannot shorten updates"):
            Pipeline(clip=BY_QUANTILE, aggregate=aggregate)
        Pipeline(clip=NoClip(), aggregate=aggregate)
    plain = line_with(clip=BY_NORM)
    for more in ({"upload": (Sign(),)}, {"training": LocalSteps(rate=0.1, epochs=1, sign=True)}):
        with pytest.raises(InvalidSettings, match="clients of line 'main' send signs"):
            Line(name="main", spec=plain.spec, pipeline=plain.pipeline, **more)

    for more in ({}, {"clip": BY_NORM, "aggregate": Median()}):
        with pytest.raises(InvalidSettings, match="'quorum' of rprop"):
            Pipeline(optimizer=RProp(quorum=Quorum()), **more)

    by_step = Pipeline(clip=ClipByQuantile(units="step"))
    with pytest.raises(InvalidSettings, match="'units' of 'clip'"):
        Line(name="main", spec=plain.spec, pipeline=by_step, training=LocalSteps(rate=0.1, epochs=1))


def test_memory_holds_a_bounded_part_of_a_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_HELD_BYTES == 2**30
    monkeypatch.setattr("fedping.server_jobs.round.step.MOST_HELD_BYTES", 4 * M * 100)
    rounds = memory_rounds(CLIPPED[0].lines[0], ids())
    with pytest.raises(Exception, match="in memory to measure them, at most about 100 of 5 weights"):
        play(rounds, 1)
