"""Models with protected sums over rows: the sums, the bound of each row, and the charge for every release."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedping.client_sim.data.table import Target, table
from fedping.client_sim.joining.answering import Noise, answer
from fedping.client_sim.joining.consent import full_batch
from fedping.client_sim.joining.protected import LARGEST_ERROR, LOSS, ProtectedRows, Uncharged, _counts
from fedping.client_sim.learning.batch import Examples
from fedping.client_sim.learning.models import k_means, linear_regression, logistic_regression, network
from fedping.client_sim.learning.models.k_means import KMeans
from fedping.client_sim.learning.models.linear_regression import LinearRegression
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.client_sim.learning.models.network import Network
from fedping.protocol import row_privacy
from fedping.protocol.row_privacy import UNIT
from fedping.protocol.training import LocalSteps, OneGradient

N, F = 60, 4

MODELS: list[Any] = [
    LinearRegression(F),
    LinearRegression(F, l2=0.3),
    LogisticRegression(F),
    LogisticRegression(F, classes=3, l2=0.1),
    Network(F, classes=3, hidden=(5,)),
    KMeans(F, 3),
    KMeans(F, 3, counts=False),
]


def examples(model: Any, seed: int = 0, n: int = N) -> Examples:
    rng = np.random.default_rng(seed)
    classes = getattr(model, "classes", 0)
    y = rng.integers(0, classes, n) if classes else rng.normal(size=n)
    return Examples(rng.normal(size=(1, n, F)), y[None], np.ones((1, n)))


def weights(model: Any, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=len(model.weight_names))


def quiet(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Omit the noise, and record each integer sum to which it would be added."""
    sums: list[np.ndarray] = []

    def without(total: np.ndarray, z: float, bits: Any) -> np.ndarray:
        sums.append(total)
        return total

    monkeypatch.setattr("fedping.client_sim.joining.protected.noisy", without)
    return sums


