"""A version of a model line: weights, optimizer state and lineage in one document; and parts of it."""

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
"""The state of the chain: by link's name, without those that have none; in format 1 that of each link, in order."""

FORMAT = 2
"""Format of new versions. In format 1 the state has no names."""

TAKEN_OVER_FORMAT = 3
"""Format of a version 0 with weights taken over: an older program would ignore that, and compute another digest."""

NEWEST_FORMAT = TAKEN_OVER_FORMAT
"""The newest format that can be read."""

CLOCKS_APART_MS = 60_000
"""Milliseconds that two clocks may differ without a warning; clocks that follow NTP differ by a few."""


class InputFile(Struct, frozen=True, omit_defaults=True):
    """A landed file that a round read: its path below the landing folder, and its rows at that time.

    ``age`` is the number of versions that its pings are behind the round's own, ``digest`` identifies its content
    (`fedping.protocol.landed_file`); older versions have no digests.
    """

    path: str
    rows: int
    age: int = 0
    digest: str = ""


class Influence(Struct, frozen=True, kw_only=True):
    """Who moved the model in a round (`fedping.server_jobs.round.influence` says what is exact).

    Attributes:
        norm_low, norm_median, norm_high: the norms that 5, 50 and 95 % of the updates do not exceed, before they were
            clipped, in the units of the clip; each client counts once.
        norm_most: the largest norm.
        bound: the norm at which updates were clipped; None if they were not.
        clipped: the share of updates that were longer; each client counts once.
        agreement: by how many clients more a weight is pushed to one side than to the other, as a share of those that
            push it at all, over all weights: 1 where all agree. None where nobody pushes.
        half: how many clients, those that pull most, make up half of what all of them pull: vote times length.
        new_clients: about how many clients had sent no usable update in any round before; None where nobody counts.
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

    ``mean`` is the weighted mean update, ``m2`` the weighted sum of squared deviations from it, both of length m;
    ``weight`` is the sum of the weights, which is the number of clients, of pings or of examples as the pipeline's
    weighting says. ``influence`` is None where nobody looked: versions from before it was told, and lines whose updates
    say nothing one by one. ``capped`` is the number of clients with a usable ping that claims more examples than the
    study's limit, for which it counts; None if there is none, and in older versions.
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
    the first round, and no client learns it.
    """

    salt: str
    registers: str


class Winsorised(Struct, frozen=True, kw_only=True):
    """Winsorised metrics of an arm over its clients with an example.

    A client's loss and rank are the means of its pings, its examples their sum (`fedping.server_jobs.round.winsorising`
    says how it is counted). The errors are standard errors. The rank is null where nothing is ranked.
    """

    clients: int
    examples: int
    loss: float
    loss_error: float
    rank_selected: float | None = None
    rank_error: float | None = None


class OutcomeLevel(Struct, frozen=True, kw_only=True):
    """The mean of a guarded outcome over an arm's clients, of each that over its choices, and its standard error."""

    clients: int
    mean: float
    error: float


class Level(NamedTuple):
    """What a metric of some arms is: a mean, its standard error if it is known, and over how many votes it is."""

    value: float
    error: float | None
    votes: int


class ArmSummary(Struct, frozen=True, kw_only=True):
    """Metrics of an arm while the parent version was current (validation by thesis 3.4).

    ``loss`` and ``rank_selected`` are means over all the examples behind the arm's pings, null without any; an
    interaction that ended with a selection is one example. ``rank_selected`` is null where nothing is ranked.
    ``winsorised`` is what a few clients cannot move, whatever they claim; null where the study does not ask for it, and
    without an example. ``clipped`` is the number of pings whose loss counted as the study's ``clip_loss``. ``outcomes``
    is null unless the line's guardrail looks at one.
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
        """Return what decisions go by: the winsorised mean by client if it is told, else the mean by example.

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
    """One side of a stage: its clients with an example, and the metrics of each arm there."""

    clients: int = 0
    arms: dict[str, ArmSummary] = {}


