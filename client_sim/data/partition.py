"""The partition of a table among clients: its settings, functions that assign rows to clients, and the result.

To add a partition: add its settings to the union ``Partition``, and a function that returns the owner of each row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.client_sim.data.example_data import ExampleData, of_clients
from fedping.client_sim.data.seeds import generator
from fedping.client_sim.data.table import Table
from fedping.client_sim.learning.batch import FloatArray
from fedping.protocol.errors import FedpingError
from fedping.protocol.extensions import OWN, ExtensionFailed, Own, extension_of
from fedping.protocol.makers import Makers
from fedping.protocol.spec import Positive

Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Iid(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="iid"):
    """Rows are dealt at random, in sizes that differ by at most one: all clients have the same distribution."""

    digest_name: ClassVar[str] = "Iid"

    clients: Count
    least: Count = 1


class Shards(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="shards"):
    """Rows sorted by label and cut into shards of equal size, ``shards`` of which are dealt to each client.

    This is the pathological case of McMahan et al. (2017): most clients see as many labels as they have shards.
    """

    digest_name: ClassVar[str] = "Shards"

    clients: Count
    shards: Count = 2
    least: Count = 1


class Labels(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="labels"):
    """Each client has examples of exactly ``labels`` labels; a label's rows are dealt evenly to the clients with it.

    Labels are assigned so that the numbers of clients per label differ by at most one.
    """

    digest_name: ClassVar[str] = "Labels"

    clients: Count
    labels: Count = 2
    least: Count = 1


class Dirichlet(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="dirichlet"):
    """Each label's rows are divided by shares drawn from Dirichlet(α) (Yurochkin et al. 2019).

    The smaller ``alpha``, the fewer labels a client has and the more the clients' sizes differ; with a small α many
    clients have no rows at all and are dropped.
    """

    digest_name: ClassVar[str] = "Dirichlet"

    clients: Count
    alpha: Positive = 0.5
    least: Count = 1


class ByKey(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="key"):
    """Rows are divided by natural key, such as a user or a country: one client per key, in the order of the keys.

    With ``pieces`` each key's rows are dealt at random to that many clients. With ``keys`` only that many keys become
    clients, drawn at random among the keys with enough rows; the rows of other keys are left out.
    """

    digest_name: ClassVar[str] = "ByKey"

    pieces: Count = 1
    keys: Count | None = None
    least: Count = 1


class PowerLaw(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="power_law"):
    """Rows are dealt at random, in sizes that fall as 1/rank^exponent: a few clients have many rows, most have few."""

    digest_name: ClassVar[str] = "PowerLaw"

    clients: Count
    exponent: Positive = 1.0
    least: Count = 1


class RandomSizes(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="random_sizes"
):
    """Rows are dealt at random, in sizes drawn from Dirichlet(α), at least one row; a smaller α is less even."""

    digest_name: ClassVar[str] = "RandomSizes"

    clients: Count
    alpha: Positive = 1.0
    least: Count = 1


class FixedSize(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="fixed_size"):
    """Rows are dealt at random, ``examples`` per client; ``clients`` defaults to as many as the rows allow."""

    digest_name: ClassVar[str] = "FixedSize"

    examples: Count
    clients: Count | None = None
    least: Count = 1


class Topics(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="topics"):
    """Rows are divided along a random direction of the features, with the same share of every class for each client.

    The direction is one of the first ``components`` principal components, each divided by its deviation. Each class is
    sorted along it and cut into as many parts as there are clients, and every client gets a part of each class. So
    clients differ in their features, but not in the shares of their classes.
    """

    clients: Count
    components: Count = 5
    least: Count = 1


class OwnPartition(Own, frozen=True, tag_field="partition", tag=OWN):
    """A partition from your own package (:mod:`fedping.protocol.extensions`)."""

    kind = "partition"


Partition: TypeAlias = (
    Iid | Shards | Labels | Dirichlet | ByKey | PowerLaw | RandomSizes | FixedSize | Topics | OwnPartition
)


NOBODY = -1
"""Marks a row that no client gets."""


@dataclass(frozen=True)
class Parts:
    """A table divided among clients.

    Attributes:
        rows: positions in the table, one client after another, ascending within each, shape (M,).
        sizes: number of rows of each client, at least 1, shape (K,).
        rows_left_out: number of rows of the table that belong to no client.
        clients_dropped: number of planned clients with too few rows.
        natural_keys: the clients' natural keys, shape (K,), or None.
    """

    rows: NDArray[np.intp]
    sizes: NDArray[np.int64]
    rows_left_out: int
    clients_dropped: int
    natural_keys: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def of(self, table: Table) -> ExampleData:
        """Return the clients' data from the table that was divided."""
        return of_clients(table.rows(self.rows), self.sizes, self.natural_keys)


