"""Oort: samples clients by the utility of their data, their speed and the time since they last took part."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.client_sim.learning.batch import Examples
from fedping.client_sim.sampling import NEVER, Oort, OortSampler, Past, sampler_for
from fedping.client_sim.sampling.oort import data_utilities, preferred_seconds, scores
from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.one_run import run_unit
from fedping.protocol.errors import InvalidSettings
from tests.experiments.test_laboratory_run import contents
from tests.experiments.test_sampling_by_loss import objective, run, unit
from tests.support.laboratory import small

OORT: dict[str, Any] = {"sampling": "oort", "clients": 3}
KNOWN = np.array([np.nan, 10.0, 20.0, 30.0, 40.0, 100.0])
"""Utilities of six clients' data; the first has never taken part."""


def past(utilities: np.ndarray = KNOWN, **changes: Any) -> Past:
    there = ~np.isnan(utilities)
    return Past(
        **{
            "round": 9,
            "seed": 1,
            "sizes": np.ones(len(utilities), np.int64),
            "groups": None,
            "losses": np.zeros(len(utilities)),
            "times": there.astype(np.int64),
            "last": np.where(there, 8, NEVER),
            "losses_of": lambda some: np.zeros(len(some)),
            "utilities": utilities,
            **changes,
        }
    )


def sampler(clients: int, **settings: Any) -> OortSampler:
    found = sampler_for(Oort(clients=clients, **settings), np.ones(6, np.int64), 1)
    assert isinstance(found, OortSampler)
    return found


LAST = np.array([NEVER, 0, 8, 8, 8, 3])
SECONDS = np.array([np.nan, 5.0, 5.0, 5.0, 60.0, 30.0])


def test_scores_by_hand() -> None:
    """Computes scores in round 10. The preferred duration is 30 seconds; utilities are cut at 40, the fourth of five.

    The scaled utilities are 0, 1/3, 2/3, 1, 1. The last rounds L were 1, 9, 9, 9 and 4: sqrt(.1 ln 10 / L) = .47985,
    .15995 and .23993. The fourth takes twice as long as preferred, and gets a quarter.
    """
    settings = Oort(clients=2, seconds=30.0, clip=0.8)
    known = past(last=LAST, seconds=SECONDS)
    found = scores(settings, known, np.arange(1, 6))
    np.testing.assert_allclose(found, [0.47985, 0.49328, 0.82662, 0.28999, 1.23993], atol=1e-5)
    untimed = scores(Oort(clients=2, clip=0.8), known, np.arange(1, 6))
    np.testing.assert_allclose(untimed[3], 1.15995, atol=1e-5)


def test_the_best_are_drawn_and_new_ones_for_the_share_that_is_explored() -> None:
    known = past(last=LAST, seconds=SECONDS)
    greedy = {"seconds": 30.0, "clip": 0.8, "cut_off": 1.0}
    assert sampler(2, exploration=0.0, least=0.0, **greedy).draw_after(known).tolist() == [3, 5]
    assert sampler(2, exploration=0.5, decay=1.0, **greedy).draw_after(known).tolist() == [0, 5]
    assert sampler(3, exploration=1.0, decay=1.0, **greedy).draw_after(known).tolist() == [0, 3, 5], "one is new"


def test_the_share_that_is_explored_decays_to_its_least() -> None:
    """Of 400 clients, half of them new, 100 are drawn: 50 new ones in round 1, 12.5 in round 3, and then 10."""
    half = past(np.where(np.arange(400) % 2, 1.0, np.nan), last=np.where(np.arange(400) % 2, 0, NEVER))
    found = sampler_for(Oort(clients=100, exploration=0.5, decay=0.5, least=0.1), np.ones(400, np.int64), 1)
    assert isinstance(found, OortSampler)
    new = []
    for number in range(1, 5):
        drawn = found.draw_after(dataclasses.replace(half, round=number - 1))
        assert len(set(drawn)) == 100
        new.append(int((drawn % 2 == 0).sum()))
    assert new[:2] == [50, 25]
    assert new[2] in (12, 13)
    assert new[3] == 10


