"""Clients' data: loading them, dividing them among clients, splitting them into parts, and preparing them.

A :class:`Table` comes from a package (:func:`load`) or a file (:func:`load_table`); :func:`partition` assigns its rows
to clients; :class:`ExampleData` holds every client's data and hands it out in rectangles. :func:`split` sets aside
each client's validation and test examples. Statistics of all clients' training examples, such as those of
:func:`standardising`, come from sums of what the clients report.
"""

from __future__ import annotations

from fedping.client_sim.data.bins import Discretise, Discretising, discretising
from fedping.client_sim.data.datasets import DATASETS, load
from fedping.client_sim.data.example_data import ExampleData, example_data, of_clients, of_one
from fedping.client_sim.data.files import load_table
from fedping.client_sim.data.missing import Filling, Indicators, MissingRule, Module, filling, indicators
from fedping.client_sim.data.originals import ORIGINALS, load_original
from fedping.client_sim.data.partition import (
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
from fedping.client_sim.data.preparing import (
    Clipping,
    Selecting,
    Standardising,
    balanced,
    clipping,
    min_max_scaling,
    outlier_clipping,
    standardising,
    without_constants,
)
from fedping.client_sim.data.scores import Select, scores_of, selecting
from fedping.client_sim.data.splits import Split, authors_split, folds, hold_out, split
from fedping.client_sim.data.table import Table, Target, table

__all__ = [
    "DATASETS",
    "ORIGINALS",
    "ByKey",
    "Clipping",
    "Dirichlet",
    "Discretise",
    "Discretising",
    "ExampleData",
    "Filling",
    "FixedSize",
    "Iid",
    "Indicators",
    "Labels",
    "MissingRule",
    "Module",
    "Partition",
    "Parts",
    "PowerLaw",
    "RandomSizes",
    "Select",
    "Selecting",
    "Shards",
    "Split",
    "Standardising",
    "Table",
    "Target",
    "authors_split",
    "balanced",
    "clipping",
    "discretising",
    "example_data",
    "filling",
    "folds",
    "hold_out",
    "indicators",
    "load",
    "load_original",
    "load_table",
    "min_max_scaling",
    "of_clients",
    "of_one",
    "outlier_clipping",
    "partition",
    "scores_of",
    "selecting",
    "split",
    "standardising",
    "table",
    "without_constants",
]
