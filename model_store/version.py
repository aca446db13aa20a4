"""A version of a model line: weights, optimizer state and lineage in one document; and types for parts of it."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from fedping.protocol.digest import digest_of
from fedping.protocol.guard import CLAIMED
from fedping.protocol.landing import SHARDS
from fedping.protocol.model import Staged
from fedping.protocol.notation import milliseconds_of
from fedping.protocol.spec import ModelSpec, Name, published

LinkState: TypeAlias = dict[str, tuple[float, ...]]
"""The state of one link of the server's chain: named vectors of doubles."""

ChainState: TypeAlias = dict[str, LinkState] | tuple[LinkState, ...]
"""The state of the server's chain by link name, without stateless links; in format 1, a tuple of all links' states."""

FORMAT = 2
"""Format of new versions. In format 1 the state has no names."""

TAKEN_OVER_FORMAT = 3
"""Format of a version 0 with a warm start: an older program would ignore the warm start, and compute another digest."""

NEWEST_FORMAT = TAKEN_OVER_FORMAT
"""The newest format that can be read."""

CLOCKS_APART_MS = 60_000
"""Maximum difference of two clocks without a warning, in milliseconds; clocks set by NTP differ by a few."""


class InputFile(Struct, frozen=True, omit_defaults=True):
    """A landed file that a round read.

    Attributes:
        path: the file's path below the landing folder.
        rows: number of rows at the time of the round.
        age: age of its pings, in versions before the round's version.
        digest: identity of the content (`fedping.protocol.landed_file`); empty in older versions.
    """

    path: str
    rows: int
    age: int = 0
    digest: str = ""


class Influence(Struct, frozen=True, kw_only=True):
    """Influence of clients on the model in a round; `fedping.server_jobs.round.influence` describes what is exact.

    Attributes:
        norm_low, norm_median, norm_high: 5, 50 and 95 % quantiles of the updates' norms before clipping, in the units
            of the clip; each client counts once.
        norm_most: the largest norm.
        bound: the norm at which updates were clipped; None if they were not.
        clipped: share of updates that were longer; each client counts once.
        agreement: absolute difference between the numbers of clients that push a weight up and down, divided by their
            sum, over all weights: 1 if all agree. None if no client pushes a weight.
        half: number of clients that together make up half of the total pull (vote times length), strongest first.
        new_clients: approximate number of clients without a usable update in any earlier round; None if not counted.
    """

    norm_low: float
    norm_median: float
    norm_high: float
    norm_most: float
    bound: float | None
    clipped: float
    agreement: float | None
    half: int
    new_clients: int | None = None


class Aggregate(Struct, frozen=True, kw_only=True):
    """Aggregate of a round's usable pings.

    Attributes:
        pings: number of pings.
        clients: number of clients.
        weight: sum of the weights: the number of clients, pings or examples, by the pipeline's weighting.
        mean: weighted mean update, of length m.
        m2: weighted sum of squared deviations from the mean, of length m.
        influence: influence of clients; None in older versions, and for lines whose single updates are meaningless.
        capped: number of clients with a usable ping that claims more examples than the study's limit, and counts as the
            limit; None if there is no limit, and in older versions.
    """

    pings: int
    clients: int
    weight: float
    mean: tuple[float, ...]
    m2: tuple[float, ...]
    influence: Influence | None = None
    capped: int | None = None


class ClientSketch(Struct, frozen=True, kw_only=True):
    """Sketch (HyperLogLog registers) for the approximate number of clients with a usable update so far.

    ``registers`` are written by `fedping.server_jobs.round.new_clients`; ``salt``, 16 bytes in hexadecimal, is drawn in
    the first round and kept secret from clients.
    """

    salt: str
    registers: str


class Winsorised(Struct, frozen=True, kw_only=True):
    """Winsorised metrics of an arm over its clients with an example.

    A client's loss and rank are means over its pings, and its examples are their sum
    (`fedping.server_jobs.round.winsorising` describes the counting). The errors are standard errors. The rank is null
    if nothing is ranked.
    """

    clients: int
    examples: int
    loss: float
    loss_error: float
    rank_selected: float | None = None
    rank_error: float | None = None


