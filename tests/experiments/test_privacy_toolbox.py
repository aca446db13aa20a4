"""The laboratory's mechanisms, compositions and filters: published values, counted guarantees, and rejections."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.experiments.privacy.composition import AdvancedFilter, BasicFilter, Guarantee, basic, composed, subsampled
from fedping.experiments.privacy.mechanisms import (
    DiscreteLaplace,
    Exponential,
    Gaussian,
    Laplace,
    RandomisedResponse,
    SampledSensitivity,
    SeededNoise,
    gaussian_signs_variance,
    one_sign_truth,
    one_sign_variance,
    pairs_needed,
    sampled_sensitivity,
    shuffled,
)
from fedping.server_jobs.privacy.gaussian import NoGuarantee, delta_of
from fedping.server_jobs.privacy.noise import SystemNoise, has_its_size


def rng() -> np.random.Generator:
    return np.random.default_rng(14)


def test_two_fair_coins() -> None:
    response = RandomisedResponse()
    assert response.guarantee == pytest.approx((math.log(3), 0))
    told = response(np.ones(100_000, bool), rng())
    assert told.mean() == pytest.approx(0.75, abs=0.007)  # five standard deviations
    assert RandomisedResponse.of_epsilon(math.log(3)).truth == pytest.approx(0.5)


@given(st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_randomised_response_is_worth_its_largest_log_ratio_whatever_its_coins(truth: float, yes: float) -> None:
    told = RandomisedResponse(truth, yes).guarantee.epsilon
    of_yes, of_no = truth + (1 - truth) * yes, (1 - truth) * yes
    ratios = (of_yes / of_no, of_no / of_yes, (1 - of_yes) / (1 - of_no), (1 - of_no) / (1 - of_yes))
    assert told == pytest.approx(math.log(max(ratios)), rel=1e-9)
    assert RandomisedResponse.of_epsilon(told).guarantee.epsilon == pytest.approx(told, rel=1e-9)


def test_randomised_response_estimates_and_its_ends() -> None:
    response = RandomisedResponse(0.3, 0.8)
    source = rng()
    truth = source.random(200_000) < 0.1
    assert response.share(response(truth, source)) == pytest.approx(truth.mean(), abs=0.02)
    assert RandomisedResponse(1.0).guarantee.epsilon == math.inf
    assert RandomisedResponse(0.5, 0.0).guarantee.epsilon == math.inf
    assert RandomisedResponse(0.0).guarantee.epsilon == 0
    with pytest.raises(NoGuarantee, match="the truth is never reported"):
        RandomisedResponse(0.0).share([True])
    with pytest.raises(NoGuarantee, match=r"coins of 1\.5"):
        RandomisedResponse(1.5)


def test_laplace() -> None:
    noisy = Laplace(2.0, 0.5)
    assert noisy.scale == 4
    assert noisy.guarantee == (0.5, 0)
    drawn = noisy(np.full(100_000, 7.0), rng()) - 7
    assert drawn.std() == pytest.approx(4 * math.sqrt(2), rel=0.02)
    assert noisy(np.zeros((2, 3)), rng()).shape == (2, 3)


@pytest.mark.parametrize(("sensitivity", "epsilon"), [(1, 1.0), (1, 0.1), (4, 2.0)])
def test_discrete_laplace(sensitivity: int, epsilon: float) -> None:
    noisy = DiscreteLaplace(sensitivity, epsilon)
    rate = epsilon / sensitivity
    assert noisy.probability(0) == pytest.approx((1 - math.exp(-rate)) / (1 + math.exp(-rate)))
    assert math.fsum(noisy.probability(y) for y in range(-2000, 2001)) == pytest.approx(1)
    drawn = noisy(np.zeros(100_000, np.int64), rng())
    assert drawn.dtype == np.int64
    for y in (-2, 0, 1):
        sd = math.sqrt(noisy.probability(y) / len(drawn))
        assert np.mean(drawn == y) == pytest.approx(noisy.probability(y), abs=5 * sd)
    ratios = [noisy.probability(y) / noisy.probability(y + sensitivity) for y in range(-20, 20)]
    assert max(ratios) == pytest.approx(math.exp(epsilon))
    with pytest.raises(NoGuarantee, match="whole numbers alone"):
        noisy(np.array([0.5]), rng())


def test_gaussian_noise_is_the_least_that_the_theorem_allows() -> None:
    noisy = Gaussian(2.0, 20, 1e-5)
    assert noisy.sigma == pytest.approx(2 * 0.2900, abs=2e-4)
    assert noisy.guarantee == (20, 1e-5)
    assert delta_of(20, 2.0 / noisy.sigma) == pytest.approx(1e-5, rel=1e-9)
    assert noisy(np.zeros(100_000), rng()).std() == pytest.approx(noisy.sigma, rel=0.02)
    assert Gaussian(2.0, 0.5, 1e-5, "textbook").sigma == pytest.approx(2 * 9.69, abs=0.01)
    with pytest.raises(NoGuarantee, match="use the analytic Gaussian"):
        Gaussian(2.0, 1.0, 1e-5, "textbook")


def test_exponential() -> None:
    choice = Exponential(1.0, 2.0)
    assert choice.guarantee == (2, 0)
    assert choice.probabilities([0, 1]) == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
    assert choice.probabilities([1e6, 0]) == pytest.approx([1, 0])  # no overflow
    source = rng()
    drawn = [choice([0.0, 1.0, 1.0], source) for _ in range(5000)]
    assert np.bincount(drawn) / 5000 == pytest.approx(choice.probabilities([0, 1, 1]), abs=0.035)
    for wrong in ([], [math.nan], [[1.0]]):
        with pytest.raises(NoGuarantee, match="finite utility"):
            choice.probabilities(wrong)


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=6), st.data())
def test_exponential_keeps_its_promise_for_any_neighbours(utilities: list[float], data: st.DataObject) -> None:
    choice = Exponential(3.0, 0.7)
    changes = data.draw(st.lists(st.floats(-3, 3), min_size=len(utilities), max_size=len(utilities)))
    there = choice.probabilities(np.array(utilities) + changes)
    assert np.max(choice.probabilities(utilities) / there) <= math.exp(0.7) * (1 + 1e-9)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_no_mechanism_without_a_sensitivity_and_an_epsilon(wrong: float) -> None:
    makers: list[Callable[[float, float], object]] = [
        Laplace,
        Exponential,
        DiscreteLaplace,  # type: ignore[list-item]
        lambda sensitivity, epsilon: Gaussian(sensitivity, epsilon, 1e-5),
    ]
    for make in makers:
        with pytest.raises(NoGuarantee, match="sensitivity is"):
            make(wrong, 1.0)
        with pytest.raises(NoGuarantee, match="epsilon is"):
            make(1.0, wrong)
    with pytest.raises(NoGuarantee, match="delta is 0"):
        Gaussian(1.0, 1.0, 0)


def test_basic_and_advanced_composition() -> None:
    assert basic([Guarantee(0.5, 1e-7), Guarantee(0.25, 2e-7)]) == pytest.approx((0.75, 3e-7))
    for epsilon, k, advanced in ((0.2, 20, 5.18), (0.5, 8, 9.38), (0.8, 5, 13.49)):
        assert composed(Guarantee(epsilon), k, 1e-5) == pytest.approx((4.0, 1e-5))  # less than by the other
        assert advanced > 4
    many = composed(Guarantee(0.01), 1000, 1e-5)
    assert many.epsilon == pytest.approx(0.01 * math.sqrt(2000 * math.log(1e5)) + 10 * math.expm1(0.01))
    assert many.epsilon < 10
    assert composed(Guarantee(0.01, 1e-8), 1000, 1e-5).epsilon == pytest.approx(10)  # its own delta uses up delta
    with pytest.raises(NoGuarantee, match="1001 answers have a delta of"):
        composed(Guarantee(0.01, 1e-8), 1001, 1e-5)


def test_subsampling() -> None:
    assert subsampled(Guarantee(1), 1, 10).epsilon == pytest.approx(0.158565, abs=1e-6)
    assert subsampled(Guarantee(3), 1, 10).epsilon == pytest.approx(1.067656, abs=1e-6)
    assert subsampled(Guarantee(0.5, 1e-6), 1, 10) == pytest.approx((0.06285, 1e-7), abs=1e-5)
    assert subsampled(Guarantee(0.5), 5, 10).epsilon == pytest.approx(0.28093, abs=1e-5)
    assert subsampled(Guarantee(0.5, 1e-6), 10, 10) == (0.5, 1e-6)
    assert subsampled(Guarantee(0.5, 1e-6), 0, 10) == (0, 0)
    assert subsampled(Guarantee(2000), 1, 10).epsilon == pytest.approx(2000 - math.log(10))
    with pytest.raises(NoGuarantee, match="11 of 10 rows"):
        subsampled(Guarantee(1), 11, 10)


BUDGET = Guarantee(4.0, 1e-5)


@pytest.mark.parametrize(
    ("epsilon", "advanced", "by_sum"),
    [(0.01, 2678, 400), (0.05, 106, 80), (0.1, 26, 40), (0.2, 6, 20), (0.5, 1, 8), (0.8, 0, 5)],
)
def test_how_many_answers_each_filter_allows(epsilon: float, advanced: int, by_sum: int) -> None:
    """The paper's table 6 has 20, 8 and 5 runs, which are the basic filter's, although its text names the other."""
    assert AdvancedFilter(BUDGET).allowed(Guarantee(epsilon)) == advanced
    assert BasicFilter(BUDGET).allowed(Guarantee(epsilon)) == by_sum


@pytest.mark.parametrize(("delta", "allowed"), [(1e-2, (14, 2, 0)), (1e-3, (10, 1, 0))])
def test_the_advanced_filter_at_a_larger_delta(delta: float, allowed: tuple[int, int, int]) -> None:
    budget = AdvancedFilter(Guarantee(4.0, delta))
    assert tuple(budget.allowed(Guarantee(each)) for each in (0.2, 0.5, 0.8)) == allowed


@given(st.lists(st.tuples(st.floats(0.001, 2), st.sampled_from([0, 1e-7, 1e-6])), max_size=30))
def test_no_filter_is_ever_beyond_its_budget(asked: list[tuple[float, float]]) -> None:
    for budget in (BasicFilter(BUDGET), AdvancedFilter(BUDGET)):
        for each in asked:
            answer = Guarantee(*each)
            if budget.allows(answer):
                budget = budget.after(answer)
            else:
                with pytest.raises(NoGuarantee, match=f"after {len(budget.spent)} answers the budget"):
                    budget.after(answer)
        spent = basic(budget.spent)
        assert spent.delta <= (BUDGET.delta if isinstance(budget, BasicFilter) else BUDGET.delta / 2)
        if isinstance(budget, BasicFilter):
            assert spent.epsilon <= BUDGET.epsilon


def test_what_filters_refuse() -> None:
    for wrong in (Guarantee(4, 0), Guarantee(4, 0.4), Guarantee(0, 1e-5)):
        with pytest.raises(NoGuarantee, match="take the basic filter"):
            AdvancedFilter(wrong)
    with pytest.raises(NoGuarantee, match="without end"):
        BasicFilter(BUDGET).allowed(Guarantee(0))
    assert not AdvancedFilter(Guarantee(1e4, 1e-5)).allows(Guarantee(9000))


def test_how_many_pairs_a_sampled_sensitivity_needs() -> None:
    assert pairs_needed(0.05) == 1305
    counts = [pairs_needed(gamma) for gamma in (0.01, 0.05, 0.2, 0.5)]
    assert all(more > fewer for more, fewer in pairwise(counts))
    with pytest.raises(NoGuarantee, match="gamma is 0"):
        pairs_needed(0)


def test_a_sampled_sensitivity_is_an_estimate_and_promises_nothing() -> None:
    def neighbours(source: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        one = source.random(50)
        return one, np.append(one[1:], source.random())

    found = sampled_sensitivity(lambda x: np.array([x.mean()]), neighbours, 0.05, rng())
    assert found.pairs == 1305
    assert 0.9 / 50 < found.largest <= 1 / 50
    assert found.mean == pytest.approx(1 / 150, rel=0.1)
    noisy = Laplace(found, 0.5)
    assert noisy.scale == pytest.approx(found.largest / 0.5)
    with pytest.raises(NoGuarantee, match="a sampled sensitivity is an estimate"):
        _ = noisy.guarantee
    larger = SampledSensitivity(1.0, 0.5, 3, 0.05)
    assert Laplace(larger, 0.5).scale == 2


@pytest.mark.parametrize(("epsilon", "z", "times"), [(1, 4.224679, 15), (3, 1.543861, 8)])
def test_one_sign_against_noise_on_all(epsilon: float, z: float, times: float) -> None:
    assert gaussian_signs_variance(z, 22, 1000) / one_sign_variance(epsilon, 22, 1000) == pytest.approx(times, rel=0.03)


def test_one_signs_variance_is_what_comes_out() -> None:
    m, n, epsilon, source = 5, 400, 1.0, rng()
    p = one_sign_truth(epsilon)
    assert RandomisedResponse(2 * p - 1).guarantee.epsilon == pytest.approx(epsilon)
    signs = source.choice([-1, 1], (4000, n))  # for the reported coordinate
    sent = np.where(source.random(signs.shape) < p, signs, -signs) * (source.integers(m, size=signs.shape) == 0)
    means = (m / (2 * p - 1) * sent).mean(axis=1) - signs.mean(axis=1)
    assert means.var() == pytest.approx(one_sign_variance(epsilon, m, n) - 1 / n, rel=0.1)


def test_shuffling() -> None:
    assert shuffled(3, 10_000, 1e-6) == pytest.approx(0.8241, abs=5e-5)
    assert shuffled(1, 10_000, 1e-6) == pytest.approx(0.2140, abs=5e-5)
    assert shuffled(0, 10_000, 1e-6) == 0
    for epsilon, clients in ((4, 10_000), (1, 100), (1, 0)):
        with pytest.raises(NoGuarantee, match="is known to help for a local epsilon up to"):
            shuffled(epsilon, clients, 1e-6)
    with pytest.raises(NoGuarantee, match="delta is 0"):
        shuffled(1, 10_000, 0)


def test_seeded_noise_is_the_same_again_and_of_another_type() -> None:
    drawn = SeededNoise(5).integers(12.5, 5000)
    assert np.array_equal(drawn, SeededNoise(5).integers(12.5, 5000))
    assert has_its_size(drawn, 12.5)
    assert SeededNoise(5).integers(0, 3).tolist() == [0, 0, 0]
    assert not issubclass(SeededNoise, SystemNoise)
    with pytest.raises(NoGuarantee, match="must be 0, or from 1"):
        SeededNoise(5).integers(0.5, 3)
