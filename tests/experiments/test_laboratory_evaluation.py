"""Metrics from summed counts, compared with scikit-learn on the examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from fedping.client_sim.data import Target, example_data
from fedping.client_sim.learning.algorithm import ModelAndMore
from fedping.client_sim.learning.model import Around
from fedping.client_sim.learning.models.arrays import array
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.client_sim.learning.models.mixture import Mixture
from fedping.client_sim.learning.models.network import Network
from fedping.client_sim.learning.models.own_loss import own_loss
from fedping.client_sim.learning.submodel import Part
from fedping.experiments.laboratory.cohort import Cohorts
from fedping.experiments.laboratory.evaluation import blocks, evaluate
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.tallies import (
    Classification,
    Clustering,
    Ranking,
    Regression,
    areas_under_curve,
    better,
    scores_in,
)
from fedping.protocol.errors import FedpingError, InvalidSettings
from tests.support.laboratory import small
from tests.support.laboratory_rounds import memory_rounds

CLASSES = Target("y", ("no", "yes"))


def made(seed: int, clients: int = 7, most: int = 40) -> tuple[np.random.Generator, np.ndarray]:
    """Return a random generator and a mask of existing examples, with fewer for some clients and none for one."""
    random = np.random.default_rng(seed)
    there = np.arange(most) < random.integers(1, most + 1, clients)[:, None]
    there[-1] = False
    return random, there


@given(st.integers(0, 10_000))
def test_two_classes_are_judged_as_by_one_who_sees_the_examples(seed: int) -> None:
    random, there = made(seed)
    y = random.integers(0, 2, there.shape)
    p = 1 / (1 + np.exp(-random.normal(y - 0.5, 2)))
    tally = Classification(2)
    found = tally.metrics(tally.counts(p, y, there).sum(axis=0))
    truth, chosen = y[there], p[there] > 0.5
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(truth, chosen))
    for name in ("precision", "recall", "f1"):
        exact = getattr(reference, f"{name}_score")(truth, chosen, zero_division=0)
        assert found[name] == pytest.approx(exact)
    area = areas_under_curve(p[there], truth == 1)
    if 0 < truth.mean() < 1:
        assert area == pytest.approx([reference.roc_auc_score(truth, p[there])], abs=1e-12)
    else:
        assert np.isnan(area)


@given(st.integers(0, 10_000), st.integers(-9, 9), st.booleans())
def test_the_area_under_the_curve_is_exact_at_every_scale_and_with_ties(seed: int, power: int, tied: bool) -> None:
    """Equals scikit-learn's, for each client and for all together; scores may also be far from 0."""
    random, there = made(seed)
    y = random.integers(0, 2, there.shape)
    scores = random.normal(y, 2)
    scores = 10.0**power * (random.choice([0, 7]) + (scores.round() if tied else scores))
    client = np.nonzero(there)[0]
    areas = areas_under_curve(scores[there], y[there] == 1, client, len(there))
    for k, row in enumerate(there):
        if len(set(y[k, row])) == 2:
            assert areas[k] == pytest.approx(reference.roc_auc_score(y[k, row], scores[k, row]), abs=1e-12)
        else:
            assert np.isnan(areas[k])
    if len(set(y[there])) == 2:
        [whole] = areas_under_curve(scores[there], y[there] == 1)
        assert whole == pytest.approx(reference.roc_auc_score(y[there], scores[there]), abs=1e-12)


def test_sure_and_equal_probabilities_keep_their_order() -> None:
    positive = np.array([False, False, True, True])
    sure = np.array([[0.0, 1e-9, 1 - 1e-9, 1.0]])
    assert areas_under_curve(scores_in(sure)[0], positive) == 1
    both = np.array([[[1.0, 0.0], [1.0, 1e-30], [1e-30, 1.0], [0.0, 1.0]]])
    assert areas_under_curve(scores_in(both)[0], positive) == 1
    assert areas_under_curve(np.full(4, 0.5), positive) == 0.5


