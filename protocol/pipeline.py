"""Settings for a round on the server: the weighting of pings, the aggregation and the optimizer.

These are only settings; the server implements the arithmetic. They are part of the study, so that a version's lineage
can name them by digest and the version can be recomputed.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import OWN, Own
from fedping.protocol.landing import APART
from fedping.protocol.rules import Parts, Trait, Traits, check, traits_of, traits_where
from fedping.protocol.spec import Positive

Share: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
"""A share of a whole, such as of the votes; or the share of an average that is kept when a new value arrives."""


class Quorum(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The share of the votes that must agree on a weight's sign before RProp follows it.

    Shares are relative to the maximum sum of all votes: if every update were at the clip bound and had only this
    weight. 0 for both ``decides`` and ``hastens`` disables the quorum.

    Attributes:
        decides: a weight whose mean is not above this share stays unchanged, so hostile clients with a smaller share
            can't turn a sign against the other clients' mean.
        hastens: while a sign stays, the step size grows only if the mean is above this share.
        slows: factor on a step size up to ``hastens``.
    """

    decides: Share = 0.01
    hastens: Share = 0.1
    slows: Annotated[float, Meta(gt=0, le=1)] = 0.9

    @property
    def enabled(self) -> bool:
        """Whether the quorum has any effect."""
        return self.decides > 0 or self.hastens > 0


class RProp(Struct, frozen=True, forbid_unknown_fields=True, tag_field="optimizer", tag="rprop"):
    """Resilient propagation (thesis 3.5, eqs. 3 and 4); each weight's step sizes are in the model spec.

    ``rate_rounding`` rounds the adapted step size to whole numbers and stores it rounded, as the published simulation
    did (``half_even``); ``none`` doesn't round. ``quorum`` sets the share of votes that must agree on a sign; without a
    quorum, the sign of the mean counts, even if the mean is tiny.
    """

    digest_name: ClassVar[str] = "RProp"

    alpha: Annotated[float, Meta(gt=1, le=100)] = 1.2
    beta: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    rate_rounding: Literal["none", "half_even", "half_up"] = "none"
    quorum: Quorum | None = None

    @property
    def traits(self) -> Traits:
        """Traits of these settings (`fedping.protocol.rules`)."""
        return traits_where({"quorum": self.quorum is not None and self.quorum.enabled})


Decay: TypeAlias = Literal["none", "1/sqrt(t)", "1/t"]
"""Factor of a rate in the t-th round with a step, counted from 1: 1, 1/√t or 1/t."""

FromZero: TypeAlias = Annotated[float, Meta(ge=0, le=1e30)]


class GradientDescent(Struct, frozen=True, forbid_unknown_fields=True, tag_field="optimizer", tag="gradient_descent"):
    """A step of ``rate`` times the mean update (thesis 2.2), whose rate may fall from round to round.

    If updates are the movements of local training, this is FedAvg with a server rate: with rate 1, the new weights are
    the mean of the clients' models (McMahan et al. 2017).
    """

    digest_name: ClassVar[str] = "GradientDescent"

    rate: Positive = 1.0
    decay: Decay = "none"

    @property
    def traits(self) -> Traits:
        """Traits of these settings (`fedping.protocol.rules`)."""
        return traits_where({"as it is": self.rate == 1.0 and self.decay == "none"})


class Momentum(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="optimizer", tag="momentum"):
    """Momentum (heavy ball, Polyak 1964): a velocity that keeps its share ``beta``, plus rate times mean update.

    The step is the velocity; with ``nesterov`` it is the velocity after a second identical update (Nesterov 1983). If
    updates are the movements of local training, this is FedAvgM (Hsu et al. 2019).
    """

    digest_name: ClassVar[str] = "Momentum"

    rate: Positive = 1.0
    decay: Decay = "none"
    beta: Share = 0.9
    nesterov: bool = False


