"""The Gaussian mechanism: exact values, the textbook's theorems and their limits, and a second computation."""

import math

import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian
from hypothesis import given
from hypothesis import strategies as st

from fedping.protocol.gaussian import least_noise
from fedping.server_jobs.privacy.gaussian import (
    NoGuarantee,
    advanced_composition,
    by_theorems,
    delta_of,
    epsilon_of,
    mu_of,
    textbook_noise,
)
from tests.support.gaussian import GUARANTEES, falls_short, true_delta


@pytest.mark.parametrize(("epsilon", "noise"), [(1, 4.224679), (3, 1.543861), (8, 0.652935)])
def test_noise_of_one_contribution(epsilon: float, noise: float) -> None:
    assert 1 / mu_of(epsilon, 1e-6) == pytest.approx(noise, abs=5e-7)
    assert epsilon_of(mu_of(epsilon, 1e-6), 1e-6) == pytest.approx(epsilon, rel=1e-10)


def test_hundred_answers_are_one_with_a_tenth_of_the_noise() -> None:
    assert epsilon_of(math.sqrt(100) / 10, 1e-6) == pytest.approx(4.886554, abs=5e-7)


@given(st.floats(0, 300), st.floats(-6, 4).map(math.exp))
def test_delta_is_the_true_one_or_a_little_more(epsilon: float, mu: float) -> None:
    truth, found = true_delta(epsilon, mu), delta_of(epsilon, mu)
    assert found == pytest.approx(float(truth), rel=1e-7, abs=1e-300)
    assert found >= truth or found < 1e-300


