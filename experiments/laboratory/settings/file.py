"""Reading an experiment's file."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from experiments.laboratory.settings.experiment import Experiment, experiment_of
from experiments.laboratory.settings.grid import with_grid
from experiments.laboratory.settings.merging import Raw, assignments, merged
from protocol.errors import InvalidSettings


def raw_from_toml(path: Path) -> Raw:
    """Return a file's tables, not yet judged.

    Raises:
        InvalidSettings: the file is not there or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"cannot read the experiment file {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"the experiment file {path} is not UTF-8 text; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"the experiment file {path} is not valid TOML: {error}") from error


def experiment_from_toml(path: Path, changes: Sequence[str] = (), over: Sequence[str] = ()) -> Experiment:
    """Read a laboratory experiment; paths in it are relative to its file.

    Args:
        path: of the file.
        changes: settings to change, such as "rounds=10"; what a variant says itself remains.
        over: axes of a grid, such as "training.rate=0.1,0.3"; each variant is run at every point of it.

    Raises:
        InvalidSettings: the file cannot be read, or says something that cannot be meant.
    """
    raw = merged(raw_from_toml(path), assignments(changes))
    raw = with_grid(raw, over) if over else raw
    try:
        return experiment_of(raw, name=path.stem, folder=path.parent)
    except InvalidSettings as error:
        raise InvalidSettings(f"the experiment file {path}: {error}") from error
