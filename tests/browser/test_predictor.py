"""A self-completing form in a real browser: examples lead to a ping, a round and another prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedping.client_sim.learning.batch import Examples
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.model_store import open_store
from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm, Line, Study
from fedping.protocol.training import OneGradient
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, engine_named, run_round
from tests.browser.harness.chromium import Pages
from tests.browser.pages import serving
from tests.browser.tools import landed_rows
from tests.support.ingest_server import running_ingest
from tests.support.versions import WHEN

pytestmark = pytest.mark.browser

MODEL = LogisticRegression(2, classes=3)
STUDY = Study(
    name="form",
    pings="model-update",
    arms=(Arm(name="a", share=1.0, line="main", applies=True, submits=True),),
    lines=(
        Line(
            name="main",
            spec=ModelSpec(
                name="form",
                model="logistic-regression",
                settings={"features": 2, "classes": 3},
                blocks=MODEL.arrays,
            ),
            training=OneGradient(batch=4),
            pipeline=Pipeline(optimizer=GradientDescent(rate=5.0), min_clients=1, weighting="client"),
        ),
    ),
)
SCRIPT = """
import { Predictor } from "./predictor.js";

window.form = new Predictor({ ingest: "{relay}", study: "form", labels: ["home", "work", "away"] });
"""


def test_examples_become_a_ping_a_round_and_another_prediction(tmp_path: Path, chromium: Pages) -> None:
    store, landing = open_store(tmp_path / "store", create=True), tmp_path / "landing"
    store.create_study(STUDY, first_versions(STUDY, created=WHEN, code_version="test"))
    with running_ingest(tmp_path / "store", landing) as server, serving(server.url) as web:
        web.more["/form.html"] = '<!doctype html><script type="module" src="form.js"></script>'
        web.more["/form.js"] = SCRIPT.replace("{relay}", web.relay)
        page = chromium.new_page(f"{web.address}/form.html")
        page.evaluate("async () => { await form.ready }")
        assert page.evaluate("form.predict([1, 0]).probabilities") == pytest.approx([1 / 3] * 3)
        page.evaluate("for (const x of [1, .5, .8, .9]) form.learn([x, 0], 'away')")
        page.evaluate("async () => { await form.deliver() }")
        server.flush()
        (row,) = landed_rows(landing).values()
        x, y = np.array([[[1, 0], [0.5, 0], [0.8, 0], [0.9, 0]]]), np.full((1, 4), 2)
        gradients = MODEL.gradients(np.zeros(MODEL.m), Examples(x, y, np.ones((1, 4))))[0]
        np.testing.assert_allclose(np.frombuffer(row["update"], "<f4"), -gradients, rtol=1e-6, atol=1e-7)
        assert (row["examples"], row["loss"]) == (4, pytest.approx(np.log(3)))
        with engine_named("numpy") as engine:
            options = RoundOptions(clock=lambda: WHEN, code_version="test")
            assert run_round(store, landing, "form", "main", engine, options).status == "published"
        assert page.evaluate("async () => { await form.fetchModel() }") is None
        assert page.evaluate("[form.version, form.predict([1, 0]).label]") == [1, "away"]