MODELS: dict[str, tuple[Any, Any]] = {
    "logistic": (LogisticRegression(features=4), lambda w, x: x @ w[:4] + w[4]),
    "single precision": (LogisticRegression(features=4, precision="float32"), lambda w, x: x @ w[:4] + w[4]),
    "network": (
        Network(features=4, classes=2, hidden=()),
        lambda w, x: x @ (w[1:8:2] - w[0:8:2]) + (w[9] - w[8]),
    ),
    "own": (
        own_loss(
            lambda w, x, y: ((x @ w - y) ** 2).mean(), np.zeros(4), predict=lambda w, x: x @ w, predicts="log_odds"
        ),
        lambda w, x: x @ w[:4],
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scale", [2.0**-30, 1.0, 2.0**10, 2.0**30])
def test_a_model_is_judged_by_its_scores_where_its_probabilities_round_to_one_half_or_one(
    name: str, scale: float
) -> None:
    """As for the unstandardised breast cancer data: log-odds of ±1000, which 1,024 bins over ±24 can't distinguish.

    Scores are whole multiples of a power of 2, so that every order of summation has the same ties.
    """
    model, score = MODELS[name]
    random = np.random.default_rng(4)
    y = random.integers(0, 2, 400)
    x = random.integers(-9, 9, (400, 4)) + y[:, None] * 2.0  # whole, so that single precision is exact
    data = example_data(x, y, [0, 150, 150, 100], target=CLASSES)
    weights = np.zeros(len(model.weight_names))
    of_class_1 = slice(1, 8, 2) if name == "network" else slice(0, 4)
    weights[of_class_1] = scale * np.array([1.0, 2.0, 0.5, 0.25])
    found = evaluate(model, Classification(2), weights, data)
    truth = reference.roc_auc_score(y, score(weights, x))
    assert 0.65 < truth < 0.99
    assert found.total["auc"] == pytest.approx(truth, abs=1e-12)
    assert found.total["auc"] == evaluate(model, Classification(2), weights, data, each=False).total["auc"]
    each = [
        reference.roc_auc_score(y[at], score(weights, x[at])) for at in (slice(150), slice(150, 300), slice(300, 400))
    ]
    assert found.clients["auc"][np.argsort(found.whose)] == pytest.approx(each, abs=1e-12)


def test_wrapped_models_are_judged_by_the_scores_of_what_they_predict_with() -> None:
    """Covers wrappers for parts, additional arrays, bounds, and a mixture of two models."""
    random = np.random.default_rng(5)
    y = random.integers(0, 2, 200)
    x = random.integers(-9, 9, (200, 4)) + y[:, None] * 2.0
    data = example_data(x, y, [200], target=CLASSES)
    model, weights = LogisticRegression(features=4), 1e3 * np.array([1.0, 2.0, 0.5, 0.25, 1.0])
    truth = reference.roc_auc_score(y, x @ weights[:4] + weights[4])
    extra = ModelAndMore(model, (array("more", (2,)),))
    part = Part(model, frozenset({"coefficients"}), weights[4:])
    network, gate = Network(features=4, classes=2, hidden=()), np.array([0.1, -0.2, 0.3, 0.0, 0.5])
    of_network = np.column_stack([np.zeros(5), weights]).ravel()
    wrapped: list[tuple[Any, np.ndarray]] = [
        (extra, np.append(weights, [1.0, 2.0])),
        (part, weights[:4]),
        (Around(model), weights),
        (Mixture(model), np.concatenate([weights, weights, gate])),
        (Mixture(network), np.concatenate([of_network, of_network, gate])),
    ]
    for each, own in wrapped:
        assert evaluate(each, Classification(2), own, data).total["auc"] == pytest.approx(truth, abs=1e-12)


@given(st.integers(0, 10_000))
def test_many_classes_are_judged_as_by_one_who_sees_the_examples(seed: int) -> None:
    random, there = made(seed)
    y, scores = random.integers(0, 4, there.shape), random.random((*there.shape, 4))
    tally = Classification(4)
    found = tally.metrics(tally.counts(scores, y, there).sum(axis=0))
    truth, chosen = y[there], scores.argmax(axis=2)[there]
    occur = sorted({*truth.tolist(), *chosen.tolist()})
    for name in ("precision", "recall", "f1"):
        score = getattr(reference, f"{name}_score")
        assert found[name] == pytest.approx(score(truth, chosen, average="macro", zero_division=0))
        assert [found[f"{name}_of_{c}"] for c in occur] == pytest.approx(
            score(truth, chosen, labels=occur, average=None, zero_division=0)
        )


@given(st.integers(0, 10_000))
def test_a_client_without_a_class_is_not_judged_by_it(seed: int) -> None:
    random, there = made(seed, most=6)
    y, scores = random.integers(0, 4, there.shape), random.random((*there.shape, 4))
    tally = Classification(4)
    found = tally.metrics(tally.counts(scores, y, there))
    for client, row in enumerate(there[:-1]):
        truth, chosen = y[client, row], scores[client, row].argmax(axis=1)
        for name in ("precision", "recall", "f1"):
            exact = getattr(reference, f"{name}_score")(truth, chosen, average="macro", zero_division=0)
            assert found[name][client] == pytest.approx(exact)
            known = [c for c in range(4) if not np.isnan(found[f"{name}_of_{c}"][client])]
            assert known == sorted({*truth.tolist(), *chosen.tolist()})
    assert np.isnan(found["f1"][-1])  # has no examples


def test_a_client_without_class_1_has_no_recall() -> None:
    there = np.ones((3, 2), np.bool_)
    y, p = np.array([[0, 0], [0, 0], [1, 0]]), np.array([[0.1, 0.2], [0.1, 0.9], [0.1, 0.2]])
    found = Classification(2).metrics(Classification(2).counts(p, y, there))
    for name in ("precision", "recall", "f1"):
        np.testing.assert_array_equal(found[name], [np.nan, 0.0, 0.0])


@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e4]))
def test_numbers_are_judged_as_by_one_who_sees_the_examples(seed: int, far: float) -> None:
    random, there = made(seed)
    y = random.normal(far, 1, there.shape)
    predictions = y + random.normal(0.2, 1, there.shape)
    tally = Regression(centre=far)
    found = tally.metrics(tally.counts(predictions, y, there).sum(axis=0))
    truth, said = y[there], predictions[there]
    assert found["mse"] == pytest.approx(reference.mean_squared_error(truth, said))
    assert found["mae"] == pytest.approx(reference.mean_absolute_error(truth, said))
    assert found["rmse"] == pytest.approx(found["mse"] ** 0.5)
    if len(truth) > 1:
        assert found["r2"] == pytest.approx(reference.r2_score(truth, said), rel=1e-6)