class Adam(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="optimizer", tag="adam"):
    """Adam (Kingma and Ba 2015): the running mean of the updates over the root of the running mean of their squares.

    ``beta1`` and ``beta2`` are the shares of the two means that are kept, ``epsilon`` is added to the root, ``initial``
    is the start of the mean of the squares. Without ``bias_correction``, with ``epsilon`` τ and ``initial`` τ², it is
    the FedAdam of Reddi et al. 2021.

    Raises:
        InvalidSettings: ``bias_correction`` is used with a mean that does not begin at zero.
    """

    digest_name: ClassVar[str] = "Adam"

    rate: Positive = 0.001
    decay: Decay = "none"
    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Positive = 1e-8
    bias_correction: bool = True
    initial: FromZero = 0.0

    def __post_init__(self) -> None:
        _refuse_correcting_a_start(self.bias_correction, self.initial)


class Yogi(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="optimizer", tag="yogi"):
    """Yogi (Zaheer et al. 2018): Adam, except that its divisor approaches each new square by a bounded amount.

    The settings are the same as in :class:`Adam`, with the paper's defaults. With ``epsilon`` τ and ``initial`` τ² it
    is the FedYogi of Reddi et al. 2021.

    Raises:
        InvalidSettings: ``bias_correction`` is used with a mean that does not begin at zero.
    """

    digest_name: ClassVar[str] = "Yogi"

    rate: Positive = 0.01
    decay: Decay = "none"
    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Positive = 1e-3
    bias_correction: bool = False
    initial: FromZero = 1e-6

    def __post_init__(self) -> None:
        _refuse_correcting_a_start(self.bias_correction, self.initial)


class Adagrad(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="optimizer", tag="adagrad"):
    """Adagrad (Duchi et al. 2011): the update over the root of the sum of all squares so far, so that rates only fall.

    With ``beta1`` above 0, the running mean of the updates replaces the update. With ``epsilon`` τ and ``initial`` τ²
    it is the FedAdagrad of Reddi et al. 2021.
    """

    digest_name: ClassVar[str] = "Adagrad"

    rate: Positive = 0.01
    decay: Decay = "none"
    beta1: Share = 0.0
    epsilon: Positive = 1e-8
    initial: FromZero = 0.0


class OwnOptimizer(Own, frozen=True, tag_field="optimizer", tag=OWN):
    """An optimizer from another package (:mod:`fedping.protocol.extensions`)."""

    kind = "optimizer"


Optimizer: TypeAlias = RProp | GradientDescent | Momentum | Adam | Yogi | Adagrad | OwnOptimizer


def _refuse_correcting_a_start(bias_correction: bool, initial: float) -> None:
    if bias_correction and initial > 0:
        raise InvalidSettings(
            f"bias_correction makes up for a mean that began at zero, but 'initial' is {initial:g}; set initial = 0 or "
            "bias_correction = false"
        )


Weighting: TypeAlias = Literal["client", "ping", "examples"]


class Mean(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="mean"):
    """The weighted mean of the updates (thesis 7.2)."""

    traits: ClassVar[Traits] = frozenset({"mean"})


class MeanOfSigns(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="mean_of_signs"):
    """The weighted mean of the updates' signs, whose sign is the sign of the majority (thesis 4.4).

    With RProp, this is RProp by majority. The result is the same whether clients send updates or only their signs.
    ``zero`` is how a zero counts: not at all (``abstain``), or as positive (``up``), as in an encoding of one bit a
    sign.
    """

    digest_name: ClassVar[str] = "MeanOfSigns"

    zero: Literal["abstain", "up"] = "abstain"

    @property
    def traits(self) -> Traits:
        """Traits of these settings (`fedping.protocol.rules`)."""
        return traits_where({"takes signs": True, "majority": True, "zeros up": self.zero == "up"})


