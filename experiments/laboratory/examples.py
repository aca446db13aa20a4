"""The examples of a run: read, divided among clients, split, and prepared from sums over the training examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data import (
    ExampleData,
    Split,
    Table,
    authors_split,
    balanced,
    clipping,
    discretising,
    filling,
    folds,
    indicators,
    load,
    load_table,
    min_max_scaling,
    outlier_clipping,
    partition,
    selecting,
    split,
    standardising,
    without_constants,
)
from fedping.client_sim.data.missing import (
    filled_note,
    nothing_missing,
    refused_gaps,
    with_modules,
    without_gaps,
)
from fedping.client_sim.data.originals import files_of_original, load_original
from fedping.client_sim.data.seeds import generator
from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.data import AUTHORS, Data
from fedping.protocol.errors import InvalidSettings


def table_of(settings: Data) -> Table:
    """Return the rows that the settings name.

    Raises:
        FedpingError: the rows cannot be read, or values are missing and the settings have no rule for that.
    """
    table = _read_table(msgspec.json.encode(settings), _stamp(settings))  # hashable as a cache key
    if table.gaps and settings.missing == "refuse" and not any(each.only for each in settings.modules):
        raise refused_gaps(table.x, table.features)
    return table


def _stamp(settings: Data) -> tuple[tuple[str, int, int], ...]:
    """Return a stamp of the data's files that changes when a file is edited."""
    file = settings.file
    if settings.folder is not None:
        files = files_of_original(settings.name or "", Path(settings.folder))
    elif file is None:
        return ()
    else:
        files = [Path(file), *(sorted(Path(file).rglob("*")) if Path(file).is_dir() else [])]
    stats = [(str(each), each.stat()) for each in files if each.exists()]
    return tuple((name, of.st_mtime_ns, of.st_size) for name, of in stats)


@lru_cache(maxsize=4)
def _read_table(settings_json: bytes, stamp: tuple[tuple[str, int, int], ...]) -> Table:
    settings = msgspec.json.decode(settings_json, type=Data)
    if settings.folder is not None:
        return load_original(settings.name or "", Path(settings.folder), settings.settings)
    if settings.file is None or settings.target is None:
        return load(settings.name or "", settings.settings, settings.code)
    return load_table(
        settings.file, settings.target, settings.features, settings.client, settings.kind, settings.choice, gaps=True
    )


def divided(setup: Setup, table: Table, seed: int, fold: int | None, notes: list[str]) -> Split:
    """Return the split of the clients' examples, and add notes on the dropped ones."""
    clients, rows = clients_of(setup, table, seed, notes)
    if setup.data.test == AUTHORS:
        for_test = _authors_choice(setup.data, table)[rows]
        parts = authors_split(clients, for_test, seed, setup.data.validation, setup.data.stratified)
    else:
        parts = _split(setup.data, clients, seed, fold)
    most = setup.data.most
    return parts if most is None else replace(parts, train=_at_most(parts.train, most, seed))


def _authors_choice(settings: Data, table: Table) -> NDArray[np.bool_]:
    if table.for_test is None or not table.for_test.any() or table.for_test.all():
        raise InvalidSettings(
            f"[data] test = \"authors\": '{settings.name}' does not have training and test examples of its authors. "
            "Set a share, such as test = 0.2, or add the authors' files"
        )
    return table.for_test


def clients_of(setup: Setup, table: Table, seed: int, notes: list[str]) -> tuple[ExampleData, NDArray[np.intp]]:
    """Return the clients' examples and each example's row, without dropped examples; add notes on the dropped ones.

    Raises:
        InvalidSettings: values are missing, and the settings have no rule for that.
    """
    owned = partition(table, setup.partition, seed)
    rows = owned.rows
    clients, of_modules = with_modules(owned.of(table), setup.data.modules, seed)
    notes += of_modules
    if setup.data.missing == "drop":
        rows = rows[~np.isnan(clients.x).any(axis=1)]
        clients, dropped = without_gaps(clients)
        notes += dropped
    elif setup.data.missing == "refuse" and clients.gaps:
        if np.isnan(clients.x).any():
            raise refused_gaps(clients.x, clients.features)
        clients = replace(clients, gaps=False)
    return clients, rows