def test_those_above_the_cut_off_are_drawn_in_proportion_to_their_scores() -> None:
    """Draws one of three clients with scores 1, 2, 3; the fourth is below half of the best. 5 deviations: 1 in 10^6."""
    utilities = np.array([np.nan, np.nan, 0.0, 1.0, 0.6, 0.2])
    settings = Oort(clients=1, exploration=0.0, least=0.0, cut_off=0.5, clip=1.0)
    one = sampler_for(settings, np.ones(6, np.int64), 1)
    assert isinstance(one, OortSampler)
    rounds, last = 2000, np.array([NEVER, NEVER, 10**9, 10**9, 10**9, 10**9])  # without a bonus
    drawn = [one.draw_after(past(utilities, round=number, last=last))[0] for number in range(1, rounds + 1)]
    counts = np.bincount(drawn, minlength=6)
    assert counts[[0, 1, 2, 5]].tolist() == [0, 0, 0, 0]
    assert abs(counts[3] - rounds / 1.6) < 5 * np.sqrt(rounds * (1 / 1.6) * (0.6 / 1.6))


def test_the_pacer_by_hand() -> None:
    """Windows of two rounds gain 20, 16 and 18, and one more round follows: one gain fell, so the step doubles."""
    gains = np.array([10.0, 10, 8, 8, 9, 9, 3])
    assert preferred_seconds(Oort(clients=1, seconds=30.0, window=2), gains) == 60
    assert preferred_seconds(Oort(clients=1, seconds=30.0, window=2), gains[:3]) == 30
    assert preferred_seconds(Oort(clients=1), gains) == np.inf


def test_utilities_of_data_by_hand() -> None:
    """Two examples with losses 3 and 4: 2 sqrt((9 + 16) / 2); one example with loss 2, and padding: 2; none: 0."""

    class Own:
        def losses(self, weights: np.ndarray, batch: Any) -> np.ndarray:
            count = np.maximum((batch.weight > 0).sum(axis=1), 1)
            losses: np.ndarray = (batch.weight * np.abs(batch.y - weights[0])).sum(axis=1) / count
            return losses

    class Other:
        """Examples of another type."""

        def __init__(self, y: np.ndarray, weight: np.ndarray) -> None:
            self.y, self.weight = y, weight

        def __len__(self) -> int:
            return len(self.y)

        def only(self, examples: np.ndarray) -> Other:
            rows = np.arange(len(self.y))[:, None]
            return Other(self.y[rows, examples], np.where(examples < 0, 0.0, self.weight[rows, examples]))

    y, weight = np.array([[4.0, 5.0], [3.0, 9.0], [7.0, 7.0]]), np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    for batch in (Examples(np.zeros((3, 2, 1)), y, weight), Other(y, weight)):
        found = data_utilities(Own(), np.array([1.0]), batch)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, [2 * np.sqrt(12.5), 2, 0])


@pytest.mark.parametrize("where", ["memory", "files"])
def test_a_run_draws_by_what_clients_have_sent(tmp_path: Path, where: str) -> None:
    """Each round equals the sampler's with a record kept by the test."""
    sampling = {"clients": 3, "exploration": 0.6, "least": 0.3, "window": 2}
    changes: dict[str, Any] = {"model": {"name": "linear-regression"}, "data": {"name": "diabetes"}}
    _, weights, problem = run(
        tmp_path,
        sampling={"sampling": "oort", **sampling},
        rounds=10,
        where=where,
        partition={"partition": "iid", "clients": 8},
        server__optimizer={"optimizer": "gradient_descent", "rate": 0.05},
        **changes,
    )
    own = sampler_for(Oort(**sampling), problem.train.sizes, 1)  # type: ignore[arg-type]
    assert isinstance(own, OortSampler)
    utilities, last, gains, expected = np.full(8, np.nan), np.full(8, NEVER), np.zeros(0), np.zeros(11)
    for number in range(10):
        known = past(utilities.copy(), round=number, last=last.copy(), gains=gains)
        chosen = own.draw_after(dataclasses.replace(known, sizes=problem.train.sizes))
        gains = np.append(gains, 0.0)
        for client in chosen:
            batch: Any = problem.train.batch(np.array([client]))
            there = batch.weight[0] > 0
            error = batch.x[0][there] @ expected[:-1] + expected[-1] - batch.y[0][there]
            utilities[client], last[client] = len(error) * np.sqrt(np.mean(error**4)), number
            gains[-1] += utilities[client]
        expected = expected - 0.05 * np.mean([objective(problem, client, expected)[1] for client in chosen], axis=0)
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)


