"""The protection of a row, each figure checked by a second method: other formulas, 60 digits, a summed distribution."""

import math

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from fedping.protocol import row_privacy
from fedping.protocol.row_privacy import (
    UNIT,
    composed,
    delta_of,
    discreteness,
    epsilon_of,
    mu_of,
    mu_of_group,
    mu_of_replacing,
    noise_multiplier,
    noise_of_own_share,
    noise_of_share,
    noisy,
    reach,
    shortened,
    usual_delta,
    whole_numbers,
)


def true_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """Return δ to 60 digits, for the test of N(0, 1) against N(μ, 1) with the best threshold."""
    with mpmath.workdps(60):
        threshold = mpmath.mpf(epsilon) / mu + mpmath.mpf(mu) / 2
        power, size = mpmath.ncdf(mu - threshold), mpmath.ncdf(-threshold)
        return power - mpmath.exp(epsilon) * size


CASES = [(epsilon, n) for epsilon in (0.1, 1.0, 3.0, 8.0) for n in (10, 150, 569, 4601, 1_000_000)]


@pytest.mark.parametrize(("epsilon", "n"), CASES)
def test_the_budget_of_a_table_is_that_of_the_best_test_between_two_normal_distributions(
    epsilon: float, n: int
) -> None:
    delta = usual_delta(n)
    assert delta == pytest.approx(math.exp(-1.1 * math.log(n)), rel=1e-12)
    mu = mu_of(epsilon, delta)
    assert float(true_delta(epsilon, mu)) == pytest.approx(delta, rel=1e-6)
    assert true_delta(epsilon, mu) <= delta  # never above what was promised
    assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-6)
    assert delta_of(epsilon, mu) >= true_delta(epsilon, mu)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "rows", "percent"), [(3.0, 190, 70), (3.0, 3000, 66), (1.0, 190, 59), (8.0, 190, 87)]
)
def test_how_often_the_best_guess_about_a_row_is_right_as_the_guide_says(
    epsilon: float, rows: int, percent: int
) -> None:
    """With equal priors, the best test of N(0, 1) against N(μ, 1) decides at the middle, right with probability Φ(μ/2).

    100,000 draws agree within 5 standard deviations.
    """
    mu = mu_of(epsilon, usual_delta(rows))
    draws = np.random.default_rng(rows).normal(size=100_000)
    right = ((draws < mu / 2).mean() + (draws + mu > mu / 2).mean()) / 2
    assert right == pytest.approx(norm.cdf(mu / 2), abs=5 * 0.5 / math.sqrt(100_000))
    assert round(100 * norm.cdf(mu / 2)) == percent


def test_the_ends_of_the_scales() -> None:
    assert epsilon_of(0.0, 1e-3) == delta_of(3.0, 0.0) == 0.0
    assert epsilon_of(math.inf, 1e-3) == math.inf
    assert epsilon_of(1e-6, 0.1) == 0.0  # so little is δ alone
    assert delta_of(0.0, 1.0) == pytest.approx(2 * norm.cdf(0.5) - 1, rel=1e-6)
    assert usual_delta(0) == usual_delta(2) < 0.5


def test_releases_add_up_as_one_that_is_told_all_of_them() -> None:
    """The log-likelihood ratio of T answers is normal with μ² = T / z²; draws agree within 5 standard deviations."""
    z, releases = noise_multiplier(mu_of(3.0, usual_delta(150)), 50), 50
    mu = composed([1 / z] * releases)
    assert mu == pytest.approx(math.sqrt(releases) / z, rel=1e-12) == pytest.approx(mu_of(3.0, usual_delta(150)))
    answers = 1 + z * np.random.default_rng(7).standard_normal((100_000, releases))
    ratios = ((answers - 0.5) / z**2).sum(axis=1)
    assert ratios.mean() == pytest.approx(mu**2 / 2, abs=5 * mu / math.sqrt(100_000))
    assert ratios.std() == pytest.approx(mu, rel=5 / math.sqrt(200_000))
    assert composed([3.0, 4.0]) == 5.0
    assert composed([]) == 0.0


def test_replacing_and_groups_cost_what_two_and_g_rows_cost() -> None:
    """At most, a row of norm 1 becomes its opposite, a distance of two norms; a person's g rows add up to g."""
    opposite = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert np.linalg.norm(opposite[0] - opposite[1]) == mu_of_replacing(1.0)
    assert np.linalg.norm(opposite[[0, 0, 0]].sum(axis=0)) == mu_of_group(1.0, 3)


def test_the_noise_of_shares_holds_against_those_who_know_their_own() -> None:
    for institutions, colluding in ((3, 0), (3, 2), (12, 5)):
        share = noise_of_share(4.0, institutions, colluding)
        others = math.sqrt(math.fsum(share**2 for _ in range(institutions - colluding)))
        assert others == pytest.approx(4.0, rel=1e-12)
    with pytest.raises(ValueError, match="no noise is left"):
        noise_of_share(4.0, 3, 3)