class Recluster(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="recluster"):
    """Federated k-means: the clients' centroids are clustered again (Rodríguez-Barroso et al. 2020, 5.3).

    The model's weights must be K consecutive centroids of d numbers, with K and d the settings ``clusters`` and
    ``features`` of its spec, optionally followed by K counts of examples. An update is the centroids' movement by local
    training. ``iterations`` is the maximum number of iterations of k-means.
    """

    digest_name: ClassVar[str] = "Recluster"
    traits: ClassVar[Traits] = frozenset({"centroids"})

    iterations: Annotated[int, Meta(ge=1, le=10_000)] = 100


class Median(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="median"):
    """The weighted median of each weight on its own, one point a client (Yin et al. 2018)."""

    traits: ClassVar[Traits] = frozenset({"compares", "majority"})


class TrimmedMean(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="trimmed_mean"):
    """The weighted mean of each weight on its own, without the lowest and the highest ``share`` of votes (Yin 2018)."""

    traits: ClassVar[Traits] = frozenset({"compares", "majority"})

    share: Annotated[float, Meta(gt=0, lt=0.5)] = 0.1


class GeometricMedian(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="geometric_median"
):
    """The point with the least sum of distances to the clients' updates (Pillutla, Kakade and Harchaoui 2022).

    Weiszfeld's smoothed algorithm, with at most ``iterations`` iterations from the median of each weight. ``smoothing``
    is the least distance used, in units of the median distance from that start.
    """

    traits: ClassVar[Traits] = frozenset({"majority"})

    iterations: Annotated[int, Meta(ge=1, le=10_000)] = 100
    smoothing: Annotated[float, Meta(gt=0, le=1)] = 1e-6


class Krum(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="krum"):
    """The update nearest to its neighbours (Blanchard et al. 2017), or the mean of the ``keep`` nearest (multi-Krum).

    ``hostile`` is the share of votes that may be hostile; the number of neighbours is that of the other votes minus
    two.
    """

    traits: ClassVar[Traits] = frozenset({"compares", "majority"})

    hostile: Annotated[float, Meta(ge=0, lt=0.5)] = 0.2
    keep: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1


class CenteredClip(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="centered_clip"):
    """The mean of the updates, each clipped to a distance of ``radius`` from a center (Karimireddy 2021).

    The center starts at the previous round's direction and moves to that mean ``iterations`` times. ``beta`` is the
    share of the previous round's direction that is kept: momentum on the server, because clients keep no state here.
    """

    traits: ClassVar[Traits] = frozenset({"majority"})

    radius: Positive
    iterations: Annotated[int, Meta(ge=1, le=10_000)] = 3
    beta: Share = 0.0


class OwnAggregation(Own, frozen=True, tag_field="by", tag=OWN):
    """An aggregation from another package (:mod:`fedping.protocol.extensions`)."""

    kind = "aggregation"


Combination: TypeAlias = (
    Mean | MeanOfSigns | Recluster | Median | TrimmedMean | GeometricMedian | Krum | CenteredClip | OwnAggregation
)


class NoClip(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="none"):
    """Updates keep their length."""


class ClipByNorm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="norm"):
    """Updates longer than ``norm``, by the Euclidean norm, are shortened to it (Sun et al. 2019)."""

    traits: ClassVar[Traits] = frozenset({"clips"})

    norm: Positive


class ClipByQuantile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="quantile"):
    """Updates longer than most updates of the previous round are shortened (after Andrew et al. 2021).

    The bound is ``multiple`` times the ``quantile`` of the norms of nonzero updates, with each client counted once.
    From one round to the next it changes at most by the factor ``growth``, up or down. The first round uses the norms
    of its own updates. ``units`` selects the vector whose norm is taken: the update itself, or, with ``step``, each
    number of a gradient times its weight's first step size, which is the change of the loss by that step. Weights of
    different units, such as days and points, are then comparable.
    """

    quantile: Annotated[float, Meta(ge=0.5, lt=1)] = 0.5
    multiple: Positive = 1.0
    growth: Annotated[float, Meta(gt=1, le=100)] = 1.5
    units: Literal["weight", "step"] = "weight"

    @property
    def traits(self) -> Traits:
        """Traits of these settings (`fedping.protocol.rules`)."""
        return traits_where({"clips": True, "clips by steps": self.units == "step"})


