"""A study: its arms with their shares, and the model lines that it trains.

A line is one sequence of model versions; a study may train several lines (study 2 of 2018 trained four). An arm names
the line that its clients follow, and sets what they do with its versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, json, to_builtins
from msgspec.structs import force_setattr, replace

from fedping.protocol.digest import digest_of
from fedping.protocol.errors import InvalidSettings, sentences_with
from fedping.protocol.extensions import ExtensionFailed
from fedping.protocol.guard import CLAIMED, Guard
from fedping.protocol.landing import MOST_SHARDS, NO_LINE, SHARDS
from fedping.protocol.limits import Limits, UpdateLimits, completed
from fedping.protocol.links import PrivateVector, SharedVector, Upload, check_links, traits_of_links
from fedping.protocol.metrics import Segment, StudyMetric, check_analysed
from fedping.protocol.outcomes import CategoryOutcome, NumericOutcome, Outcome, at_choice, check_outcomes
from fedping.protocol.ping import (
    MODEL_UPDATE,
    PRIVATE_UPDATE,
    DocumentName,
    DocumentType,
    outcomes_of_study,
    type_of_study,
)
from fedping.protocol.pipeline import ClipByQuantile, NoClip, Pipeline, Quorum, RProp
from fedping.protocol.privacy import Privacy, frame_of, published_privacy
from fedping.protocol.rules import Parts, Trait, Traits, check, traits_of, traits_where
from fedping.protocol.settings_file import converted, read_toml
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.spec import ModelSpec, Name, published_spec
from fedping.protocol.stopping_settings import EarlyStop, IterationLength
from fedping.protocol.training import OneGradient, OwnTraining, Training
from fedping.protocol.upload import receiving

SHARES_SLACK = 1e-9
"""Maximum excess of the shares' sum over 1, for rounded decimals such as three times 0.3333334."""


class Arm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An arm of a study: a group of clients with the same behaviour.

    Attributes:
        name: the arm's name.
        share: share of all clients that are in the arm.
        line: model line whose versions its clients fetch and report. Without one, they rank as the product does and
            only report.
        applies: whether clients rank with the line's model; else they rank with the start weights of its spec.
        submits: whether pings carry updates, which train the line. Else they carry none, and ingest rejects a ping with
            one or removes the update (``unwanted_updates`` of the study).
        decays: whether stored scores decay daily.
        personal: whether clients keep and apply the part of a model that the line's training makes their own
            (`fedping.protocol.personalization`). Clients of other arms keep nothing.
    """

    digest_name: ClassVar[str] = "Arm"

    name: Name
    share: Annotated[float, Meta(gt=0, le=1)]
    line: Name | None = None
    applies: bool = False
    submits: bool = False
    decays: bool = False
    personal: bool = False

    def __post_init__(self) -> None:
        if self.line is None and (self.applies or self.submits):
            raise InvalidSettings(
                f"arm '{self.name}' applies or submits but follows no model line; give it 'line', or neither"
            )
        if self.personal and not self.applies:
            raise InvalidSettings(
                f"arm '{self.name}' is personal but applies no model that could become a client's own; set "
                "'applies = true', or leave 'personal' out"
            )


class Piece(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An interval of [0, 1), from the previous interval's end to its own ``end``.

    Attributes:
        end: end of the interval.
        arm: the interval's arm; None if the interval belongs to no arm.
    """

    end: Annotated[float, Meta(gt=0, le=1)]
    arm: Name | None = None


Participation: TypeAlias = Annotated[float, Meta(gt=0, le=1)]


class LineSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings that a study's line shares with an experiment of the laboratory: everything that a round depends on.

    Attributes:
        training: what a client computes.
        upload: what a client does to an update before sending it, link by link (`fedping.protocol.upload`).
        pipeline: what the server does with a round's updates.
        privacy: the clients' guarantee (`fedping.protocol.privacy`); none if None.
    """

    training: Training = OneGradient()
    upload: Upload = ()
    pipeline: Pipeline = Pipeline()
    privacy: Privacy | None = None

    @property
    def traits(self) -> Traits:
        """Traits of these settings (`fedping.protocol.rules`)."""
        parts = (self.training, self.pipeline, self.privacy)
        return traits_of_links(self.upload).union(*map(traits_of, parts))


def check_line(parts: Parts, where: str) -> None:
    """Raise :class:`InvalidSettings` if a line of a study or an experiment can't have this combination of parts.

    Args:
        parts: the traits of the line's parts, and its name as the word ``line``.
        where: start of the sentences about private lines.
    """
    if parts.has("private"):
        check("private line", parts, where)
    check("line", parts)


class Line(LineSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A trained sequence of model versions: the model, how clients learn, and how a round computes the next version.

    Attributes:
        name: the line's name.
        spec: the model.
        training: what a client computes.
        upload: what a client does to an update before sending it, link by link (`fedping.protocol.upload`). A private
            line has only the link of private vectors.
        pipeline: what the server does with a round's updates.
        privacy: the clients' guarantee, which makes this a private line (`fedping.protocol.privacy`); none if None.
        guard: when a version is held instead of published; never if None.
        length: when an iteration has lasted long enough for a round (`fedping.protocol.stopping_settings`). If None,
            every round uses the pings that have landed.
        early_stopping: when training ends. If None, it continues as long as rounds run.
        limits: how large an update may be.
        participation: share of the clients that send updates of a version, drawn again for each version by client id
            (`fedping.protocol.enrolment.is_selected`). The others send nothing, and are not counted if they do.

    Raises:
        InvalidSettings: rounds recluster centroids, and the spec's weights are not centroids; a link of ``upload``
            follows one that must be last; or the pipeline clips signs, or clips movements by step sizes.
    """

    digest_name: ClassVar[str] = "Line"

    name: Name
    spec: ModelSpec
    guard: Guard | None = None
    length: IterationLength | None = None
    early_stopping: EarlyStop | None = None
    limits: UpdateLimits | None = None
    participation: Participation = 1.0

    def __post_init__(self) -> None:
        if self.privacy is not None and not self.upload:
            force_setattr(self, "upload", (_private_link(self.privacy, self.spec),))
        check_links(self.upload, self.name)
        if self.privacy is not None:
            frame_of(self.privacy, self.spec)
        check_line(self.parts, f"line '{self.name}' is private: ")
        if self.parts.has("centroids"):
            centroids_of(self.spec)

    @property
    def parts(self) -> Parts:
        """Traits of the line's parts and of its own settings (`fedping.protocol.rules`)."""
        guard, limits = self.guard, self.limits
        rail = guard.guardrail if guard is not None else None
        own: dict[Trait, bool] = {
            "other upload": self.privacy is not None and self.upload != (_private_link(self.privacy, self.spec),),
            "guard": guard is not None,
            "staged": guard is not None and guard.stage is not None,
            "guardrail": rail is not None,
            "guardrail of ranks": rail is not None and rail.metric == "rank_selected",
            "participation": self.participation < 1,
            "line limits": limits is not None,
            "bounded": limits is not None and bool(limits.norm or limits.weight),
            "early stopping": self.early_stopping is not None,
        }
        return Parts(self.traits | traits_of(self.length) | traits_where(own), {"line": self.name})


def _private_link(privacy: Privacy, spec: ModelSpec) -> PrivateVector | SharedVector:
    """Return the only link of a private line."""
    shared = privacy.shared
    if shared is None:
        return PrivateVector()
    metric = frame_of(privacy, spec).metric if shared.proofs else 0
    return SharedVector(seal=shared.seal, proofs=shared.proofs, metric=metric, digest=privacy.rows is not None)


def training_of(line: Line | PublicLine, arm: Arm) -> Training:
    """Return the training of an arm's clients on the arm's line; only personal arms keep a part of the model."""
    if arm.personal or isinstance(line.training, OwnTraining):
        return line.training
    return replace(line.training, personal=None)


def centroids_of(spec: ModelSpec) -> tuple[int, int]:
    """Return the number of centroids and the number of features, from the spec's ``clusters`` and ``features``.

    Raises:
        InvalidSettings: one of the two settings is missing, or they contradict the number of weights.
    """
    clusters, features = spec.settings.get("clusters"), spec.settings.get("features")
    if type(clusters) is int and type(features) is int and clusters > 0 and features > 0:
        without_counts = clusters * features
        if spec.m in (without_counts, without_counts + clusters):
            return clusters, features
    said = {"clusters": clusters, "features": features}
    missing = " and ".join(f"'{name}'" for name, value in said.items() if value is None)
    why = (
        f"and its settings have no {missing}"
        if missing
        else (f"which are no centroids of clusters = {clusters!r} and features = {features!r}")
    )
    raise InvalidSettings(
        f"model spec '{spec.name}' has {spec.m:,} weights, {why}; reclustering is for a model such as k-means: correct "
        "the spec, or set another 'aggregate'"
    )