@given(st.floats(-4, 4).map(math.exp), st.floats(-12, -0.5).map(lambda x: 10**x))
def test_epsilon_is_never_below_the_truth_and_close_to_it(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    assert epsilon == pytest.approx(get_epsilon_gaussian(1 / mu, delta), rel=1e-8, abs=1e-8)
    assert true_delta(epsilon, mu) <= delta


@given(st.floats(-3, 6).map(math.exp), st.floats(-12, -0.5).map(lambda x: 10**x))
def test_the_noise_is_never_too_small_and_close_to_least(epsilon: float, delta: float) -> None:
    mu = mu_of(epsilon, delta)
    assert 1 / mu == pytest.approx(get_sigma_gaussian(epsilon, delta), rel=1e-8)
    assert true_delta(epsilon, mu) <= delta


@pytest.mark.parametrize(("epsilon", "delta"), GUARANTEES)
def test_servers_and_clients_never_add_too_little_noise_however_small_the_guarantee(
    epsilon: float, delta: float
) -> None:
    of_clients, of_servers = least_noise(epsilon, delta), 1 / mu_of(epsilon, delta)
    assert not falls_short(epsilon, delta, of_clients)
    assert not falls_short(epsilon, delta, of_servers)
    if epsilon >= 1e-3 and delta >= 1e-10:
        assert of_clients == pytest.approx(of_servers, rel=1e-9)
        assert falls_short(epsilon, delta, of_clients * (1 - 1e-9))


@pytest.mark.parametrize("mu", [1e-20, 1e-15, 1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("delta", [0.5, 1e-3, 1e-6, 1e-10, 1e-13, 1e-15, 1e-16, 1e-20, 1e-100])
def test_epsilon_is_never_below_the_truth_however_small(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    assert true_delta(epsilon, mu) <= delta
    if mu >= 1e-4 and delta >= 1e-10:
        assert epsilon == 0 or true_delta(epsilon * (1 - 1e-7), mu) > delta


def test_the_ends() -> None:
    assert epsilon_of(0, 0) == 0
    assert epsilon_of(0, 1e-6) == 0
    assert epsilon_of(math.inf, 0.5) == math.inf
    assert epsilon_of(1e200, 0.5) == math.inf
    assert epsilon_of(1e90, 1e-6) == pytest.approx(5e179, rel=1e-6)
    assert 0 < mu_of(1e-300, 1e-6) < 1e-5
    assert epsilon_of(1, 0) == math.inf
    assert epsilon_of(1, 1) == 0
    assert epsilon_of(0.1, 0.1) == 0  # that δ allows as much by itself
    assert mu_of(1, 0) == 0
    assert mu_of(1, 1) == math.inf
    assert mu_of(math.inf, 1e-6) == math.inf
    assert (delta_of(1, 0), delta_of(1, math.inf)) == (0, 1)
    assert delta_of(1e6, 1) == 0
    with pytest.raises(NoGuarantee, match="mu is -1"):
        epsilon_of(-1, 1e-6)
    with pytest.raises(NoGuarantee, match="epsilon is nan"):
        delta_of(math.nan, 1)


@pytest.mark.parametrize(("epsilon", "noise"), [(0.2, 24.22), (0.5, 9.69), (0.9, 5.38)])
def test_the_textbooks_noise_is_more_than_needed(epsilon: float, noise: float) -> None:
    assert textbook_noise(epsilon, 1e-5) == pytest.approx(noise, abs=5e-3)
    assert textbook_noise(epsilon, 1e-5) > 1.2 / mu_of(epsilon, 1e-5)


@pytest.mark.parametrize("epsilon", [0, 1, 20, math.nan])
def test_the_textbooks_theorem_says_nothing_from_1_on(epsilon: float) -> None:
    with pytest.raises(NoGuarantee, match="needs an epsilon between 0 and 1"):
        textbook_noise(epsilon, 1e-5)


def test_what_the_theorem_would_hide_at_20() -> None:
    wrong = math.sqrt(2 * math.log(1.25 / 1e-5)) / 20
    assert wrong == pytest.approx(0.2422, abs=5e-5)
    assert delta_of(20, 1 / wrong) == pytest.approx(1.5e-3, rel=0.05)
    assert 1 / mu_of(20, 1e-5) == pytest.approx(0.2900, abs=5e-5)


BANK = {  # k: theorems at δ = 0.1, 1e-5; exact at 0.1, 1e-3, 1e-5; exact with a sensitivity of 2C at 0.1, 1e-5
    112: (670, 2433, 13.52, 21.29, 26.33, 45.8, 71.1),
    187: (1210, 4229, 21.08, 31.07, 37.55, 72.9, 105.7),
    512: (3866, 12605, 51.63, 68.07, 78.74, 186, 240),
    132: (809, 2904, 15.58, 24.00, 29.46, 53.1, 80.6),
    314: (2199, 7412, 33.29, 46.20, 54.57, 118, 160),
    989: (8248, 25804, 94.29, 117.1, 131.9, 348, 423),
}


@pytest.mark.parametrize("k", BANK)
def test_the_bank_projects_curves(k: int) -> None:
    large, small, *exact, doubled, doubled_small = BANK[k]
    for delta, told in ((0.1, large), (1e-5, small)):
        ours = by_theorems(2.5, k, delta)
        assert ours.epsilon == pytest.approx(told, rel=1e-3)
        assert ours.step > 1
        assert not ours.proven
    mu = math.sqrt(k) / 2.5
    for delta, told in zip((0.1, 1e-3, 1e-5), exact, strict=True):
        assert epsilon_of(mu, delta) == pytest.approx(told, rel=5e-4)
    assert epsilon_of(2 * mu, 0.1) == pytest.approx(doubled, rel=5e-3)
    assert epsilon_of(2 * mu, 1e-5) == pytest.approx(doubled_small, rel=5e-3)


def test_the_theorems_hold_where_a_step_is_below_1() -> None:
    told = by_theorems(100, 50, 1e-5)
    assert told.proven
    assert told.epsilon > epsilon_of(math.sqrt(50) / 100, 1e-5)


@pytest.mark.parametrize(("epsilon", "k", "together"), [(0.2, 20, 5.18), (0.5, 8, 9.38), (0.8, 5, 13.49)])
def test_advanced_composition(epsilon: float, k: int, together: float) -> None:
    assert advanced_composition(epsilon, 1e-7, k, 1e-5) == pytest.approx((together, k * 1e-7 + 1e-5), abs=5e-3)
    assert advanced_composition(epsilon, 0, 0, 1e-5) == (0, 1e-5)
    with pytest.raises(NoGuarantee, match="slack is 0"):
        advanced_composition(epsilon, 0, k, 0)
