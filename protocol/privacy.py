"""Private lines: settings for the guarantee to a line's clients, and the vector that clients send.

A client adds one vector of whole numbers to a round: its update, followed by :data:`METRICS`, which are part of the
same vector so that one draw of noise covers all of it. Sums of whole numbers are exact in any order, and the last
digits of noise on a grid reveal nothing. Both sides bound a vector by the same function: the client for its own
guarantee, and the server so that the guarantee holds regardless of what a client sends.

Guarantees are (ε, δ) of differential privacy. Their unit is the client id, an installation. Two inputs are neighbours
if one has one client more (central), or if they are any two (local).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

from msgspec import Meta, Struct, to_builtins

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.gaussian import least_noise
from fedping.protocol.rules import Parts, Traits, check, traits_where
from fedping.protocol.sharing.keys import Identity, Seal
from fedping.protocol.weights import Finite, Kind, Positive

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedping.protocol.spec import ModelSpec


METRICS = ("clients", "loss", "top_choice")
"""Metrics in a vector, after the update: 1 for the client itself, its loss, and whether its choice was on top."""

SIGN = 64
"""Number that stands for a positive sign in a vector."""

RADIUS = 2**14
"""Norm, in a vector, of an update whose norm is at the clip bound."""

FARTHEST = 8
"""Bound of a client's own noise, in standard deviations; one draw in 10^15 exceeds it and is cut off."""

LARGEST = 2**24 - 1
"""Largest number in a vector, which float32 can represent exactly."""

MOST_INSTITUTIONS = 10_000
"""Largest allowed minimum number of institutions in a sum."""

Epsilon: TypeAlias = Annotated[float, Meta(gt=0, le=100)]


class Signs(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="signs"):
    """The signs of an update (thesis 4.4): no settings, and the right contribution for RProp."""


class ClippedFlat(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="norm"):
    """An update that is shortened to a norm (thesis 5.3).

    Attributes:
        norm: maximum Euclidean norm, in the units of the update.
    """

    norm: Positive


class ClippedByKind(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="kind"):
    """An update in which each kind of weights is shortened to its own norm, because it has its own units (thesis 5.3).

    Attributes:
        norms: maximum norm of each kind.
    """

    norms: dict[Kind, Positive]


class ClippedByBlock(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="layer"):
    """An update in which each block of weights, a layer, is shortened to the same norm (thesis 5.3).

    Attributes:
        norm: maximum norm of each block.
    """

    norm: Positive


Contribution: TypeAlias = Signs | ClippedFlat | ClippedByKind | ClippedByBlock


