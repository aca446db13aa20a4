"""Reading an experiment's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.laboratory.settings.experiment import Experiment, experiment_of
from experiments.laboratory.settings.grid import with_grid
from experiments.laboratory.settings.merging import Raw, assignments, merged, toml_value
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
    raw = read_toml(path, "experiment file")

    def with_changes(texts: Sequence[str]) -> Experiment:
        changed = merged(raw, assignments(texts))
        return experiment_of(with_grid(changed, over) if over else changed, name=path.stem, folder=path.parent)

    try:
        experiment = with_changes(changes)
        for text in changes:
            without = with_changes([other for other in changes if other != text])
            if without == experiment and not _stands(raw, experiment, text):
                raise InvalidSettings(
                    f"--set {text} changes nothing, for every variant says itself what it has there; change the "
                    "variants in the file, or sweep over it: --over lies above what variants say"
                )
    except InvalidSettings as error:
        raise InvalidSettings(f"the experiment file {path}: {error}") from error
    return experiment


def _stands(raw: Raw, experiment: Experiment, text: str) -> bool:
    """Return whether what a text sets is what the file says anyway, or what some variant has there."""
    key, _, value = text.partition("=")
    if key.strip() in ("name", "seeds") or merged(raw, assignments([text])) == raw:
        return True
    return any(
        _at(setup, key.strip().split(".")) == toml_value(value.strip()) for setup in experiment.variants.values()
    )


def _at(setup: Any, path: Sequence[str]) -> Any:
    for part in path:
        setup = setup.get(part) if isinstance(setup, Mapping) else getattr(setup, part, None)
    return setup