def test_a_clients_metrics_are_those_of_its_row_alone() -> None:
    random, there = made(3)
    y, p = random.integers(0, 2, there.shape), random.random(there.shape)
    tally = Classification(2)
    rows = tally.metrics(tally.counts(p, y, there))
    for k in range(len(there) - 1):
        alone = {
            name: float(value)
            for name, value in tally.metrics(tally.counts(p[k : k + 1], y[k : k + 1], there[k : k + 1])[0]).items()
        }
        assert {name: rows[name][k] for name in rows} == pytest.approx(alone, nan_ok=True)
    assert np.isnan(rows["accuracy"][-1])


def test_ranks_count_ties_half_and_candidates_that_are_not_there_not_at_all() -> None:
    scores = np.array([[[3.0, 1, 2, -np.inf], [1, 1, np.nan, 0], [5, 5, 5, 5], [9, 1, 1, 1]]])
    tally = Ranking()
    counts = tally.counts(scores, np.array([[0, 1, 2, -1]]), np.ones((1, 4), bool))
    assert counts.tolist() == [[3, 1, 0 + 0.5 + 1.5]]
    assert tally.metrics(counts)["mean_rank"] == pytest.approx([2 / 3])


def test_clusters_that_nobody_is_near_to_are_counted() -> None:
    tally = Clustering(3)
    counts = tally.counts(np.array([[0.0, 0, 2, 1]]), np.zeros((1, 4)), np.array([[True, True, True, False]]))
    assert counts.tolist() == [[2, 0, 1]]
    assert {k: v.tolist() for k, v in tally.metrics(counts).items()} == {
        "empty_clusters": [1],
        "largest_cluster": [2 / 3],
    }


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 200))
def test_blocks_hold_every_client_with_examples_once_and_no_more_than_fits(sizes: list[int], most: int) -> None:
    found = list(blocks(np.array(sizes, np.int64), most))
    everybody = sorted(int(client) for block in found for client in block)
    assert everybody == [client for client, size in enumerate(sizes) if size]
    assert all(len(block) * max(sizes[client] for client in block) <= most or len(block) == 1 for block in found)


def test_better_knows_the_direction_and_that_nothing_is_worse_than_unknown() -> None:
    assert better("auc", 0.9, 0.8)
    assert better("loss", 0.1, 0.2)
    assert better("recall_of_3", 0.2, 0.1)
    assert better("rmse", 5, np.nan)
    assert not better("rmse", np.nan, 5)
    assert not better("accuracy", 0.5, 0.5)


