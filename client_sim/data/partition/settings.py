"""The ways to divide a table among clients, as settings.

Every way takes ``least``: a client with fewer examples is dropped with its rows, and both are counted in
:class:`fedping.client_sim.data.partition.Parts`. Only :class:`FixedSize` leaves out other rows.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.extensions import OWN, Own
from fedping.protocol.spec import Positive

Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Iid(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="iid"):
    """At random, in sizes that differ by at most one: all clients' data are alike."""

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
    """By the natural key of the rows, such as a user or a country: one client per key, in the order of the keys.

    With ``pieces`` each key's rows are dealt at random to that many clients. With ``keys`` so many keys are clients,
    drawn at random among those with enough rows, and the rows of the others are nobody's.
    """

    digest_name: ClassVar[str] = "ByKey"

    pieces: Count = 1
    keys: Count | None = None
    least: Count = 1


class PowerLaw(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="power_law"):
    """At random, in sizes that fall as 1/rank^exponent: few clients have many rows, most have few, at least one."""

    digest_name: ClassVar[str] = "PowerLaw"

    clients: Count
    exponent: Positive = 1.0
    least: Count = 1


class RandomSizes(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="random_sizes"
):
    """At random, in sizes whose shares are drawn from Dirichlet(α), at least one row; the smaller α, the less even."""

    digest_name: ClassVar[str] = "RandomSizes"

    clients: Count
    alpha: Positive = 1.0
    least: Count = 1


class FixedSize(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="fixed_size"):
    """At random, ``examples`` per client; ``clients`` is as many as the rows allow if None. Others are left out."""

    digest_name: ClassVar[str] = "FixedSize"

    examples: Count
    clients: Count | None = None
    least: Count = 1


class Topics(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="partition", tag="topics"):
    """By a random direction of the features, with the same share of every class for everybody.

    The direction is one of the first ``components`` principal components, each divided by its deviation. Each class is
    sorted along it and cut into as many parts as there are clients, and every client gets a part of each. So clients
    differ in what their examples are about, and not in how many are of a class.
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
