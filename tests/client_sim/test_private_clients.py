"""Contributions of clients to private lines: always bounded, unlinkable, rare enough, and noisy enough."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy import stats

from fedping.client_sim.privacy import NEVER, Chance, Contributor, rotating_id
from fedping.protocol.enrolment import enrol
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.gaussian import least_noise
from fedping.protocol.privacy import (
    SIGN,
    ClippedByKind,
    ClippedFlat,
    Contribution,
    Local,
    LocalGaussian,
    OneSign,
    Privacy,
    Signs,
    bounded_vectors,
    local_sigma,
)
from fedping.protocol.weights import Kind
from tests.support.private import CENTRAL, private_study

M = 4
CONTRIBUTIONS: tuple[Contribution, ...] = (
    Signs(),
    ClippedFlat(norm=2.5),
    ClippedByKind(norms={"bonus": 2.0, "bucket_weight": 1.0, "cutoff": 3.0}),
)


def seeded(seed: int) -> Iterator[Chance]:
    return (Chance(Random(seed + k).randbytes) for k in count())


def contributor(privacy: Privacy) -> Contributor:
    spec = private_study(M).lines[0].spec
    kinds: tuple[Kind, ...] = ("bonus", "cutoff", "bonus", "bucket_weight")
    weights = tuple(replace(weight, kind=kind) for weight, kind in zip(spec.weights, kinds, strict=True))
    return Contributor(privacy, replace(spec, weights=weights))


anything = st.lists(
    st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, 5e-324, 1e308, -1e308]),
    min_size=M,
    max_size=M,
)


@given(
    st.sampled_from(CONTRIBUTIONS),
    anything,
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([(), ("w1",), ("w0", "w3")]),
)
@settings(deadline=None)
def test_no_vector_is_longer_than_the_sensitivity(
    contribution: Contribution, update: list[float], loss: float, top: float, left_out: tuple[str, ...]
) -> None:
    privacy = Privacy(central=CENTRAL, contribution=contribution, left_out=left_out)
    made = contributor(privacy)
    [vector] = made.vectors(np.array([update]), np.array([loss]), np.array([top]), seeded(0))
    assert sum(int(number) ** 2 for number in vector) <= made.frame.squared
    assert not vector[:M][made.frame.group < 0].any()
    np.testing.assert_array_equal(bounded_vectors(privacy, made.frame, vector[None])[0], vector)


class Branching(Chance):
    """A randomness source that follows one path of draws, and computes its probability."""

    def __init__(self, path: list[int], p: float) -> None:
        self.path, self.at, self.open, self.likely, self._p = path, 0, list[int](), 1.0, p

    def _choose(self, probabilities: list[float]) -> int:
        if self.at == len(self.path):
            self.path.append(0)
        self.open.append(len(probabilities))
        chosen = self.path[self.at]
        self.at += 1
        self.likely *= probabilities[chosen]
        return chosen

    def below(self, n: int) -> int:
        return self._choose([1 / n] * n)

    def is_true(self, epsilon: float) -> bool:
        return self._choose([1 - self._p, self._p]) == 1


def outputs(make: Callable[[Chance], tuple[int, ...]], p: float) -> dict[tuple[int, ...], float]:
    """Return the exact distribution of a function's result over all its random draws."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    path: list[int] = []
    while True:
        chance = Branching(path, p)
        found[make(chance)] += chance.likely
        while path and path[-1] + 1 == chance.open[len(path) - 1]:
            path.pop()
        if not path:
            return found
        path[-1] += 1


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 8.0])
def test_one_sign_has_the_epsilon_that_it_promises(epsilon: float) -> None:
    made = contributor(Privacy(local=OneSign(epsilon=epsilon), left_out=("w2",)))
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))

    def distribution(update: list[float], loss: float) -> dict[tuple[int, ...], float]:
        def make(chance: Chance) -> tuple[int, ...]:
            [vector] = made.vectors(np.array([update]), np.array([loss]), np.array([loss]), [chance])
            return tuple(vector.tolist())

        return outputs(make, truth)

    inputs = [[0.0] * M, [1.0] * M, [-1.0] * M, [5.0, -2.0, 1.0, 0.0], [-1e308, math.nan, 3.0, math.inf]]
    found = [distribution(update, loss) for update in inputs for loss in (0.0, 1.0)]
    support = set(found[0])
    assert all(set(one) == support for one in found)
    assert len(support) == 2 * (M - 1)
    assert all(sum(one.values()) == pytest.approx(1) for one in found)
    worst = max(abs(math.log(one[out] / other[out])) for one in found for other in found for out in support)
    assert worst == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 3.0])
def test_the_truth_is_told_as_often_as_it_should(epsilon: float) -> None:
    chance = Chance(Random(5).randbytes)
    told = sum(chance.is_true(epsilon) for _ in range(20_000))
    assert stats.binomtest(told, 20_000, 1 / (1 + math.exp(-epsilon))).pvalue > 1e-4


