"""Models by name: to a spec and back, with clear errors."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from fedping.client_sim.learning import LEARNERS, learner_for, model_spec
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.spec import ModelSpec, NonNegative, Step

SETTINGS: dict[str, dict[str, Any]] = {
    "linear-regression": {"features": 4},
    "logistic-regression": {"features": 4, "classes": 3},
    "network": {"features": 4, "classes": 3, "hidden": 2, "seed": 5},
    "matrix-factorization": {"items": 5, "factors": 2},
    "k-means": {"features": 4, "clusters": 2},
    "svm-ranking": {"features": 4},
    "frecency-2018": {},
    "linear-15": {"gradient": "analytic"},
    "cnn": {"features": 16, "classes": 2, "layout": "rodriguez-barroso-2020"},
    "lstm": {"features": 5, "classes": 4, "units": 3},
    "transformer": {"features": 5, "classes": 4, "width": 4, "layers": 1, "seed": 3},
}


def test_every_model_is_tried_here_or_with_own_losses() -> None:
    assert set(SETTINGS) | {"own", "jax"} == set(LEARNERS)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_spec_goes_out_as_a_document_and_comes_back_as_the_model(name: str) -> None:
    step = Step(start=0.5, min=0.1, max=2)
    spec = model_spec(name, SETTINGS[name], step=step, constraints=(NonNegative(),), margin=7)
    arrived = msgspec.json.decode(msgspec.json.encode(spec), type=ModelSpec)
    model = learner_for(arrived)
    assert list(model.weight_names) == list(arrived.names)
    np.testing.assert_array_equal(model.start, arrived.start_array)
    assert (arrived.steps.start == 0.5).all()
    assert arrived.margin == 7
    assert getattr(model, "margin", 7) == 7
    assert arrived.constraints == (NonNegative(),)
    assert model_spec(name, SETTINGS[name]).steps.start[0] == 0.1


@pytest.mark.parametrize("name", SETTINGS)
def test_start_weights_may_be_given(name: str) -> None:
    proposed = model_spec(name, SETTINGS[name])
    start = np.arange(proposed.m, dtype=float)
    spec = model_spec(name, SETTINGS[name], start=start, name="mine")
    np.testing.assert_array_equal(spec.start_array, start)
    assert list(spec.names) == list(proposed.names)
    assert learner_for(spec).weight_names
    assert spec.name == "mine"
    with pytest.raises(InvalidSettings, match=rf"has {spec.m:,}; give one number for each"):
        model_spec(name, SETTINGS[name], start=start[:-1])


def test_a_large_network_is_a_short_spec() -> None:
    spec = model_spec("network", {"features": 784, "classes": 10})
    assert spec.m == 784 * 100 + 100 + 1000 + 10
    assert len(msgspec.json.encode(spec)) < 2000
    assert spec.names[0] == "W1[0,0]"


def test_the_weights_of_frecency_are_of_their_kinds() -> None:
    kinds = [weight.kind for weight in model_spec("frecency-2018", integer=True).weights]
    assert kinds == ["cutoff"] * 4 + ["bucket_weight"] * 5 + ["bonus"] * 13


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("logistic-regresion", {}, "unknown model 'logistic-regresion'; did you mean 'logistic-regression'"),
        ("xyz", {}, "choose one of linear-regression,"),
        ("network", {"features": 3}, "needs the setting 'classes'"),
        ("network", {"features": 3, "classes": 1}, "is 1; set it to a whole number of at least 2"),
        ("network", {"features": 3.5, "classes": 2}, "'features' of the model 'network' is 3.5"),
        ("network", {"features": True, "classes": 2}, "is True"),
        ("network", {"features": 3, "classes": 2, "hiden": 5}, "no setting 'hiden'; did you mean 'hidden'"),
        ("network", {"features": 3, "classes": 2, "precision": "half"}, "'float64' or 'float32'"),
        ("linear-regression", {"features": 3, "l2": -1}, "'l2' of the model 'linear-regression' is -1"),
        ("linear-regression", {"features": 3, "l2": float("nan")}, "'l2'"),
        ("linear-regression", {"features": 3, "intercept": 1}, "set it to true or false"),
        ("frecency-2018", {"hidden": 3}, "no setting 'hidden'; it has gradient"),
        ("own", {"function": 3, "weights": 2}, "is 3; set it to a text, such as my_module:my_loss"),
    ],
)
def test_odd_settings_are_told(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        model_spec(name, settings)


def test_a_spec_whose_weights_are_not_the_models_is_told() -> None:
    spec = msgspec.structs.replace(model_spec("linear-regression", {"features": 3}), settings={"features": 4})
    with pytest.raises(InvalidSettings, match=r"has 5 weights with the settings .* the spec has 4"):
        learner_for(spec)
