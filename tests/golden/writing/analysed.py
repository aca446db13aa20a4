"""Writes a simulated study to analyse."""

import shutil
from pathlib import Path

from fedping.experiments.simulate import experiment_from_toml, simulate
from tests.support.small_experiment import experiment_file


def write(folder: Path) -> None:
    file = experiment_file(folder / "file", clients=300, iterations=3, ticks=2)
    simulate(*experiment_from_toml(file), folder / "out", threads=1)
    shutil.move(folder / "out" / "store", folder / "store")
    shutil.move(folder / "out" / "landing", folder / "landing")
    shutil.rmtree(folder / "out")
    shutil.rmtree(folder / "file")