def test_who_fears_more_collusion_adds_the_noise_that_others_would_take_off() -> None:
    """Adds up single variances: with any colluders, σ² remains for the institution that fears them."""
    for institutions, colluding in ((3, 0), (3, 1), (12, 5)):
        usual = noise_of_share(4.0, institutions, colluding)
        for feared in range(colluding, institutions):
            own = noise_of_own_share(4.0, institutions, colluding, feared)
            honest = [own**2] + [usual**2] * (institutions - 1 - feared)
            assert math.fsum(honest) == pytest.approx(16.0, rel=1e-12)
    assert noise_of_own_share(4.0, 3, 1, 2) == 4.0  # without others' noise
    for feared in (0, 3):
        with pytest.raises(ValueError, match="cannot collude"):
            noise_of_own_share(4.0, 3, 1, feared)


@pytest.mark.parametrize(("sigma", "institutions"), [(0.5, 2), (0.5, 12), (1.0, 3), (4.0, 100)])
def test_how_far_a_sum_of_discrete_gaussians_is_from_one(sigma: float, institutions: int) -> None:
    with mpmath.workdps(60):
        terms = (
            mpmath.exp(-2 * mpmath.pi**2 * mpmath.mpf(sigma) ** 2 * (1 - mpmath.mpf(1) / (k + 1)))
            for k in range(1, institutions)
        )
        wanted = 10 * mpmath.fsum(terms)
    assert discreteness(sigma, institutions) == pytest.approx(float(wanted), rel=1e-6)
    assert discreteness(4.0, 1000) < 1e-60


def test_a_bound_on_the_sum_of_two_discrete_gaussians_is_one() -> None:
    """The sum's probabilities, added up one by one, differ by less than τ from those of one draw with the same
    variance."""
    sigma = 0.7
    grid = np.arange(-40, 41)
    one = np.exp(-(grid**2) / (2 * sigma**2))
    two = np.convolve(one / one.sum(), one / one.sum())
    direct = np.exp(-(np.arange(-80, 81) ** 2) / (4 * sigma**2))
    direct /= direct.sum()
    middle = slice(70, 91)
    assert np.abs(np.log(two[middle] / direct[middle])).max() <= discreteness(sigma, 2)


def test_the_reach_of_the_attacks_that_are_known() -> None:
    assert reach(569, 100, 31, 30) == 100  # half-spaces: a row a version, 93 of them were recovered
    assert reach(569, 570, 31, 30) == 569
    assert reach(569, 1, 2000 * 31 + 2001, 30) == 569  # bins: 368 were recovered of one ping
    assert reach(10_000, 5, 3, 30) == 5


def test_no_vector_is_longer_than_the_norm_whatever_it_has_been() -> None:
    rng = np.random.default_rng(1)
    sizes = np.array([0.0, 1e-320, 1e-9, 0.3, 1.0, 1.0000001, 5.0, 1e200, 1e307])
    vectors = np.vstack([rng.normal(size=(9, 31)) * sizes[:, None], np.full((1, 31), np.nan), np.full((1, 31), np.inf)])
    short = shortened(vectors)
    assert short[3] == pytest.approx(vectors[3] / max(1.0, float(np.linalg.norm(vectors[3]))))
    assert not short[[0, 9, 10]].any()
    whole = whole_numbers(short)
    assert (np.linalg.norm(whole.astype(float), axis=1) <= UNIT).all()
    assert all(sum(int(x) ** 2 for x in row) <= UNIT**2 for row in whole)
    assert np.abs(whole / UNIT - short).max() < 1.1 / UNIT


def test_noise_is_of_its_size_and_of_its_bytes() -> None:
    """χ² of 20,000 numbers is within a band that fails by chance twice in a million."""
    from fedping.server_jobs.privacy.noise import has_its_size

    total = np.arange(20_000)
    drawn = noisy(total, 1.5, np.random.default_rng(4).bytes)
    assert has_its_size(drawn - total, 1.5 * UNIT)
    assert not has_its_size(drawn - total, 1.4 * UNIT)
    assert (drawn == noisy(total, 1.5, np.random.default_rng(4).bytes)).all()


def test_the_prices_are_those_of_the_accountant_of_rounds() -> None:
    from fedping.server_jobs.privacy import gaussian

    for epsilon, n in CASES:
        delta = usual_delta(n)
        assert row_privacy.mu_of(epsilon, delta) == pytest.approx(gaussian.mu_of(epsilon, delta), rel=1e-6)
        assert delta_of(epsilon, 0.7) == pytest.approx(gaussian.delta_of(epsilon, 0.7), rel=1e-6, abs=1e-300)
        assert epsilon_of(0.7, delta) == pytest.approx(gaussian.epsilon_of(0.7, delta), rel=1e-6, abs=1e-9)
