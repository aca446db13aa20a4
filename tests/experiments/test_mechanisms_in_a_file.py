"""Mechanisms of fedping.mechanisms: statistical tests of their draws, and runs of files that name them.

Each statistical test fails for a correct program with a probability of at most 1e-6, and seeds are fixed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedping.client_sim.learning.models.k_means import KMeans
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.privacy.mechanisms import DiscreteLaplace, Exponential
from fedping.mechanisms import PrivateKMeans, discrete_laplace, exponential, laplace
from fedping.protocol.errors import FedpingError
from tests.support.encodings import keys_of
from tests.support.laboratory import small

SIZE = 20_000
ALPHA = 1e-6


def sent(link: Any, update: list[float]) -> np.ndarray:
    client, _ = link
    return np.asarray(client.transform(np.tile(update, (SIZE, 1)), keys_of(SIZE)))


def test_laplace_adds_noise_of_twice_the_bound_by_epsilon() -> None:
    noisy = sent(laplace(bound=2.0, epsilon=0.5), [0.5, -1.0, 0.0])
    for column, exact in zip(noisy.T, (0.5, -1.0, 0.0), strict=True):
        assert stats.kstest(column - exact, stats.laplace(scale=8.0).cdf).pvalue > ALPHA
    assert abs(np.corrcoef(noisy.T)[0, 1]) < 5 / math.sqrt(SIZE)
    cut = sent(laplace(bound=2.0, epsilon=1e9), [3.0, -1.0, 0.0])
    np.testing.assert_allclose(cut[0], [1.5, -0.5, 0.0], atol=1e-6)


def test_the_discrete_noise_has_the_probabilities_of_its_mechanism() -> None:
    """With a bound of 3 steps, the sensitivity is 6 steps."""
    noisy = sent(discrete_laplace(bound=0.75, step=0.25, epsilon=6.0), [0.3, -0.25]) / 0.25
    assert (noisy == np.rint(noisy)).all()
    mechanism = DiscreteLaplace(6, 6.0)
    values = np.arange(-4, 5)
    for column, exact in zip(noisy.T, (1, -1), strict=True):  # 0.3 is one step, towards zero
        counts = [(column - exact == value).sum() for value in values]
        chances = [mechanism.probability(int(value)) for value in values]
        rest = (SIZE - sum(counts), 1 - sum(chances))
        observed, expected = np.array([*counts, rest[0]]), SIZE * np.array([*chances, rest[1]])
        assert stats.chisquare(observed, expected).pvalue > ALPHA
    with pytest.raises(ValueError, match="1 to 2\\^40 times"):
        discrete_laplace(bound=0.1, step=0.25, epsilon=1.0)


@pytest.mark.parametrize("update", [[0.5, 0.5, -0.25], [0.1, -0.1, 0.3], [0.25, 0.0, 0.0]])
def test_rounded_updates_stay_within_the_sensitivity(update: list[float]) -> None:
    steps = sent(discrete_laplace(bound=0.3, step=0.1, epsilon=1e9), update)[0] / 0.1
    assert np.abs(np.rint(steps)).sum() <= math.floor(0.3 / 0.1)


def test_the_exponential_mechanism_chooses_by_its_probabilities() -> None:
    update = [0.4, -1.0, 5.0]
    one = sent(exponential(bound=1.0, epsilon=3.0), update)
    assert ((one != 0).sum(axis=1) == 1).all()
    assert set(np.unique(one)) == {-1.0, 0.0, 1.0}
    counts = [*(one == 1).sum(axis=0), *(one == -1).sum(axis=0)]
    chances = Exponential(2.0, 3.0).probabilities([0.4, -1.0, 1.0, -0.4, 1.0, -1.0])
    assert stats.chisquare(counts, SIZE * chances).pvalue > ALPHA
    worst = Exponential(2.0, 3.0).probabilities([1.0, -1.0]) / Exponential(2.0, 3.0).probabilities([-1.0, 1.0])
    assert np.log(worst.max()) <= 3.0


@pytest.mark.parametrize(
    "link",
    [
        {"link": "laplace", "bound": 1.0, "epsilon": 50.0},
        {"link": "discrete-laplace", "bound": 1.0, "step": 0.01, "epsilon": 50.0},
        {"link": "exponential", "bound": 0.1, "epsilon": 5.0},
    ],
)
def test_a_file_names_them(tmp_path: Any, link: dict[str, Any]) -> None:
    last = []
    for name in ("one", "same"):
        run_experiment(small(rounds=2, upload=[link], evaluation__local=False), tmp_path / name, jobs=1)
        [found] = (tmp_path / name).glob("**/federated/seed-1/last.npy")
        last.append(np.load(found))
    np.testing.assert_array_equal(*last)
    assert np.isfinite(last[0]).all()


@pytest.mark.parametrize(
    "link",
    [
        {"link": "laplace", "bound": 1.0, "epsilon": 0.1},
        {"link": "discrete-laplace", "bound": 1.0, "step": 0.01, "epsilon": 0.1},
        {"link": "exponential", "bound": 50.0, "epsilon": 0.5},
    ],
)
def test_a_run_that_its_noise_has_made_worse_is_noted(tmp_path: Any, link: dict[str, Any]) -> None:
    few = small(rounds=4, upload=[link], evaluation={"baselines": [], "every": 4})
    summary = run_experiment(few, tmp_path / "out", jobs=1)
    assert any("it ended worse than it began (" in note for note in summary.notes)


MODEL = KMeans(features=2, clusters=3)
CENTROIDS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, -1.0]])
WEIGHTS = np.concatenate([CENTROIDS.ravel(), np.zeros(3)])


def batch_of(clients: int) -> Any:
    from fedping.client_sim.learning.batch import Examples

    x = np.array([[0.1, 0.0], [0.9, 0.1], [0.8, -0.2], [0.7, 0.3], [5.0, 0.0]])
    weight = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
    return Examples(np.tile(x, (clients, 1, 1)), np.zeros((clients, 5)), np.tile(weight, (clients, 1)))


def test_nearly_without_noise_it_is_a_step_of_lloyd() -> None:
    algorithm = PrivateKMeans(bound=1.0, epsilon=1e9, contour=0.2)
    found, _ = algorithm.update(MODEL, WEIGHTS, batch_of(1), keys_of(1), {})
    np.testing.assert_allclose(found, MODEL.movements(WEIGHTS, batch_of(1)), atol=1e-6)


def test_numbers_and_sums_have_the_noise_that_is_stated() -> None:
    """For the second cluster with 3 examples, the count has noise of scale 2 / ε, and the sum of scale 2 d C / ε."""
    keys = keys_of(SIZE)
    found, _ = PrivateKMeans(bound=2.0, epsilon=4.0).update(MODEL, WEIGHTS, batch_of(SIZE), keys, {})
    numbers = found[:, 7]
    steps = np.arange(7)
    laplace_cdf = stats.laplace(loc=3, scale=0.5).cdf
    chances = laplace_cdf(steps + 0.5) - np.where(steps > 0, laplace_cdf(steps - 0.5), 0.0)
    observed = np.array([*((numbers == step).sum() for step in steps), (numbers > 6).sum()])
    assert stats.chisquare(observed, SIZE * np.array([*chances, 1 - chances.sum()])).pvalue > ALPHA
    many = KMeans(features=2, clusters=1)
    x = np.full((SIZE, 1, 2), 0.5)
    from fedping.client_sim.learning.batch import Examples

    one = Examples(x, np.zeros((SIZE, 1)), np.full((SIZE, 1), 1000.0))
    moved, _ = PrivateKMeans(bound=100.0, epsilon=2e4).update(many, np.zeros(3), one, keys, {})
    assert stats.kstest(moved[:, 0] - 0.5, stats.laplace(scale=2 * 2 * 100.0 / 2e4).cdf).pvalue > ALPHA


def test_contours_are_worked_by_hand() -> None:
    """a / b of (0.1, 0) is 0.1 / 0.9; clusters without an example have 0."""
    algorithm = PrivateKMeans(bound=1.0, epsilon=1.0, contour=0.5)
    batch = batch_of(1)
    member, own = algorithm._members(CENTROIDS[None], np.clip(batch.x, -1, 1), batch)
    contours = algorithm.contours(member, own, keys_of(1), 1e9)
    away = [np.linalg.norm(batch.x[0, 1:4] - centroid, axis=1) for centroid in CENTROIDS[:2]]
    expected = [1 - 0.1 / 0.9, np.mean(1 - away[1] / away[0]), 0.0]
    np.testing.assert_allclose(contours[0], expected, atol=1e-6)


def test_it_needs_k_means_with_numbers() -> None:
    with pytest.raises(ValueError, match="counts = true"):
        PrivateKMeans(bound=1.0, epsilon=1.0).init_state(KMeans(features=2, clusters=3, counts=False))


def test_another_model_is_refused_before_a_round(tmp_path: Any) -> None:
    training = {"algorithm": "private-k-means", "bound": 1.0, "epsilon": 1.0}
    with pytest.raises(FedpingError, match="private-k-means"):
        run_experiment(small(rounds=1, training=training), tmp_path, jobs=1)


def k_means_sums(x: np.ndarray) -> np.ndarray:
    """Return the sums of one client's examples in one cluster, with negligible noise."""
    from fedping.client_sim.learning.batch import Examples

    batch = Examples(x[None], np.zeros((1, len(x))), np.ones((1, len(x))))
    model = KMeans(features=x.shape[1], clusters=1)
    start = np.zeros(x.shape[1] + 1)
    moved, _ = PrivateKMeans(bound=1.0, epsilon=1e12).update(model, start, batch, keys_of(1), {})
    return np.asarray(moved[0, :-1] * moved[0, -1])