class Study(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A named study. The shares of its arms may sum to less than 1; the remaining clients are not enrolled.

    With a private line, all lines are private, every arm follows one, and ``pings`` is ``private-update``.

    Attributes:
        name: the study's name.
        pings: type of all its pings (`fedping.protocol.ping`).
        arms: groups of clients that it compares.
        lines: model lines that it trains.
        telemetry: whether pings are also accepted at ``/submit/telemetry/`` and in Firefox's envelope. No path names a
            study there, so a store has one such study for each type of pings.
        unwanted_updates: what happens if an arm that does not submit sends an update: ``refuse`` rejects the ping;
            ``leave_out`` accepts it without the update.
        metrics: metrics to compare, in addition to those of every study of the type (`fedping.protocol.metrics`). They
            are not published to clients.
        segments: groups of clients to compare the metrics in (`fedping.protocol.metrics`). They are not published to
            clients.
        enrolment: ``hash`` derives a client's arm from its id (`fedping.protocol.enrolment`): a ping that names another
            arm is rejected, and not counted if it has landed. With ``elsewhere``, arms are assigned outside of fedping,
            and the arm that a ping names is believed. None, in studies that are older than this setting, means
            ``elsewhere``.
        limits: bounds on what a ping may claim about its client (`fedping.protocol.limits`).
        tickets: ``required`` rejects a ping without the product's ticket for its client id
            (`fedping.protocol.tickets`).
        pieces: interval of each arm after shares have changed while the study ran (`fedping.protocol.study_changes`),
            so that clients stay in their arms. If empty, the arms lie side by side.
        shards: number of parts into which a round divides the clients; at most one task processes each part
            (`fedping.protocol.landing`). The last bits of a version depend on it, so its lineage records it.
        outcomes: what clients report about a choice, at once or within some hours (`fedping.protocol.outcomes`).
            Clients get the declarations, to clip and round values.

    Raises:
        InvalidSettings: names repeat; shares exceed 1; shards aren't a power of two from 16 to 4,096; pieces are out of
            order or differ from the shares; an arm follows an unknown line; no arm submits for a line, so that it could
            never be trained; a line stops early by an arm that doesn't apply its model; a metric or segment uses a
            column that the pings lack; or a line is private and another setting would reveal more.
    """

    digest_name: ClassVar[str] = "Study"

    name: Name
    pings: DocumentName = "frecency-update"
    arms: Annotated[tuple[Arm, ...], Meta(min_length=1)]
    lines: tuple[Line, ...] = ()
    telemetry: bool = False
    unwanted_updates: Literal["refuse", "leave_out"] = "refuse"
    metrics: tuple[StudyMetric, ...] = ()
    segments: tuple[Segment, ...] = ()
    enrolment: Literal["hash", "elsewhere"] | None = None
    limits: Limits | None = None
    tickets: Literal["required", "none"] = "none"
    pieces: tuple[Piece, ...] = ()
    shards: int = SHARDS
    outcomes: tuple[Outcome, ...] = ()

    def __post_init__(self) -> None:
        check_outcomes(self.name, self.outcomes)
        if not SHARDS <= self.shards <= MOST_SHARDS or self.shards.bit_count() != 1:
            raise InvalidSettings(
                f"study '{self.name}' has shards = {self.shards}, and it has to be a power of two from {SHARDS} to "
                f"{MOST_SHARDS:,}; leave it out for {SHARDS}"
            )
        self._check_parts()
        check_analysed(self.name, self.document, self.metrics, self.segments)
        _refuse_repeated(self.name, "metrics", [metric.name for metric in self.metrics])
        _refuse_repeated(self.name, "segments", [segment.name for segment in self.segments])
        _refuse_repeated(self.name, "arms", [arm.name for arm in self.arms])
        _refuse_repeated(self.name, "lines", [line.name for line in self.lines])
        total = sum(arm.share for arm in self.arms)
        if total > 1 + SHARES_SLACK:
            raise InvalidSettings(f"the shares of study '{self.name}' sum to {total:g}; they may not exceed 1")
        _check_pieces(self.name, self.arms, self.pieces)
        known = {line.name for line in self.lines}
        if NO_LINE in known:
            raise InvalidSettings(
                f"a line of study '{self.name}' is named '{NO_LINE}', which marks arms without a line"
            )
        for arm in self.arms:
            if arm.line is not None and arm.line not in known:
                raise InvalidSettings(
                    f"arm '{arm.name}' of study '{self.name}' follows the line '{arm.line}', which the study does not "
                    f"have; it has {', '.join(sorted(known)) or 'none'}"
                )
        untrained = sorted(known - {arm.line for arm in self.arms if arm.submits})
        if untrained:
            raise InvalidSettings(
                f"no arm of study '{self.name}' submits updates for the line '{untrained[0]}', so it could never be "
                "trained; set 'submits = true' on an arm that follows it"
            )
        for line in self.lines:
            parts = self.parts_of(line)
            check("line of a study", parts)
            if line.early_stopping is not None:
                _check_validates(self.arm(line.early_stopping.arm), line.name)
            check("guard of a study", parts)
            self.guarded_outcome(line)

    def guarded_outcome(self, line: Line) -> NumericOutcome | None:
        """Return the outcome that a line's guardrail compares; None if it compares no outcome.

        Raises:
            InvalidSettings: rounds can't read the guardrail's metric, or it does not set which direction is better.
        """
        rail = line.guard.guardrail if line.guard is not None else None
        if rail is None or rail.metric in CLAIMED:
            return None
        what = f"the guardrail of line '{line.name}' is about '{rail.metric[:80]}'"
        outcome = next((one for one in self.outcomes if one.name == rail.metric), None)
        if outcome is None:
            there = ", ".join(one.name for one in at_choice(self.outcomes)) or "none"
            raise InvalidSettings(
                f"{what}, and study '{self.name}' has no such outcome. Name 'loss', 'rank_selected' or an outcome at "
                f"the choice; it has {there}"
            )
        if outcome.within is not None:
            raise InvalidSettings(
                f"{what}, which is a later outcome, and no round reads those. Name an outcome at the choice, and "
                f"compare later ones with 'fedping analyze {self.name} --guardrails {outcome.name}'"
            )
        if isinstance(outcome, CategoryOutcome) or outcome.better is None:
            raise InvalidSettings(
                f"{what}, and neither more nor less is better. Set 'better' of that outcome, or name another one"
            )
        return outcome

    def _check_parts(self) -> None:
        """Raise :class:`InvalidSettings` if other settings of a study with a private line could reveal clients."""
        parts = self._parts
        if parts.has("private line"):
            check("private study", parts, f"line '{parts.words['private']}' of study '{self.name}' is private: ")
        check("study", parts)

    @property
    def _parts(self) -> Parts:
        private = [line.name for line in self.lines if line.privacy is not None]
        open_lines = [line.name for line in self.lines if line.privacy is None]
        without = [arm.name for arm in self.arms if arm.line is None]
        own: dict[Trait, bool] = {
            "private line": bool(private),
            "open line": bool(open_lines),
            "arm without line": bool(without),
            "private pings": self.is_private,
            "ranked pings": self.document.ranked,
            "draws participants": self.document is MODEL_UPDATE,
            "several lines": len(self.lines) > 1,
            "chosen arms": self.enrolment == "elsewhere",
            "telemetry": self.telemetry,
            "metrics": bool(self.metrics),
            "segments": bool(self.segments),
            "tickets": self.tickets != "none",
            "study limits": self.limits is not None,
            "limit of ranks": self.limits is not None and self.limits.rank is not None,
            "limit of examples": self.limits is not None and self.limits.examples is not None,
            "lists": self.pings == "list-update",
            "outcomes": bool(self.outcomes),
            "outcomes at the choice": bool(at_choice(self.outcomes)),
        }
        first = {"private": private, "open": open_lines, "arm": without}
        words = {word: names[0] for word, names in first.items() if names}
        if declared := at_choice(self.outcomes):
            words["outcome"] = declared[0].name
        return Parts(traits_where(own), {"study": self.name, "pings": self.pings, **words})

    def parts_of(self, line: Line) -> Parts:
        """Return the traits of a line, its study and the arms that follow it (`fedping.protocol.rules`)."""
        arms = [arm for arm in self.arms if arm.line == line.name]
        personal = [arm.name for arm in arms if arm.personal]
        applied = {arm.applies for arm in arms if not arm.personal}
        own: dict[Trait, bool] = {
            "personal arm": bool(personal),
            "applied": True in applied,
            "control": False in applied,
            "half arm": not all(arm.applies and arm.submits for arm in arms),
        }
        of_study, of_line = self._parts, line.parts
        words = {**of_study.words, **of_line.words, "personal": next(iter(personal), "")}
        return Parts(of_line.traits | of_study.traits | traits_where(own), words)

    @property
    def digest(self) -> str:
        """SHA-256 of the whole study document."""
        return digest_of(self)

    @property
    def is_private(self) -> bool:
        """Whether the study's lines are private (all or none are); clients of every arm then send only vectors."""
        return self.document is PRIVATE_UPDATE

    @property
    def document(self) -> DocumentType:
        """The type of the study's pings that rounds read, with the columns of its outcomes at the choice."""
        return type_of_study(self.pings, self.name, self.outcomes)

    @property
    def later_outcomes(self) -> DocumentType | None:
        """The type of the pings of the study's later outcomes; None if it has none."""
        return outcomes_of_study(self.name, self.outcomes)

    def arm(self, name: str) -> Arm:
        """Return the arm of this name; raise :class:`InvalidSettings`, which lists the arms, if it doesn't exist."""
        return _named(self.arms, name, "arm", self.name)

    def line(self, name: str) -> Line:
        """Return the line of this name; raise :class:`InvalidSettings`, which lists the lines, if it doesn't exist."""
        return _named(self.lines, name, "line", self.name)


def _check_pieces(study: str, arms: tuple[Arm, ...], pieces: tuple[Piece, ...]) -> None:
    """Raise :class:`InvalidSettings` if intervals are not ascending, or contradict the shares of the arms."""
    if not pieces:
        return
    sizes, low = dict.fromkeys((arm.name for arm in arms), 0.0), 0.0
    for piece in pieces:
        if piece.end <= low or (piece.arm is not None and piece.arm not in sizes):
            raise InvalidSettings(
                f"study '{study}' has a piece that ends at {piece.end:g}, which is not after the previous one, or "
                "belongs to an unknown arm. Remove 'pieces', which only 'fedping study change' writes"
            )
        if piece.arm is not None:
            sizes[piece.arm] += piece.end - low
        low = piece.end
    for arm in arms:
        if abs(sizes[arm.name] - arm.share) > SHARES_SLACK:
            raise InvalidSettings(
                f"the pieces of arm '{arm.name}' of study '{study}' make {sizes[arm.name]:g} of all, and its share is "
                f"{arm.share:g}; leave 'pieces' out, which only 'fedping study change' makes"
            )


State: TypeAlias = Literal["running", "paused", "ended"]


class Declared(Struct, frozen=True, kw_only=True):
    """The operator's declarations about a study, apart from its settings.

    Attributes:
        state: while the study is ``paused``, no round publishes a version, but pings are accepted as usual. After it
            has ``ended``, pings are rejected too, and clients leave.
        since: when the state was declared, ISO 8601 in UTC; empty if nothing was ever declared.
        simulated: whether the study is simulated: its pings come from no ingest, and its times are not clock times.
        entry: number of the declaration in the study's history; 0 if there was no history yet.
        by: the declaration's author, as given by that person; empty if not given.
        because: the reason, as given by that person; empty if not given.
    """

    state: State = "running"
    since: str = ""
    simulated: bool = False
    entry: int = 0
    by: str = ""
    because: str = ""

    @property
    def told(self) -> str:
        """A phrase with the author and the reason, to follow the date; empty if neither is given."""
        who = f" by {self.by}" if self.by else ""
        return f"{who}, because: {self.because}" if self.because else who


class PublicLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The published part of a line: the model, the client's training and the form of updates, but no server settings.

    ``offer`` is the offer of a two-server line's helper; without it, clients of such a line send nothing.
    """

    name: Name
    spec: ModelSpec
    training: Training
    upload: Upload = ()
    privacy: Privacy | None = None
    offer: Offer | UnsetType = UNSET
    participation: Participation = 1.0


class PublicStudy(Struct, frozen=True, kw_only=True):
    """The document that clients fetch to participate, with the arms, to enrol themselves, and the models to rank with.

    While the study runs and no line has an offer, its JSON is also a valid :class:`Study`, whose lines have the default
    pipeline; clients do not use it. ``pieces`` and ``outcomes`` are present only if the study has any. ``ended`` is the
    time at which the study ended, and is present only then: a client that reads it leaves, and ranks as the product
    does by default.
    """

    name: Name
    pings: DocumentName = "frecency-update"
    arms: tuple[Arm, ...]
    lines: tuple[PublicLine, ...]
    pieces: tuple[Piece, ...] | UnsetType = UNSET
    ended: str | UnsetType = UNSET
    outcomes: tuple[Outcome, ...] | UnsetType = UNSET

    @property
    def document(self) -> DocumentType:
        """The type of the study's pings that rounds read; see :class:`Study`."""
        return type_of_study(self.pings, self.name, self.outcomes or ())

    @property
    def later_outcomes(self) -> DocumentType | None:
        """The type of the pings of the study's later outcomes; see :class:`Study`."""
        return outcomes_of_study(self.name, self.outcomes or ())


def public_study(
    study: Study, declared: Declared | None = None, offers: Mapping[str, Offer] | None = None
) -> PublicStudy:
    """Return the part of a study that is published for clients.

    Args:
        study: the complete study.
        declared: the operator's declarations; None if there are none.
        offers: the helper's offer of each two-server line; other lines have none.
    """
    lines = tuple(
        PublicLine(
            name=line.name,
            spec=line.spec,
            training=line.training,
            upload=line.upload,
            privacy=line.privacy,
            offer=(offers or {}).get(line.name, UNSET),
            participation=line.participation,
        )
        for line in study.lines
    )
    ended = declared.since if declared is not None and declared.state == "ended" else UNSET
    return PublicStudy(
        name=study.name,
        pings=study.pings,
        arms=study.arms,
        lines=lines,
        pieces=study.pieces or UNSET,
        ended=ended,
        outcomes=study.outcomes or UNSET,
    )


def public_json(study: PublicStudy) -> bytes:
    """Return the JSON document that clients fetch."""
    told = to_builtins(study)
    for line, as_json in zip(study.lines, told["lines"], strict=True):
        as_json["spec"] = published_spec(line.spec)
        if line.privacy is not None:
            as_json["privacy"] = published_privacy(line.privacy)
            for link in as_json["upload"]:
                if not link.get("digest", True):  # clients that are older than it refuse what they do not know
                    del link["digest"]
    return json.encode(told)


_ArmOrLine = TypeVar("_ArmOrLine", Arm, Line)


def _named(items: tuple[_ArmOrLine, ...], name: str, what: str, study: str) -> _ArmOrLine:
    for item in items:
        if item.name == name:
            return item
    there = ", ".join(item.name for item in items) or "none"
    raise InvalidSettings(f"study '{study}' has no {what} '{name}'; it has {there}")


def _check_validates(arm: Arm, line: str) -> None:
    """Raise :class:`InvalidSettings` unless the arm's loss is a loss of the line's models."""
    if arm.personal:
        raise InvalidSettings(
            f"early stopping of line '{line}' is to follow arm '{arm.name}', whose clients have their own models. "
            "Name an arm that is not personal"
        )
    if arm.line != line or not arm.applies:
        raise InvalidSettings(
            f"early stopping of line '{line}' is to follow arm '{arm.name}', which does not rank with the model of "
            f"that line; name an arm with 'line = \"{line}\"' and 'applies = true'"
        )


def _refuse_repeated(study: str, what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidSettings(f"study '{study}' has two {what} named '{name}'; rename one of them")


Completes: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""A function that fills in the omitted values of a study's tables."""


def study_from_toml(path: Path, *, new: bool = False, filled_in: Completes = lambda raw: raw) -> Study:
    """Read a study file.

    Args:
        path: the file.
        filled_in: adds values that the file omits and that follow from a model known to the caller.
        new: whether the study is about to be created. If so, omitted settings get safe values: arms by client id, the
            usual limits, and for each line a clip, a quorum and a guard, where possible. These are not the defaults of
            the fields, because the meaning of stored studies must not change.

    Raises:
        InvalidSettings: the file is missing, is not TOML, or is no valid study.
    """
    written = study_as_written(path, filled_in=filled_in)
    return new_study(written) if new else _without_what_is_off(written)


def study_as_written(path: Path, *, filled_in: Completes = lambda raw: raw) -> Study:
    """Read a study file and keep explicitly disabled settings; see :func:`new_study` and :func:`as_once_new`.

    Raises:
        InvalidSettings: the file is missing, is not TOML, or is no valid study.
    """
    where = f"the study file {path}: "
    raw = read_toml(path, "study file")
    with sentences_with(where):
        raw = dict(filled_in(raw))
    written = converted(raw, Study, where)
    for line in written.lines:
        check("written study", line.parts)
    return written


def new_study(study: Study) -> Study:
    """Return a new study in the form to be stored: with safe values added, and without disabled settings."""
    return _without_what_is_off(protected(study))


def as_once_new(study: Study) -> Iterator[Study]:
    """Yield the forms in which earlier versions stored a new study, latest first: with safe values, then without.

    ``study`` is the study as written in its file, including disabled settings.
    """
    yield _without_what_is_off(protected(study, Quorum(), clips=False))
    yield _without_what_is_off(study)


USUAL_QUORUM = Quorum(decides=0.015)
"""The quorum of a new study; with 1 %, hostile clients do too much damage in 40 rounds (docs/robustness.md)."""


def protected(study: Study, quorum: Quorum = USUAL_QUORUM, *, clips: bool = True) -> Study:
    """Return a study with safe values for settings that it doesn't set.

    Args:
        study: the study.
        quorum: the quorum for RProp after clipping.
        clips: whether the usual limits clip losses.
    """
    dealt: Literal["hash", "elsewhere"] = "elsewhere" if study.telemetry else "hash"
    return replace(
        study,
        enrolment=study.enrolment or dealt,
        limits=None if study.is_private else completed(study.limits, study.document, clips=clips),
        lines=tuple(
            line
            if line.privacy
            else replace(line, guard=_guarded(line.guard), pipeline=_with_quorum(_clipped(line), quorum))
            for line in study.lines
        ),
    )


def _without_what_is_off(study: Study) -> Study:
    """Return a study without disabled settings, so that its digest is the same as before these settings existed."""
    lines = (
        replace(
            line,
            guard=line.guard if line.guard is not None and line.guard.enabled else None,
            pipeline=_without_stages_off(line.pipeline),
        )
        for line in study.lines
    )
    return replace(study, lines=tuple(lines))


def _guarded(guard: Guard | None) -> Guard:
    guard = guard or Guard()
    return replace(guard, floors=True) if guard.floors is None else guard


def _without_stages_off(pipeline: Pipeline) -> Pipeline:
    optimizer = pipeline.optimizer
    if isinstance(optimizer, RProp) and pipeline.quorum is None:
        pipeline = replace(pipeline, optimizer=replace(optimizer, quorum=None))
    return replace(pipeline, clip=None) if isinstance(pipeline.clip, NoClip) else pipeline


def _with_quorum(pipeline: Pipeline, quorum: Quorum) -> Pipeline:
    """Return a pipeline, with a quorum if it sets none and clips by step sizes before a mean."""
    optimizer = pipeline.optimizer
    if not (isinstance(optimizer, RProp) and pipeline.traits >= {"clips by steps", "mean"}):
        return pipeline
    return replace(pipeline, optimizer=replace(optimizer, quorum=optimizer.quorum or quorum))


def _clipped(line: Line) -> Pipeline:
    """Return a line's pipeline, with the usual clip if it sets none and can clip.

    A line can clip if it takes the mean of updates that are not signs and can be read individually. Gradients for RProp
    are measured by its step sizes, because RProp moves each weight by its own step, regardless of the size of the mean.
    They are clipped well below the usual norm: RProp ignores length, and only few honest clients have large gradients.
    """
    signs = line.parts.has_any("sends signs", "equal lengths")
    if line.pipeline.clip is not None or not line.pipeline.is_linear or signs:
        return line.pipeline
    by_sign = isinstance(line.pipeline.optimizer, RProp) and line.parts.has("gradient")
    clip = ClipByQuantile(units="step", multiple=0.1) if by_sign else ClipByQuantile()
    with_clip = replace(line.pipeline, clip=clip)
    try:
        receiving(replace(line, pipeline=with_clip))
    except (InvalidSettings, ExtensionFailed):  # the check of the study reports it, if it fails without a clip too
        return line.pipeline
    return with_clip