class StageState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stage: the share of the clients that get the version first, and the results of both sides.

    ``tried`` are clients of the share with pings of the staged version, ``stayed`` the others with pings of the version
    before that have landed since. None before a round has read them, and where people have decided.
    """

    share: float
    tried: StageResult | None = None
    stayed: StageResult | None = None


class GuardState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a line's guard (`fedping.protocol.guard`).

    ``figures`` are those of the last rounds by name, the oldest first, this one's last; ``alarms`` is a sentence for
    each of them that stands out. A version with any was ``held`` until somebody decided: it was ``released``, or this
    version repeats the one before it in its place, because it was ``discarded``. A version that the guard has
    ``rolled_back`` by itself repeats an older one, for the reason in ``alarms``. Else the decision is empty.
    ``beyond`` counts the rounds, one after the other, in which the guardrail was exceeded, this one included.
    A version with a ``stage`` was staged: it was then ``promoted`` to everybody, or this version repeats the one before
    it in its place, because it was ``withdrawn``, both for what the stage has shown.
    """

    figures: dict[str, tuple[float, ...]] = {}
    alarms: tuple[str, ...] = ()
    decision: Decision = ""
    beyond: int = 0
    stage: StageState | None = None

    @property
    def gives_up(self) -> bool:
        """Whether it belongs to a version in the place of a staged one."""
        return self.stage is not None and self.decision in ("withdrawn", "discarded")


class Answered(Struct, frozen=True, kw_only=True):
    """The helper that a round of a two-server line aggregated with (`fedping.protocol.sharing`).

    Attributes:
        helper: the identity of the second server.
        request, answer: digests of the request and of the answer.
        refused: the number of clients whose share it couldn't use: sealed for something else, or sent twice.
    """

    helper: str
    request: str
    answer: str
    refused: int = 0


class PrivacyEvent(Struct, frozen=True, kw_only=True):
    """What a round of a private line released, and its privacy cost; every figure in it is noisy.

    Attributes:
        released: of each arm that follows the line the sum of its clients' vectors, noise included, of m + 3 whole
            numbers (`fedping.protocol.privacy`).
        sigma: the standard deviation of the noise on each of these, of the discrete Gaussian; 0 where clients add all
            the noise themselves. What no client can move has none.
        sensitivity: the Euclidean norm of a client's vector at most; ``sigma`` is ``noise_multiplier`` times it, and of
            a line of shares the root of two times that, for both servers add so much.
        sampling: the share of the clients that counted.
        releases: the line's so far, this one included.
        epsilon, delta: the guarantee of all of them together, by ``accountant``; None where the operator gives none.
        key_digest: SHA-256 of the privacy key, by which coins are tossed or helpers asked; empty where neither is.
        stepped: whether the weights moved: not if too few clients were seen, or the step led to impossible weights.
        shared: with whom the sums were made, of a line of shares; None of others.
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
    """A version of another line that weights were taken over from, and the guarantee that its clients had.

    Attributes:
        study, line, iteration: which version, in whatever store it was.
        digest: the version's; another version has another one.
        private: whether its line was private.
        epsilon, delta: the central guarantee of all releases of its line up to that version; None where there is none.
        local_epsilon: that of each contribution, by noise that its clients added; None where they added none.
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
        """Return the version in words."""
        return f"version {self.iteration} of {self.study}/{self.line}"