def test_an_example_moves_the_sums_within_the_sensitivity_if_the_preparation_is_fixed_and_else_it_may_not() -> None:
    """The noise covers a change of d C in the L1 norm; a new maximum of a feature shrinks all other examples."""
    from fedping.client_sim.data import example_data
    from fedping.client_sim.data.preparing import min_max_scaling

    x = np.random.default_rng(0).uniform(size=(1000, 2))
    one_more = np.vstack([x, [[10.0, 10.0]]])
    data, more = (example_data(each, np.zeros(len(each)), [len(each)]) for each in (x, one_more))
    fixed, anew = min_max_scaling(data), min_max_scaling(more)
    before = k_means_sums(fixed.of(data).x)
    assert np.abs(k_means_sums(fixed.of(more).x) - before).sum() <= 2 * 1.0 + 1e-3
    assert np.abs(k_means_sums(anew.of(more).x) - before).sum() > 100 * 2 * 1.0


def test_a_run_says_that_its_guarantee_does_not_cover_the_preparation() -> None:
    from fedping.experiments.laboratory.notes import of_problem
    from fedping.experiments.laboratory.preparing import prepare

    settings = {
        "model": {"name": "k-means", "clusters": 2, "spread": 0.5},
        "training": {"algorithm": "private-k-means", "bound": 1.0, "epsilon": 1.0},
        "server__aggregate": {"by": "recluster"},
        "evaluation": {"metric": "loss"},
    }

    def said(**changes: Any) -> list[str]:
        [setup] = small(**settings | changes).variants.values()
        return [note for note in of_problem(setup, prepare(setup, 1, None)) if "does not cover" in note]

    [note] = said(data__clip=0.99)
    assert "does not cover clip and standardise of [data]" in note
    assert not said(data__standardise=False)