def test_the_whole_fleet_is_judged_alike_whether_or_not_each_client_is() -> None:
    random = np.random.default_rng(2)
    data = example_data(
        random.normal(size=(300, 4)), random.integers(0, 2, 300), [0, 120, 7, 1, 90, 82], target=CLASSES
    )
    model = LogisticRegression(features=4)
    weights = random.normal(size=5)
    both = [evaluate(model, Classification(2), weights, data, each=each) for each in (True, False)]
    assert both[0].total == pytest.approx(both[1].total)
    assert both[1].clients == {}
    assert both[0].total["accuracy"] == pytest.approx(
        reference.accuracy_score(data.y, data.x @ weights[:-1] + weights[-1] > 0)
    )
    accuracy = both[0].clients["accuracy"]
    assert len(accuracy) == 5
    assert both[0].mean()["accuracy"] == pytest.approx(accuracy.mean())
    assert both[0].worst(0.4)["accuracy"] == pytest.approx(np.sort(accuracy)[:2].mean())
    assert both[0].worst(0.4)["loss"] == pytest.approx(np.sort(both[0].clients["loss"])[-2:].mean())


def test_clients_with_models_of_their_own_are_judged_by_them() -> None:
    random = np.random.default_rng(3)
    data = example_data(random.normal(size=(40, 2)), random.integers(0, 2, 40), [10, 30], target=CLASSES)
    model, own = LogisticRegression(features=2), random.normal(size=(2, 3))
    found = evaluate(model, Classification(2), own, data).clients["loss"]
    alone = [evaluate(model, Classification(2), own[k], data).clients["loss"][k] for k in (0, 1)]
    assert found == pytest.approx(alone)


def test_clients_own_models_are_measured_before_they_are_merged(tmp_path: Path) -> None:
    """Each is measured on its own and on all others' test examples, and equals the model given by its sent update."""
    experiment = small(
        training={"algorithm": "local", "epochs": 3, "rate": 0.5},
        evaluation={"trained": True, "every": 2, "baselines": []},
        rounds=3,
    )
    run_experiment(experiment, tmp_path / "out", jobs=1)
    metrics = pq.read_table(tmp_path / "out" / "metrics.parquet").to_pylist()
    found = {(row["round"], row["split"]): row["value"] for row in metrics if row["metric"] == "accuracy"}
    assert sorted(number for number, split in found if split == "trained") == [2, 3]

    [setup] = experiment.variants.values()
    problem = prepare(setup, 1, None)
    rounds = memory_rounds(problem.line, problem.ids)
    cohorts = Cohorts(setup, problem)
    for number in range(2):
        start = rounds.weights
        blocks = list(cohorts.sent(number, [start]))
        rounds.run(blocks)
    models = {
        client: start + update
        for block in blocks
        for client, update in zip(block.clients.tolist(), block.updates, strict=True)
    }
    right = np.zeros((8, 8))
    for client, own in models.items():
        for other in range(8):
            batch = problem.test.batch(np.array([other]))
            right[client, other] = ((problem.model.predict(own, batch)[0] > 0.5) == batch.y[0]).sum()
    sizes = problem.test.sizes
    assert found[2, "trained"] == pytest.approx((right.sum(axis=1) / sizes.sum()).mean(), abs=1e-6)
    assert found[2, "trained_worst"] == pytest.approx((right.sum(axis=1) / sizes.sum()).min(), abs=1e-6)
    others = (right.sum(axis=1) - right.diagonal()) / (sizes.sum() - sizes)
    assert found[2, "others"] == pytest.approx(others.mean(), abs=1e-6)


def test_gradients_are_no_models_to_measure() -> None:
    with pytest.raises(InvalidSettings, match="after local training"):
        small(evaluation__trained=True)


@pytest.mark.parametrize(
    ("tally", "predictions", "words"),
    [
        (Classification(2), np.array([[0.2, 3.41]]), 'predicts 3.41 for one of two classes, .*predicts = "log_odds"'),
        (Classification(2), np.array([[[0.2, 0.8], [-1.0, 2.0]]]), "predicts -1 for one of two classes"),
        (Classification(3), np.array([[0.2, 0.3]]), "predicts 1 numbers for an example, but the target has 3 classes"),
        (Classification(3), np.zeros((1, 2, 4)), "predicts 4 numbers for an example, but the target has 3 classes"),
        (Regression(), np.zeros((1, 2, 1)), "predicts 1 numbers for an example, but the target is a number"),
        (Ranking(), np.zeros((1, 2)), "a ranking is of a score for each candidate"),
    ],
)
def test_predictions_that_a_task_cannot_judge_are_told(tally: Any, predictions: np.ndarray, words: str) -> None:
    with pytest.raises(FedpingError, match=words):
        tally.counts(predictions, np.zeros((1, 2)), np.ones((1, 2), bool))


def test_what_is_no_probability_may_stand_in_padding() -> None:
    there = np.array([[True, True, False]])
    counts = Classification(2).counts(np.array([[0.2, 0.9, 7.0]]), np.array([[0, 1, 0]]), there)
    assert Classification(2).metrics(counts[0])["accuracy"] == 1
