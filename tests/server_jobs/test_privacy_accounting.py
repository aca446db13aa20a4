"""The accountant compared with published values and a second implementation of the mathematics; and its laws."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from fedping.server_jobs.privacy.accounting import (
    MOST_ROUNDS,
    PLD,
    WHOLE_ORDERS,
    Pld,
    Renyi,
    RenyiFilter,
    Schedule,
    epsilon,
    noise_multiplier_for,
    order_for,
    rounds_allowed,
)
from fedping.server_jobs.privacy.gaussian import NoGuarantee, epsilon_of

ROUGH = Pld(1e-3)
LIBRARY_ORDERS = Renyi((*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024))

STATED = {  # δ, ε by Rényi divergences, their order, ε by PLD
    Schedule(0.01, 1, 1000): (1e-6, 2.436694, 8, 2.124523),
    Schedule(0.001, 0.8, 5000): (1e-8, 2.216960, 8.4, 1.293375),
    Schedule(0.1, 2, 137): (1e-6, 3.401796, 7.4, 3.133167),
    Schedule(0.1, 4, 500): (1e-6, 2.848253, 9.1, 2.648206),
    Schedule(1, 10, 100): (1e-6, 5.221540, 5.9, 4.886554),
    Schedule(5e-5, 1, 5000): (1.6e-9, 0.907748, 19, 0.027357),
}


# The second way: both by the formulas alone, in NumPy.


def divergence(q: float, z: float, order: float) -> float:
    """Return ρ of one sampled Gaussian answer, by the trapezoid rule in log space."""
    x = np.arange(-14 * z, order + 14 * z, z / 16)
    ratio = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / (2 * z * z)) if q < 1 else (2 * x - 1) / (2 * z * z)
    logs = order * ratio - x * x / (2 * z * z) + np.log(z / 16 / (z * math.sqrt(2 * math.pi)))
    return float(np.logaddexp.reduce(logs)) / (order - 1)


def renyi_epsilon(schedule: Schedule, delta: float) -> float:
    best = math.inf
    for order in LIBRARY_ORDERS.orders:
        rho = schedule.rounds * divergence(schedule.sampling, schedule.noise_multiplier, order)
        best = min(best, rho + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1))
    return best


def hockey_stick(losses: np.ndarray, q: float, z: float, remove: bool) -> np.ndarray:
    """Return δ of one sampled Gaussian answer at each ε."""
    y = np.exp(losses)
    share = (y - 1 + q) / q if remove else (1 / y - 1 + q) / q
    with np.errstate(invalid="ignore", divide="ignore"):
        x = z * z * np.log(share) + 0.5
    if remove:
        above = (1 - q - y) * ndtr(-x / z) + q * ndtr((1 - x) / z)
        return np.where(share > 0, above, 1 - y)
    above = ndtr(x / z) - y * ((1 - q) * ndtr(x / z) + q * ndtr((x - 1) / z))
    return np.where(share > 0, above, 0.0)


def pld_epsilon(schedule: Schedule, delta: float, grid: float = 1e-3) -> float:
    """Return ε by interpolating the hockey-stick curve on a grid, and by a power of its Fourier transform."""
    q, z, rounds = schedule.sampling, schedule.noise_multiplier, schedule.rounds
    reach = math.ceil((1 / (2 * z * z) + 10 / z) / grid)
    worst = 0.0
    for remove in (True, False):
        steps = np.arange(-reach, reach + 1)
        losses = steps * grid
        y, curve = np.exp(losses), hockey_stick(losses, q, z, remove)
        slopes = np.diff(curve) / np.diff(y)
        q_mass = np.diff(np.concatenate(([-1.0], slopes, [0.0])))  # the pmf of Q at y is a change of slope
        q_mass[0] = max(q_mass[0], 0.0)
        p_mass = np.maximum(q_mass * y, 0.0)
        infinite = 1 - p_mass.sum()
        size = 1 << math.ceil(math.log2(8 * reach + 16))
        while (size // 2) * grid < 40 + 4 * reach * grid:
            size *= 2
        placed = np.zeros(size)
        placed[steps % size] = p_mass
        together = np.fft.irfft(np.fft.rfft(placed) ** rounds, size)
        sums = np.where(np.arange(size) < size // 2, np.arange(size), np.arange(size) - size) * grid
        lost = -math.expm1(rounds * math.log1p(-max(infinite, 0.0)))
        order = np.argsort(sums)
        sums, together = sums[order], np.maximum(together[order], 0.0)
        low, high = 0.0, float(sums[-1])
        for _ in range(60):
            middle = (low + high) / 2
            over = sums > middle
            left = lost + float(np.sum(together[over] * -np.expm1(middle - sums[over])))
            low, high = (middle, high) if left > delta else (low, middle)
        worst = max(worst, high)
    return worst


@pytest.mark.parametrize("schedule", STATED)
def test_the_stated_values(schedule: Schedule) -> None:
    delta, renyi, order, pld = STATED[schedule]
    assert LIBRARY_ORDERS.least(schedule, delta) == pytest.approx((renyi, order), rel=1e-5)
    assert epsilon(schedule, delta) == pytest.approx(pld, rel=2e-5)
    assert epsilon(schedule, delta, Renyi()) == pytest.approx(renyi, rel=0.04)
    assert epsilon(schedule, delta, Renyi()) >= LIBRARY_ORDERS.epsilon(schedule, delta) - 1e-12


def test_the_second_stated_delta_and_the_coarser_grid() -> None:
    schedule = Schedule(0.01, 1, 1000)
    assert epsilon(schedule, 1e-5) == pytest.approx(1.828244, abs=1e-6)
    assert epsilon(schedule, 1e-6, ROUGH) == pytest.approx(2.125251, abs=1e-6)
    assert LIBRARY_ORDERS.least(schedule, 1e-5) == pytest.approx((2.101367, 7.8), rel=1e-6)


@pytest.mark.parametrize(
    ("q", "z", "order", "rho"),
    [(0.01, 1, 2, 1.71813422e-4), (0.01, 1, 8, 8.93643908e-4), (0.1, 2, 3, 4.37365835e-3), (1, 2, 8, 1.0)],
)
def test_one_rounds_divergence(q: float, z: float, order: int, rho: float) -> None:
    assert Renyi((order,)).divergences(Schedule(q, z, 1)) == pytest.approx([rho], rel=1e-8)
    assert divergence(q, z, order) == pytest.approx(rho, rel=1e-8)


def test_the_second_way_has_the_divergence_of_a_small_order_right() -> None:
    q, z, order = 0.02, 0.6, 2.8
    with mpmath.workdps(30):

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.npdf(x, 0, z) * (1 - q + q * mpmath.exp((2 * x - 1) / (2 * z * z))) ** order

        truth = float(mpmath.log(mpmath.quad(integrand, [-12, -2, 0, 1, 2, 3, 5, 14])) / (order - 1))
    assert divergence(q, z, order) == pytest.approx(truth, rel=1e-11)
    assert truth == pytest.approx(0.01705643, rel=1e-6)
    assert Renyi((order,)).divergences(Schedule(q, z, 1))[0] >= truth


QS, ZS = st.floats(-4, -0.1).map(lambda x: 10**x), st.floats(0.6, 20)


@given(QS, ZS, st.sampled_from(WHOLE_ORDERS[:40]))
def test_whole_orders_are_exact(q: float, z: float, order: int) -> None:
    ours = Renyi((order,)).divergences(Schedule(q, z, 1))[0]
    assert ours == pytest.approx(divergence(q, z, order), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("schedule", [each for each in STATED if each.sampling < 1])
def test_never_below_the_second_way(schedule: Schedule) -> None:
    delta = STATED[schedule][0]
    second = pld_epsilon(schedule, delta)
    assert second == pytest.approx(epsilon(schedule, delta, ROUGH), rel=2e-3)  # on the same grid
    if delta > 1e-8 / 2:  # below, the second way's differences of slopes are too small for doubles on a finer grid
        assert epsilon(schedule, delta) == pytest.approx(pld_epsilon(schedule, delta, 2e-4), rel=1e-3)
    assert epsilon(schedule, delta) <= second + 1e-9 < renyi_epsilon(schedule, delta)
    assert epsilon(schedule, delta, Renyi()) >= renyi_epsilon(schedule, delta) * (1 - 1e-9)


@settings(deadline=None, max_examples=25)
@given(st.floats(2, 200), st.integers(1, 2000), st.sampled_from([1e-5, 1e-8, 1e-11, 3e-12]))
def test_the_librarys_rounding_never_makes_it_too_small(z: float, rounds: int, delta: float) -> None:
    """With q so close to 1 that the truth equals the exact Gaussian's, although the PLD is used."""
    nearly_all = Schedule(1 - 1e-12, z, rounds)
    truth = epsilon_of(math.sqrt(rounds) / z, delta)
    assert epsilon(nearly_all, delta, ROUGH) >= truth * (1 - 1e-9)


