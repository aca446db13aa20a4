"""The split of each client's examples into a training, a validation and a test part.

A client's split depends only on the seed and on its number, not on the other clients. Examples are sampled
systematically: a client's examples are ordered by class, randomly within each class, and every 1/share-th is taken from
a random start. So every example has the same chance, and each class, like the client as a whole, contributes its share
rounded up or down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.example_data import ExampleData, of_one
from fedping.client_sim.data.seeds import key
from fedping.client_sim.data.table import Table
from fedping.client_sim.learning.batch import FloatArray
from fedping.protocol.draws import child_keys, uniforms
from fedping.protocol.errors import InvalidSettings

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Split:
    """The examples of the same clients in three parts; any part of a client may be empty."""

    train: ExampleData
    validation: ExampleData
    test: ExampleData


def split(data: ExampleData, seed: int, test: float = 0.1, validation: float = 0.1, stratified: bool = True) -> Split:
    """Return every client's examples in three parts, stratified by class if there are classes.

    Args:
        data: the data of all clients.
        seed: seed of the split.
        test: the share of each client's examples set aside for the test.
        validation: the share set aside for validation, also of all its examples.
        stratified: False to draw regardless of class.

    A client keeps at least one example to learn from.

    Raises:
        InvalidSettings: the shares leave nothing to train on.
    """
    if min(test, validation) < 0 or test + validation >= 1:
        raise InvalidSettings(
            f"test ({test:g}) and validation ({validation:g}) have to be at least 0 and leave something to train on"
        )
    for_test = _set_apart(data, test, seed, "test", stratified)
    rest = data.only(~for_test)
    for_validation = _set_apart(rest, validation / (1 - test), seed, "validation", stratified)
    return Split(rest.only(~for_validation), rest.only(for_validation), data.only(for_test))


def authors_split(
    data: ExampleData, for_test: Mask, seed: int, validation: float = 0.1, stratified: bool = True
) -> Split:
    """Return every client's examples in three parts; the test part has the data set authors' test examples.

    Args:
        data: the data of all clients.
        for_test: whether the authors set each example apart for tests, shape (N,).
        seed: seed of the choice of validation examples.
        validation: the share of each client's other examples set aside for validation.
        stratified: False to draw regardless of class.

    A client may be left without examples to learn from.
    """
    return replace(split(data.only(~for_test), seed, 0.0, validation, stratified), test=data.only(for_test))


def folds(data: ExampleData, count: int, seed: int, stratified: bool = True) -> NDArray[np.int64]:
    """Return the fold of each example, from 0 to ``count`` - 1, for cross-validation: shape (N,).

    Fold sizes differ by at most one example in every client, and in every class of every client. Fold f tests on
    ``data.only(fold == f)`` and trains on ``data.only(fold != f)``.

    Raises:
        InvalidSettings: fewer than two folds.
    """
    if count < 2:
        raise InvalidSettings(f"cross-validation with {count} folds leaves nothing to train on; set at least 2")
    start = np.floor(_of_clients(data, seed, "folds start") * count).astype(np.int64)
    return (_positions(data, seed, "folds", stratified) + start[data.client_of]) % count


def hold_out(table: Table, share: float, seed: int, stratified: bool = True) -> tuple[Table, Table]:
    """Return a table in two parts: the clients' rows, and the share that the server holds as its own test set.

    Raises:
        InvalidSettings: share is not in [0, 1).
    """
    if not 0 <= share < 1:
        raise InvalidSettings(f"a held-out share of {share:g} leaves nothing to train on; give one from 0 to below 1")
    held = _set_apart(of_one(table), share, seed, "held out", stratified)
    return table.rows(~held), table.rows(held)


def _set_apart(data: ExampleData, share: float, seed: int, purpose: str, stratified: bool) -> Mask:
    """Return whether each row is set apart, every 1/share-th one, shape (N,); a client keeps at least one row."""
    position = _positions(data, seed, purpose, stratified)
    start = _of_clients(data, seed, purpose + " start")[data.client_of]
    taken = np.floor((position + 1) * share + start) > np.floor(position * share + start)
    everything = np.bincount(data.client_of[taken], minlength=len(data)) == data.sizes
    mask: Mask = taken & ~((position == 0) & everything[data.client_of])
    return mask


def _positions(data: ExampleData, seed: int, purpose: str, stratified: bool) -> NDArray[np.int64]:
    """Return each row's position in the random order of its client's rows, from 0, shape (N,)."""
    row = np.arange(len(data.y)) - data.offsets[:-1][data.client_of]
    clients = child_keys(key(seed, purpose), data.ids)[data.client_of]
    among_rows = uniforms(child_keys(clients, row), 1)[:, 0]
    classes = data.y if stratified and data.target.is_class else np.zeros(len(data.y), np.int64)
    order = np.lexsort((among_rows, classes, data.client_of))
    position = np.empty_like(row)
    position[order] = row
    return position


def _of_clients(data: ExampleData, seed: int, purpose: str) -> FloatArray:
    """Return a uniform number for each client, shape (K,)."""
    return uniforms(child_keys(key(seed, purpose), data.ids), 1)[:, 0]