def parts_of(owner: NDArray[np.intp], clients: int, least: int, keys: NDArray[Any] | None = None) -> Parts:
    """Return the rows of each client; clients with fewer than ``least`` rows are dropped.

    Args:
        owner: the client of each row, or :data:`NOBODY`, shape (N,).
        clients: the planned number of clients.
        least: minimum number of rows of a client, at least 1.
        keys: the clients' natural keys, shape (clients,).

    Raises:
        FedpingError: no client has enough rows.
    """
    sizes = np.bincount(owner[owner != NOBODY], minlength=clients)
    kept = sizes >= least
    if not kept.any():
        raise FedpingError(
            f"none of {clients} clients has {least} of {len(owner)} examples; lower 'least' or the number of clients"
        )
    given = np.flatnonzero((owner != NOBODY) & kept[owner])
    return Parts(
        rows=given[np.argsort(owner[given], kind="stable")],
        sizes=sizes[kept],
        rows_left_out=len(owner) - len(given),
        clients_dropped=int((~kept).sum()),
        natural_keys=None if keys is None else keys[kept],
    )


Owner = NDArray[np.intp]


_OWNERS: Makers[Callable[[Table, Any, np.random.Generator], Owner]] = Makers()
"""Functions that return the owner of each row, by the type of their settings."""


@_OWNERS.of(Iid)
def iid(table: Table, settings: Iid, random: np.random.Generator) -> Owner:
    """See :class:`Iid`."""
    enough_rows(table, settings.clients)
    return random.permutation(np.arange(len(table)) % settings.clients)


@_OWNERS.of(PowerLaw)
def power_law(table: Table, settings: PowerLaw, random: np.random.Generator) -> Owner:
    """See :class:`PowerLaw`."""
    ranks = random.permutation(np.arange(1, settings.clients + 1))
    return _in_sizes(table, ranks**-settings.exponent, random)


@_OWNERS.of(RandomSizes)
def random_sizes(table: Table, settings: RandomSizes, random: np.random.Generator) -> Owner:
    """See :class:`RandomSizes`."""
    return _in_sizes(table, random.dirichlet(np.full(settings.clients, settings.alpha)), random)


@_OWNERS.of(FixedSize)
def fixed_size(table: Table, settings: FixedSize, random: np.random.Generator) -> Owner:
    """See :class:`FixedSize`."""
    clients = settings.clients or max(1, len(table) // settings.examples)
    enough_rows(table, clients, settings.examples)
    owner = np.full(len(table), NOBODY, dtype=np.intp)
    owner[: clients * settings.examples] = np.arange(clients).repeat(settings.examples)
    return random.permutation(owner)


def enough_rows(table: Table, clients: int, each: int = 1) -> None:
    """Raise :class:`FedpingError` unless a table has ``each`` rows for every client."""
    if clients * each > len(table):
        remedy = "set fewer clients" if clients > 1 else f"set {len(table)} examples a client at most"
        raise FedpingError(f"{len(table)} examples are too few for {clients} clients with {each} each; {remedy}")


def _in_sizes(table: Table, shares: FloatArray, random: np.random.Generator) -> Owner:
    enough_rows(table, len(shares))
    sizes = 1 + rounded_shares(shares / shares.sum(), len(table) - len(shares))
    return random.permutation(np.arange(len(shares)).repeat(sizes))


def rounded_shares(shares: FloatArray, total: int) -> NDArray[Any]:
    """Return integers that sum to ``total`` and are closest to these shares of it, by largest remainders."""
    wanted = shares * total
    whole = np.floor(wanted).astype(np.int64)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - wanted, kind="stable")[:missing]] += 1
    return whole