class OutcomeLevel(Struct, frozen=True, kw_only=True):
    """Mean and standard error of a guarded outcome over an arm's clients; a client counts by its mean over choices."""

    clients: int
    mean: float
    error: float


class Level(NamedTuple):
    """The level of a metric in some arms: a mean, its standard error if it is known, and the number of votes."""

    value: float
    error: float | None
    votes: int


class ArmSummary(Struct, frozen=True, kw_only=True):
    """Metrics of an arm while the parent version was current (validation by thesis 3.4).

    An interaction that ended with a selection is one example.

    Attributes:
        pings: number of pings.
        examples: number of examples.
        loss: mean over all examples of the arm's pings; null without examples.
        rank_selected: mean over all examples of the arm's pings; null without examples, and if nothing is ranked.
        winsorised: metrics that a few clients' claims can't move; null if the study doesn't request them, or without an
            example.
        clipped: number of pings whose loss counted as the study's ``clip_loss``.
        outcomes: the outcome that the line's guardrail compares; null if it compares none.
    """

    digest_name: ClassVar[str] = "ArmSummary"

    pings: int
    examples: int
    loss: float | None
    rank_selected: float | None
    winsorised: Winsorised | None = None
    clipped: int = 0
    outcomes: dict[str, OutcomeLevel] | None = None

    def level(self, metric: str) -> Level | None:
        """Return a metric's level for decisions: the winsorised mean by client if it exists, else the mean by example.

        An outcome has bounds, so its mean by client is not winsorised.
        """
        if metric not in CLAIMED:
            told = (self.outcomes or {}).get(metric)
            return None if told is None else Level(told.mean, told.error, told.clients)
        firm = self.winsorised
        if firm is not None:
            value, error = (firm.loss, firm.loss_error) if metric == "loss" else (firm.rank_selected, firm.rank_error)
            return None if value is None else Level(value, error, firm.clients)
        mean: float | None = getattr(self, metric)
        return None if mean is None else Level(mean, None, self.examples)


Decision: TypeAlias = Literal["", "released", "discarded", "rolled_back", "promoted", "withdrawn"]


class StageResult(Struct, frozen=True, kw_only=True):
    """One side of a stage: the number of its clients with an example, and the metrics of each arm on this side."""

    clients: int = 0
    arms: dict[str, ArmSummary] = {}


class StageState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stage: the share of the clients that get the version first, and the results of both sides.

    Attributes:
        share: share of the clients.
        tried: clients of the share, with pings of the staged version. None before a round has read these pings, and if
            the operator has decided.
        stayed: the other clients, with pings of the previous version that landed meanwhile. None in the same cases.
    """

    share: float
    tried: StageResult | None = None
    stayed: StageResult | None = None


class GuardState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a line's guard (`fedping.protocol.guard`).

    A version with alarms was held until the operator decided. A version with a ``stage`` was staged until the stage's
    results led to a decision.

    Attributes:
        figures: figures of the last rounds by name, oldest first, with this round's last.
        alarms: a sentence for each figure that is too high, or the reason for a rollback.
        decision: ``released`` for a held version that was published. ``discarded`` for a version that repeats the
            previous version instead of a held one. ``rolled_back`` for a version that repeats an older version because
            the guard rolled the line back automatically. ``promoted`` for a staged version that was released to all
            clients. ``withdrawn`` for a version that repeats the previous version instead of a staged one. Else empty.
        beyond: number of consecutive rounds that exceeded the guardrail, including this one.
        stage: the stage of a staged version.
    """

    figures: dict[str, tuple[float, ...]] = {}
    alarms: tuple[str, ...] = ()
    decision: Decision = ""
    beyond: int = 0
    stage: StageState | None = None

    @property
    def gives_up(self) -> bool:
        """Whether this is the state of a version that replaces a staged version."""
        return self.stage is not None and self.decision in ("withdrawn", "discarded")


