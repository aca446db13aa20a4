"""The data of clients: where they come from, how they are divided, split and prepared.

A :class:`Table` comes from a package (:func:`load`) or a file; :func:`partition` says whose each row is;
:class:`ExampleData` holds what every client has and hands it out in rectangles.
"""

from __future__ import annotations

from client_sim.data.datasets import DATASETS, load
from client_sim.data.example_data import ExampleData, example_data, of_clients, of_one
from client_sim.data.partition import (
    ByKey,
    Dirichlet,
    FixedSize,
    Iid,
    Labels,
    Partition,
    Parts,
    PowerLaw,
    RandomSizes,
    Shards,
    partition,
)
from client_sim.data.table import Table, Target, table

__all__ = [
    "DATASETS",
    "ByKey",
    "Dirichlet",
    "ExampleData",
    "FixedSize",
    "Iid",
    "Labels",
    "Partition",
    "Parts",
    "PowerLaw",
    "RandomSizes",
    "Shards",
    "Table",
    "Target",
    "example_data",
    "load",
    "of_clients",
    "of_one",
    "partition",
    "table",
]