@pytest.mark.parametrize(
    ("q", "z", "delta", "budget", "renyi", "pld"),
    [
        (0.01, 1, 1e-6, 2, 531, 874),
        (0.1, 2, 1e-6, 3, 106, 125),
        (0.02, 1, 1e-6, 1, 0, 6),
        (1, 10, 1e-6, 3, 37, 41),
    ],
)
def test_the_last_allowed_round(q: float, z: float, delta: float, budget: float, renyi: int, pld: int) -> None:
    assert rounds_allowed(q, z, budget, delta, LIBRARY_ORDERS) == renyi
    assert rounds_allowed(q, z, budget, delta) == pld
    assert epsilon(Schedule(q, z, pld), delta) <= budget < epsilon(Schedule(q, z, pld + 1), delta)


def test_rounds_are_allowed_without_end_only_up_to_a_bound() -> None:
    assert rounds_allowed(0, 1, 0.1, 1e-6) == MOST_ROUNDS
    assert rounds_allowed(0.5, 0, 10, 1e-6) == 0
    assert rounds_allowed(1, 1, 0, 1e-6) == 0


@pytest.mark.long
def test_the_noise_for_a_target() -> None:
    z = noise_multiplier_for(1, 1e-6, 0.01, 137)
    assert z == pytest.approx(1.0106, abs=1e-4)
    assert 1 - 1e-4 < epsilon(Schedule(0.01, z, 137), 1e-6) <= 1


