"""Settings with which the server decides when an iteration ends and when training stops early.

These settings belong to the line, so `fedping round`, `fedping schedule` and `fedping simulate` all use them. Without
them, an iteration ends with the next round that finds enough clients, and training continues as long as rounds run.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.rules import Traits

Minutes: TypeAlias = Annotated[float, Meta(ge=0, le=525_600)]
"""A duration in minutes, up to a year."""


class EarlyStop(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Early stopping by validation loss (thesis 3.4): when training stops, and which version is kept.

    The validation loss of version n is the mean loss of an arm while n was current. For an arm that submits, it comes
    from the same pings that then train n + 1. To validate on other clients, name an arm that applies the model and does
    not submit. When training stops, the best version is published again under the next number.

    Attributes:
        arm: arm whose loss decides.
        patience: training stops when the lowest loss is this many versions old. Only versions whose loss counts are
            counted.
        smooth: losses are averaged over this many of the last versions whose loss counts.
        rise: training also stops as soon as the newest loss exceeds the lowest loss by more than this share of the
            lowest loss; None disables this.
        examples: minimum number of examples for a version's loss to count.
    """

    digest_name: ClassVar[str] = "EarlyStop"

    arm: str
    patience: Annotated[int, Meta(ge=1)] = 20
    smooth: Annotated[int, Meta(ge=1)] = 5
    rise: Annotated[float, Meta(ge=0, le=10)] | None = None
    examples: Annotated[int, Meta(ge=1)] = 1


class IterationByTime(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="time"):
    """An iteration lasts ``minutes``, regardless of how often rounds run."""

    minutes: Minutes

    @property
    def least(self) -> float:
        """The minimum duration in minutes."""
        return self.minutes

    @property
    def most(self) -> float:
        """The maximum duration in minutes."""
        return self.minutes


class _Iteration(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    least: Minutes = 0.0
    most: Minutes = 1440.0

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise InvalidSettings(
                f"an iteration cannot last at least {self.least:g} and at most {self.most:g} minutes; correct 'least' "
                "or 'most' of 'length'"
            )


class IterationByClients(
    _Iteration, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="clients"
):
    """An iteration ends when enough clients have sent a usable update (thesis 7.5).

    Attributes:
        least: minimum duration in minutes.
        most: maximum duration in minutes.
        clients: number of clients with a usable update.
    """

    traits: ClassVar[Traits] = frozenset({"ends by updates"})

    clients: Annotated[int, Meta(ge=1)]


class IterationBySigns(_Iteration, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="signs"):
    """An iteration ends when the signs of the mean update are stable (thesis 7.5), because RProp uses only these.

    A sign is stable when the mean is at least ``z`` standard errors from 0, or when all updates of that weight are 0.

    Attributes:
        least: minimum duration in minutes.
        most: maximum duration in minutes.
        z: minimum distance of a stable mean from 0, in standard errors.
        share: share of the signs that must be stable.
    """

    traits: ClassVar[Traits] = frozenset({"ends by updates", "reads each update"})

    z: Annotated[float, Meta(gt=0, le=100)] = 2.0
    share: Annotated[float, Meta(gt=0, le=1)] = 0.8


IterationLength: TypeAlias = IterationByTime | IterationByClients | IterationBySigns
