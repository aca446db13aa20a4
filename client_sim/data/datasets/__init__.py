"""The data sets inside Python packages, by name; they are read where they are installed and never copied.

To add one: a function that returns a :class:`fedping.client_sim.data.Table`, and a line in ``DATASETS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedping.client_sim.data.datasets.made import two_gaussians
from fedping.client_sim.data.datasets.mlba import credit, spambase, spambase_logarithms, west_roxbury
from fedping.client_sim.data.datasets.mnist import mnist
from fedping.client_sim.data.datasets.movielens import movielens, movielens_choices, movielens_genres, movielens_ratings
from fedping.client_sim.data.datasets.scikit_learn import breast_cancer, diabetes, digits
from fedping.client_sim.data.table import Table
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import TO_LOAD, ExtensionFailed, all_of, recorded, registered

DATASETS: dict[str, Callable[[], Table]] = {
    "breast-cancer": breast_cancer,
    "credit": credit,
    "diabetes": diabetes,
    "digits": digits,
    "mnist": mnist,
    "movielens": movielens,
    "movielens-choices": movielens_choices,
    "movielens-genres": movielens_genres,
    "movielens-ratings": movielens_ratings,
    "spambase": spambase,
    "spambase-logarithms": spambase_logarithms,
    "two-gaussians": two_gaussians,
    "west-roxbury": west_roxbury,
}


def load(name: str, settings: Mapping[str, Any] | None = None, code: str = "") -> Table:
    """Return the data set of that name, one of :data:`DATASETS` or an extension.

    Args:
        name: of the data set.
        settings: of an extension.
        code: the required hash of the extension's code; "" for any.

    Raises:
        InvalidSettings: there is no data set of that name, or it has other code.
        FedpingError: its package is not installed; or an extension fails.
    """
    if name in DATASETS:
        return DATASETS[name]()
    if registered("data_set", name) is None and not code:
        known = [*DATASETS, *(each.name for each in all_of("data_set"))]
        raise InvalidSettings(
            f"there is no data set '{name}'; choose {', '.join(known)}, or name a file of yours; if it is "
            f"an extension, {TO_LOAD}"
        )
    extension = recorded("data_set", name, code)
    table = extension.made(settings or {})
    if isinstance(extension.make, type):
        with extension.guarded():
            table = table.table()
    if not isinstance(table, Table):
        raise ExtensionFailed(
            f"{extension}, an extension, returned a {type(table).__name__}; return a Table, as fedping.table(x, y) "
            "makes one"
        )
    return table
