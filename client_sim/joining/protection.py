"""The protection of an institution's rows in training: the ledger, the price, and the model with noise."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.files import read_arrow
from fedping.client_sim.joining.consent import full_batch
from fedping.client_sim.joining.folder import Consent, weights_digest
from fedping.client_sim.joining.ledger import Ledger, Release, Role
from fedping.client_sim.joining.protected import ProtectedRows
from fedping.client_sim.joining.summed import SummedRows
from fedping.client_sim.joining.terms import Membership
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.models.k_means import KMeans
from fedping.protocol import __version__
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.training import LocalSteps

ROWS_AT_A_TIME = 2**14
"""Maximum number of rows that are Python objects at a time."""


@dataclass(frozen=True)
class Protection:
    """The protection of one client's rows.

    Attributes:
        ledger: the table's ledger.
        consent: the consent, which states the price.
        table: digest of the whole table's rows.
        role: whether the client trains, or evaluates on held-out rows.
        division: digest of the division of the rows between the roles; empty if no rows are held out.
        persons: person of each of the client's rows; None if rows are protected.
        heaviest: the largest weight of a class.
    """

    ledger: Ledger
    consent: Consent
    table: str
    role: Role = "training"
    division: str = ""
    persons: NDArray[np.intp] | None = None
    heaviest: float = 1.0

    @property
    def noise(self) -> float:
        """Noise multiplier z of each sum; in sums of institutions, z of this institution's share."""
        if self.role != "training":
            return self.consent.noise_evaluation
        return self.consent.share or self.consent.noise

    @property
    def sums(self) -> int:
        """The number of sums that a ping needs."""
        return self.consent.sums if self.role == "training" else 1

    @property
    def cost(self) -> float:
        """Privacy cost of a ping: μ² of Gaussian differential privacy."""
        return self.consent.cost if self.role == "training" else self.consent.cost_of_evaluation

    def model(self, member: Membership) -> ProtectedRows:
        """Return a client's model, which adds noise."""
        if self.consent.institutions:
            return SummedRows(unguarded(member.model), member.line, self.noise, self.persons, self.heaviest)
        steps = isinstance(member.line.training, LocalSteps)
        return ProtectedRows(
            unguarded(member.model), self.noise, steps=steps, persons=self.persons, largest_weight=self.heaviest
        )

    def release(self, member: Membership, version: int, weights: FloatArray, learned: str) -> Release:
        """Return the ledger's release for a ping of a version.

        Args:
            member: the institution's place in the study.
            version: the version.
            weights: the version's weights, shape (m,).
            learned: digest of the model's input from the table, which also depends on the agreed columns.
        """
        line = member.line
        terms = {
            "noise": self.noise,
            "sums": self.sums,
            "person": self.consent.person,
            "training": msgspec.to_builtins(full_batch(line.training)),
            "spec": line.spec.digest,
            "arm": member.arm.name,
            "client": str(member.client_id),
            "table": self.table,
            "learned": learned,
            "program": __version__,
        }
        if self.consent.institutions:
            terms["sum"] = (self.consent.noise, self.consent.institutions, self.consent.colluding)
        return Release(
            study=member.study.name,
            line=line.name,
            role=self.role,
            version=version,
            weights=weights_digest(weights),
            terms=hashlib.sha256(msgspec.json.encode(terms, order="deterministic")).hexdigest(),
            cost=self.cost,
            division=self.division,
        )


@dataclass(frozen=True)
class Decided:
    """The decisions for a client.

    Attributes:
        consent: a person's consent; None if no consent was requested.
        protection: the protection of the rows; None to send unprotected updates.
        a_day: maximum number of pings in 24 hours; None without a limit.
        discards: whether a waiting ping is older than the protection, and so is not sent.
    """

    consent: Consent | None = None
    protection: Protection | None = None
    a_day: int | None = None
    discards: bool = False


def unguarded(model: Model[Any]) -> Model[Any]:
    """Return a model that never rejects its rows, because a rejection would reveal something about them."""
    return replace(model, fewest=1) if isinstance(model, KMeans) else model


def row_contents(path: Path) -> Sequence[bytes]:
    """Return a digest of each row of a table's file, which detects changes; rows are read in blocks."""
    digests: list[bytes] = []
    for batch in read_arrow(path).to_batches(max_chunksize=ROWS_AT_A_TIME):
        columns = [column.to_pylist() for column in batch.columns]
        digests += (hashlib.sha256(repr(row).encode()).digest() for row in zip(*columns, strict=True))
    return digests


def persons_of(path: Path, column: str) -> NDArray[np.intp]:
    """Return the person, numbered from 0, that each row of a table's file belongs to.

    Raises:
        InvalidSettings: the column is missing, or a row has no value in it.
    """
    read = read_arrow(path)
    if read.column_names.count(column) != 1:
        raise InvalidSettings(
            f"the file {path} has {read.column_names.count(column)} columns '{column}'; --person has to name one "
            "column, with the person of each row"
        )
    values = read[column].to_pylist()
    if None in values:
        raise InvalidSettings(
            f"row {values.index(None) + 1} of the column '{column}' is empty, so the row's person is unknown. Fill "
            "it, or remove the row"
        )
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.intp)
