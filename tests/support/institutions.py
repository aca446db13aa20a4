"""Institutions with separate tables: a study for them, their tables on disk, and `fedping join` in processes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from msgspec.structs import replace

from fedping.client_sim.data import Table, load
from fedping.client_sim.learning.registry import model_spec
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.spec import Step
from fedping.protocol.study import Arm, Line, Study
from fedping.protocol.training import LocalSteps, Training
from tests.support import forked

ROOT = Path(__file__).parents[2]
STUDY = "tumours"
OPEN = "--accept-reconstruction"
"""Option that turns off the protection of rows, for tests of other features."""

LABEL = "diagnosis"


ARMS = (
    Arm(name="hospitals", share=0.5, line="main", applies=True, submits=True),
    Arm(name="held-out", share=0.5, line="main", applies=True),
)
"""A training arm, and an arm for held-out rows."""


def tumours(
    *,
    training: Training | None = None,
    arms: tuple[Arm, ...] = (Arm(name="hospitals", share=1.0, line="main", applies=True, submits=True),),
    min_clients: int = 3,
    **line: Any,
) -> Study:
    """Return a study of logistic regression for three institutions."""
    spec = model_spec("logistic-regression", {"features": 30}, name=STUDY, step=Step(start=0.1, min=1e-6, max=50.0))
    pipeline = Pipeline(optimizer=GradientDescent(rate=1.0), weighting="examples", min_clients=min_clients)
    trained = training or LocalSteps(epochs=3, batch=16, rate=0.1)
    the_line = replace(Line(name="main", spec=spec, training=trained, pipeline=pipeline), **line)
    return Study(name=STUDY, pings="model-update", arms=arms, lines=(the_line,))


def tables(folder: Path, parts: int = 3) -> list[Path]:
    """Divide the rows of a data set among institutions, each with more of one class, and write them as CSV files."""
    data = load("breast-cancer")
    order = np.argsort(data.y + np.random.default_rng(5).normal(0, 0.6, len(data)))
    written = []
    for number, rows in enumerate(np.array_split(order, parts)):
        path = folder / f"hospital-{number}.csv"
        lines = [",".join([*data.features, LABEL])]
        names = data.target.classes
        lines += [
            ",".join([*(repr(value) for value in x), names[y]])
            for x, y in zip(data.x[rows].tolist(), data.y[rows].tolist(), strict=True)
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        written.append(path)
    return written


def agreed(path: Path, *, raw: bool = False) -> Path:
    """Write the file of the agreed columns, each with a scale; if ``raw``, for a study that computes the scales."""
    data = load("breast-cancer")
    text = "moments = true\n" if raw else ""
    text += f"label = {json.dumps(LABEL)}\nclasses = {json.dumps(list(data.target.classes))}\n"
    for name, mean, deviation in zip(data.features, data.x.mean(axis=0), data.x.std(axis=0), strict=True):
        text += f"[[features]]\nname = {json.dumps(name)}\n"
        text += "" if raw else f"mean = {mean:.6g}\ndeviation = {deviation:.6g}\n"
    path.write_text(text, encoding="utf-8")
    return path


def accuracy(store: Path, version: int) -> float:
    """Return the accuracy of a published version on the rows of all institutions."""
    data: Table = load("breast-cancer")
    x = (data.x - data.x.mean(axis=0)) / data.x.std(axis=0)
    weights = np.array(open_store(store).version(STUDY, "main", version).weights)
    return float(((x @ weights[:-1] + weights[-1] > 0) == data.y).mean())


PROTECTING = {"--epsilon", "--versions", "--ledger", "--person", OPEN}


def joining(url: str, *options: str | Path, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
    """Start `fedping join` in a separate process; rows are protected only if an option says so."""
    options = options if PROTECTING & {str(option) for option in options} else (*options, OPEN)
    command: Sequence[str] = [sys.executable, "-m", "fedping", "join", url, STUDY, *map(str, options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return forked.Popen(
        command, cwd=ROOT, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


Typed: TypeAlias = Callable[..., tuple[str, str]]


def typed_join(folder: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Return a function that runs `fedping join` for one of three institutions, with tables and states in a folder.

    The function checks the exit code, and returns stdout and stderr.
    """
    files, columns = tables(folder), agreed(folder / "columns.toml")

    def run(url: str, *options: str, number: int = 0, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        own = ["--data", files[number], "--columns", columns, "--state", folder / f"state-{number}"]
        unprotected = [] if PROTECTING & set(options) else [OPEN]
        ended = main(["join", url, STUDY, *map(str, own), "--every", "0.1s", *unprotected, *options])
        said = capsys.readouterr()
        assert ended == code, said
        assert "Traceback" not in said.err
        return said.out, said.err

    return run
