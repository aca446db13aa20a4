"""Samplings by clients' earlier pings: power of choice, and users' own samplings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedping
from fedping.client_sim.sampling import NEVER, Past, PowerOfChoice, sampler_for
from fedping.client_sim.sampling.samplers import PowerOfChoiceSampler
from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import Problem, prepare
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.units import Unit
from fedping.protocol.errors import InvalidSettings
from tests.experiments.test_laboratory_run import contents
from tests.support.laboratory import small
from tests.support.registry import registry_of_its_own

CHANGES: dict[str, Any] = {
    "rounds": 12,
    "partition": {"partition": "dirichlet", "clients": 8, "alpha": 0.5},
    "server__weighting": "client",
    "evaluation": {"every": 6, "baselines": []},
}


def unit(**changes: Any) -> Unit:
    [setup] = small(**{**CHANGES, **changes}).variants.values()
    return Unit("only", None, setup, 1, None)


def run(folder: Path, **changes: Any) -> tuple[Outcome, np.ndarray, Problem]:
    of = unit(**changes)
    return run_unit(of, folder), np.load(of.folder(folder).path / "last.npy"), prepare(of.setup, 1, None)


def past(losses: list[float], newest: list[float] | None = None, round_: int = 3) -> Past:
    known = np.array(losses)
    there = ~np.isnan(known)
    return Past(
        round=round_,
        seed=1,
        sizes=np.ones(len(known), np.int64),
        groups=None,
        losses=known,
        times=there.astype(np.int64),
        last=np.where(there, 0, NEVER),
        losses_of=lambda some: np.array(newest or losses)[some],
    )


def test_those_with_the_largest_losses_are_chosen_and_those_never_seen_before_them() -> None:
    """By hand: of [0.1, never, 3, 2, 0.5], the second and third are chosen."""
    for kind, expected in (("last", [1, 2]), ("newest", [0, 4])):
        sampler = sampler_for(PowerOfChoice(clients=2, candidates=5, losses=kind), np.ones(5, np.int64), 1)  # type: ignore[arg-type]
        assert isinstance(sampler, PowerOfChoiceSampler)
        known = past([0.1, np.nan, 3.0, 2.0, 0.5], newest=[9.0, 1.0, 2.0, 3.0, 8.0])
        assert sampler.draw_after(known).tolist() == expected


def test_candidates_are_drawn_by_size_and_equal_losses_at_random() -> None:
    """One candidate of four clients is client i with probability n_i/n; 1,000 draws, five deviations: 1 in 10^6."""
    sizes, rounds = np.array([1, 2, 3, 4]), 1000
    one = sampler_for(PowerOfChoice(clients=1, candidates=1), sizes, 7)
    drawn = np.concatenate([one.draw(number) for number in range(rounds)])
    chances = sizes / 10
    spread = np.sqrt(rounds * chances * (1 - chances))
    assert (np.abs(np.bincount(drawn, minlength=4) - rounds * chances) < 5 * spread).all()
    equal = sampler_for(PowerOfChoice(clients=1, candidates=4, losses="last"), np.ones(4, np.int64), 7)
    assert isinstance(equal, PowerOfChoiceSampler)
    first = np.concatenate([equal.draw_after(past([1.0] * 4, round_=number)) for number in range(rounds)])
    assert (np.abs(np.bincount(first, minlength=4) - rounds / 4) < 5 * np.sqrt(rounds * 3 / 16)).all()


@pytest.mark.parametrize("kind", ["newest", "last"])
@pytest.mark.parametrize("where", ["memory", "files"])
def test_a_run_is_that_of_a_second_implementation(tmp_path: Path, kind: str, where: str) -> None:
    """With all clients as candidates nothing is random: each round takes the three largest losses."""
    sampling = {"sampling": "power_of_choice", "clients": 3, "candidates": 8, "losses": kind}
    changes: dict[str, Any] = {"model": {"name": "linear-regression"}, "data": {"name": "diabetes"}}
    _, weights, problem = run(
        tmp_path,
        sampling=sampling,
        rounds=10,
        where=where,
        partition={"partition": "iid", "clients": 8},
        server__optimizer={"optimizer": "gradient_descent", "rate": 0.05},
        **changes,
    )
    last, expected = np.full(8, np.nan), np.zeros(11)
    for number in range(10):
        found = [objective(problem, client, expected) for client in range(8)]
        losses = np.array([loss for loss, _ in found])
        if kind == "newest":
            chosen = np.argsort(-losses)[:3]
        elif np.isnan(last).sum() > 3:  # some that have never taken part, and the seed decides who
            chosen = drawn_after(problem, sampling, last, number)
            assert np.isnan(last[chosen]).all()
        else:
            chosen = np.argsort(-np.nan_to_num(last, nan=np.inf))[:3]
        last[chosen] = losses[chosen]
        expected = expected - 0.05 * np.mean([found[client][1] for client in chosen], axis=0)
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)


def drawn_after(problem: Problem, sampling: dict[str, Any], last: np.ndarray, number: int) -> Any:
    settings = PowerOfChoice(**{key: value for key, value in sampling.items() if key != "sampling"})
    sampler = sampler_for(settings, problem.train.sizes, 1)
    assert isinstance(sampler, PowerOfChoiceSampler)
    return sampler.draw_after(past(last.tolist(), round_=number))


def objective(problem: Problem, client: int, weights: np.ndarray) -> tuple[float, np.ndarray]:
    """Return a client's loss and gradient, by the definition of the mean of squared errors."""
    batch: Any = problem.train.batch(np.array([client]))
    x, y = batch.x[0], batch.y[0]
    there = batch.weight[0] > 0  # the others pad
    x, y = x[there], y[there]
    error = x @ weights[:-1] + weights[-1] - y
    return float((error**2).mean()), 2 * np.append(x.T @ error, error.sum()) / len(y)


