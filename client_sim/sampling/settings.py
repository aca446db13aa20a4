"""Who takes part in a round (thesis 3.2), as settings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.extensions import OWN, Own
from fedping.protocol.rules import Traits

Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class All(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="all"):
    """Every client."""

    traits: ClassVar[Traits] = frozenset({"all clients"})


class Uniform(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="uniform"):
    """``clients`` different ones, all equally likely."""

    traits: ClassVar[Traits] = frozenset({"equal parts"})

    clients: Count


class Bernoulli(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="bernoulli"):
    """Each client independently with probability ``share``; their number is random and may be zero."""

    digest_name: ClassVar[str] = "Bernoulli"
    traits: ClassVar[Traits] = frozenset({"by coin"})

    share: Annotated[float, Meta(gt=0, le=1)] = 0.1


class BySize(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="by_size"):
    """``clients`` drawn one by one, each time with probability n_i/n: the simple sampling of thesis 3.1 and 3.2.

    A client may be drawn repeatedly; it then counts, and sends, that many times.
    """

    clients: Count


class Stratified(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="stratified"):
    """From each stratum in proportion to its size, ``clients`` in all (thesis 3.2); strata group similar clients.

    ``by`` defines the size. By ``clients`` each stratum is sampled as in :class:`Uniform`, by ``examples`` as in
    :class:`BySize`. A stratum's share that is not an integer is rounded up or down at random such that it is right on
    average, because any fixed rounding would favour some strata permanently.
    """

    digest_name: ClassVar[str] = "Stratified"

    clients: Count
    by: Literal["clients", "examples"] = "clients"


class Cluster(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="sampling", tag="cluster"):
    """``clusters`` different groups, all equally likely, and everyone in them (thesis 3.2)."""

    digest_name: ClassVar[str] = "Cluster"

    clusters: Count = 1


class OwnSampling(Own, frozen=True, tag_field="sampling", tag=OWN):
    """A sampling from your own package (:mod:`fedping.protocol.extensions`)."""

    kind = "sampling"
    traits: ClassVar[Traits] = frozenset({"equal parts"})


Sampling: TypeAlias = All | Uniform | Bernoulli | BySize | Stratified | Cluster | OwnSampling