class Central(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A guarantee that the operator gives: it clips, samples, adds noise to the sum, and deletes the pings.

    Readers of models, pages or reports learn hardly more about a client than if it had not participated.

    Attributes:
        epsilon, delta: the guarantee for all ``rounds`` together. ``delta`` is well below 1 / ``population``.
        rounds: number of rounds; afterwards the line is exhausted.
        population: approximate number of clients, declared and never counted.
        sampling: share of the clients whose pings count in a round, sampled by the server with a secret key.
        noise_multiplier: standard deviation of the noise divided by the vector's bound; derived when the study is
            created.
        dead_zone: a weight's noisy sum within this number of standard deviations of its noise counts as 0.
    """

    epsilon: Epsilon
    delta: Annotated[float, Meta(gt=0, lt=1)]
    rounds: Annotated[int, Meta(ge=1, le=1_000_000)]
    population: Annotated[int, Meta(ge=2, le=10**11)]
    sampling: Annotated[float, Meta(gt=0, le=1)] = 1.0
    noise_multiplier: Positive | None = None
    dead_zone: Annotated[float, Meta(ge=0, le=10)] = 0.5

    @property
    def expected(self) -> float:
        """Expected number of clients in a round: a constant, because an actual count would reveal clients."""
        return self.population * self.sampling


class OneSign(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="mechanism", tag="one-sign"):
    """The sign of one randomly drawn weight, by randomised response (Warner 1965).

    Attributes:
        epsilon: ε for each contribution.
    """

    epsilon: Epsilon


class LocalGaussian(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="mechanism", tag="gaussian"
):
    """The bounded update with noise of the discrete Gaussian on every weight.

    Any two inputs are neighbours, so the sensitivity is twice the bound.

    Attributes:
        epsilon, delta: the guarantee for each contribution.
    """

    epsilon: Epsilon
    delta: Annotated[float, Meta(gt=0, lt=1)]


Local: TypeAlias = OneSign | LocalGaussian
"""Guarantees from the client's own noise on its vector, which has no metrics."""


class Shared(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Clients split their vectors into two shares, so that no server sees any vector (`fedping.protocol.sharing`).

    With a central guarantee, each of the two servers adds the full noise. So the guarantee holds against each server,
    and more strongly against all other parties.

    Attributes:
        helper: identity of the second server, run by another organisation ('fedping helper identity' prints it).
        min_batch: minimum number of clients of an arm in a sum.
        seal: encryption of the shares for the helper.
        proofs: whether clients prove that they send votes, so that a client counts at most once.
    """

    helper: Identity
    min_batch: Annotated[int, Meta(ge=2, le=2**31 - 1)] = 100
    seal: Seal = "x25519"
    proofs: bool = False


class RowSums(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sums over institutions with noise that protects each row of their tables; each institution adds a share of it.

    K, the minimum number of institutions in a sum, is ``min_batch`` of ``shared``.

    Attributes:
        noise: z, the standard deviation of the noise on a sum of K institutions, after ``colluding`` of them remove
            their shares of it, divided by the norm of a row.
        colluding: t, the number of institutions in a sum that may reveal their noise to the operator. An institution
            that the operator invents is one of them.
    """

    noise: Annotated[float, Meta(ge=0.01, le=2**16)]
    colluding: Annotated[int, Meta(ge=0, le=MOST_INSTITUTIONS)]


class Privacy(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The protection of a private line: ``central``, ``local``, ``shared``, or several of them.

    These settings are published with the line, because clients need them.

    Attributes:
        central: protection by the operator; None for none.
        local: protection by the client's own noise; None if it sends its bounded vector unchanged.
        shared: the second server, so that no server sees a vector; None if the operator sees vectors.
        rows: for a line of institutions with tables: the protection of each row in their sum; None otherwise.
        contribution: the part of an update that is in the vector, and its bound.
        loss: least and greatest loss in a vector; other losses are moved to the nearer of the two.
        left_out: names of weights that clients can't move. They are not part of the sum, and get no noise.
        contributions: maximum number of versions of the line to which a client contributes. The client counts them
            itself, and selects the versions at random (:attr:`turns`).
        delay_minutes: maximum of the random time that a client waits before it sends.

    Raises:
        InvalidSettings: no kind of protection is set; the losses are reversed; single signs are clipped; shares are
            sampled; proofs are required for a vector without votes; or all institutions collude, so that no noise
            remains.
    """

    central: Central | None = None
    local: Local | None = None
    shared: Shared | None = None
    rows: RowSums | None = None
    contribution: Contribution = Signs()
    loss: tuple[Finite, Finite] = (0.0, 1.0)
    left_out: tuple[str, ...] = ()
    contributions: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    delay_minutes: Annotated[float, Meta(ge=0, le=1440)] = 10.0

    def __post_init__(self) -> None:
        check("privacy", Parts(self.traits))
        if not self.loss[0] < self.loss[1]:
            raise InvalidSettings(f"'privacy' has losses from {self.loss[0]:g} to {self.loss[1]:g}; give a range")
        if self.rows is not None and self.shared is not None:
            self._check_rows(self.rows, self.shared.min_batch)
        if self.central is not None and self.central.delta >= 1 / self.central.population:
            raise InvalidSettings(
                f"delta = {self.central.delta:g} would allow a round of {self.central.population:,} clients to reveal "
                f"one of them completely. Give less than {1 / self.central.population:.2g}"
            )

    def _check_rows(self, rows: RowSums, institutions: int) -> None:
        from fedping.protocol.row_privacy import NIL, UNIT, discreteness, noise_of_share

        if institutions > MOST_INSTITUTIONS:
            raise InvalidSettings(
                f"'min_batch' of 'shared' is {institutions:,}; with 'rows' it is a number of institutions, at most "
                f"{MOST_INSTITUTIONS:,}. Set a smaller one"
            )
        if rows.colluding >= institutions:
            raise InvalidSettings(
                f"'rows' of 'privacy' holds against {rows.colluding:,} of at least {institutions:,} institutions, so "
                "none is left to add noise. Set a smaller 'colluding', or a larger 'min_batch' of 'shared'"
            )
        share = noise_of_share(rows.noise, institutions, rows.colluding)
        if discreteness(share * UNIT, institutions - rows.colluding) > NIL:
            raise InvalidSettings(
                f"'rows' of 'privacy' has noise = {rows.noise:g}, whose shares of {share:.2g} are too small for whole "
                "numbers; set more noise, or a smaller 'min_batch' of 'shared'"
            )
        if self.left_out:  # shown to all institutions but one, it would take the others' noise from that one's numbers
            raise InvalidSettings(
                "with 'rows' of 'privacy' each number needs the noise of all institutions. Remove 'left_out'"
            )
        if self.loss[0] != 0:
            raise InvalidSettings(f"'loss' of 'privacy' begins at {self.loss[0]:g}; with 'rows' it has to begin at 0")

    @property
    def traits(self) -> Traits:
        """Traits of these settings (`fedping.protocol.rules`)."""
        return traits_where(
            {
                "private": True,
                "row sums": self.rows is not None,
                "central": self.central is not None,
                "sampled": self.central is not None and self.central.sampling < 1,
                "local noise": self.local is not None,
                "one sign": isinstance(self.local, OneSign),
                "shared": self.shared is not None,
                "proofs": self.shared is not None and self.shared.proofs,
                "votes alone": isinstance(self.contribution, Signs),
            }
        )

    @property
    def turns(self) -> float:
        """The share of versions, selected at random, to which a client contributes, to spread out its contributions.

        Otherwise the first clients would use up their contributions on the first versions, and later rounds would get
        none.
        """
        if self.central is None or self.contributions is None:
            return 1.0
        return min(1.0, self.contributions / self.central.rounds)

    @property
    def releases(self) -> int | None:
        """The maximum number of releases that include a client; None if it is unbounded."""
        rounds = None if self.central is None else self.central.rounds
        return min((n for n in (rounds, self.contributions) if n is not None), default=None)


def published_privacy(privacy: Privacy) -> dict[str, Any]:
    """Return the settings in the form that is published for clients.

    ``shared`` and ``rows`` are omitted if None, because older clients reject an unknown kind of protection.
    """
    told: dict[str, Any] = to_builtins(privacy)
    for name in ("shared", "rows"):
        if told[name] is None:
            del told[name]
    return told


class Frame(NamedTuple):
    """The form of a line's vectors, which consist of m weights and the metrics.

    Attributes:
        group: number of each weight's group, from 0, shape (m,); -1 if it is left out.
        units: value of 1 in the vector, in each weight's own units, shape (m,).
        signs: whether a weight's number is -SIGN, 0 or SIGN; else each group has a norm of at most RADIUS.
        metric: largest number of a metric.
    """

    group: NDArray[np.int64]
    units: NDArray[np.float64]
    signs: bool
    metric: int

    @property
    def bound(self) -> float:
        """The maximum Euclidean norm of the weights' part."""
        if self.signs:
            return SIGN * math.sqrt(int((self.group >= 0).sum()))
        return RADIUS * math.sqrt(self.groups)

    @property
    def groups(self) -> int:
        """The number of groups of weights that clients can move."""
        return int(self.group.max(initial=-1)) + 1

    @property
    def squared(self) -> int:
        """The exact square of a vector's maximum Euclidean norm."""
        weights = SIGN**2 * int((self.group >= 0).sum()) if self.signs else RADIUS**2 * self.groups
        return weights + len(METRICS) * self.metric**2

    @property
    def sensitivity(self) -> float:
        """A vector's maximum Euclidean norm: the change of the sum when a client is added or removed."""
        return math.sqrt(self.squared)


def frame_of(privacy: Privacy, spec: ModelSpec) -> Frame:
    """Return the frame of a line's vectors.

    Raises:
        InvalidSettings: a name in ``left_out`` is unknown, no weight remains, or a kind of weights has no norm.
    """
    import numpy as np

    from fedping.protocol.row_privacy import LOSS, unit_of_row

    names = {name: place for place, name in enumerate(spec.names)} if privacy.left_out else {}
    group, units = np.zeros(spec.m, np.int64), np.ones(spec.m)
    signs = isinstance(privacy.contribution, Signs) and privacy.rows is None
    match privacy.contribution:
        case _ if privacy.rows is not None:
            units *= unit_of_row()
        case Signs():
            units /= SIGN
        case ClippedFlat(norm=norm):
            units *= norm / RADIUS
        case ClippedByKind(norms=norms):
            kinds = kinds_of(spec)
            missing = sorted(set(kinds) - set(norms))
            if missing:
                raise InvalidSettings(
                    f"model spec '{spec.name}' has weights of the kind '{missing[0]}', which 'norms' of 'privacy' "
                    "lacks. Add a norm for it"
                )
            of = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
            group = np.array([of[kind] for kind in kinds])
            units = np.array([norms[kind] for kind in kinds]) / RADIUS
        case ClippedByBlock(norm=norm):
            group = np.repeat(np.arange(len(sizes := sizes_of(spec))), sizes)
            units *= norm / RADIUS
    for name in privacy.left_out:
        if name not in names:
            raise InvalidSettings(
                f"'left_out' of 'privacy' names the weight '{name}', which model spec '{spec.name}' does not have"
            )
        group[names[name]] = -1
    if (group < 0).all():
        raise InvalidSettings(f"'left_out' of 'privacy' names all weights of model spec '{spec.name}'; leave some in")
    there = np.unique(group[group >= 0])  # groups that are left out altogether have no share of the bound
    group = np.where(group < 0, -1, np.searchsorted(there, group))
    made = Frame(group, units, signs, 0)
    if privacy.rows is not None:
        return made._replace(metric=2 * round(LOSS / unit_of_row()))
    return made._replace(metric=max(1, round(made.bound / 4)))


def kinds_of(spec: ModelSpec) -> list[Kind]:
    """Return the kind of each weight, in the order in which weights are sent."""
    of_blocks = [block.kind for block in spec.blocks for _ in range(math.prod(block.shape))]
    return [weight.kind for weight in spec.weights] + of_blocks


def sizes_of(spec: ModelSpec) -> list[int]:
    """Return the number of weights of each layer: the single weights together, if any, then each block."""
    return ([len(spec.weights)] if spec.weights else []) + [math.prod(block.shape) for block in spec.blocks]


def vectors_of(
    frame: Frame,
    updates: NDArray[np.floating],
    losses: NDArray[np.float64],
    top_choices: NDArray[np.float64],
    between: tuple[float, float],
) -> NDArray[np.int64]:
    """Return the bounded contributions of clients, shape (k, m + 3).

    Args:
        frame: the form of the line's vectors.
        updates: the clients' updates, shape (k, m).
        losses: the clients' losses, shape (k,); moved into ``between``.
        top_choices: 1 if the chosen entry was on top, else 0, shape (k,).
        between: the least and the greatest loss that can be released.
    """
    import numpy as np

    low, high = between
    shares = np.stack([np.ones(len(losses)), (np.clip(losses, low, high) - low) / (high - low), top_choices], axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.sign(updates) * SIGN if frame.signs else updates / frame.units
    return bounded(frame, np.concatenate([weights, np.rint(shares * frame.metric)], axis=1))


def bounded(frame: Frame, vectors: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return vectors of shape (k, m + 3) as whole numbers within the bound.

    Numbers that are not finite count as 0. Weights are rounded towards 0, so that no vector gets longer.
    """
    import numpy as np

    m = len(frame.group)
    safe = np.nan_to_num(np.asarray(vectors, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    weights, metrics = safe[:, :m], safe[:, m:]
    found = np.zeros(safe.shape, np.int64)
    if frame.signs:
        found[:, :m] = SIGN * np.sign(weights).astype(np.int64)
    else:
        for number in range(int(frame.group.max(initial=-1)) + 1):
            mine = np.flatnonzero(frame.group == number)
            part = weights[:, mine]
            largest = np.abs(part).max(axis=1, initial=0.0)
            scaled = part / np.where(largest > 0, largest, 1.0)[:, None]  # squares of 1e300 are no numbers
            norms = largest * np.sqrt((scaled**2).sum(axis=1))
            shares = np.where(norms > RADIUS, RADIUS / np.maximum(norms, RADIUS), 1.0)
            whole = np.trunc(part * shares[:, None])
            over = (whole**2).sum(axis=1) > RADIUS**2  # by the last digit of a double
            whole[over] -= np.sign(whole[over])
            found[:, mine] = whole.astype(np.int64)
    found[:, :m][:, frame.group < 0] = 0
    found[:, m] = frame.metric
    found[:, m + 1 :] = np.clip(metrics[:, 1:], 0, frame.metric).astype(np.int64)
    return found


def local_sigma(privacy: Privacy, frame: Frame) -> int:
    """Return the standard deviation, a whole number, of the noise that a client adds to each weight; 0 for no noise.

    Any two inputs of the client are neighbours, and two bounded vectors differ by at most twice the bound.
    """
    if not isinstance(privacy.local, LocalGaussian):
        return 0
    return math.ceil(2 * frame.bound * least_noise(privacy.local.epsilon, privacy.local.delta))


def bounded_vectors(privacy: Privacy, frame: Frame, vectors: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return vectors of shape (k, m + 3), bounded as the server counts them.

    If clients send one sign, at most one counts. A client's own noise is longer than the bound, and its mean would no
    longer be 0 if vectors were shortened. So unless a central guarantee needs the bound, each number is only moved to
    at most :data:`FARTHEST` standard deviations beyond the bound. The loss and top choice of clients with their own
    noise are left out.
    """
    import numpy as np

    m = len(frame.group)
    if privacy.local is None:
        return bounded(frame, vectors)
    found = bounded(frame, vectors)
    if isinstance(privacy.local, OneSign):
        first = np.cumsum(found[:, :m] != 0, axis=1) == 1
        found[:, :m] *= first & (found[:, :m] != 0)
    elif privacy.central is None:
        weights = np.nan_to_num(np.asarray(vectors[:, :m], np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        most = farthest(frame, local_sigma(privacy, frame))
        found[:, :m] = np.trunc(np.clip(weights, -most, most)).astype(np.int64)
        found[:, :m][:, frame.group < 0] = 0
    found[:, m + 1 :] = 0
    return found


def farthest(frame: Frame, sigma: int) -> int:
    """Return the largest number that a client with its own noise sends for a weight; larger ones are reduced to it."""
    return min(math.ceil(frame.bound) + FARTHEST * sigma, LARGEST)


class ReleasedMeans(NamedTuple):
    """The metrics of a sum of vectors: the approximate number of clients, their mean loss and top-choice rate.

    The means are None if the noisy number of clients is below 1.
    """

    clients: float
    loss: float | None
    top_choice: float | None


def standard_errors(seen: ReleasedMeans, noise: float, between: tuple[float, float]) -> ReleasedMeans:
    """Return the standard errors that noise causes in released values; for ratios, by the delta method.

    Clients aren't treated as a sample: the errors refer to the clients that participated, and contain only the noise.

    Args:
        seen: the released values.
        noise: standard deviation of the noise on the number of clients, and on the other two sums.
        between: the least and the greatest loss that can be released.
    """
    low, high = between

    def of(share: float) -> float:
        return noise / seen.clients * math.sqrt(1 + share**2)

    return ReleasedMeans(
        noise,
        None if seen.loss is None else (high - low) * of((seen.loss - low) / (high - low)),
        None if seen.top_choice is None else of(seen.top_choice),
    )


def told(frame: Frame, sums: NDArray[np.int64], between: tuple[float, float]) -> ReleasedMeans:
    """Return the metrics released from a noisy sum of vectors, shape (m + 3,)."""
    m = len(frame.group)
    clients, loss, top = (float(value) / frame.metric for value in sums[m:])
    if clients < 1:
        return ReleasedMeans(clients, None, None)
    low, high = between
    return ReleasedMeans(
        clients, low + (high - low) * min(max(loss / clients, 0.0), 1.0), min(max(top / clients, 0.0), 1.0)
    )
