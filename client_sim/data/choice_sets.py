"""Tables whose rows are candidates, one of which is chosen, such as the results of a search.

A choice is one example: it belongs as a whole to one client and to one of training, validation and test. So choices are
divided and split like rows, in a table of one row per choice, :attr:`Candidates.choices`. Features are prepared on the
candidates of the choices in each part (:meth:`Candidates.of`), and finally the choices are handed out in rectangles
(:meth:`Candidates.choice_data`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data import columns
from fedping.client_sim.data.example_data import ExampleData, of_clients
from fedping.client_sim.data.files import read_arrow
from fedping.client_sim.data.table import Table, Target
from fedping.client_sim.features.encode import encode
from fedping.client_sim.learning.choices import NOTHING_CHOSEN, ChoiceData
from fedping.client_sim.learning.lists import ListData, lists_of
from fedping.protocol.draws import numbers_within
from fedping.protocol.errors import FedpingError
from fedping.protocol.spec import ModelSpec

CHOSEN = Target("chosen", ("no", "yes"))


@dataclass(frozen=True)
class Candidates:
    """A table of candidates, grouped by choice.

    Attributes:
        rows: the candidates; y is 1 for the chosen one, else 0.
        first: the first row of each choice, shape (G,).
    """

    rows: Table
    first: NDArray[np.intp]

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """The number of candidates of each choice, shape (G,)."""
        return np.diff(self.first, append=len(self.rows))

    @cached_property
    def choices(self) -> Table:
        """A table with one row per choice, whose only feature is its number."""
        number = np.arange(len(self.first))
        key = None if self.rows.key is None else self.rows.key[self.first]
        return Table(number[:, None].astype(np.float64), np.zeros(len(number)), ("choice",), key=key)

    def of(self, part: ExampleData) -> ExampleData:
        """Return the candidates of the clients' choices as examples of those clients.

        Args:
            part: some of :attr:`choices`, divided among clients.
        """
        number = _numbers(part)
        sizes = self.sizes[number]
        inside = numbers_within(sizes)
        rows = self.rows.rows(np.repeat(self.first[number], sizes) + inside)
        of_client = np.bincount(part.client_of, weights=sizes, minlength=len(part)).astype(np.int64)
        return of_clients(rows, of_client, part.natural_keys)

    def choice_data(self, part: ExampleData, candidates: ExampleData) -> ChoiceData:
        """Return the clients' choices with their prepared candidates.

        Args:
            part: some of :attr:`choices`, divided among clients.
            candidates: ``self.of(part)`` after preparation.
        """
        shown = self.sizes[_numbers(part)]
        there = np.arange(shown.max(initial=0)) < shown[:, None]
        x = np.zeros((*there.shape, candidates.x.shape[1]))
        x[there] = candidates.x
        chosen = np.zeros(there.shape, np.bool_)
        chosen[there] = candidates.y == 1
        y = np.where(chosen.any(axis=1), chosen.argmax(axis=1), NOTHING_CHOSEN) if chosen.size else np.zeros(0, int)
        return ChoiceData(x, y, part.sizes, shown, part.natural_keys)


@dataclass(frozen=True)
class RawCandidates:
    """Candidates with the raw fields of a file, for a model of features.

    Attributes:
        candidates: the candidates by choice; their only feature is the number of their row in the file.
        fields: the file's columns by name.
    """

    candidates: Candidates
    fields: Mapping[str, Sequence[Any]]

    def lists(self, spec: ModelSpec) -> ListData:
        """Return all choices as lists of a single client, in the order of :attr:`Candidates.choices`.

        Every column is a field of the item, and its value in a list's first row also is a field of the query.
        """
        of = self.candidates
        row = of.rows.x[:, 0].astype(np.intp)
        slots = encode(spec, self.fields, self.fields, row, np.repeat(row[of.first], of.sizes))
        chosen = np.add.reduceat(of.rows.y * (np.arange(len(row)) - np.repeat(of.first, of.sizes) + 1), of.first)
        return lists_of(slots, of.first, of.sizes, chosen.astype(np.intp) - 1)


def raw_candidates(path: Path | str, target: str, choice: str, client: str | None = None) -> RawCandidates:
    """Return the rows of a file as candidates with their fields.

    Args:
        path: see :func:`fedping.client_sim.data.files.load_table`.
        target: the column that is 1 or true for the chosen candidate of a choice.
        choice: the column with the choice that each row is a candidate of.
        client: the column with the owner of each row.

    Raises:
        FedpingError: the file cannot be read, or a column is missing.
    """
    read = read_arrow(Path(path))
    named = [target, choice, *([client] if client else [])]
    for name in named:
        if read.column_names.count(name) != 1:
            raise FedpingError(f"the file {path} has no column '{name}'; it has {', '.join(read.column_names)}")
    y, what = columns.chosen(read[target], target)
    rows = Table(
        x=np.arange(read.num_rows, dtype=np.float64)[:, None],
        y=y,
        features=("row",),
        target=what,
        key=None if client is None else columns.keys(read[client], client),
        choice=columns.keys(read[choice], choice),
    )
    fields = {name: read[name].to_pylist() for name in read.column_names if name not in named}
    return RawCandidates(candidates_of(rows), fields)


def candidates_of(rows: Table) -> Candidates:
    """Return a table's candidates grouped by choice. A choice's number under two natural keys stands for two choices.

    Raises:
        FedpingError: the rows belong to no choices, or a choice has two chosen candidates.
    """
    if rows.choice is None:
        raise FedpingError("these data have no choices; name the column that says which choice a row is a candidate of")
    number = _positions(rows.choice)
    if rows.key is not None:
        number = _positions(_positions(rows.key) * (int(number.max(initial=0)) + 1) + number)
    order = np.argsort(number, kind="stable")
    chosen = np.bincount(number, weights=rows.y)
    if (chosen > 1).any():
        which = rows.choice[np.argmax(chosen[number] > 1)]
        raise FedpingError(
            f"{chosen.max():g} candidates of the choice '{which}' were chosen; a choice has one at most: leave the "
            "others out, or make a choice of each"
        )
    return Candidates(rows.rows(order), np.flatnonzero(np.diff(number[order], prepend=-1)))


def _positions(values: NDArray[Any]) -> NDArray[np.intp]:
    return np.unique(values, return_inverse=True)[1]


def _numbers(part: ExampleData) -> NDArray[np.intp]:
    return part.x[:, 0].astype(np.intp)
