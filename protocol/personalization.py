"""Settings for personal models: weights, or a part of a model, that stay with a client and are never sent.

These settings are part of a line's training and published with it, because clients need them; rounds do not. Symbols
(thesis chapter 6): w are the shared weights of a version, P the weights of a client's own model, v the client's vector.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.errors import UnfitTable
from fedping.protocol.local_optimizers import LocalDescent, LocalOptimizer, LocalRProp
from fedping.protocol.rules import Traits, traits_where
from fedping.protocol.weights import Positive, Seed

Version: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
NamesOfWeights: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=80)], ...], Meta(max_length=10_000)
]
"""Names of single weights or of blocks (for all weights of the block); at most as many as a model may have blocks."""

NumberOfSteps: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]
NumberOfExamples: TypeAlias = Annotated[int, Meta(ge=1)]


def _is_not_in_browsers(optimizer: LocalOptimizer) -> bool:
    return not isinstance(optimizer, LocalDescent | LocalRProp)


class FineTune(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="fine_tune"):
    """A client's own model, which starts from the shared one (transfer learning, thesis 6.2).

    Attributes:
        rate: step size.
        from_version: version from which on clients train their own models. Each training continues where the previous
            one ended.
        steps: number of gradient steps in a training.
        batch: number of examples for a step's gradient; all if None.
        frozen: names of weights that always keep the version's values.
        proximal: λ of Ditto (Li et al. 2021), which pulls P towards w; 0 disables it.
        optimizer: how a step follows from a gradient.
        shares: whether clients continue to send updates of w, computed at w; else they send none from ``from_version``
            on.
    """

    rate: Positive
    from_version: Version = 0
    steps: NumberOfSteps = 1
    batch: NumberOfExamples | None = None
    frozen: NamesOfWeights = ()
    proximal: Annotated[float, Meta(ge=0, le=1e30)] = 0.0
    optimizer: LocalOptimizer = LocalDescent()
    shares: bool = True

    @property
    def traits(self) -> Traits:
        """Traits of these settings (`fedping.protocol.rules`)."""
        return traits_where(
            {
                "personal": True,
                "frozen weights": bool(self.frozen),
                "leaves at once": not self.from_version and not self.proximal,
                "not in browsers": _is_not_in_browsers(self.optimizer),
            }
        )


class Vector(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="vector"):
    """A client's own vector v; the client predicts with the weights w + U v (the personal vector of thesis 6.3).

    From ``from_version`` on, a client alternates: in one turn it trains v by gradient steps and sends nothing, in the
    next it trains w at v = 0.

    Attributes:
        rate: step size.
        from_version: version from which on clients train v.
        size: number of entries of v; None for the number of weights in ``on``.
        basis: with ``identity``, v is added to the weights ``on``; with ``random``, U has entries of N(0, 1) / √size in
            the rows of these weights, from ``seed``, and is the same for all clients.
        on: names of the weights that v changes; all if empty.
        seed: seed of the random basis.
        steps: number of gradient steps for v in a training.
        batch: number of examples for a step's gradient; all if None.
        optimizer: how a step follows from a gradient.
        in_step: whether all clients have the same turn, as in the thesis, so that every second round has no updates.
            Else each client's first turn is drawn, so that about half of the clients send at any time.
    """

    rate: Positive
    from_version: Version = 0
    size: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    basis: Literal["identity", "random"] = "identity"
    on: NamesOfWeights = ()
    seed: Seed = 0
    steps: NumberOfSteps = 1
    batch: NumberOfExamples | None = None
    optimizer: LocalOptimizer = LocalDescent()
    in_step: bool = False

    @property
    def traits(self) -> Traits:
        """Traits of these settings (`fedping.protocol.rules`)."""
        return traits_where(
            {
                "personal": True,
                "vector": True,
                "in step": self.in_step,
                "not in browsers": _is_not_in_browsers(self.optimizer),
            }
        )


class PartlyLocal(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="partly_local"):
    """Blocks of the model that always stay with the client, outside of versions and updates.

    Attributes:
        local: names of the blocks, which start at the model's start values.
        rate: step size of these blocks.
        order: ``together`` trains both parts at once, as in FedPer (Arivazhagan et al. 2019). ``local_first`` trains
            the local blocks with w as fetched, and then w with these blocks, as in FedRep (Collins et al. 2021).
        steps: number of steps of the local blocks with ``local_first``.
    """

    traits: ClassVar[Traits] = frozenset({"personal", "local blocks", "not in browsers"})

    local: Annotated[NamesOfWeights, Meta(min_length=1)]
    rate: Positive
    order: Literal["together", "local_first"] = "together"
    steps: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None

    def __post_init__(self) -> None:
        if (self.order == "local_first") != (self.steps is not None):
            raise UnfitTable(
                "'steps' of a partly local model are the steps of its local blocks before the others. "
                'Give them only with order = "local_first"'
            )


class Reconstruct(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="reconstruct"):
    """Blocks that a client fits anew in each training, and neither keeps nor sends (FedRecon, Singhal et al. 2021).

    For predictions, the blocks are fitted on all of a client's examples.

    Attributes:
        local: names of the blocks.
        rate: step size of these blocks.
        steps: number of steps from their start values in a training.
        support: share of a client's examples for fitting the blocks; w is then trained with them on the other examples.
    """

    traits: ClassVar[Traits] = frozenset({"personal", "local blocks", "not in browsers"})

    local: Annotated[NamesOfWeights, Meta(min_length=1)]
    rate: Positive
    steps: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    support: Annotated[float, Meta(gt=0, lt=1)] = 0.5


class Expert(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="expert"):
    """A mixture of the shared model and the client's own, weighted by the client's own gate (Peterson et al. 2019).

    From ``from_version`` on, a client predicts a(x) M(x; w) + (1 - a(x)) M(x; P), with a(x) = σ(g·x + b). P starts at
    w, g at 0 and b at ``gate_start``. In each step, P, g and b follow their gradients on the same examples; the client
    sends an update of w.

    Attributes:
        private_rate: step size of P.
        gate_rate: step size of the gate.
        from_version: version from which on clients have their own models.
        l2: penalty on P and the gate.
        gate_start: start value of b.
        joint: whether the gradient of w is the gradient of the mixture; else of the shared model's own loss.
        clip: maximum norm of an example's gradient by w.
        noise: standard deviation of the noise on the sum of these gradients, in units of ``clip``.
    """

    traits: ClassVar[Traits] = frozenset({"personal", "not in browsers"})

    private_rate: Positive
    gate_rate: Positive
    from_version: Version = 0
    l2: Annotated[float, Meta(ge=0, le=1e30)] = 0.1
    gate_start: Annotated[float, Meta(ge=-40, le=40)] = 0.0
    joint: bool = True
    clip: Positive | None = None
    noise: Annotated[float, Meta(ge=0, le=1e30)] = 0.0

    def __post_init__(self) -> None:
        if self.noise and self.clip is None:
            raise UnfitTable("'noise' is in units of 'clip'. Give 'clip', the maximum norm of an example's gradient")


Personalization: TypeAlias = FineTune | Vector | PartlyLocal | Reconstruct | Expert