@_OWNERS.of(ByKey)
def by_key(table: Table, settings: ByKey, random: np.random.Generator) -> Owner:
    """See :class:`ByKey`; the clients of a key follow each other."""
    _, key = np.unique(_keys(table), return_inverse=True)
    order = np.lexsort((random.random(len(table)), key))
    owner = np.empty(len(table), dtype=np.intp)
    owner[order] = key[order] * settings.pieces + np.arange(len(table)) % settings.pieces
    if settings.keys is not None:
        enough = np.flatnonzero(np.bincount(key) >= settings.least * settings.pieces)
        if settings.keys > len(enough):
            raise FedpingError(
                f"only {len(enough)} natural keys have enough rows, and keys = {settings.keys} are wanted; lower "
                "'keys' or 'least'"
            )
        owner[~np.isin(key, random.choice(enough, settings.keys, replace=False))] = NOBODY
    return owner


def keys_of_clients(table: Table, settings: ByKey) -> NDArray[Any]:
    """Return the natural key of each client that :func:`by_key` gives rows to."""
    return np.repeat(np.unique(_keys(table)), settings.pieces)


def _keys(table: Table) -> NDArray[Any]:
    if table.key is None:
        raise FedpingError(
            "the partition 'key' goes by a natural key, but this data set has none; name the column of the client, "
            "or choose another partition"
        )
    return table.key