CLOCK = {"seconds_per_example": {"median": 1.0, "sigma": 1.0}}


def test_both_engines_draw_the_same_clients(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    training = {"algorithm": "local", "epochs": 1, "batch": 16, "rate": 0.2}
    found = [
        run(tmp_path / engine, sampling=OORT, training=training, engine=engine, rounds=6)[1]
        for engine in ("numpy", "jax")
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-7)


def test_a_run_with_searches_of_lists_ends(tmp_path: Path) -> None:
    """The examples of lists have another type than rows."""
    raw: dict[str, Any] = {
        "model": {"name": "frecency-2018", "gradient": "analytic", "margin": 1.0},
        "data": {"users": 30},
        "partition": {"partition": "key"},
        "server__optimizer": {"optimizer": "rprop"},
        "sampling": {"sampling": "oort", "clients": 5},
        "rounds": 3,
    }
    from fedping.experiments.laboratory.settings import experiment_of
    from fedping.experiments.laboratory.units import Unit

    file = {key: value for key, value in raw.items() if key not in ("server__optimizer", "partition")}
    file["server"] = {"optimizer": raw["server__optimizer"]}
    [setup] = experiment_of(file, name="lists", folder=tmp_path).variants.values()
    assert run_unit(Unit("only", None, setup, 1, None), tmp_path).rounds == 3


def test_a_killed_run_goes_on_with_utilities_and_durations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    of = unit(sampling={**OORT, "seconds": 20.0, "window": 2}, clock=CLOCK)
    run_unit(of, tmp_path / "whole")

    def on_round(done: int, rows: object) -> None:
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_unit(of, tmp_path / "killed", on_round)
    run_unit(of, tmp_path / "killed")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_clients_without_examples_are_never_drawn() -> None:
    found = sampler_for(Oort(clients=2), np.array([3, 0, 2, 0]), 1)
    assert found.draw(0).tolist() == [0, 2]
    with pytest.raises(InvalidSettings, match="set 'clients' to 2 at most"):
        sampler_for(Oort(clients=3), np.array([3, 0, 2, 0]), 1)


def test_its_bias_is_noted_and_impossible_settings_are_refused(tmp_path: Path) -> None:
    outcome, _, _ = run(tmp_path, sampling=OORT, rounds=1)
    assert any("prefers clients with large losses" in note for note in outcome.notes)
    with pytest.raises(InvalidSettings, match=r"Add \[clock\], or remove 'seconds'"):
        small(sampling={**OORT, "seconds": 20.0})
    with pytest.raises(InvalidSettings, match="Set 'least' to"):
        small(sampling={**OORT, "exploration": 0.1})
    with pytest.raises(InvalidSettings, match="a client counts for more"):
        small(sampling=OORT, training={"algorithm": "scaffold", "rate": 0.1, "steps": 1})


def test_it_needs_fewer_hours_than_even_draws_where_speeds_differ(tmp_path: Path) -> None:
    """Measures the hours of 40 rounds with three of 24 clients, over three seeds."""
    clock = {"seconds_per_example": {"median": 1.0, "sigma": 1.5}}
    partition = {"partition": "iid", "clients": 24}
    hours: dict[str, list[float]] = {"uniform": [], "oort": []}
    for name, more in (("uniform", {}), ("oort", {"seconds": 30.0})):
        for seed in (1, 2, 3):
            of = unit(sampling={"sampling": name, "clients": 3, **more}, clock=clock, partition=partition, rounds=40)
            of = dataclasses.replace(of, seed=seed)
            hours[name].append(run_unit(of, tmp_path / name / str(seed)).simulated_hours or 0.0)
    assert all(ours < theirs for ours, theirs in zip(hours["oort"], hours["uniform"], strict=True))
