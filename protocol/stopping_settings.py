"""When an iteration of a line ends, and when its training does, as settings; the server decides by them.

They are the line's own, so `fedping round`, `fedping schedule` and `fedping simulate` all go by them. Without them an
iteration ends with the next round that finds enough clients, and training goes on for as long as rounds are run.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.rules import Traits

Minutes: TypeAlias = Annotated[float, Meta(ge=0, le=525_600)]
"""A time, up to a year."""


class EarlyStop(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When training stops by validation (thesis 3.4), and which version is kept.

    The validation loss of version n is the mean loss of arm ``arm`` while n was current: for an arm that submits, on
    the very pings that train n + 1, before they do; for split cohorts name an arm that applies the model and does not
    submit. It counts if it is of at least ``examples`` examples, and is averaged over the last ``smooth`` versions
    whose loss counts. Training stops when the lowest is ``patience`` such versions old, or, if ``rise`` is given, as
    soon as the newest is above the lowest by more than that share of it. The best version is then published again, as
    the next number.
    """

    digest_name: ClassVar[str] = "EarlyStop"

    arm: str
    patience: Annotated[int, Meta(ge=1)] = 20
    smooth: Annotated[int, Meta(ge=1)] = 5
    rise: Annotated[float, Meta(ge=0, le=10)] | None = None
    examples: Annotated[int, Meta(ge=1)] = 1


class IterationByTime(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="time"):
    """An iteration lasts ``minutes``, however often rounds are run."""

    minutes: Minutes

    @property
    def least(self) -> float:
        """How long it lasts in any case."""
        return self.minutes

    @property
    def most(self) -> float:
        """After how long it ends in any case."""
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
    """An iteration ends when so many clients have sent a usable update (thesis 7.5).

    It lasts ``least`` minutes in any case, and ``most`` minutes at the longest.
    """

    traits: ClassVar[Traits] = frozenset({"ends by updates"})

    clients: Annotated[int, Meta(ge=1)]


class IterationBySigns(_Iteration, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="signs"):
    """An iteration ends when the signs of the mean update are stable (thesis 7.5), for they are all that RProp uses.

    A sign is stable when the mean is at least ``z`` standard errors from 0, or when all updates of that weight are 0.
    The share of stable signs has to be ``share``. It lasts ``least`` minutes in any case, and ``most`` at the longest.
    """

    traits: ClassVar[Traits] = frozenset({"ends by updates", "reads each update"})

    z: Annotated[float, Meta(gt=0, le=100)] = 2.0
    share: Annotated[float, Meta(gt=0, le=1)] = 0.8


IterationLength: TypeAlias = IterationByTime | IterationByClients | IterationBySigns
