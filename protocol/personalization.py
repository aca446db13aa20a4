"""Settings for personal models: weights, or a part of a model, that stay with a client and are never sent.

They are part of a line's training and published with it, for clients need them; rounds do not. Symbols are those of
thesis chapter 6: w are the shared weights of a version, P the weights of a client's own model, v its vector.
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
"""Names of single weights, or of blocks, which stand for all of theirs; as many as a model may have blocks."""

NumberOfSteps: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]
NumberOfExamples: TypeAlias = Annotated[int, Meta(ge=1)]


def _is_not_in_browsers(optimizer: LocalOptimizer) -> bool:
    return not isinstance(optimizer, LocalDescent | LocalRProp)


class FineTune(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="fine_tune"):
    """A model of the client's own, which begins as the shared one (transfer learning, thesis 6.2).

    From version ``from_version`` on, a training takes ``steps`` of size ``rate`` from where the last one ended, each
    along the gradient on ``batch`` examples, on all if None. The ``frozen`` weights are always those of the version.
    ``proximal`` is λ of Ditto (Li et al. 2021), which pulls P towards w; 0 does not. A client that ``shares`` goes on
    to send updates of w, computed at w; else it sends none from then on.
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
        """What it is (`fedping.protocol.rules`)."""
        return traits_where(
            {
                "personal": True,
                "frozen weights": bool(self.frozen),
                "leaves at once": not self.from_version and not self.proximal,
                "not in browsers": _is_not_in_browsers(self.optimizer),
            }
        )


class Vector(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="vector"):
    """A vector v of the client's own, with which it predicts by w + U v (the personal vector of thesis 6.3).

    With the basis ``identity``, v is added to the weights ``on``, and to all if that is empty; with ``random``, U has
    entries of N(0, 1) / √size in the rows of these weights, from ``seed``, and is the same for everybody. ``size`` is
    how many numbers v has; those of ``on`` if None.

    From version ``from_version`` on, a client trains v and w in turn: v by ``steps`` of size ``rate``, when it sends
    nothing, and w at v = 0. Who begins with which is drawn, so that about half of the clients send at any time. With
    ``in_step`` everybody has the same turn, as in the thesis, and every second round has no updates.
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
        """What it is (`fedping.protocol.rules`)."""
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

    They start as the model starts them. A training moves both parts ``together``, as FedPer does (Arivazhagan et al.
    2019), or takes ``steps`` of the ``local`` blocks first, with w as fetched, and then trains w beside these, as does
    FedRep (Collins et al. 2021). ``rate`` is the size of the local blocks' steps.
    """

    traits: ClassVar[Traits] = frozenset({"personal", "local blocks", "not in browsers"})

    local: Annotated[NamesOfWeights, Meta(min_length=1)]
    rate: Positive
    order: Literal["together", "local_first"] = "together"
    steps: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None

    def __post_init__(self) -> None:
        if (self.order == "local_first") != (self.steps is not None):
            raise UnfitTable(
                "'steps' of a partly local model are those of its local blocks before the others; give them with order "
                '= "local_first", and only then'
            )


class Reconstruct(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="reconstruct"):
    """Blocks that a client fits each time, and neither keeps nor sends (FedRecon, Singhal et al. 2021).

    A training divides the client's examples: on a share ``support`` of them the ``local`` blocks take ``steps`` of size
    ``rate`` from their start; on the others w is trained beside these. For predictions they are fitted on all examples.
    """

    traits: ClassVar[Traits] = frozenset({"personal", "local blocks", "not in browsers"})

    local: Annotated[NamesOfWeights, Meta(min_length=1)]
    rate: Positive
    steps: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    support: Annotated[float, Meta(gt=0, lt=1)] = 0.5


class Expert(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="expert"):
    """A mixture of the shared model with the client's own model, by the client's own gate (Peterson et al. 2019).

    From version ``from_version`` on, a client predicts a(x) M(x; w) + (1 - a(x)) M(x; P), with a(x) = σ(g·x + b). P
    begins as w, g as 0 and b as ``gate_start``. All three move along gradients on the same examples in the same step:
    w by what the client sends, P by steps of size ``private_rate`` and the gate of size ``gate_rate``, both with a
    penalty of ``l2``. If ``joint``, w's gradient is that of the mixture; else that of the shared model's own loss.

    ``clip`` is the most that an example's gradient by w may be long, and noise of standard deviation ``noise`` times
    ``clip`` is added to their sum.
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
            raise UnfitTable("'noise' is in units of 'clip'; give the most that an example's gradient may be long")


Personalization: TypeAlias = FineTune | Vector | PartlyLocal | Reconstruct | Expert
