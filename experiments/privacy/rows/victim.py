"""The attacked institution, which answers a number of versions with or without noise."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from fedping.client_sim.data.table import Table
from fedping.client_sim.joining.answering import Answer, Noise, answer
from fedping.client_sim.joining.examples import whole_model
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.model import Model
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import FedpingError
from fedping.protocol.local_optimizers import LocalDescent
from fedping.protocol.training import LocalSteps, OneGradient, Training


class Over(Exception):
    """Raised when the institution has stopped answering, or the attacker's time has ended."""


@dataclass(frozen=True)
class Target:
    """An attacker's knowledge: everything but the rows.

    Attributes:
        model: the line's model.
        training: the line's training.
        rows: the number of rows, n.
        features: the number of features of a row, f.
        seed: seed of the attacker's draws.
    """

    model: Model[Any]
    training: Training
    rows: int
    features: int
    seed: int = 0

    @property
    def kind(self) -> Model[Any]:
        """The model without wrappers that bound or extend it."""
        return whole_model(self.model)

    @property
    def of_sums(self) -> float | None:
        """Factor from an update to a sum over the rows at the same weights; None if no such factor exists."""
        match self.training:
            case OneGradient(batch=None, sign=False, personal=None):
                return float(self.rows)
            case LocalSteps(batch=None, sign=False, personal=None, proximal=0.0, optimizer=LocalDescent()) as local:
                return self.rows / (local.rate * (local.steps or local.epochs or 1))
            case _:
                return None

    def random(self) -> np.random.Generator:
        """Return a new generator of the attacker's draws, from their beginning."""
        return np.random.default_rng(self.seed)


class Victim:
    """An institution with a table, which answers the weights of one version after another.

    Args:
        target: the attacker's knowledge.
        table: the institution's rows.
        versions: number of versions that the institution answers.
        noise: the protection of the rows; None without protection.
        ends: the time at which the institution stops answering, by :func:`time.monotonic`.

    Attributes:
        refused: number of refused answers.
        late: whether weights arrived after that time.
    """

    def __init__(
        self, target: Target, table: Table, versions: int, noise: Noise | None = None, ends: float = math.inf
    ) -> None:
        self.target, self.refused, self.late = target, 0, False
        self._table, self._left, self._noise, self._ends = table, versions, noise, ends
        self._answered: dict[int, bytes] = {}

    @property
    def protects(self) -> bool:
        """Whether noise protects the rows."""
        return self._noise is not None

    def ask(self, weights: FloatArray, version: int | None = None) -> Answer | None:
        """Return the answer to weights; None if the institution refuses them.

        Args:
            weights: shape (m,).
            version: the number under which the weights are served; the next number if None. Once a number has an
                answer, a ledger allows only the same weights for it.

        Raises:
            Over: all versions are answered, or the time has ended.
        """
        if time.monotonic() > self._ends:
            self.late = True
            raise Over
        number = len(self._answered) if version is None else version
        if number not in self._answered:
            if len(self._answered) >= self._left:
                raise Over
            self._answered[number] = weights.tobytes()
        elif self.protects and self._answered[number] != weights.tobytes():
            self.refused += 1
            return None
        target, key = self.target, child_keys(root_key(0), number)
        try:
            return answer(target.model, target.training, self._table, weights, key, self._noise)
        except FedpingError:  # such as a cluster of one row: the program sends nothing
            self.refused += 1
            return None

    def without(self, row: int) -> Victim:
        """Return a copy of the institution whose table lacks one row."""
        kept = np.delete(np.arange(len(self._table.y)), row)
        table = replace(self._table, x=self._table.x[kept], y=self._table.y[kept])
        return Victim(replace(self.target, rows=self.target.rows - 1), table, self._left, self._noise, self._ends)


class Attack(Protocol):
    """An attack on the rows of a table."""

    @property
    def name(self) -> str:
        """The attack's name, in words."""
        ...

    def why_not(self, target: Target) -> str | None:
        """Return the reason why the attack does not apply to a model and training; None if it does or may apply."""
        ...

    def guesses(self, victim: Victim) -> Iterator[FloatArray]:
        """Yield guesses of rows' features, shape (f,) each, until the victim stops answering."""
        ...
