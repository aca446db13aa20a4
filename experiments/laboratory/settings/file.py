"""Reading an experiment's file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.laboratory.settings.experiment import Experiment, experiment_of
from experiments.laboratory.settings.grid import with_grid
from experiments.laboratory.settings.merging import assignments, merged
from protocol.errors import InvalidSettings
from protocol.settings_file import read_toml


def experiment_from_toml(path: Path, changes: Sequence[str] = (), over: Sequence[str] = ()) -> Experiment:
    """Read a laboratory experiment; paths in it are relative to its file.

    Args:
        path: of the file.
        changes: settings to change, such as "rounds=10"; what a variant says itself remains.
        over: axes of a grid, such as "training.rate=0.1,0.3"; each variant is run at every point of it.

    Raises:
        InvalidSettings: the file cannot be read, or says something that cannot be meant.
    """
    raw = merged(read_toml(path, "experiment file"), assignments(changes))
    raw = with_grid(raw, over) if over else raw
    try:
        return experiment_of(raw, name=path.stem, folder=path.parent)
    except InvalidSettings as error:
        raise InvalidSettings(f"the experiment file {path}: {error}") from error
