"""The pages' script draws the mean and band of several seeds as in Python."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.experiments.laboratory.summary import band, t_quantile
from fedping.experiments.laboratory.tallies import HIGHER_IS_BETTER, bounds
from tests.browser.tools import node

SCRIPT = Path("dashboard/watching/static/series.js")

CALLED = """
import { readFileSync } from "node:fs";
import * as series from "./series.mjs";
const calls = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(calls.map(([name, ...given]) => series[name](...given))));
"""


def called(folder: Path, *calls: list[Any]) -> list[Any]:
    """Return the results of the script's functions."""
    program = node()
    (folder / "series.mjs").write_text(SCRIPT.read_text())
    (folder / "called.mjs").write_text(CALLED)
    given = json.dumps(calls).encode()
    run = subprocess.run([program, str(folder / "called.mjs")], input=given, capture_output=True, timeout=240)
    assert run.returncode == 0, run.stderr.decode()
    found: list[Any] = json.loads(run.stdout)
    return found


def test_the_mean_and_the_band_are_those_of_the_summary(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    lengths = [7, 7, 5, 1]
    runs = [
        {"seed": seed, "fold": None, "x": list(range(0, 2 * n, 2)), "y": random.normal(size=n).tolist()}
        for seed, n in enumerate(lengths)
    ]
    runs[0]["y"][3] = None
    quantiles = [t_quantile(n - 1) for n in range(2, 5)]
    [found] = called(tmp_path, ["overSeeds", runs, quantiles])
    assert found["x"] == list(range(0, 14, 2))
    for place in range(7):
        values = [run["y"][place] for run in runs if len(run["y"]) > place]
        expected = band([np.nan if value is None else value for value in values])
        assert found["seeds"][place] == expected.seeds
        assert found["mean"][place] == pytest.approx(expected.mean)
        assert (found["half"][place] is None) == (expected.half is None)
        if expected.half is not None:
            assert found["half"][place] == pytest.approx(expected.half)


def test_folds_of_a_seed_count_as_one_and_runs_may_be_measured_at_different_rounds(tmp_path: Path) -> None:
    folds = [{"seed": 1, "fold": fold, "x": [0, 1], "y": [fold, 2.0]} for fold in range(3)]
    other = {"seed": 2, "fold": None, "x": [0, 5], "y": [3.0, 4.0]}
    [merged] = called(tmp_path, ["bySeed", [*folds, other]])
    assert [(run["seed"], run["y"]) for run in merged] == [(1, [1.0, 2.0]), (2, [3.0, 4.0])]
    [found] = called(tmp_path, ["overSeeds", merged, [t_quantile(1)]])
    assert (found["x"], found["mean"], found["seeds"]) == ([0, 1, 5], [2.0, 2.0, 4.0], [2, 1, 1])


def test_a_metric_that_is_a_share_is_drawn_between_0_and_1(tmp_path: Path) -> None:
    shares = sorted(metric for metric in HIGHER_IS_BETTER if bounds(metric) == (0, 1))
    found = called(tmp_path, *(["boundsOf", metric] for metric in [*shares, "recall_of_3", "loss"]))
    assert found == [[0, 1]] * (len(shares) + 1) + [None]
    assert HIGHER_IS_BETTER - {*shares} == {"r2", "recovered_gain", "recovered_cosine"}