@_OWNERS.of(Shards)
def shards(table: Table, settings: Shards, random: np.random.Generator) -> Owner:
    """See :class:`Shards`."""
    labels = _labels(table, "shards")
    enough_rows(table, settings.clients, settings.shards)
    count = settings.clients * settings.shards
    owner_of_shard = random.permutation(np.arange(count) // settings.shards)
    by_label = np.lexsort((random.random(len(table)), labels))
    owner = np.empty(len(table), dtype=np.intp)
    owner[by_label] = owner_of_shard[np.arange(len(table)) * count // len(table)]
    return owner


@_OWNERS.of(Topics)
def topics(table: Table, settings: Topics, random: np.random.Generator) -> Owner:
    """See :class:`Topics`."""
    numbers = _labels(table, "topics")
    enough_rows(table, settings.clients)
    if table.gaps:
        raise FedpingError(
            "the partition 'topics' goes by features, and some of them are missing; choose another partition"
        )
    if settings.components > min(table.x.shape):
        raise FedpingError(
            f"{table.x.shape[1]} features have fewer principal components than {settings.components}; lower "
            "'components'"
        )
    deviation = table.x.std(axis=0)
    scaled = (table.x - table.x.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    # The left singular vectors are the components divided by their deviations, up to one factor.
    along = np.linalg.svd(scaled, full_matrices=False)[0][:, : settings.components]
    position = along @ random.normal(size=settings.components)
    owner = np.empty(len(table), dtype=np.intp)
    for label in np.unique(numbers):
        rows = np.flatnonzero(numbers == label)
        rows = rows[np.argsort(position[rows], kind="stable")]
        owner[rows] = np.arange(len(rows)) * settings.clients // len(rows)
    return owner


@_OWNERS.of(Labels)
def labels(table: Table, settings: Labels, random: np.random.Generator) -> Owner:
    """See :class:`Labels`."""
    numbers = _labels(table, "labels")
    present = np.unique(numbers)
    if settings.labels > len(present):
        raise FedpingError(
            f"a client cannot have {settings.labels} of {len(present)} labels; set 'labels' to {len(present)} at most"
        )
    if settings.clients * settings.labels < len(present):
        raise FedpingError(
            f"{settings.clients} clients with {settings.labels} labels each leave some of {len(present)} labels to "
            "nobody; set more clients or more labels"
        )
    has = _given_labels(settings, len(present), random)
    owner = np.empty(len(table), dtype=np.intp)
    for position, label in enumerate(present):
        rows = random.permutation(np.flatnonzero(numbers == label))
        holders = random.permutation(np.flatnonzero(has[:, position]))
        owner[rows] = holders[np.arange(len(rows)) % len(holders)]
    return owner


@_OWNERS.of(Dirichlet)
def dirichlet(table: Table, settings: Dirichlet, random: np.random.Generator) -> Owner:
    """See :class:`Dirichlet`."""
    numbers = _labels(table, "dirichlet")
    owner = np.empty(len(table), dtype=np.intp)
    for label in np.unique(numbers):
        rows = random.permutation(np.flatnonzero(numbers == label))
        ends = np.cumsum(random.dirichlet(np.full(settings.clients, settings.alpha)))
        # Evenly spaced points with a common random shift: each client gets its share, rounded up or down.
        points = (np.arange(len(rows)) + random.random()) / len(rows)
        owner[rows] = np.minimum(np.searchsorted(ends, points, side="right"), settings.clients - 1)
    return owner


def _given_labels(settings: Labels, labels: int, random: np.random.Generator) -> NDArray[np.bool_]:
    """Return whether each client has each label, shape (clients, labels); each takes the least assigned labels."""
    has = np.zeros((settings.clients, labels), dtype=np.bool_)
    holders = np.zeros(labels)
    for client in random.permutation(settings.clients):
        fewest = np.lexsort((random.random(labels), holders))[: settings.labels]
        has[client, fewest] = True
        holders[fewest] += 1
    return has


def _labels(table: Table, way: str) -> NDArray[np.int64]:
    if not table.target.is_class:
        raise FedpingError(
            f"the partition '{way}' goes by classes, but the target '{table.target.name}' is a number; choose another"
        )
    return table.y


@_OWNERS.of(OwnPartition)
def own(table: Table, settings: OwnPartition, random: np.random.Generator) -> Owner:
    """Return the client of each row, -1 for none, from a user's function of (table, random).

    A class has a method ``owners`` with these arguments.

    Raises:
        ExtensionFailed: the function raises, or returns something else.
    """
    extension = extension_of(settings)
    owner = extension.made(settings.settings, table, random)
    if isinstance(extension.make, type):
        with extension.guarded():
            owner = owner.owners(table, random)
    owner = np.asarray(owner)
    if owner.shape != (len(table),) or owner.dtype.kind not in "iu":
        raise ExtensionFailed(
            f"{extension}, an extension, returned an array of shape {owner.shape} and type {owner.dtype} for "
            f"{len(table):,} rows; return the number of a client for each"
        )
    if owner.min(initial=NOBODY) < NOBODY or owner.max(initial=NOBODY) >= max(len(table), 1):
        raise ExtensionFailed(
            f"{extension}, an extension, returned clients from {owner.min()} to {owner.max()} for {len(table):,} rows; "
            "number clients from 0, without gaps, and return -1 for a row that belongs to no client"
        )
    return owner.astype(np.intp)


def partition(table: Table, settings: Partition, seed: int) -> Parts:
    """Return the division of a table's rows among clients.

    Raises:
        FedpingError: the table doesn't allow the partition: too few rows, no classes, or no natural key.
    """
    owner = _OWNERS[type(settings)](table, settings, generator(seed, "partition"))
    if isinstance(settings, ByKey):
        keys = keys_of_clients(table, settings)
        return parts_of(owner, len(keys), settings.least, keys)
    if isinstance(settings, OwnPartition):
        return parts_of(owner, int(owner.max(initial=-1)) + 1, least=1)
    clients = int(owner.max()) + 1 if isinstance(settings, FixedSize) else settings.clients
    return parts_of(owner, clients, settings.least)


__all__ = [
    "ByKey",
    "Dirichlet",
    "FixedSize",
    "Iid",
    "Labels",
    "Partition",
    "Parts",
    "PowerLaw",
    "RandomSizes",
    "Shards",
    "Topics",
    "partition",
]