def begun(model: Any, z: float = 1.0, sums: int = 1, **more: Any) -> ProtectedRows:
    protected = ProtectedRows(model, z, **more)
    protected.begin(np.random.default_rng(3).bytes, sums)
    return protected


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_gradient_is_the_mean_of_the_rows_gradients_shortened_one_by_one(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet(monkeypatch)
    batch, w = examples(model), weights(model)
    losses, gradient = begun(model, steps=False).losses_and_gradients(w[None], batch)
    bare = replace(model, l2=0.0) if hasattr(model, "l2") else model
    rows = [batch.only(np.array([[row]])) for row in range(N)]
    each = [np.asarray(bare.gradients(w, row)[0], float) for row in rows]
    wanted = sum(one / max(1.0, np.linalg.norm(one)) for one in each) / N
    largest = {
        LinearRegression: LARGEST_ERROR,
        KMeans: 4.0 * F,
    }.get(type(model), 2 * math.log(getattr(model, "classes", 2)))
    loss = np.mean([min(float(bare.losses(w, row)[0]), largest) for row in rows])
    if hasattr(model, "l2"):
        penalty, uphill = model.penalty(w, batch)
        wanted, loss = wanted + uphill[0], loss + penalty[0]
    assert gradient.shape == (1, len(w))
    assert gradient[0] == pytest.approx(wanted, abs=1.2 / UNIT)
    assert losses == pytest.approx(loss, abs=largest / (LOSS * UNIT))


def test_rows_of_rare_classes_count_more_however_long_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = quiet(monkeypatch)
    model = LogisticRegression(F)
    batch, w = examples(model), 10 * weights(model)
    weight = np.where(batch.y == 1, 9.0, 0.5)
    each = [np.asarray(model.gradients(w, batch.only(np.array([[row]])))[0], float) for row in range(N)]
    short = np.array([one / max(1.0, np.linalg.norm(one)) for one in each])
    assert (np.linalg.norm(each, axis=1) > 1).any()
    losses, gradient = begun(model, largest_weight=9.0).losses_and_gradients(w[None], replace(batch, weight=weight))
    assert gradient[0] == pytest.approx(weight[0] @ short / N, abs=9 * 1.2 / UNIT)
    assert losses == begun(model).losses_and_gradients(w[None], batch)[0]
    only = replace(batch.only(np.array([[0]])), weight=np.full((1, 1), 9.0))
    begun(model, largest_weight=9.0).losses_and_gradients(w[None], only)
    assert sum(int(x) ** 2 for x in sums[-1]) <= UNIT**2


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("steps", [True, False])
def test_no_row_moves_a_sum_by_more_than_the_norm_whatever_the_weights(
    model: Any, steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one row, a table's integer sum differs by at most 2^14; also tested for extreme weights."""
    sums = quiet(monkeypatch)
    for scale in (1.0, 1e3, 1e12, 1e300):
        for evaluates in (False, True):
            batch, w = examples(model, n=8), weights(model) * scale
            for rows in [np.arange(8), *(np.delete(np.arange(8), row) for row in range(8))]:
                protected = begun(model, steps=steps)
                with np.errstate(all="ignore"):
                    protected.losses(w, batch.only(rows[None])) if evaluates else protected.losses_and_gradients(
                        w, batch.only(rows[None])
                    )
            whole, *without = sums
            sums.clear()
            for each in without:
                assert sum(int(x) ** 2 for x in whole - each) <= UNIT**2


@pytest.mark.parametrize("evaluates", [False, True])
def test_no_person_moves_a_sum_by_more_than_the_norm(evaluates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = quiet(monkeypatch)
    model = LogisticRegression(F)
    batch, w = examples(model), weights(model)
    persons = np.random.default_rng(2).integers(0, 12, N)
    persons = np.unique(persons, return_inverse=True)[1]
    whole_protected = begun(model, persons=persons)
    whole_protected.losses(w, batch) if evaluates else whole_protected.losses_and_gradients(w, batch)
    (whole,) = sums
    mean = N / 12
    for person in range(12):
        sums.clear()
        left = persons != person
        others = np.unique(persons[left], return_inverse=True)[1]
        protected = begun(model, persons=others)
        # the number of rows and of persons counts as known, so the scale is that of the whole table
        monkeypatch.setattr(ProtectedRows, "_mean_rows", mean)
        part = batch.only(np.flatnonzero(left)[None])
        protected.losses(w, part) if evaluates else protected.losses_and_gradients(w, part)
        assert sum(int(x) ** 2 for x in whole - sums[0]) <= UNIT**2
        monkeypatch.undo()
        sums = quiet(monkeypatch)


def test_rows_in_pieces_sum_up_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LogisticRegression(F)
    batch, w = examples(model), weights(model)
    persons = np.unique(np.random.default_rng(2).integers(0, 12, N), return_inverse=True)[1]
    for more in ({}, {"persons": persons}):
        whole = begun(model, **more).losses_and_gradients(w, batch)
        monkeypatch.setattr("fedping.client_sim.joining.protected.MOST_BYTES", 8 * 6 * 7)
        pieces = begun(model, **more).losses_and_gradients(w, batch)
        monkeypatch.undo()
        assert (whole[0] == pieces[0]).all()
        assert (whole[1] == pieces[1]).all()


def test_a_step_of_k_means_is_lloyds_where_rows_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch)
    model = KMeans(F, 3)
    batch = examples(model, n=900)
    w = np.concatenate([np.random.default_rng(1).normal(size=12) / 4, np.zeros(3)])
    _, uphill = begun(model, z=0.5).losses_and_gradients(w, batch)
    wanted = model.movements(w, batch)[0]
    assert -uphill[0] == pytest.approx(wanted, abs=0.05)  # few rows are beyond the counted range
    assert -uphill[0, 12:] == pytest.approx(wanted[12:], abs=900 * 4 / UNIT)


def test_a_cluster_that_noise_may_have_made_up_stays() -> None:
    model = KMeans(F, 3)
    batch = examples(model, n=20)
    w = np.concatenate([np.zeros(4), np.full(8, 50.0), np.zeros(3)])
    for seed in range(20):
        protected = ProtectedRows(model, 2.0)
        protected.begin(np.random.default_rng(seed).bytes, 1)
        _, uphill = protected.losses_and_gradients(w, batch)
        assert np.abs(uphill[0, :12]).max() <= math.sqrt(2 * F) + 1e-9


def test_evaluation_gives_a_loss_and_counts_near_the_true_ones() -> None:
    model = LogisticRegression(F)
    batch, w = examples(model, n=2000), weights(model)
    protected = begun(model, z=3.0)
    (loss,) = protected.losses(w, batch)
    clipped = np.mean(
        [min(float(model.losses(w, batch.only(np.array([[row]])))[0]), 2 * math.log(2)) for row in range(2000)]
    )
    assert loss == pytest.approx(clipped, abs=5 * 3 * math.sqrt(2) * math.log(2) / 2000)
    predicted = (model.predict(w, batch)[0] > 0.5).astype(int)
    true = np.bincount(batch.y[0] * 2 + predicted, minlength=4)
    assert protected.cells is not None
    assert sum(protected.cells) == 2000
    assert np.abs(np.array(protected.cells) - true).max() < 5 * 3 * math.sqrt(2)


@pytest.mark.parametrize(
    ("noisy", "rows", "counts"),
    [
        ([3.4, 2.6, 1.0, 3.0], 10, (3, 3, 1, 3)),
        ([-5.0, 7.0, 4.0, 0.2], 10, (0, 7, 3, 0)),
        ([-5.0, -5.0, -5.0, -5.0], 10, (3, 3, 2, 2)),
        ([1e6, 0.0, 0.0, 0.0], 10, (10, 0, 0, 0)),
    ],
)
def test_noisy_counts_become_counts_of_that_many_rows(noisy: list[float], rows: int, counts: tuple[int, ...]) -> None:
    assert _counts(np.array(noisy), rows) == counts


def test_the_models_of_tables_have_the_names_that_studies_give_them() -> None:
    kinds = (linear_regression, logistic_regression, network, k_means)
    assert tuple(kind.NAME for kind in kinds) == row_privacy.TABLE_MODELS


def test_a_sum_that_was_not_charged_is_not_made() -> None:
    model = LogisticRegression(F)
    batch, w = examples(model), weights(model)
    with pytest.raises(Uncharged):
        ProtectedRows(model, 1.0).losses(w, batch)
    protected = begun(model, sums=2)
    protected.losses(w, batch)
    protected.gradients(w, batch)
    with pytest.raises(Uncharged):
        protected.gradients(w, batch)


def test_noise_is_of_the_declared_size_on_each_number() -> None:
    """Checks the deviation and mean of 300 sums of 5 numbers, within 5 standard deviations."""
    model = LogisticRegression(F)
    batch, w = examples(model), weights(model)
    protected = begun(model, z=7.0, sums=300)
    exact = ProtectedRows(model, 1e-3)
    exact.begin(np.random.default_rng(0).bytes, 1)
    mean = exact.gradients(w, batch)[0]
    drawn = np.array([protected.gradients(w, batch)[0] - mean for _ in range(300)])
    sd = 7.0 * math.hypot(1, LOSS) / N
    assert drawn.std() == pytest.approx(sd, rel=5 / math.sqrt(2 * drawn.size))
    mu = row_privacy.mu_of(row_privacy.EPSILON, row_privacy.usual_delta(N))
    assert row_privacy.noise_of_gradient(N, 2, steps=3) == pytest.approx(sd * math.sqrt(6) / mu / 7.0)
    assert np.abs(drawn.mean(axis=0)).max() < 5 * sd / math.sqrt(300)


@pytest.mark.parametrize("by_rows", [True, False])
def test_the_noise_of_a_mean_over_institutions_is_the_stated_one(by_rows: bool) -> None:
    """Compares three institutions' updates with and without noise: the deviation of 2,001 numbers is within 5 sd.

    Weighted by rows, the mean has the noise of three sums over all rows; by institution, the smallest adds most noise.
    """
    rows, features, versions = (40, 120, 400), 2000, 50
    model = LogisticRegression(features)
    w = np.zeros(features + 1)
    noise = np.zeros(features + 1)
    votes = rows if by_rows else (1, 1, 1)
    for seed, (n, vote) in enumerate(zip(rows, votes, strict=True)):
        x = np.random.default_rng(seed).normal(size=(1, n, features))
        batch = Examples(x, np.ones((1, n), np.int64), np.ones((1, n)))
        mu = row_privacy.mu_of(row_privacy.EPSILON, row_privacy.usual_delta(n))
        drawn = []
        for z in (row_privacy.noise_multiplier(mu, versions), 1e-4):
            protected = ProtectedRows(model, z)
            protected.begin(np.random.default_rng(100 + seed).bytes, 1)
            drawn.append(protected.gradients(w, batch)[0])
        noise += vote / sum(votes) * (drawn[0] - drawn[1])
    stated = row_privacy.noise_of_mean(rows, votes, versions)
    assert noise.std() == pytest.approx(stated, rel=5 / math.sqrt(2 * len(noise)))
    equal = row_privacy.noise_of_mean(rows, (1, 1, 1), versions)
    assert row_privacy.noise_of_mean(rows, rows, versions) < equal / 2


def test_the_audits_lower_bound_is_below_the_claim() -> None:
    """Compares 400 sums with a worst-case row and 400 without: μ by the best threshold is below 1/z, but most of it.

    In the row's direction, the sums' difference has mean 1 and deviation z; the bound is 99.9 % by a normal test.
    """
    model = LogisticRegression(F)
    z, runs = 0.8, 400
    x = np.zeros((1, 2, F))
    x[0, 0] = 100.0
    with_row = Examples(x, np.ones((1, 2), np.int64), np.array([[1.0, 1.0]]))
    without = Examples(np.zeros_like(x), np.ones((1, 2), np.int64), np.array([[1.0, 1.0]]))
    w = np.concatenate([np.full(F, -10.0), [0.0]])
    protected = begun(model, z=z, sums=2 * runs)
    found = [
        np.array([protected.gradients(w, batch)[0, :F].sum() for _ in range(runs)]) for batch in (with_row, without)
    ]
    gap = abs(found[0].mean() - found[1].mean()) / np.std(found[0])
    error = 3.3 * math.sqrt(2 / runs) * 1.1
    assert gap - error <= 1 / z
    assert gap + error >= 0.9 / z / math.hypot(1, LOSS)
    assert row_privacy.epsilon_of(max(0.0, gap - error), 1e-3) <= row_privacy.epsilon_of(1 / z, 1e-3)


@pytest.mark.parametrize("training", [OneGradient(), LocalSteps(epochs=3, batch=16, rate=0.1)], ids=str)
def test_an_answer_is_that_of_the_training_and_needs_as_many_sums_as_it_has_steps(training: Any) -> None:
    model = LogisticRegression(F)
    x, w = np.random.default_rng(6).normal(size=(4000, F)) / 5, weights(model) / 10
    rows = table(x, x[:, 0] > 0, target=Target("y", ("0", "1")))
    key = np.array([7], np.uint64)
    plain = answer(model, full_batch(training), rows, w, key)
    protected = answer(model, training, rows, w, key, Noise(2.0, np.random.default_rng(5).bytes))
    moved = 1.0 if isinstance(training, OneGradient) else 0.1 * math.sqrt(3)
    sd = 2.0 * math.hypot(1, LOSS) / 4000 * moved
    assert np.abs(protected.update - plain.update).max() < 5 * sd  # no row's gradient is as long as 1 here
    assert np.linalg.norm(plain.update) > 20 * sd
    assert protected.loss == pytest.approx(plain.loss, abs=5 * 2.0 * math.log(2) / LOSS / 4000)
