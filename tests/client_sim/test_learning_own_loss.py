"""A user's own loss, by autograd, as a black box or in JAX, and the errors for unusable losses."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.client_sim.data import example_data
from fedping.client_sim.learning import Examples, cohort_updates, jax_loss, learner_for, model_spec, own_loss
from fedping.client_sim.learning.batch import TroubleOfClient
from fedping.client_sim.learning.updates import updates_of_fleet
from fedping.experiments.laboratory.evaluation import evaluate
from fedping.experiments.laboratory.tallies import Regression
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.training import LocalSteps, OneGradient

KEYS = child_keys(root_key(1), np.arange(3))
BOTH: dict[str, dict[str, str]] = {
    "autograd": {"function": "own_losses:squared"},
    "differences": {"function": "own_losses:in_numpy", "gradient": "finite_differences"},
}


@pytest.fixture(autouse=True)
def own_losses(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import own_losses  # type: ignore[import-not-found]

    yield own_losses
    sys.modules.pop("own_losses", None)


def data() -> Any:
    rng = np.random.default_rng(0)
    return example_data(rng.standard_normal((9, 2)), rng.standard_normal(9), np.array([5, 0, 4]))


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize("training", [OneGradient(), LocalSteps(rate=0.1, epochs=3, batch=2)])
def test_an_own_loss_learns_as_the_built_in_one(way: str, training: OneGradient | LocalSteps) -> None:
    own = learner_for(model_spec("own", {**BOTH[way], "start": "own_losses:START"}, epsilon=1e-5))
    built_in = learner_for(model_spec("linear-regression", {"features": 2}))
    batch = data().batch(np.arange(3))
    found, losses, _ = cohort_updates(own, training, own.start, batch, KEYS)
    expected, expected_losses, _ = cohort_updates(built_in, training, own.start, batch, KEYS)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    np.testing.assert_allclose(losses, expected_losses)
    assert own.black_box == (way == "differences")  # type: ignore[attr-defined]


def test_start_and_prediction_are_named_too(own_losses: Any) -> None:
    settings = {"function": "own_losses:squared", "start": "own_losses:start", "predict": "own_losses:predicted"}
    spec = model_spec("own", settings)
    assert spec.start == own_losses.START
    batch = data().batch(np.arange(3))
    expected = learner_for(model_spec("linear-regression", {"features": 2})).predict(spec.start_array, batch)
    np.testing.assert_allclose(learner_for(spec).predict(spec.start_array, batch), expected)
    zeros = model_spec("own", {"function": "own_losses:squared", "weights": 3})
    assert zeros.start == (0.0, 0.0, 0.0)
    assert list(zeros.names) == ["w0", "w1", "w2"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"function": "own_losses:one_for_each"}, r"returned an array of shape \(5,\)"),
        ({"function": "own_losses:one_for_each", "gradient": "finite_differences"}, "returned an array"),
        ({"function": "own_losses:not_a_number"}, "returned nan for the client at 0"),
        ({"function": "own_losses:not_a_number", "gradient": "finite_differences"}, "returned nan"),
        ({"function": "own_losses:in_numpy"}, "autograd cannot differentiate the loss 'in_numpy'"),
        ({"function": "own_losses:of_five_features"}, r"'of_five_features' failed, .* \(3,\) and \(5, 2\) .* in line"),
        ({"function": "own_losses:of_five_features", "gradient": "finite_differences"}, "of_five_features' failed"),
        ({"function": "own_losses:steep_at_zero"}, "gradient of the loss 'steep_at_zero' is not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_loss_that_is_none_is_told(settings: dict[str, str], message: str) -> None:
    model = learner_for(model_spec("own", {**settings, "weights": 3}))
    with pytest.raises(FedpingError, match=message):
        cohort_updates(model, OneGradient(), model.start, data().batch(np.arange(3)), KEYS)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function", ["of_the_last", "steep_for_the_last"])
def test_of_a_fleet_the_client_is_named_whose_loss_is_no_number(own_losses: Any, function: str) -> None:
    """The message has its number in the fleet, although clients train in another order, in blocks of similar size."""
    examples = np.zeros((12, 2))
    examples[4:9] = 1.0  # client 3 of 0 to 4
    fleet = example_data(examples, np.zeros(12), [1, 2, 1, 5, 3])
    model = learner_for(model_spec("own", {"function": f"own_losses:{function}", "weights": 3}))
    clients = np.array([4, 3, 1])
    with pytest.raises(FedpingError, match=r"for client 3; check it for") as told:
        list(updates_of_fleet(model, OneGradient(), model.start, fleet, clients, KEYS))
    assert not isinstance(told.value, TroubleOfClient)
    if function == "of_the_last":
        with pytest.raises(FedpingError, match=r"returned nan for client 3; check it for"):
            evaluate(replace(model, prediction=lambda weights, x: x[:, 0]), Regression(), model.start, fleet)


def test_the_trouble_of_a_client_goes_to_another_process() -> None:
    trouble = pickle.loads(pickle.dumps(TroubleOfClient("the loss is nan", 2, "look again")))
    assert str(trouble) == "the loss is nan for the client at 2 of its batch; look again"
    assert trouble.at == 2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_such_module:loss", "the module 'no_such_module' was not found"),
        ("own_losses:no_such_loss", "the module 'own_losses' has no 'no_such_loss'"),
        ("own_losses", "'my_module:my_loss'"),
        ("own_losses:NUMBER", "does not name a function"),
        ("broken_module:loss", "cannot be imported .*ZeroDivisionError"),
        ("needing_module:loss", "cannot be imported .*no_such_dependency"),
    ],
)
def test_a_loss_that_cannot_be_imported_is_told(
    function: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    (tmp_path / "needing_module.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidSettings, match=message):
        model_spec("own", {"function": function, "weights": 3})


def test_what_an_own_loss_cannot_do_is_told(own_losses: Any) -> None:
    model = own_loss(own_losses.squared, [0.0, 0.0, 0.0])
    batch = data().batch(np.arange(3))
    with pytest.raises(FedpingError, match="cannot predict"):
        model.predict(model.start, batch)
    broken = own_loss(own_losses.squared, model.start, predict=lambda weights, x: x @ weights)
    with pytest.raises(FedpingError, match=r"in line \d+ of .*test_learning_own_loss.py \(ValueError: matmul"):
        broken.predict(broken.start, batch)
    with pytest.raises(FedpingError, match="knows nothing of weights"):
        model.losses(model.start, Examples(batch.x, batch.y, 2 * batch.weight))
    with pytest.raises(InvalidSettings, match="one row of finite numbers"):
        own_loss(own_losses.squared, [[0.0]])
    with pytest.raises(InvalidSettings, match="needs the setting 'weights'"):
        model_spec("own", {"function": "own_losses:squared"})
    with pytest.raises(InvalidSettings, match="weights = 2, but its start has 3"):
        model_spec("own", {"function": "own_losses:squared", "start": "own_losses:START", "weights": 2})


def test_without_jax_it_is_told_how_to_install_it(own_losses: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(InvalidSettings, match=r'pip install "fedping\[jax\]"'):
        jax_loss(own_losses.squared, [0.0])


def test_a_loss_in_jax_learns_as_the_built_in_one() -> None:
    jax = pytest.importorskip("jax", reason='JAX is not installed: pip install "fedping[jax]" to run this test')

    def cross_entropy(weights: Any, x: Any, y: Any) -> Any:
        hidden = jax.nn.relu(x @ weights[:8].reshape(2, 4) + weights[8:12])
        scores = hidden @ weights[12:24].reshape(4, 3) + weights[24:]
        return -jax.numpy.mean(jax.nn.log_softmax(scores)[jax.numpy.arange(len(y)), y.astype(int)])

    built_in = learner_for(model_spec("network", {"features": 2, "classes": 3, "hidden": 4}))
    model = jax_loss(cross_entropy, built_in.start, predict=lambda weights, x: x @ weights[:8].reshape(2, 4))
    rng = np.random.default_rng(1)
    batch = example_data(rng.standard_normal((9, 2)), rng.integers(0, 3, 9), np.array([5, 0, 4])).batch(np.arange(3))
    weighted = Examples(batch.x, batch.y, batch.weight * rng.uniform(0.5, 2, batch.weight.shape))
    for training in (OneGradient(), LocalSteps(rate=0.1, epochs=3, batch=2)):
        for these in (batch, weighted):
            found, losses, _ = cohort_updates(model, training, model.start, these, KEYS)
            expected, expected_losses, _ = cohort_updates(built_in, training, model.start, these, KEYS)
            np.testing.assert_allclose(found, expected, atol=1e-6)
            np.testing.assert_allclose(losses, expected_losses, atol=1e-6)
    assert model.predict(model.start, batch).shape == (3, 5, 4)
    with pytest.raises(FedpingError, match="one number"):
        jax_loss(lambda w, x, y: x @ w[:2], [0.0, 0.0]).losses(np.zeros(2), batch)
    with pytest.raises(FedpingError, match="nan"):
        jax_loss(lambda w, x, y: jax.numpy.log(-1.0 + 0 * w[0]), [0.0]).losses(np.zeros(1), batch)


LOGITS = np.array([-3.0, 0.5, 40.0])


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (LOGITS, 1 / (1 + np.exp(-LOGITS))),
        (
            np.stack([0 * LOGITS, LOGITS], axis=1),
            np.stack([1 / (1 + np.exp(LOGITS)), 1 / (1 + np.exp(-LOGITS))], axis=1),
        ),
    ],
)
def test_log_odds_are_made_probabilities(own_losses: Any, returned: np.ndarray, expected: np.ndarray) -> None:
    model = own_loss(own_losses.squared, [0.0], predict=lambda weights, x: returned, predicts="log_odds")
    batch = Examples(np.zeros((1, 3, 1)), np.zeros((1, 3)), np.ones((1, 3)))
    np.testing.assert_allclose(model.predict(model.start, batch)[0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (np.zeros(2), r"'predicted' returned an array of shape \(2,\) for 3 examples; return a number for each"),
        (np.zeros((3, 2, 2)), r"of shape \(3, 2, 2\) for 3 examples"),
        (0.0, r"of shape \(\) for 3 examples"),
        (np.array([1.0, np.nan, 2.0]), "'predicted' returned nan"),
    ],
)
def test_a_prediction_that_is_none_is_told_in_one_sentence(own_losses: Any, returned: Any, words: str) -> None:
    def predicted(weights: Any, x: Any) -> Any:
        return returned

    model = own_loss(own_losses.squared, [0.0], predict=predicted)
    batch = Examples(np.zeros((1, 3, 1)), np.zeros((1, 3)), np.ones((1, 3)))
    with pytest.raises(FedpingError, match=words):
        model.predict(model.start, batch)


def test_predictions_of_padding_may_be_anything(own_losses: Any) -> None:
    model = own_loss(own_losses.squared, [0.0], predict=lambda weights, x: np.array([1.0, np.nan]))
    batch = Examples(np.zeros((1, 2, 1)), np.zeros((1, 2)), np.array([[1.0, 0.0]]))
    assert model.predict(model.start, batch)[0, 0] == 1.0


def test_without_a_start_each_seed_begins_elsewhere_near_0(own_losses: Any) -> None:
    def start(**more: Any) -> np.ndarray:
        return model_spec("own", {"function": "own_losses:squared", **more}).start_array

    assert start(weights=3).tolist() == [0.0, 0.0, 0.0]
    one, other = (start(weights=3, seed=seed) for seed in (1, 2))
    assert (one != other).all()
    assert 0 < np.abs([one, other]).max() <= 0.1
    assert start(seed=1, start="own_losses:START").tolist() == [1.0, -2.0, 0.5]
