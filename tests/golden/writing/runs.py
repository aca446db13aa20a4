"""Writes laboratory runs and simulated studies, killed in a round or finished.

Each has a folder with the experiment's file, and its run's files in `out`.
"""

import pkgutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np

from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.experiments.simulate import experiment_from_toml as simulation_from_toml
from fedping.experiments.simulate import simulate
from tests.golden.reading.runs import OVER, own_modules
from tests.support.small_experiment import experiment_file, private_experiment_file

BEGINNING = """
rounds = 6
seeds = 1
[model]
name = "logistic-regression"
l2 = 0.0625
[data]
name = "breast-cancer"
standardise = true
validation = 0.1
[partition]
partition = "iid"
clients = 8
"""
SERVER = """
[server]
optimizer = { optimizer = "gradient_descent", rate = 1.0 }
"""
NO_BASELINES = "[evaluation]\nbaselines = []\n"
LOCAL = "epochs = 1\nbatch = 16\nrate = 0.25\n"

IN_MEMORY = {
    "adam": """
[server]
optimizer = { optimizer = "adam", rate = 0.0625 }
staleness = { most = 2 }
[lateness]
shares = [0.6, 0.2, 0.2]
[sampling]
sampling = "uniform"
clients = 3
"""
    + NO_BASELINES,
    "scaffold": SERVER + NO_BASELINES + f'[training]\nalgorithm = "scaffold"\n{LOCAL}',
    "feddyn": SERVER + NO_BASELINES + f'[training]\nalgorithm = "feddyn"\nalpha = 0.25\n{LOCAL}',
    "apfl": SERVER + NO_BASELINES + f'[training]\nalgorithm = "apfl"\n{LOCAL}',
    "attacked": """
[server]
optimizer = { optimizer = "rprop" }
aggregate = { by = "trimmed_mean", share = 0.25 }
[attack]
attack = "sign_flip"
share = 0.25
"""
    + NO_BASELINES,
    "gossip": '[gossip]\ngraph = "ring"\n' + NO_BASELINES + f'[training]\nalgorithm = "local"\n{LOCAL}',
    "compressed": SERVER + NO_BASELINES + '[[upload]]\nlink = "levels"\nbits = 4\n',
}
"""Experiments killed in their fourth round, with its checkpoint."""

IN_FILES = {"files": 'where = "files"\n' + BEGINNING + SERVER + NO_BASELINES}
"""Experiments killed in their third round, and restarted."""

VARIANTS = """
[evaluation]
local = true
[[variants]]
name = "gradient"
[[variants]]
name = "local, three"
training = { algorithm = "local", epochs = 2, batch = 16, rate = 0.5 }
sampling = { sampling = "uniform", clients = 3 }
"""


SWEPT = """
[training]
algorithm = "local"
epochs = 1
[sampling]
sampling = "uniform"
"""
OWN = """"own"
function = "golden_loss:loss"
predict = "golden_loss:predict"
weights = 30
predicts = "log_odds"
gradient = "finite_differences\""""
MODULES = {
    "golden_loss.py": """
from golden_scale import SCALE

def loss(weights, x, y):
    return ((x @ weights * SCALE - y) ** 2).mean()

def predict(weights, x):
    return x @ weights
""",
    "golden_scale.py": "SCALE = 0.5\n",
}


class Killed(BaseException):
    """Stands for the death of the process."""


def killed(where: str, after: int, run: Callable[[], object]) -> None:
    """Run a function until another function has been called ``after`` times."""
    module, _, name = where.rpartition(".")
    calls = 0
    there = pkgutil.resolve_name(module)
    before = getattr(there, name)

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls > after:
            raise Killed
        return before(*args, **kwargs)

    setattr(there, name, counted)
    try:
        run()
    except Killed:
        return
    finally:
        setattr(there, name, before)
    raise AssertionError(f"{where} was called {calls} times only")


def write(folder: Path) -> None:
    with patch.object(resuming, "MOST_OF_THE_TIME", np.inf):
        for name, text in IN_MEMORY.items():
            file = described(folder / name, BEGINNING + text)
            experiment = experiment_from_toml(file)
            write_of = "fedping.experiments.laboratory.resuming.Checkpoints.write"
            killed(write_of, 3, lambda e=experiment, f=file: run_experiment(e, f.parent / "out", jobs=1))
        for name, text in IN_FILES.items():
            file = described(folder / name, text)
            experiment = experiment_from_toml(file)
            round_of = "fedping.experiments.laboratory.rounds.landed.run_round"
            killed(round_of, 2, lambda e=experiment, f=file: run_experiment(e, f.parent / "out", jobs=1))
        file = described(folder / "variants", BEGINNING.replace("seeds = 1", "seeds = 2") + SERVER + VARIANTS)
        run_experiment(experiment_from_toml(file), file.parent / "out", jobs=1)
        file = described(folder / "sweep", BEGINNING + SERVER + NO_BASELINES + SWEPT)
        over = experiment_from_toml(file, (), OVER)
        killed(write_of, 8, lambda: run_experiment(over, file.parent / "out", jobs=1))
    file = described(
        folder / "own", BEGINNING.replace('"logistic-regression"\nl2 = 0.0625', OWN) + SERVER + NO_BASELINES
    )
    for name, text in MODULES.items():
        (file.parent / name).write_text(text)
    with own_modules(file.parent):
        run_experiment(experiment_from_toml(file), file.parent / "out", jobs=1)
    for name, write_files in (("simulated", experiment_file), ("hushed", private_experiment_file)):
        small = {"clients": 200, "iterations": 3, "ticks": 2} if name == "simulated" else {}
        file = write_files(folder / name, **small)
        settings = simulation_from_toml(file)
        round_of = "fedping.experiments.simulate.line_run.run_round"
        killed(round_of, 2, lambda s=settings, f=file: simulate(*s, f.parent / "out", threads=1))


def described(folder: Path, text: str) -> Path:
    """Write an experiment's file into a separate folder."""
    folder.mkdir()
    file = folder / "experiment.toml"
    file.write_text(text)
    return file