class WarmStart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Source of a version 0 whose weights aren't the spec's start values.

    ``taken`` is the version. ``renamed`` has, by the name of a weight or block of this line, its name there; "" says
    that it was to start anew. ``before`` are the versions that the weights of ``taken`` in turn began with, the nearest
    first.
    """

    taken: Ancestor
    renamed: dict[str, str] = {}
    before: tuple[Ancestor, ...] = ()


class Lineage(Struct, frozen=True, kw_only=True):
    """Origin of a version; enough to recompute it, bit for bit.

    ``counts`` tells every ping of the round by what became of it (``used``, ``duplicate``, ``other_arm``, …), and the
    pings of other versions that had landed since (``stale``, ``future``), which are counted and not mixed in.
    ``ages`` splits the ``used`` by how many versions older than the parent they are, from 0 on; it is empty where
    older pings are not merged.
    ``window_end_ms`` is the landing time (milliseconds since 1970) up to which such pings have been counted.
    ``restored`` is the version that a rollback repeats, or that the line was ``continued`` from, under a number that
    nobody can have seen. ``stopped`` says that a round rolled back, to the best version, since early stopping found
    that training is over; as long as it is the newest, no round makes another one.
    ``guard`` is what the line's guard has seen; None if it has none. ``known`` are the clients of all rounds so far,
    where the guard looks at how many are new. ``privacy`` is what a round of a private line released: then ``counts``
    and ``arms`` tell what follows from it, and ``aggregate`` and ``inputs`` tell nothing. ``settings`` is the entry of
    the study's history (`fedping.model_store.history`) whose settings the round had; 0 for those of its creation.
    ``shards`` is into how many parts the round divided the clients, on which the last bits of the means depend.
    ``warm_start`` is where a version 0 has its weights from; None if they are the spec's start values.
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
    """Version ``iteration`` of a line.

    ``weights`` are the optimizer's doubles; ``model`` is what clients get (integer weights rounded). ``state`` is that
    of the server's chain. ``parent_digest`` ties the document to the very parent it was computed from.
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
        """SHA-256 of the document; computed once, since with a million weights that takes seconds."""
        return digest_of(self)

    @property
    def staged(self) -> StageState | None:
        """Its stage, if it is held for that alone."""
        return staged_by(self.lineage.guard)

    @property
    def unreadable(self) -> str | None:
        """Position of a number that JSON can't represent, infinity or NaN: such a document couldn't be read again."""
        made = self.lineage.aggregate
        vectors = {"model": self.model, "weights": self.weights}
        links = self.state.items() if isinstance(self.state, dict) else enumerate(self.state)
        vectors |= {f"state of link {link}, {name}": v for link, state in links for name, v in state.items()}
        vectors |= {"mean update": made.mean, "squared deviations": made.m2} if made else {}
        for where, vector in vectors.items():
            if not math.isfinite(sum(vector)):  # the quick question; a sum of finite numbers may be infinite too
                odd = next((i for i, value in enumerate(vector) if not math.isfinite(value)), None)
                if odd is not None:
                    return f"{where}, position {odd}: {vector[odd]}"
        return None


def staged_by(guard: GuardState | None) -> StageState | None:
    """Return the stage of a held version that nothing else holds; None if there is none."""
    return guard.stage if guard is not None and not guard.alarms and not guard.decision else None


class PublicPart(Struct, frozen=True, kw_only=True):
    """The part of a version that clients fetch, which is a :class:`protocol.model.ModelDocument`: no state, no lineage.

    Read from a version's own JSON, its numbers stay the text that they are. ``staged`` is never there.
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
    """The part of a version that ties it to its place; read from its JSON, the numbers are skipped."""

    study: str
    line: str
    iteration: int
    parent: int | None
    parent_digest: str | None
    spec_digest: str


class GuardPart(Struct, frozen=True, kw_only=True):
    """The guard's part of a lineage."""

    guard: GuardState | None = None


class HeldPart(Link, frozen=True, kw_only=True):
    """The part of a held version with its place and the reason for holding it."""

    lineage: GuardPart


class Counted(Struct, frozen=True, kw_only=True):
    """An aggregate without its vectors."""

    pings: int
    clients: int
    capped: int | None = None


class Charge(Struct, frozen=True, kw_only=True):
    """The release of a private line without its vectors."""

    sigma: float
    sensitivity: float
    releases: int
    epsilon: float | None
    stepped: bool = True


class Tally(Struct, frozen=True, kw_only=True):
    """The outcome part of a lineage."""

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
    """The outcome of a version's round; read from the version's JSON without its weights."""

    iteration: int
    created: str
    lineage: Tally


class SourcesPart(Struct, frozen=True, kw_only=True):
    """The part of a lineage with the landed files that a version was made from."""

    origin: Literal["created", "round", "rollback", "continued"]
    inputs: tuple[InputFile, ...] = ()
    window_end_ms: int = 0
    restored: int | None = None


class Sources(Struct, frozen=True, kw_only=True):
    """The landed files that a version was made from; read from the version's JSON without its weights."""

    iteration: int
    parent: int | None
    lineage: SourcesPart


class Fence(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Takes the place of version ``after`` + 1 where a line continues at a higher number, ``goes_on_at``.

    The numbers in between were published once, and lost when an older copy of the store was put back. A fence is
    written by the same compare-and-swap as a version, so no round can publish in its place; the version that it names
    follows from it and version ``after``.
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
    """Return version 0 of a line, with the spec's start weights or with others and their source."""
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
    """Return the problem with a version's date in words; None if it can be right.

    Args:
        created: time of publication by the clock of the machine that published it, ISO 8601 in UTC.
        parent_created: that of its parent; None if it has none.
        now_ms: the present time by this machine's clock, Unix ms.
    """
    made = milliseconds_of(created)
    if made > now_ms + CLOCKS_APART_MS:
        return f"is dated {_minute(created)}, which is still to come by this machine's clock"
    if parent_created is not None and made < milliseconds_of(parent_created) - CLOCKS_APART_MS:
        return f"is dated {_minute(created)}, before its parent of {_minute(parent_created)}"
    return None


def _minute(time: str) -> str:
    return f"{time[:16].replace('T', ' ')} UTC"