def _split(settings: Data, clients: ExampleData, seed: int, fold: int | None) -> Split:
    """Return the training, validation and test examples; with folds, the fold's examples are the test examples."""
    if settings.folds is None or fold is None:
        return split(clients, seed, settings.test_share, settings.validation, settings.stratified)
    held = folds(clients, settings.folds, seed, settings.stratified) == fold
    rest = split(clients.only(~held), seed, 0.0, settings.validation / (1 - settings.test_share), settings.stratified)
    return replace(rest, test=clients.only(held))


def ready(settings: Data, parts: Split, notes: list[str]) -> Split:
    """Return the parts after the settings' preparation, computed from the training examples, and add notes."""
    parts, marks = _filled(settings, parts, notes)
    if settings.drop_constant:
        parts = _applied(without_constants(parts.train), parts)
    if settings.clip is not None and settings.clip_beyond is not None:
        parts = _applied(outlier_clipping(parts.train, settings.clip, settings.clip_beyond), parts)
    elif settings.clip is not None:
        parts = _applied(clipping(parts.train, settings.clip), parts)
    if settings.discretise is not None:
        parts = _applied(discretising(parts.train, settings.discretise), parts)
    parts = marks(parts)
    if settings.select is not None:
        chosen, scores = selecting(parts.train, settings.select)
        notes.append(_of_selection(settings.select.by, parts.train.features, chosen.kept, scores))
        parts = _applied(chosen, parts)
    if settings.standardise:
        parts = _applied(standardising(parts.train), parts)
    if settings.min_max:
        parts = _applied(min_max_scaling(parts.train), parts)
    return replace(parts, train=balanced(parts.train)) if settings.class_weights else parts


def _filled(settings: Data, parts: Split, notes: list[str]) -> tuple[Split, Callable[[Split], Split]]:
    """Return the parts without gaps, and a function that adds the gaps' indicators after features are clipped."""
    rule = settings.missing
    if rule in ("refuse", "drop"):
        return parts, lambda prepared: prepared
    if not parts.train.gaps:
        notes.append(nothing_missing(rule))
        return parts, lambda prepared: prepared
    added = indicators(parts.train if rule == "indicator" else parts.train.only(np.zeros(len(parts.train.y), np.bool_)))
    marks = [added.of(part) for part in _each(parts)]
    notes.append(filled_note(rule, _each(parts), added))

    def with_marks(prepared: Split) -> Split:
        return Split(*(added.added(part, of) for part, of in zip(_each(prepared), marks, strict=True)))

    return _applied(filling(parts.train), parts), with_marks


def _each(parts: Split) -> tuple[ExampleData, ExampleData, ExampleData]:
    return parts.train, parts.validation, parts.test


_SCORES = {"f": "F", "chi2": "χ²"}
_FEATURES_LISTED = 5


def _of_selection(by: str, features: tuple[str, ...], kept: NDArray[np.bool_], scores: FloatArray) -> str:
    order = [at for at in np.argsort(-scores, kind="stable").tolist() if kept[at]]
    named = ", ".join(f"{features[at]} ({scores[at]:,.4g})" for at in order[:_FEATURES_LISTED])
    more = f" and {len(order) - _FEATURES_LISTED:,} more" if len(order) > _FEATURES_LISTED else ""
    return f"kept {len(order):,} of {len(kept):,} features by their {_SCORES[by]} over the clients: {named}{more}"


class _Step(Protocol):
    def of(self, data: ExampleData) -> ExampleData: ...


def _applied(step: _Step, parts: Split) -> Split:
    return Split(step.of(parts.train), step.of(parts.validation), step.of(parts.test))


def _at_most(data: ExampleData, most: int, seed: int) -> ExampleData:
    """Return the data with at most ``most`` examples per client, drawn at random."""
    order = np.lexsort((generator(seed, "most").random(len(data.y)), data.client_of))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - data.offsets[:-1][data.client_of]
    return data.only(place < most)
