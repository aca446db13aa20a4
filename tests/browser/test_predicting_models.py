"""JavaScript's models of examples compared with NumPy's: predictions, losses and gradients agree within 1e-12."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np
import pytest

from fedping.client_sim.learning.batch import Examples
from fedping.client_sim.learning.models.linear_regression import LinearRegression
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.client_sim.learning.models.network import Network
from tests.browser.tools import BROWSER, node

COMPUTE = f"""
import {{ readFileSync }} from "node:fs";
import {{ formOf, learnedOf, predicted }} from {json.dumps((BROWSER / "predicting" / "models.js").as_uri())};
const {{ spec, weights, examples }} = JSON.parse(readFileSync(0, "utf8"));
const form = formOf(spec);
const predictions = examples.map(({{ x }}) => predicted(form, weights, x));
console.log(JSON.stringify({{ m: form.m, predictions, ...learnedOf(form, weights, examples) }}));
"""

MODELS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "linear": ("linear-regression", LinearRegression(5), {"features": 5}),
    "ridge without an intercept": (
        "linear-regression",
        LinearRegression(5, intercept=False, l2=0.3),
        {"features": 5, "intercept": False, "l2": 0.3},
    ),
    "two classes": ("logistic-regression", LogisticRegression(5, l2=0.1), {"features": 5, "l2": 0.1}),
    "four classes": ("logistic-regression", LogisticRegression(5, classes=4), {"features": 5, "classes": 4}),
    "network": (
        "network",
        Network(5, classes=3, hidden=(7, 6), l2=0.2),
        {"features": 5, "classes": 3, "hidden": "7, 6", "l2": 0.2},
    ),
    "network of two classes": (
        "network",
        Network(5, classes=2, hidden=(4,)),
        {"features": 5, "classes": 2, "hidden": 4},
    ),
}


@pytest.mark.parametrize("which", MODELS)
def test_they_agree_with_numpy(which: str) -> None:
    name, model, settings = MODELS[which]
    draw = np.random.default_rng(29)
    weights = draw.normal(size=model.m)
    x = draw.normal(size=(40, 5))
    classes = settings.get("classes", 0 if name == "linear-regression" else 2)
    y = draw.integers(0, classes, 40) if classes else draw.normal(size=40)
    examples = [{"x": row.tolist(), "y": target} for row, target in zip(x, y.tolist(), strict=True)]
    given = {"spec": {"model": name, "settings": settings}, "weights": weights.tolist(), "examples": examples}
    command = [node(), "--input-type=module", "--eval", COMPUTE]
    run = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)

    batch = Examples(x[None], y[None], np.ones((1, 40)))
    predictions = np.array(told["predictions"])
    expected = model.predict(weights, batch)[0]
    two_of_one = name == "logistic-regression" and classes == 2
    predictions = predictions[:, 1] if two_of_one else predictions.reshape(expected.shape)
    assert told["m"] == model.m
    np.testing.assert_allclose(predictions, expected, rtol=1e-12, atol=1e-12)
    assert told["loss"] == pytest.approx(model.losses(weights, batch)[0], rel=1e-12)
    np.testing.assert_allclose(told["update"], -model.gradients(weights, batch)[0], rtol=1e-12, atol=1e-12)
