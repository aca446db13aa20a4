"""The first cell of every notebook: its study, the reader's own or a simulated example, and the style of figures."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fedping.protocol.errors import FedpingError
from fedping.protocol.location import Place

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "notebooks.toml"
"""The example's settings; it is the study of `fedping demo`, with simulated user behaviour."""

FOLDER = Path("example-study")


@dataclass(frozen=True)
class Source:
    """A study to analyse: the store of its versions, the folder of its landed pings, and its name in both."""

    store: Path
    landing: Place
    study: str


def fedping(*words: str | Path) -> str:
    """Return the output of a command, as in ``fedping("simulate", Path("experiment.toml"), "--seed 3 --json")``.

    This package may not import the simulation, so notebooks run the command. Strings are split at blanks, paths are
    not.

    Raises:
        FedpingError: the command failed, with the command's message.
    """
    arguments = [part for word in words for part in ([str(word)] if isinstance(word, Path) else word.split())]
    # A kernel makes its children use colour and move the cursor, which clutters an error's sentence.
    plain = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
    command = [sys.executable, "-m", "fedping", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
    if done.returncode:
        raise FedpingError(f"'fedping {' '.join(arguments)}' failed: {done.stderr.strip()}")
    return done.stdout


def example(folder: Path = FOLDER) -> Source:
    """Return the example; simulate it into a folder (about ten seconds) unless it exists.

    Raises:
        FedpingError: the simulation failed, for example because the folder has other contents.
    """
    if not (folder / "summary.json").exists():  # a simulation writes it last
        fedping("simulate", EXPERIMENT, "--out", folder)
    return Source(store=folder / "store", landing=folder / "landing", study="demo")


def look() -> None:
    """Show figures in the notebook (also those of `analysis.figures`) and set Matplotlib's defaults for this process.

    Axes are unobtrusive, titles are left-aligned, and the resolution suits a large screen.
    """
    from matplotlib import pyplot as plt

    plt.switch_backend(plt.get_backend())  # loads the backend, which enables figures in the notebook
    plt.rcParams.update(
        {
            "figure.dpi": 96,
            "figure.constrained_layout.use": True,
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
        }
    )
