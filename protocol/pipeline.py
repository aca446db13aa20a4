"""What the server does with a round's pings, as settings: which pings count how much, and which optimizer steps.

These are values only; the arithmetic that they choose lives with the server. They are part of the study, so that a
version's lineage can name them by digest and the version can be computed again.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from protocol.errors import InvalidSettings
from protocol.spec import Positive


class RProp(Struct, frozen=True, forbid_unknown_fields=True, tag_field="optimizer", tag="rprop"):
    """Resilient propagation (thesis 3.5, eqs. 3 and 4); each weight's step sizes come from the model spec.

    ``rate_rounding`` rounds the adapted step size to whole numbers and stores it rounded, as the published simulation
    did (``half_even``); ``none`` keeps it as it is.
    """

    alpha: Annotated[float, Meta(gt=1, le=100)] = 1.2
    beta: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    rate_rounding: Literal["none", "half_even", "half_up"] = "none"


class GradientDescent(Struct, frozen=True, forbid_unknown_fields=True, tag_field="optimizer", tag="gradient_descent"):
    """A step of ``rate`` times the mean update; the plain baseline (thesis 2.2)."""

    rate: Positive = 1.0


Optimizer: TypeAlias = RProp | GradientDescent


class Pipeline(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one round turns the pings of version n into version n + 1.

    ``weighting`` is what one vote is. With ``client`` every client counts once, however many pings it sent: its update
    is the mean of its pings' updates. With ``ping`` every ping counts once.
    ``min_clients`` is how many different clients must have sent a usable update before a step is taken.
    """

    optimizer: Optimizer = RProp()
    weighting: Literal["client", "ping"] = "client"
    min_clients: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 100

    def __post_init__(self) -> None:
        if self.min_clients < 1:
            raise InvalidSettings("min_clients must be at least 1; a round cannot step on nobody's update")
