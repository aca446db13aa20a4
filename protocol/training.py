"""Settings for a client's computation on the fetched model and its own data.

They are part of a study's line and published with it, because clients implement the computation. With every algorithm,
the update is a direction that the server **adds** (`fedping.protocol.ping`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.errors import UnfitTable
from fedping.protocol.extensions import OWN, Own, registered
from fedping.protocol.local_optimizers import LocalDescent, LocalOptimizer
from fedping.protocol.personalization import FineTune, Personalization, Vector
from fedping.protocol.ping import NO_VERSION
from fedping.protocol.rules import Parts, Trait, Traits, check, traits_of, traits_where
from fedping.protocol.spec import Positive


class OneGradient(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="algorithm", tag="gradient"):
    """The direction of descent at the fetched model: FedSGD, the basic FedGD (McMahan et al. 2017; thesis 1.3).

    Attributes:
        batch: number of its own examples that a client draws for the gradient; all if None.
        sign: whether only signs are sent (thesis 4.4), each as a number; the upload link `sign` sends them as bits
            (`fedping.protocol.upload`).
        personal: the part of a model that the client keeps for itself (`fedping.protocol.personalization`); nothing if
            None.
    """

    digest_name: ClassVar[str] = "OneGradient"

    batch: Annotated[int, Meta(ge=1)] | None = None
    sign: bool = False
    personal: Personalization | None = None

    @property
    def traits(self) -> Traits:
        """Traits of this training and its parts (`fedping.protocol.rules`)."""
        return traits_of(self.personal) | traits_where({"gradient": True, "sends signs": self.sign})


class LocalSteps(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="algorithm", tag="local"):
    """Several steps of gradient descent on the client; the update is the total movement of the weights.

    With ``epochs`` this is FedAvg (McMahan et al. 2017), with ``steps`` and no ``batch`` FedGD+; give exactly one of
    ``epochs`` and ``steps``.

    Attributes:
        rate: size of a step.
        epochs: number of passes through the client's examples, in shuffled batches.
        steps: number of steps.
        batch: number of examples in a batch; all if None.
        proximal: μ of FedProx (Li et al. 2020), which pulls the weights back to the fetched model; 0 disables it.
        sign: whether only the signs of the movement are sent.
        optimizer: how a step follows from a gradient.
        structured: whether clients move only in directions that the line's upload link can send, a mask or a low rank
            (thesis 4.3). Else they train all weights, and the link drops the rest.
        personal: the part of a model that the client keeps for itself (`fedping.protocol.personalization`); nothing if
            None.

    Raises:
        InvalidSettings: both or none of ``epochs`` and ``steps`` are given; or a structured training sends signs, or
            keeps optimizer memory, which the next update's directions don't include.
    """

    digest_name: ClassVar[str] = "LocalSteps"

    rate: Positive
    epochs: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    steps: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    batch: Annotated[int, Meta(ge=1)] | None = None
    proximal: Annotated[float, Meta(ge=0, le=1e30)] = 0.0
    sign: bool = False
    optimizer: LocalOptimizer = LocalDescent()
    structured: bool = False
    personal: Personalization | None = None

    @property
    def traits(self) -> Traits:
        """Traits of this training and its parts (`fedping.protocol.rules`)."""
        own: dict[Trait, bool] = {"local steps": True, "sends signs": self.sign, "structured": self.structured}
        own["proximal"] = self.proximal > 0
        return traits_of(self.optimizer) | traits_of(self.personal) | traits_where(own)

    def __post_init__(self) -> None:
        if self.epochs is None and self.steps is None:
            raise UnfitTable("local training needs 'epochs' or 'steps'; give one of them")
        if self.epochs is not None and self.steps is not None:
            raise UnfitTable("local training has both 'epochs' and 'steps'; leave one of them out")
        check("training", Parts(self.traits), error=UnfitTable)


class OwnTraining(Own, frozen=True, tag_field="algorithm", tag=OWN):
    """A client algorithm from another package (:mod:`fedping.protocol.extensions`)."""

    kind = "client_algorithm"
    traits: ClassVar[Traits] = frozenset({"own training"})

    @property
    def declared_traits(self) -> Traits:
        """Its own traits and those that its class declares; an algorithm that is not installed declares none."""
        extension = registered(self.kind, self.name)
        adds_mean = extension is not None and bool(getattr(extension.make, "adds_mean", False))
        return self.traits | traits_where({"adds the mean": adds_mean})


Training: TypeAlias = OneGradient | LocalSteps | OwnTraining


def may_send_nothing_from(training: Training) -> int | None:
    """Return the first version for which training in a personal arm may yield no update; None if it always yields one.

    A user's algorithm may yield no update at any time, even at the weights before the first version.
    """
    if isinstance(training, OwnTraining):
        return NO_VERSION
    personal = training.personal
    if isinstance(personal, Vector) or (isinstance(personal, FineTune) and not personal.shares):
        return personal.from_version
    return None
