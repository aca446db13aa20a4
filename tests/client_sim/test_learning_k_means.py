"""k-means over clients: Lloyd's step equals scikit-learn's; an update has the local centroids and their counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans as SkKMeans

from fedping.client_sim.data import example_data
from fedping.client_sim.learning import cohort_updates, learner_for, model_spec
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.training import LocalSteps, OneGradient

KEYS = child_keys(root_key(1), np.arange(3))
BLOBS = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])


def blobs(seed: int, sizes: tuple[int, ...] = (40, 25, 0)):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    of = rng.integers(0, 3, sum(sizes))
    of[:3], of[40:43] = range(3), range(3)
    return example_data(BLOBS[of] + rng.standard_normal((len(of), 2)), np.zeros(len(of)), np.array(sizes))


def learner(**chosen: int):  # type: ignore[no-untyped-def]
    return learner_for(model_spec("k-means", {"features": 2, "clusters": 3, **chosen}))


@pytest.mark.parametrize("steps", [1, 4])
def test_a_local_step_is_scikit_learns_lloyd_iteration(steps: int) -> None:
    data, model = blobs(0), learner()
    batch, start = data.batch(np.arange(3)), BLOBS + 1.0
    weights = np.concatenate([start.ravel(), np.zeros(3)])
    updates, losses, _ = cohort_updates(model, LocalSteps(rate=1, epochs=steps), weights, batch, KEYS)
    for client in range(2):
        x = batch.x[client, : data.sizes[client]]
        reference = SkKMeans(3, init=start, n_init=1, max_iter=steps, tol=0).fit(x)
        local = (weights + updates[client])[:6].reshape(3, 2)
        np.testing.assert_allclose(local, reference.cluster_centers_, atol=1e-12)
        before = SkKMeans(3, init=start, n_init=1, max_iter=max(steps - 1, 1), tol=0).fit(x).cluster_centers_
        assigned = start if steps == 1 else before
        nearest = ((x[:, None] - assigned) ** 2).sum(axis=2).argmin(axis=1)
        np.testing.assert_array_equal(updates[client, 6:], np.bincount(nearest, minlength=3))
        distances = ((x[:, None] - start) ** 2).sum(axis=2).min(axis=1)
        assert losses[client] == pytest.approx(distances.mean())
    assert not updates[2].any()
    assert losses[2] == 0


def test_starts_are_examples_far_from_each_other() -> None:
    """By k-means++: with three blobs, the three starts are nearly always in different blobs."""
    data, model = blobs(2), learner()
    batch = data.batch(np.arange(3))
    starts = model.starts(batch, KEYS, 200)
    assert starts.shape == (200, 3, model.m)
    assert not starts[:, :, 6:].any()
    for client in range(2):
        centroids = starts[:, client, :6].reshape(200, 3, 2)
        x = batch.x[client, : data.sizes[client]]
        assert (np.abs(centroids[:, :, None] - x).max(axis=-1).min(axis=-1) == 0).all()
        own = [len(set(((row[:, None] - BLOBS) ** 2).sum(axis=-1).argmin(axis=-1))) == 3 for row in centroids]
        assert np.mean(own) > 0.75  # of examples drawn without regard to distance 2 in 9
        assert len({tuple(row[0]) for row in centroids}) > 10
    np.testing.assert_array_equal(model.starts(batch, KEYS, 2), starts[:2])


def test_the_loss_is_scikit_learns_inertia_and_the_prediction_its_labels() -> None:
    data, model = blobs(1), learner(counts=False)
    pooled = data.pooled().batch(np.array([0]))
    reference = SkKMeans(3, init=BLOBS, n_init=1).fit(pooled.x[0])
    weights = reference.cluster_centers_.ravel()
    assert model.losses(weights, pooled)[0] == pytest.approx(reference.inertia_ / 65)
    np.testing.assert_array_equal(model.predict(weights, pooled)[0], reference.labels_)
    np.testing.assert_allclose(model.gradients(weights, pooled), 0, atol=1e-12)


@given(seed=st.integers(0, 10_000))
def test_gradients_are_the_differences_of_the_loss(seed: int) -> None:
    data, model = blobs(seed), learner()
    batch, rng = data.batch(np.arange(3)), np.random.default_rng(seed)
    for weights in (3 * rng.standard_normal(9), 3 * rng.standard_normal((3, 9))):
        moves = 1e-6 * np.eye(9)
        differences = [(model.losses(weights + e, batch) - model.losses(weights - e, batch)) / 2e-6 for e in moves]
        gradients = model.gradients(weights, batch)
        np.testing.assert_allclose(gradients, np.stack(differences, axis=1), atol=2e-5)
        assert not gradients[:, 6:].any()


def test_a_cluster_without_examples_stays() -> None:
    model, data = learner(), blobs(2)
    weights = np.concatenate([BLOBS.ravel(), np.zeros(3)])
    weights[4:6] = 1000.0
    updates, _, _ = cohort_updates(model, LocalSteps(rate=1, steps=1), weights, data.batch(np.arange(3)), KEYS)
    assert not updates[:, 4:6].any()
    assert not updates[:, 8].any()
    assert (updates[:2, 6:].sum(axis=1) == data.sizes[:2]).all()


def test_the_local_centroids_and_counts_give_the_pooled_lloyd_step() -> None:
    model, data = learner(), blobs(3)
    weights = np.concatenate([(BLOBS + 0.7).ravel(), np.zeros(3)])
    sent, _, _ = cohort_updates(model, LocalSteps(rate=1, steps=1), weights, data.batch(np.arange(3)), KEYS)
    counts, moves = sent[:, 6:], sent[:, :6].reshape(3, 3, 2)
    together = (counts[..., None] * moves).sum(axis=0) / counts.sum(axis=0)[:, None]
    pooled, _, _ = cohort_updates(
        model, LocalSteps(rate=1, steps=1), weights, data.pooled().batch(np.array([0])), KEYS[:1]
    )
    np.testing.assert_allclose(together.ravel(), pooled[0, :6], atol=1e-12)


def test_gradient_descent_lowers_the_loss() -> None:
    model, data = learner(), blobs(4)
    weights, batch, losses = np.array(model.start), data.batch(np.arange(3)), []
    for _ in range(30):
        sent, loss, _ = cohort_updates(model, OneGradient(), weights, batch, KEYS)
        losses.append(float(data.sizes @ loss))
        weights = weights + 0.3 * (data.sizes @ sent) / data.sizes.sum()
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.6 * losses[0]