def test_both_engines_choose_the_same_clients(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    sampling = {"sampling": "power_of_choice", "clients": 2, "candidates": 5}
    training = {"algorithm": "local", "epochs": 1, "batch": 16, "rate": 0.2}
    found = [
        run(tmp_path / engine, sampling=sampling, training=training, engine=engine, rounds=5)
        for engine in ("numpy", "jax")
    ]
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-6, atol=1e-7)
    assert any("a [sampling] that follows clients' losses" in note for note in found[1][0].notes)


def test_candidates_that_are_not_chosen_have_fetched_the_version(tmp_path: Path) -> None:
    traffic = {}
    for kind in ("newest", "last"):
        sampling = {"sampling": "power_of_choice", "clients": 2, "candidates": 6, "losses": kind}
        traffic[kind] = run(tmp_path / kind, sampling=sampling, rounds=1)[0].fetched_bytes
    assert traffic["newest"] == 3 * traffic["last"] > 0


def test_a_killed_run_goes_on_with_the_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    of = unit(sampling={"sampling": "power_of_choice", "clients": 2, "candidates": 6, "losses": "last"})
    run_unit(of, tmp_path / "whole")

    def on_round(done: int, rows: object) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_unit(of, tmp_path / "killed", on_round)
    run_unit(of, tmp_path / "killed")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_its_bias_is_noted_and_impossible_settings_are_refused(tmp_path: Path) -> None:
    sampling = {"sampling": "power_of_choice", "clients": 2, "candidates": 6}
    outcome, _, _ = run(tmp_path, sampling=sampling, rounds=1)
    assert any("prefers clients with large losses" in note for note in outcome.notes)
    with pytest.raises(InvalidSettings, match="set 'candidates' to 2 at least"):
        unit(sampling={**sampling, "candidates": 1})
    with pytest.raises(InvalidSettings, match="set 'candidates' to 8 at most"):
        run(tmp_path / "more", sampling={**sampling, "candidates": 9})
    with pytest.raises(InvalidSettings, match="a client counts for more"):
        unit(sampling=sampling, training={"algorithm": "scaffold", "rate": 0.1, "steps": 1})


def test_a_sampling_of_ones_own_gets_the_past_if_it_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampling that draws the clients absent for the longest: eight clients take turns, three at a time."""
    registry_of_its_own(monkeypatch)
    seen: list[Past] = []

    @fedping.sampling("longest-away")
    def longest_away(sizes: Any, groups: Any, random: Any, past: Past, *, clients: int = 3) -> Any:
        seen.append(past)
        return np.argsort(past.last, kind="stable")[:clients]

    @fedping.sampling("largest-loss")
    class LargestLoss:
        def draw(self, sizes: Any, groups: Any, random: Any, past: Past) -> Any:
            return np.argsort(past.losses_of(np.arange(len(sizes))))[-3:]

    @fedping.sampling("without")
    def without(sizes: Any, groups: Any, random: Any, *, past: int = 2) -> Any:
        return np.arange(past)

    run(tmp_path / "turns", sampling={"sampling": "longest-away"}, rounds=8)
    linear: dict[str, Any] = {"model": {"name": "linear-regression"}, "data": {"name": "diabetes"}, "rounds": 5}
    linear["partition"] = {"partition": "iid", "clients": 8}
    linear["server__optimizer"] = {"optimizer": "gradient_descent", "rate": 0.05}
    _, weights, _ = run(tmp_path / "largest", sampling={"sampling": "largest-loss"}, **linear)
    run(tmp_path / "without", sampling={"sampling": "without", "past": 3}, rounds=2)
    rounds = {each.round: each for each in seen}
    assert sorted(rounds) == list(range(8))
    assert rounds[0].last.tolist() == [NEVER] * 8
    assert np.isnan(rounds[0].losses).all()
    assert rounds[7].times.sum() == 21
    assert rounds[7].times.tolist() == [4, 3, 3, 3, 2, 2, 2, 2]  # by hand; of equals the first goes
    assert rounds[3].last.tolist() == [2, 0, 0, 1, 1, 1, 2, 2]
    assert rounds[3].seed == 1
    assert not np.isnan(rounds[3].losses).any()
    choice = {"sampling": "power_of_choice", "clients": 3, "candidates": 8}
    np.testing.assert_array_equal(run(tmp_path / "ours", sampling=choice, **linear)[1], weights)