@pytest.mark.parametrize(
    ("q", "rounds", "target", "renyi", "pld"),
    [(0.01, 137, 1, 1.2048, 1.0106), (0.01, 1000, 1, 1.6595, 1.5627), (0.1, 137, 3, 2.1978, 2.0661)],
)
def test_the_noise_for_a_target_roughly(q: float, rounds: int, target: float, renyi: float, pld: float) -> None:
    assert noise_multiplier_for(target, 1e-6, q, rounds, LIBRARY_ORDERS) == pytest.approx(renyi, abs=1e-4)
    z = noise_multiplier_for(target, 1e-6, q, rounds, ROUGH)
    assert pld - 1e-4 < z < pld * 1.002


PLANS = [  # clients a round of 1e5, ε, z for 48 and 137 rounds
    (300, 3, 0.541, 0.566),
    (1000, 1, 0.900, 0.970),
    (3000, 1, 1.303, 1.705),
    (10000, 1, 3.07, 4.85),
]


@pytest.mark.long
@pytest.mark.parametrize(("clients", "target", "short", "long"), PLANS)
def test_the_noise_of_the_stated_plans(clients: int, target: float, short: float, long: float) -> None:
    delta = 1e5**-1.1
    for rounds, z in ((48, short), (137, long)):
        assert noise_multiplier_for(target, delta, clients / 1e5, rounds) == pytest.approx(z, rel=1e-3)


def test_the_noise_of_two_of_the_stated_plans_roughly() -> None:
    assert noise_multiplier_for(1, 1e5**-1.1, 0.003, 48, ROUGH) == pytest.approx(0.705, rel=2e-3)
    assert noise_multiplier_for(1, 1e6**-1.1, 0.01, 137, ROUGH) == pytest.approx(1.058, rel=2e-3)


@pytest.mark.parametrize(("budget", "z"), [(1, 4.224679), (3, 1.543861), (8, 0.652935)])
def test_limited_contributions(budget: float, z: float) -> None:
    assert noise_multiplier_for(budget, 1e-6, 1, 1) == pytest.approx(z, abs=5e-7)
    assert rounds_allowed(1, z * 3, budget, 1e-6) in (8, 9)  # nine contributions, but for the rounding of z
    nine = Schedule.of_contributions(3 * z, 9)
    assert epsilon(nine, 1e-6) == pytest.approx(budget, rel=1e-6)
    assert PLD.name(nine.sampling) == "exact Gaussian"


@pytest.mark.parametrize("accountant", [ROUGH, Renyi()])
def test_the_ends(accountant: Pld | Renyi) -> None:
    assert accountant.epsilon(Schedule(0, 0, 10), 0) == 0
    assert accountant.epsilon(Schedule(0.5, 0, 0), 0) == 0
    assert accountant.epsilon(Schedule(0.5, 0, 1), 1e-6) == math.inf
    assert accountant.epsilon(Schedule(0.5, 1, 1), 0) == math.inf
    assert accountant.epsilon(Schedule(0.5, 0, 1), 1) == 0
    with pytest.raises(NoGuarantee, match="delta is 2"):
        accountant.epsilon(Schedule(0.5, 1, 1), 2)
    assert noise_multiplier_for(1, 1e-6, 0, 10, accountant) == 0
    assert noise_multiplier_for(1, 1e-6, 0.1, 0, accountant) == 0
    for budget, delta in ((0, 1e-6), (1, 0), (math.nan, 1e-6)):
        with pytest.raises(NoGuarantee, match="no Gaussian noise keeps"):
            noise_multiplier_for(budget, delta, 0.1, 10, accountant)


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        ((-0.1, 1, 1), "share of clients"),
        ((1.1, 1, 1), "share of clients"),
        ((math.nan, 1, 1), "share of clients"),
        ((0.1, math.inf, 1), "noise multiplier is inf"),
        ((0.1, -1, 1), "noise multiplier is -1"),
        ((0.1, 1, -1), "-1 rounds are too many"),
        ((0.1, 1, MOST_ROUNDS + 1), "maximum is 1,000,000"),
    ],
)
def test_no_such_schedule(schedule: tuple[float, float, int], told: str) -> None:
    with pytest.raises(NoGuarantee, match=told):
        Schedule(*schedule)


