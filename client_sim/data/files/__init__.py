"""Users' own tables, from CSV, Parquet or Arrow files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedping.client_sim.data.files import columns
from fedping.client_sim.data.files.columns import Kind
from fedping.client_sim.data.files.reading import read_arrow, spellings
from fedping.client_sim.data.table import Table
from fedping.protocol.errors import FedpingError


def load_table(
    path: Path | str,
    target: str,
    features: Sequence[str] | None = None,
    client: str | None = None,
    kind: Kind | None = None,
    choice: str | None = None,
) -> Table:
    """Return a file's rows as examples.

    Args:
        path: a file that ends in .csv (or .csv.gz), .parquet, .arrow or .feather, or a folder of Parquet files.
        target: the column to predict.
        features: the columns to predict it from, in this order; if None, all others in the file's order. A text column
            becomes one feature per category, in alphabetical order
            (:func:`fedping.client_sim.data.files.columns.feature`).
        client: the column with the owner of each row: the natural key.
        kind: whether the target is a ``class`` or a ``number``; if None, texts and booleans are classes.
        choice: the column with the choice that each row is a candidate of; the target is then 1 or true for the chosen
            candidate. See :mod:`fedping.client_sim.data.choice_sets`.

    Raises:
        FedpingError: the file cannot be read or has no rows, a column is missing or named twice, or a value is missing
            or is not a number, text or boolean.
    """
    read = read_arrow(Path(path))
    used = _columns(read, target, features, [each for each in (client, choice) if each], path)
    if not read.num_rows:
        raise FedpingError(f"the file {path} has no rows; there is nothing to learn from")
    try:
        parts = [columns.feature(read[name], name) for name in used]
        names = [
            *([target] if kind == "class" or columns.is_truth(read[target]) else []),
            *filter(None, (client, choice)),
        ]
        spelled = spellings(Path(path), read, names)
        if choice is None:
            y, what = columns.target(read[target], target, kind, spelled.get(target))
        else:
            y, what = columns.chosen(read[target], target)
        return Table(
            x=np.column_stack([values for values, _ in parts]),
            y=y,
            features=tuple(name for _, names in parts for name in names),
            target=what,
            key=None if client is None else columns.keys(read[client], client, spelled.get(client)),
            choice=None if choice is None else columns.keys(read[choice], choice, spelled.get(choice)),
        )
    except FedpingError as error:
        raise FedpingError(f"the file {path}: {error}") from error


def _columns(
    read: Any, target: str, features: Sequence[str] | None, owners: Sequence[str], path: Path | str
) -> list[str]:
    """Return the feature columns, after checking that all named columns exist.

    ``owners`` are the columns with the client or the choice of each row.
    """
    present: list[str] = read.column_names
    used = list(features) if features is not None else [c for c in present if c not in (target, *owners)]
    for name in [target, *owners, *used]:
        if present.count(name) != 1:
            there = "no column" if name not in present else "several columns"
            raise FedpingError(f"the file {path} has {there} '{name}'; it has {', '.join(present)}")
    if not used:
        raise FedpingError(f"the file {path} has no column beside {', '.join((target, *owners))} to predict from")
    if target in used or len(set(used)) < len(used):
        raise FedpingError(
            f"the features {', '.join(used)} have the target '{target}' or a column twice; name other columns once"
        )
    return used