class Answered(Struct, frozen=True, kw_only=True):
    """The helper's part in a round of a two-server line (`fedping.protocol.sharing`).

    Attributes:
        helper: the identity of the second server.
        request, answer: digests of the request and of the answer.
        refused: the number of clients whose share the helper couldn't use, because it was sealed for another context or
            sent twice.
    """

    helper: str
    request: str
    answer: str
    refused: int = 0


class PrivacyEvent(Struct, frozen=True, kw_only=True):
    """The release of a round of a private line, in which every number is noisy, and its privacy cost.

    Attributes:
        released: the sum of the clients' vectors for each arm that follows the line, noise included, as m + 3 whole
            numbers (`fedping.protocol.privacy`).
        sigma: standard deviation of the discrete Gaussian noise on each number; 0 if clients add all the noise
            themselves. Numbers that no client can move have no noise.
        sensitivity: maximum Euclidean norm of a client's vector. ``sigma`` is ``noise_multiplier`` times the
            sensitivity; on a two-server line, √2 times as much, because both servers add this noise.
        sampling: share of the clients that counted.
        releases: number of the line's releases so far, including this one.
        epsilon, delta: the guarantee of all releases together, by ``accountant``; None if the operator gives none.
        key_digest: SHA-256 of the privacy key, which samples clients or signs requests to helpers; empty if neither is
            used.
        stepped: whether the weights moved. They don't move if too few clients were seen, or if the step led to
            impossible weights.
        shared: the helper's answer for a two-server line; None for other lines.
    """

    released: dict[str, tuple[int, ...]]
    sigma: float
    noise_multiplier: float
    sensitivity: float
    sampling: float
    releases: int
    epsilon: float | None
    delta: float | None
    accountant: str
    key_digest: str = ""
    stepped: bool = True
    shared: Answered | None = None


class Ancestor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of another line from which weights were taken, and the guarantee of that line's clients.

    Attributes:
        study, line, iteration: the version; it may have been in another store.
        digest: the version's unique digest.
        private: whether its line was private.
        epsilon, delta: the central guarantee of all releases of its line up to this version; None without a guarantee.
        local_epsilon: the guarantee of each contribution through the clients' own noise; None if they added none.
    """

    study: Name
    line: Name
    iteration: Annotated[int, Meta(ge=0)]
    digest: str
    private: bool = False
    epsilon: float | None = None
    delta: float | None = None
    local_epsilon: float | None = None

    @property
    def told(self) -> str:
        """Return the version as a phrase."""
        return f"version {self.iteration} of {self.study}/{self.line}"


class WarmStart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Source of the weights of a version 0 that doesn't start at the spec's start values.

    Attributes:
        taken: the version that the weights come from.
        renamed: the old name of each renamed weight or block of this line, in ``taken``; "" if it starts at the spec's
            values.
        before: earlier sources: the versions that the weights of ``taken`` came from in turn, nearest first.
    """

    taken: Ancestor
    renamed: dict[str, str] = {}
    before: tuple[Ancestor, ...] = ()


