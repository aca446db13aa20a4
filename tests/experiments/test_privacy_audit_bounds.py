"""Lower bounds of ε: published values, bounds for a correct mechanism, and the detection of halved noise."""

import math

import numpy as np
import pytest

from fedping.experiments.privacy.auditing import by_gaussian_dp, by_rates, in_one_run
from fedping.server_jobs.privacy.gaussian import NoGuarantee, epsilon_of

DELTA, CLAIMED = 1e-5, epsilon_of(1.0, 1e-5)


def scores(runs: int, seed: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of ``runs`` runs of a Gaussian mechanism of sensitivity 1, with and without the canary."""
    rng = np.random.default_rng(seed)
    return rng.normal(1, noise, runs), rng.normal(0, noise, runs)


def test_the_claim_of_a_gaussian_whose_noise_is_its_sensitivity() -> None:
    assert pytest.approx(4.377, abs=5e-4) == CLAIMED


@pytest.mark.parametrize(("runs", "proven"), [(200, 2.0), (1000, 3.25), (20_000, 4.2)])
def test_what_gaussian_dp_proves(runs: int, proven: float) -> None:
    found = [by_gaussian_dp(*scores(runs, seed), DELTA).epsilon for seed in range(20)]
    assert np.mean(found) == pytest.approx(proven, abs=0.3)
    assert max(found) < CLAIMED


@pytest.mark.parametrize(("runs", "proven"), [(1000, 0.90), (20_000, 2.35), (200_000, 3.00)])
def test_what_rates_prove(runs: int, proven: float) -> None:
    found = [by_rates(*scores(runs, seed), DELTA).epsilon for seed in range(10)]
    assert np.mean(found) == pytest.approx(proven, abs=0.3)
    assert max(found) < CLAIMED


def test_half_of_the_noise_is_found_by_gaussian_dp_and_missed_by_rates() -> None:
    assert all(by_gaussian_dp(*scores(1000, seed, 0.5), DELTA).epsilon > CLAIMED for seed in range(40))
    assert not any(by_rates(*scores(1000, seed, 0.5), DELTA).epsilon > CLAIMED for seed in range(40))


def test_noise_too_small_by_the_root_of_2_is_found_in_more_runs() -> None:
    assert all(by_gaussian_dp(*scores(20_000, seed, math.sqrt(0.5)), DELTA).epsilon > CLAIMED for seed in range(5))


def test_an_attacker_that_sees_nothing_proves_nothing() -> None:
    rng = np.random.default_rng(1)
    for bound in (by_gaussian_dp, by_rates):
        wrong = sum(bound(rng.normal(size=100), rng.normal(size=100), DELTA).epsilon > 0 for _ in range(200))
        assert wrong <= 20  # 5 % are allowed: 10 expected at most, 20 once in 500
        assert bound(np.zeros(10), np.zeros(10), DELTA).epsilon == 0


def test_where_the_canary_always_shows() -> None:
    proven = by_gaussian_dp(np.ones(200), np.zeros(200), DELTA)
    assert 0 < proven.threshold <= 1
    assert proven.false_positives == proven.false_negatives == pytest.approx(1 - 0.025**0.01, rel=1e-9)


def test_not_enough_to_go_by() -> None:
    for wrong in ([1.0], [math.nan, 1.0], [[1.0, 2.0]]):
        with pytest.raises(NoGuarantee, match="at least 2 runs"):
            by_gaussian_dp(wrong, [0.0, 0.0], DELTA)
        with pytest.raises(NoGuarantee, match="at least 2 runs"):
            by_rates([0.0, 0.0], wrong, DELTA)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "delta", "epsilon"),
    [
        (100, 100, 100, 0, 3.492965),
        (1000, 100, 90, 0, 1.630823),
        (1000, 1000, 600, 1e-5, 0.297227),
        (500, 200, 150, 1e-6, 0.821325),
    ],
)
def test_the_stated_bounds_of_one_run(canaries: int, guesses: int, correct: int, delta: float, epsilon: float) -> None:
    assert in_one_run(canaries, guesses, correct, delta) == pytest.approx(epsilon, abs=1e-6)
    assert in_one_run(canaries, guesses, correct - 1, delta) < in_one_run(canaries, guesses, correct, delta)
    assert in_one_run(canaries, guesses, correct, delta, 0.99) < in_one_run(canaries, guesses, correct, delta)


def test_one_run_that_proves_nothing_or_cannot_be() -> None:
    assert in_one_run(100, 100, 50, 0) == 0
    assert in_one_run(100, 0, 0, 0) == 0
    assert in_one_run(100, 100, 100, 1) == 0
    for canaries, guesses, correct in ((10, 11, 5), (10, 5, 6), (10, 5, -1)):
        with pytest.raises(NoGuarantee, match="cannot be"):
            in_one_run(canaries, guesses, correct, 0)