@settings(deadline=None, max_examples=12)
@given(QS, st.floats(0.5, 20), st.integers(1, 500), st.sampled_from([1e-5, 1e-6, 1e-8]))
def test_more_of_anything_that_tells_costs_more(q: float, z: float, rounds: int, delta: float) -> None:
    for accountant in (ROUGH, Renyi()):
        here = accountant.epsilon(Schedule(q, z, rounds), delta) * (1 + 1e-9) + 1e-9
        assert accountant.epsilon(Schedule(q / 2, z, rounds), delta) <= here
        assert accountant.epsilon(Schedule(q, z * 1.5, rounds), delta) <= here
        assert accountant.epsilon(Schedule(q, z, rounds // 2), delta) <= here
        assert accountant.epsilon(Schedule(q, z, rounds), delta * 3) <= here
    assert ROUGH.epsilon(Schedule(q, z, rounds), delta) <= epsilon_of(math.sqrt(rounds) / z, delta)


def test_an_epsilon_that_protects_nobody_is_told_at_once() -> None:
    assert 200 < epsilon(Schedule(0.5, 0.1, 100_000), 1e-6) < math.inf
    tiny = epsilon(Schedule(1e-9, 0.02, 1), 1e-6)  # where a PLD would say 0, but would take a gigabyte
    assert 0 < tiny <= epsilon_of(1 / 0.02, 1e-6)


def test_what_lineage_says_of_the_accountant() -> None:
    assert PLD.name(0.1) == "PLD, add or remove one, grid 0.0001, dp-accounting 0.6.0"
    assert Renyi((8,)).name(1) == "Rényi, order 8, dp-accounting 0.6.0"
    assert Renyi().name(1) == f"Rényi, {len(WHOLE_ORDERS)} orders, dp-accounting 0.6.0"


def test_the_filter_stops_before_the_segment_that_would_exceed_its_budget() -> None:
    planned = Schedule(0.1, 2, 100)
    budget = RenyiFilter(order_for(planned, 1e-6), 3.0, 1e-6)
    assert budget.order == 8
    assert budget.spent_epsilon() == 0
    one, rounds = Schedule(0.1, 2, 1), 0
    while budget.allows(one):
        budget, rounds = budget.after(one), rounds + 1
    assert rounds == rounds_allowed(0.1, 2, 3.0, 1e-6, Renyi((8,)))
    assert budget.spent_epsilon() == pytest.approx(Renyi((8,)).epsilon(Schedule(0.1, 2, rounds), 1e-6), rel=1e-12)
    assert budget.spent_epsilon() <= 3 < budget.after(one).spent_epsilon()
    assert budget.allows(Schedule(0.1, 100, 1))  # with much more noise there is still room
    assert not budget.allows(Schedule(0.1, 0, 1))


def test_segments_of_different_noise_add_up_at_the_order_fixed_at_the_start() -> None:
    first, second = Schedule(0.1, 2, 50), Schedule(0.02, 1, 30)
    both = RenyiFilter(8, 10, 1e-6).after(first).after(second)
    assert both.spent == pytest.approx(50 * divergence(0.1, 2, 8) + 30 * divergence(0.02, 1, 8), rel=1e-9)
    assert both == RenyiFilter(8, 10, 1e-6).after(first).after(Schedule(0, 1, 7)).after(second)
    # The least over orders afterwards would be less, and would be no filter.
    assert both.spent_epsilon() > min(RenyiFilter(a, 10, 1e-6, 0).after(first).spent_epsilon() for a in WHOLE_ORDERS)


def test_no_such_filter() -> None:
    with pytest.raises(NoGuarantee, match="the order is 1"):
        RenyiFilter(1, 1, 1e-6)
    with pytest.raises(NoGuarantee, match="delta is 0"):
        RenyiFilter(8, 1, 0)