class Lineage(Struct, frozen=True, kw_only=True):
    """Origin of a version, sufficient to recompute the version bit for bit.

    Attributes:
        origin: kind of the version's origin, such as a round or a rollback.
        code_version: the version of fedping that computed it.
        config_digest: digest of the line's settings.
        inputs: the landed files that the round read; empty for a private line.
        counts: number of the round's pings by outcome (``used``, ``duplicate``, ``other_arm``, …), and of pings of
            other versions that had landed meanwhile (``stale``, ``future``), which are counted but not used.
        arms: metrics of each arm.
        ages: number of ``used`` pings by age, in versions before the parent, from 0 on; empty if older pings aren't
            used.
        aggregate: aggregate of the usable pings; None without a round, and for a private line.
        window_end_ms: landing time (milliseconds since 1970) up to which pings of other versions have been counted.
        restored: the version that this version repeats, after a rollback, or when the line was ``continued`` at a
            number that no client can have seen.
        guard: state of the line's guard; None if it has none.
        stopped: whether a round rolled back to the best version because early stopping ended the training. While this
            version is the newest, no round publishes another.
        known: sketch of the clients of all rounds so far, if the guard compares the number of new clients.
        privacy: release of a round of a private line; ``counts`` and ``arms`` then have only values that follow from
            the release.
        settings: number of the entry in the study's history (`fedping.model_store.history`) with the round's settings;
            0 for the settings at creation.
        shards: number of parts into which the round divided the clients; it affects the last bits of the means.
        warm_start: source of a version 0's weights; None if they are the spec's start values.
    """

    digest_name: ClassVar[str] = "Lineage"

    origin: Literal["created", "round", "rollback", "continued"]
    code_version: str
    config_digest: str
    inputs: tuple[InputFile, ...] = ()
    counts: dict[str, int] = {}
    arms: dict[str, ArmSummary] = {}
    ages: tuple[int, ...] = ()
    aggregate: Aggregate | None = None
    window_end_ms: int = 0
    restored: int | None = None
    guard: GuardState | None = None
    stopped: bool = False
    known: ClientSketch | None = None
    privacy: PrivacyEvent | None = None
    settings: int = 0
    shards: int = SHARDS
    warm_start: WarmStart | None = None


class Version(Struct, frozen=True, kw_only=True, dict=True):
    """A version of a line.

    Attributes:
        format: format of the document.
        iteration: number of the version.
        parent: number of the previous version; None for version 0.
        parent_digest: digest of the parent that the version was computed from.
        created: time of publication, ISO 8601 in UTC.
        names: names of the weights; empty if the spec has blocks.
        model: weights as published for clients, with integer weights rounded.
        weights: the optimizer's own weights, as unrounded doubles.
        state: optimizer state, of the server's chain.
        lineage: origin of the version.
    """

    format: Annotated[int, Meta(ge=1)] = 1
    study: str
    line: str
    iteration: Annotated[int, Meta(ge=0)]
    parent: int | None
    parent_digest: str | None
    created: str
    spec_digest: str
    names: tuple[str, ...]
    model: tuple[float, ...]
    weights: tuple[float, ...]
    state: ChainState
    lineage: Lineage

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the document; cached, because computing it takes seconds for a million weights."""
        return digest_of(self)

    @property
    def staged(self) -> StageState | None:
        """The version's stage, if it is held only for that; else None."""
        return staged_by(self.lineage.guard)

    @property
    def unreadable(self) -> str | None:
        """Position of an infinite or NaN number, with which the document would be unreadable JSON; None without one."""
        made = self.lineage.aggregate
        vectors = {"model": self.model, "weights": self.weights}
        links = self.state.items() if isinstance(self.state, dict) else enumerate(self.state)
        vectors |= {f"state of link {link}, {name}": v for link, state in links for name, v in state.items()}
        vectors |= {"mean update": made.mean, "squared deviations": made.m2} if made else {}
        for where, vector in vectors.items():
            if not math.isfinite(sum(vector)):  # a quick check; a sum of finite numbers may be infinite too
                odd = next((i for i, value in enumerate(vector) if not math.isfinite(value)), None)
                if odd is not None:
                    return f"{where}, position {odd}: {vector[odd]}"
        return None


def staged_by(guard: GuardState | None) -> StageState | None:
    """Return the stage of a version that is held only for its stage; else None."""
    return guard.stage if guard is not None and not guard.alarms and not guard.decision else None


class PublicPart(Struct, frozen=True, kw_only=True):
    """The part of a version that clients fetch, a :class:`protocol.model.ModelDocument` without state and lineage.

    Numbers keep their exact text from the version's JSON. ``staged`` is never present.
    """

    model: Raw
    iteration: int
    study: str
    line: str
    names: tuple[str, ...]
    spec_digest: str
    created: str
    parent: int | None
    staged: Staged | UnsetType = UNSET