Clip: TypeAlias = NoClip | ClipByNorm | ClipByQuantile


class Staleness(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Late pings still count, but less the older their version is.

    A ping of version n - a that landed after its own round is used by the round on version n, if a is at most ``most``.
    ``on`` selects whether the ``weight`` multiplies the ping's vote or its step. Votes are relative: if all votes of a
    round are equally old, the weight has no effect. A weighted step is shortened by its weight, independently of other
    pings.

    Rounds stay synchronous, and add the movement from the old version to the new one. CO-OP (Wang 2017), the source of
    the default weight, mixes each model as it arrives; the laboratory does so (``[co_op]``).
    """

    digest_name: ClassVar[str] = "Staleness"

    most: Annotated[int, Meta(ge=1, le=APART)] = 5
    weight: Literal["1/sqrt(1+a)", "1/(1+a)", "1"] = "1/sqrt(1+a)"
    on: Literal["votes", "step"] = "votes"


class Pipeline(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings with which a round computes version n + 1 from the pings of version n.

    ``weighting`` sets the votes. With ``client`` every client has one vote, regardless of its number of pings: its
    update is the mean of its pings' updates. With ``ping`` every ping has one vote. With ``examples`` a ping has one
    vote for each example, so that the mean of gradients equals that of the pooled data (thesis eq. 2); an interaction
    is one example. ``most_votes`` is the maximum number of votes of all pings of a client together, for the last two:
    each of a client's n pings has at most an n-th of it. ``clip`` is the maximum length of an update; longer updates
    are shortened before all other steps. ``bucketing`` is the number of randomly drawn clients whose updates are
    averaged before they are aggregated (Karimireddy, He and Jaggi 2022). ``aggregate`` is the rule that combines the
    updates of a round. ``staleness`` sets how pings of older versions count; without it, they do not count.
    ``min_clients`` is the number of different clients that must have sent a usable update before a step.
    """

    digest_name: ClassVar[str] = "Pipeline"

    optimizer: Optimizer = RProp()
    weighting: Weighting = "client"
    aggregate: Combination = Mean()
    staleness: Staleness | None = None
    min_clients: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 100
    clip: Clip | None = None
    bucketing: Annotated[int, Meta(ge=2, le=2**31 - 1)] | None = None
    most_votes: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None

    @property
    def traits(self) -> Traits:
        """Traits of the pipeline and of its parts (`fedping.protocol.rules`)."""
        late = self.staleness
        own: dict[Trait, bool] = {
            "late pings": late is not None,
            "late steps": late is not None and late.on == "step",
            "buckets": self.bucketing is not None,
            "votes of clients": self.weighting == "client",
            "votes of examples": self.weighting == "examples",
            "most votes": self.most_votes is not None,
        }
        return traits_of(self.optimizer) | traits_of(self.aggregate) | traits_of(self.clip) | traits_where(own)

    @property
    def clips(self) -> bool:
        """Whether long updates are shortened."""
        return "clips" in traits_of(self.clip)

    @property
    def quorum(self) -> Quorum | None:
        """The share of votes that must agree before RProp follows a sign; None if RProp follows every sign."""
        asked = self.optimizer.quorum if isinstance(self.optimizer, RProp) else None
        return asked if asked is not None and asked.enabled else None

    @property
    def is_linear(self) -> bool:
        """Whether a round's direction is always the direction of the sum of the updates."""
        return "mean" in traits_of(self.aggregate) and not self.clips

    def __post_init__(self) -> None:
        if self.min_clients < 1:
            raise InvalidSettings("min_clients must be at least 1, because a round needs an update")
        check("pipeline", Parts(self.traits))