@pytest.mark.parametrize("sigma", [1, 3, 40])
def test_noise_is_a_discrete_gaussian(sigma: int) -> None:
    chance = Chance(Random(7).randbytes)
    drawn = Counter(chance.discrete_gaussian(sigma) for _ in range(20_000))
    edges = sorted({-2 * sigma, -sigma, -sigma // 3, 0, sigma // 3 + 1, sigma + 1, 2 * sigma + 1})
    numbers = np.arange(-10 * sigma, 10 * sigma + 1)
    mass = np.exp(-(numbers**2) / (2 * sigma**2))
    cell = np.searchsorted(edges, numbers, side="right")
    expected = np.bincount(cell, mass / mass.sum()) * 20_000
    seen = np.bincount(np.searchsorted(edges, list(drawn), side="right"), list(drawn.values()), minlength=len(expected))
    assert stats.chisquare(seen, expected).pvalue > 1e-4


def test_bounded_draws_are_even() -> None:
    chance = Chance(Random(9).randbytes)
    for n in (1, 2, 5, 256, 257):
        seen = np.bincount([chance.below(n) for _ in range(60 * n)], minlength=n)
        assert n == 1 or stats.chisquare(seen).pvalue > 1e-4


@pytest.mark.parametrize(
    ("epsilon", "delta", "z"),
    [(1, 1e-6, 4.224679), (3, 1e-6, 1.543861), (8, 1e-6, 0.652935), (20, 1e-5, 0.2900)],
)
def test_noise_is_that_of_the_analytic_gaussian(epsilon: float, delta: float, z: float) -> None:
    found = least_noise(epsilon, delta)
    assert found == pytest.approx(z, rel=2e-4)

    def delta_of(at: float) -> float:
        far, near = 1 / (2 * at) - epsilon * at, -1 / (2 * at) - epsilon * at
        return float(stats.norm.cdf(far) - math.exp(epsilon + stats.norm.logcdf(near)))

    assert delta_of(found) <= delta < delta_of(found * (1 - 1e-9))


@pytest.mark.parametrize("local", [OneSign(epsilon=1.0), LocalGaussian(epsilon=1.0, delta=1e-6)])
def test_clients_with_noise_of_their_own_tell_no_metrics(local: Local) -> None:
    privacy = Privacy(local=local)
    made = contributor(privacy)
    updates = np.tile([3.0, -2.0, 1.0, 0.0], (200, 1))
    vectors = made.vectors(updates, np.ones(200), np.ones(200), seeded(1))
    assert (vectors[:, M] == made.frame.metric).all()
    assert not vectors[:, M + 1 :].any()
    np.testing.assert_array_equal(bounded_vectors(privacy, made.frame, vectors), vectors)
    if isinstance(local, LocalGaussian):
        sigma = local_sigma(privacy, made.frame)
        assert sigma == math.ceil(2 * SIGN * 2 * least_noise(1.0, 1e-6))
        noise = vectors[:, :M] - SIGN * np.sign(updates)
        assert noise.std() == pytest.approx(sigma, rel=0.1)


def test_a_client_that_lies_has_one_sign_all_the_same() -> None:
    privacy = Privacy(local=OneSign(epsilon=1.0))
    made = contributor(privacy)
    sent = np.array([[0, 9e9, -64, 64, 1, 1, 1], [64.0] * 7])
    assert bounded_vectors(privacy, made.frame, sent)[:, :M].tolist() == [[0, SIGN, 0, 0], [SIGN, 0, 0, 0]]


def test_one_sign_is_not_clipped() -> None:
    with pytest.raises(InvalidSettings, match="have nothing to clip"):
        Privacy(local=OneSign(epsilon=1.0), contribution=ClippedFlat(norm=1.0))


def test_ids_belong_to_the_arm_and_have_nothing_in_common() -> None:
    study = private_study(M)
    ids = {
        (client, version): rotating_id(study, bytes([client]) * 32, "main", version, "control")
        for client in range(40)
        for version in range(40)
    }
    assert len(set(ids.values())) == 1600
    for found in ids.values():
        arm = enrol(study, str(found))
        assert arm is not None
        assert arm.name == "control"
        assert (found.version, found.variant) == (8, "specified in RFC 4122")
    assert ids[3, 5] == rotating_id(study, bytes([3]) * 32, "main", 5, "control")
    same = [bits_in_common(ids[client, v], ids[client, v + 1]) for client in range(40) for v in range(39)]
    other = [bits_in_common(ids[client, v], ids[client + 1, v]) for client in range(39) for v in range(40)]
    assert stats.ttest_ind(same, other).pvalue > 1e-4
    assert abs(np.mean(same) - (6 + 122 / 2)) < 1


def bits_in_common(one: UUID, other: UUID) -> int:
    return 128 - (one.int ^ other.int).bit_count()


def test_a_client_contributes_once_to_a_version_and_not_beyond_its_cap() -> None:
    state, given_to = NEVER, []
    for version in (0, 0, 1, 3, 2, 3, 4, 5):
        if state.may(version, 3):
            state = state.after(version)
            given_to.append(version)
    assert given_to == [0, 1, 3]
    assert state.may(4, None)