class Link(Struct, frozen=True, kw_only=True):
    """The part of a version that identifies it and its parent; reading this part from JSON skips the weights."""

    study: str
    line: str
    iteration: int
    parent: int | None
    parent_digest: str | None
    spec_digest: str


class GuardPart(Struct, frozen=True, kw_only=True):
    """The part of a lineage with the guard's state."""

    guard: GuardState | None = None


class HeldPart(Link, frozen=True, kw_only=True):
    """The part of a held version that identifies it, and shows the reason for holding it."""

    lineage: GuardPart


class Counted(Struct, frozen=True, kw_only=True):
    """The part of an aggregate without its vectors."""

    pings: int
    clients: int
    capped: int | None = None


class Charge(Struct, frozen=True, kw_only=True):
    """The part of a private release without its vectors."""

    sigma: float
    sensitivity: float
    releases: int
    epsilon: float | None
    stepped: bool = True


class Tally(Struct, frozen=True, kw_only=True):
    """The part of a lineage with the round's outcome."""

    origin: Literal["created", "round", "rollback", "continued"]
    counts: dict[str, int] = {}
    arms: dict[str, ArmSummary] = {}
    aggregate: Counted | None = None
    guard: GuardState | None = None
    restored: int | None = None
    stopped: bool = False
    privacy: Charge | None = None
    settings: int = 0


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of a version's round; reading it from the version's JSON skips the weights."""

    iteration: int
    created: str
    lineage: Tally


class SourcesPart(Struct, frozen=True, kw_only=True):
    """The part of a lineage with the landed files that a version was computed from."""

    origin: Literal["created", "round", "rollback", "continued"]
    inputs: tuple[InputFile, ...] = ()
    window_end_ms: int = 0
    restored: int | None = None


class Sources(Struct, frozen=True, kw_only=True):
    """The landed files that a version was computed from; reading them from the version's JSON skips the weights."""

    iteration: int
    parent: int | None
    lineage: SourcesPart


class Fence(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A marker in the place of version ``after`` + 1, where a line continues at a higher number, ``goes_on_at``.

    The numbers in between were published once, and lost when a backup of the store was restored. A fence is written by
    the same compare-and-swap as a version, so no round can publish under its number. Version ``goes_on_at`` follows
    version ``after``.
    """

    study: str
    line: str
    after: int
    after_digest: str
    goes_on_at: int
    created: str
    code_version: str


def first_version(
    study: str,
    line: str,
    spec: ModelSpec,
    state: dict[str, LinkState],
    created: str,
    code_version: str,
    config: str,
    weights: tuple[float, ...] | None = None,
    warm_start: WarmStart | None = None,
) -> Version:
    """Return version 0 of a line, with the spec's start weights, or with other weights and their source."""
    weights = spec.start if weights is None else weights
    return Version(
        format=FORMAT if warm_start is None else TAKEN_OVER_FORMAT,
        study=study,
        line=line,
        iteration=0,
        parent=None,
        parent_digest=None,
        created=created,
        spec_digest=spec.digest,
        names=spec.document_names,
        model=published(spec, weights),
        weights=weights,
        state=state,
        lineage=Lineage(origin="created", code_version=code_version, config_digest=config, warm_start=warm_start),
    )


def date_trouble(created: str, parent_created: str | None, now_ms: float) -> str | None:
    """Return a phrase for the problem with a version's date; None if the date is plausible.

    Args:
        created: time of publication by the publisher's clock, ISO 8601 in UTC.
        parent_created: its parent's time of publication; None if it has no parent.
        now_ms: the present time by this machine's clock, Unix ms.
    """
    made = milliseconds_of(created)
    if made > now_ms + CLOCKS_APART_MS:
        return f"is dated {_minute(created)}, in the future of this machine's clock"
    if parent_created is not None and made < milliseconds_of(parent_created) - CLOCKS_APART_MS:
        return f"is dated {_minute(created)}, before its parent of {_minute(parent_created)}"
    return None


def _minute(time: str) -> str:
    return f"{time[:16].replace('T', ' ')} UTC"
