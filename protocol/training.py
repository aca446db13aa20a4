"""How a client computes its update from the model that it fetched and from its own data, as settings.

They are part of a study's line and are published with it, for clients need them; the arithmetic lives with the client.
Whatever the algorithm, the update is a direction that the server **adds** (`fedping.protocol.ping`).
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

    ``batch`` is how many of its examples a client draws for it, all if None. ``sign`` sends only the signs of it
    (thesis 4.4), each as a number; the upload link `sign` sends them as bits (`fedping.protocol.upload`). ``personal``
    is what the client keeps of a model for itself (`fedping.protocol.personalization`); nothing if None.
    """

    digest_name: ClassVar[str] = "OneGradient"

    batch: Annotated[int, Meta(ge=1)] | None = None
    sign: bool = False
    personal: Personalization | None = None

    @property
    def traits(self) -> Traits:
        """What it and its parts are (`fedping.protocol.rules`)."""
        return traits_of(self.personal) | traits_where({"gradient": True, "sends signs": self.sign})


class LocalSteps(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="algorithm", tag="local"):
    """Several steps of gradient descent on the client; the update is how far the weights have moved in all.

    That is FedAvg (McMahan et al. 2017) with ``epochs``, or FedGD+ with ``steps`` and no ``batch``; just one of the two
    is given. An epoch goes once through the client's examples in shuffled batches of ``batch`` (all at once if None).
    ``rate`` is the size of a step. ``optimizer`` is what makes a step of a gradient. ``proximal`` is μ of FedProx (Li
    et al. 2020), which pulls the weights back to the fetched model; 0 does not. ``sign`` sends only the signs of the
    movement. ``structured`` trains within what the line's upload link sends, a mask or a low rank (thesis 4.3), instead
    of leaving out of a whole movement what it does not. ``personal`` is as in :class:`OneGradient`.

    Raises:
        InvalidSettings: both or none of epochs and steps are given, or a structured training sends signs, or goes on
            with what an optimizer has kept, which is not within what the next update sends.
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
        """What it and its parts are (`fedping.protocol.rules`)."""
        own: dict[Trait, bool] = {"local steps": True, "sends signs": self.sign, "structured": self.structured}
        return traits_of(self.optimizer) | traits_of(self.personal) | traits_where(own)

    def __post_init__(self) -> None:
        if self.epochs is None and self.steps is None:
            raise UnfitTable("local training needs 'epochs' or 'steps'; give one of them")
        if self.epochs is not None and self.steps is not None:
            raise UnfitTable("local training has both 'epochs' and 'steps'; leave one of them out")
        check("training", Parts(self.traits), error=UnfitTable)


class OwnTraining(Own, frozen=True, tag_field="algorithm", tag=OWN):
    """A client algorithm of somebody's own package (:mod:`fedping.protocol.extensions`)."""

    kind = "client_algorithm"
    traits: ClassVar[Traits] = frozenset({"own training"})

    @property
    def declared_traits(self) -> Traits:
        """Its traits with those that its class declares; an algorithm that is not installed declares none."""
        extension = registered(self.kind, self.name)
        adds_mean = extension is not None and bool(getattr(extension.make, "adds_mean", False))
        return self.traits | traits_where({"adds the mean": adds_mean})


Training: TypeAlias = OneGradient | LocalSteps | OwnTraining


def may_send_nothing_from(training: Training) -> int | None:
    """Return the first version on which a training in a personal arm may give no update, None if each gives one.

    Of an own algorithm nobody knows, so that any may, also one at the weights from before the first version.
    """
    if isinstance(training, OwnTraining):
        return NO_VERSION
    personal = training.personal
    if isinstance(personal, Vector) or (isinstance(personal, FineTune) and not personal.shares):
        return personal.from_version
    return None
