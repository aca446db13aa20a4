"""Settings of client optimizers, which step along a client's own gradients.

The server's optimizers are in `fedping.protocol.pipeline`; they step once a round, along the mean update.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.rules import Traits, traits_where
from fedping.protocol.weights import Positive, Step

Kept: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
"""Share of an average that is kept when a new value arrives."""


class LocalDescent(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="optimizer", tag="gradient_descent"
):
    """Plain gradient descent: a step is the rate times the gradient."""


class LocalMomentum(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="optimizer", tag="momentum"
):
    """Momentum (heavy ball, Polyak 1964) on the client: ``beta`` of the velocity is kept, and the step is the velocity.

    Attributes:
        beta: share of the velocity that is kept.
        nesterov: whether a step uses the velocity after a second identical gradient.
        keep: whether a training starts with the velocity at the end of the previous one; else it starts at zero.
    """

    beta: Kept = 0.9
    nesterov: bool = False
    keep: bool = False

    @property
    def traits(self) -> Traits:
        """Traits of the optimizer (`fedping.protocol.rules`)."""
        return traits_where({"steps along gradients": True, "keeps memory": self.keep})


class LocalRMSProp(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="optimizer", tag="rmsprop"):
    """RMSprop (Hinton 2012) on the client: a gradient over the root of the running mean of the gradients' squares.

    Attributes:
        beta: share of the running mean that is kept.
        epsilon: added to the root.
        keep: whether the mean lasts from one training to the next; else every training starts without it.
    """

    beta: Kept = 0.9
    epsilon: Positive = 1e-7
    keep: bool = False

    @property
    def traits(self) -> Traits:
        """Traits of the optimizer (`fedping.protocol.rules`)."""
        return traits_where({"steps along gradients": True, "uneven steps": True, "keeps memory": self.keep})


class LocalAdam(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="optimizer", tag="adam"):
    """Adam (Kingma and Ba 2015) on the client, with its bias correction.

    Attributes:
        beta1: share of the running mean of gradients that is kept.
        beta2: share of the running mean of their squares that is kept.
        epsilon: added to the root.
        keep: whether both means last from one training to the next; else every training starts without them.
    """

    beta1: Kept = 0.9
    beta2: Kept = 0.999
    epsilon: Positive = 1e-8
    keep: bool = False

    @property
    def traits(self) -> Traits:
        """Traits of the optimizer (`fedping.protocol.rules`)."""
        return traits_where({"steps along gradients": True, "uneven steps": True, "keeps memory": self.keep})


class LocalRProp(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="optimizer", tag="rprop"):
    """Resilient propagation on the client (thesis 3.5, eqs. 3 and 4), like the server's RProp on a round's mean.

    The training's rate multiplies the step; 1 is usual.

    Attributes:
        alpha: factor on a weight's step size while the sign of its gradient stays.
        beta: factor on a weight's step size when the sign turns.
        step: start and bounds of the step sizes.
        keep: whether sizes and signs last from one training to the next. Else every training starts without them, and a
            training of a single step adapts nothing.
    """

    alpha: Annotated[float, Meta(gt=1, le=100)] = 1.2
    beta: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    step: Step = Step(start=0.1, min=1e-6, max=50.0)
    keep: bool = False

    @property
    def traits(self) -> Traits:
        """Traits of the optimizer (`fedping.protocol.rules`)."""
        return traits_where({"steps along gradients": True, "uneven steps": True, "keeps memory": self.keep})

    def __post_init__(self) -> None:
        self.step.check("the client optimizer 'rprop'")


LocalOptimizer: TypeAlias = LocalDescent | LocalMomentum | LocalRMSProp | LocalAdam | LocalRProp
