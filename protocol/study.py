"""The study: its arms with their shares, and the model lines that it trains.

A line is one sequence of model versions; several may be trained side by side (study 2 of 2018 trained four). An arm
says which line its clients follow and what they do with it.
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
"""How far above 1 the shares of the arms may sum: three times 1/3 written in decimals is not a mistake."""


class Arm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One study variation.

    A client of an arm with a ``line`` fetches that line's models and reports the version that it knows. If the arm
    ``applies`` the model, it ranks with it, else with the start weights of its spec. If the arm ``submits``, its
    pings carry updates, which train the line; else they carry none, and ingest refuses any (or leaves
    it out, as the study says). An arm without a line ranks
    as the product does and only reports. ``decays`` is the daily decay of stored scores. If the arm is ``personal``,
    its clients keep and apply what the training of the line makes their own (`fedping.protocol.personalization`); those
    of other arms keep nothing.
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
    """A part of [0, 1), from where the one before it ends to its own ``end``; of an arm, or of none."""

    end: Annotated[float, Meta(gt=0, le=1)]
    arm: Name | None = None


Participation: TypeAlias = Annotated[float, Meta(gt=0, le=1)]


class LineSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings that a study's line and an experiment of the laboratory share: all that a round depends on.

    Attributes:
        training: what a client computes.
        upload: what a client does to an update before sending it, link by link (`fedping.protocol.upload`).
        pipeline: what the server does with a round's updates.
        privacy: the guarantee that clients have (`fedping.protocol.privacy`); none if None.
    """

    training: Training = OneGradient()
    upload: Upload = ()
    pipeline: Pipeline = Pipeline()
    privacy: Privacy | None = None

    @property
    def traits(self) -> Traits:
        """The traits of these parts (`fedping.protocol.rules`)."""
        parts = (self.training, self.pipeline, self.privacy)
        return traits_of_links(self.upload).union(*map(traits_of, parts))


def check_line(parts: Parts, where: str) -> None:
    """Raise :class:`InvalidSettings` if the line of a study or an experiment cannot have these parts together.

    Args:
        parts: the traits of its parts, and its name as the word ``line``.
        where: begins the sentences about private lines.
    """
    if parts.has("private"):
        check("private line", parts, where)
    check("line", parts)


class Line(LineSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One trained sequence of model versions: what the model is, how clients learn, and how a round steps it.

    ``upload`` is what clients do to an update before they send it, link by link (`fedping.protocol.upload`);
    ``limits`` is how large an update may be. ``guard`` says when a version is held back instead of published; None
    never does.
    ``length`` says when an iteration has lasted long enough for a round, and ``early_stopping`` when training ends
    (`fedping.protocol.stopping_settings`); without them, every round takes the pings there are, as long as rounds run.
    ``privacy`` makes it a private line (`fedping.protocol.privacy`), whose ``upload`` is the link of private vectors.
    ``participation`` is which share of the clients sends updates of a version, drawn anew for each by their ids
    (`fedping.protocol.enrolment.is_selected`): the others send nothing, and are not counted if they do.

    Raises:
        InvalidSettings: rounds recluster centroids, and the weights of the spec are none; nothing can come after a
            link of ``upload`` where something does; or signs are to be clipped, or movements by step sizes.
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
        """What its parts and its own settings are, for `fedping.protocol.rules`."""
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
    """Return the one link of a private line."""
    shared = privacy.shared
    if shared is None:
        return PrivateVector()
    metric = frame_of(privacy, spec).metric if shared.proofs else 0
    return SharedVector(seal=shared.seal, proofs=shared.proofs, metric=metric, digest=privacy.rows is not None)


def training_of(line: Line | PublicLine, arm: Arm) -> Training:
    """Return how clients of an arm learn that follows a line: nothing becomes their own unless the arm is personal."""
    if arm.personal or isinstance(line.training, OwnTraining):
        return line.training
    return replace(line.training, personal=None)


def centroids_of(spec: ModelSpec) -> tuple[int, int]:
    """Return how many centroids the weights are, and of how many features: the spec's settings of these names.

    Raises:
        InvalidSettings: they are not there, or do not agree with the number of weights.
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
    """A named study. Its shares may sum to less than 1; the clients of the remainder are not enrolled.

    ``pings`` is the type of all of its pings (`fedping.protocol.ping`). With ``telemetry`` it takes them at
    ``/submit/telemetry/`` and in the envelope of Firefox too, where no path names a study: a store has one such study a
    type. ``unwanted_updates`` says what becomes of the update in a ping of an arm that does not submit any: the ping is
    refused, or it is taken and the update left out. ``metrics`` are compared besides those of every study of the type,
    and ``segments`` tell for whom (`fedping.protocol.metrics`); clients know of neither.

    ``enrolment`` says who deals the arms. With ``hash`` the client's id does (`fedping.protocol.enrolment`), and a ping
    of another arm is refused, and not counted where it has landed all the same; with ``elsewhere`` somebody else does,
    and a ping is believed. None is what studies say that are older than the question, and means the same.
    With a private line all lines are private, every arm follows one, and pings are of the type ``private-update``.
    ``limits`` bound what a ping may say of its client. With ``tickets`` required a ping is refused
    without the product's word for its client id (`fedping.protocol.tickets`).

    ``pieces`` say where each arm lies once shares have changed while the study ran
    (`fedping.protocol.study_changes`), so that a client stays in its arm. Without any, the arms lie side by side.

    ``outcomes`` are what clients report of a choice, at once or within some hours (`fedping.protocol.outcomes`);
    clients get the declarations, to clip and round by.

    ``shards`` is into how many parts a round divides the clients, each of which one task works on at most
    (`fedping.protocol.landing`). The last bits of a version depend on it, so its lineage keeps it.

    Raises:
        InvalidSettings: names repeat, shares exceed 1, shards are no power of two from 16 to 4,096, pieces are not in
            order or not those of the shares, an arm follows a line that is not there, a line has no arm that submits
            and could never be trained, or stops early by an arm that does not apply its model, a metric or segment is
            made of what its pings do not have, or a line is private and something would tell more.
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
        """Return the outcome that a line's guardrail looks at; None if it looks at none.

        Raises:
            InvalidSettings: the guardrail names nothing that rounds read, or that says which direction is better.
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
                f"{what}, of which neither more nor less is better. Set 'better' of that outcome, or name another one"
            )
        return outcome

    def _check_parts(self) -> None:
        """Raise :class:`InvalidSettings` if a study with a private line could learn of a client in another way."""
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
        """Return what a line, its study, and the arms that follow it are, for `fedping.protocol.rules`."""
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
        """Whether its lines are private, all of them: then clients of every arm send vectors, and nothing else."""
        return self.document is PRIVATE_UPDATE

    @property
    def document(self) -> DocumentType:
        """The type of the study's pings that rounds read, with the columns of its outcomes at the choice."""
        return type_of_study(self.pings, self.name, self.outcomes)

    @property
    def later_outcomes(self) -> DocumentType | None:
        """The type of the pings of its later outcomes; None without any."""
        return outcomes_of_study(self.name, self.outcomes)

    def arm(self, name: str) -> Arm:
        """Return the arm of this name; raises :class:`InvalidSettings` naming the arms that there are."""
        return _named(self.arms, name, "arm", self.name)

    def line(self, name: str) -> Line:
        """Return the line of this name; raises :class:`InvalidSettings` naming the lines that there are."""
        return _named(self.lines, name, "line", self.name)


def _check_pieces(study: str, arms: tuple[Arm, ...], pieces: tuple[Piece, ...]) -> None:
    """Raise :class:`InvalidSettings` if pieces do not rise, or make other shares than the arms say."""
    if not pieces:
        return
    sizes, low = dict.fromkeys((arm.name for arm in arms), 0.0), 0.0
    for piece in pieces:
        if piece.end <= low or (piece.arm is not None and piece.arm not in sizes):
            raise InvalidSettings(
                f"study '{study}' has a piece that ends at {piece.end:g}, which is not after the one before it, or is "
                "of no arm of it; leave 'pieces' out, which only 'fedping study change' makes"
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
    """What the operator has declared of a study, beside its settings.

    While it is ``paused`` no round makes a version, and pings are taken as ever. Once it has ``ended`` no ping is taken
    either, and clients are told to leave. ``since`` is ISO 8601 in UTC; empty where nothing was ever declared. Of a
    study that is ``simulated``, pings come from no ingest, and times are not those of a clock. ``entry`` is that of the
    study's history by which it was declared; 0 where there was no history yet. ``by`` and ``because`` say who has
    declared it and why, in somebody's own words; they are empty where nobody said.
    """

    state: State = "running"
    since: str = ""
    simulated: bool = False
    entry: int = 0
    by: str = ""
    because: str = ""

    @property
    def told(self) -> str:
        """Who has declared it and why, as words to follow on since when; empty where nobody said."""
        who = f" by {self.by}" if self.by else ""
        return f"{who}, because: {self.because}" if self.because else who


class PublicLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client may know of a line: the model, how to learn and what to send; not how the server steps it.

    ``offer`` is that of the helper of a line of shares, without which its clients send nothing.
    """

    name: Name
    spec: ModelSpec
    training: Training
    upload: Upload = ()
    privacy: Privacy | None = None
    offer: Offer | UnsetType = UNSET
    participation: Participation = 1.0


class PublicStudy(Struct, frozen=True, kw_only=True):
    """What a client fetches to take part: the arms, to enrol itself, and the models to rank with.

    While the study runs, and no line has an offer, its JSON reads as a :class:`Study` too, whose lines then have the
    default pipeline, of which a client has no use. ``pieces`` are there if the study has any, and so are ``outcomes``.
    ``ended`` says since when the study has ended, and is there only then: a client that reads it leaves, and ranks as
    the product does.
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
        """The type of the study's pings that rounds read, as of :class:`Study`."""
        return type_of_study(self.pings, self.name, self.outcomes or ())

    @property
    def later_outcomes(self) -> DocumentType | None:
        """The type of the pings of its later outcomes, as of :class:`Study`."""
        return outcomes_of_study(self.name, self.outcomes or ())


def public_study(
    study: Study, declared: Declared | None = None, offers: Mapping[str, Offer] | None = None
) -> PublicStudy:
    """Return the part of a study that clients may see.

    Args:
        study: the whole of it.
        declared: what was declared of it; None for nothing.
        offers: by line what its helper offers; lines without shares have none.
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
    """Return what clients fetch, as JSON."""
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
    """Raise :class:`InvalidSettings` unless the loss of an arm is that of a line's models."""
    if arm.personal:
        raise InvalidSettings(
            f"early stopping of line '{line}' is to follow arm '{arm.name}', whose clients have models of their own; "
            "name an arm that is not personal"
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
"""From a study's tables to tables with what they leave out."""


def study_from_toml(path: Path, *, new: bool = False, filled_in: Completes = lambda raw: raw) -> Study:
    """Read a study file.

    Args:
        path: the file.
        filled_in: fills in what the file leaves out and follows from a model that the caller knows.
        new: whether the study is about to be new, and gets the safe choice wherever its file makes none: arms by the
            client's id, the usual limits, and for each line a clip and a quorum, where it can have them, and a guard.
            These are not the defaults of the fields: what stored studies do not say has to go on meaning what it meant.

    Raises:
        InvalidSettings: the file is not there, is not TOML, or says something that a study cannot mean.
    """
    written = study_as_written(path, filled_in=filled_in)
    return new_study(written) if new else _without_what_is_off(written)


def study_as_written(path: Path, *, filled_in: Completes = lambda raw: raw) -> Study:
    """Read a study file, with what it turns off; see :func:`new_study` and :func:`as_once_new`.

    Raises:
        InvalidSettings: the file is missing, is no TOML, or describes no study.
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
    """Return a study as it is stored when it is new: with the safe choices, and nothing of what it turns off."""
    return _without_what_is_off(protected(study))


def as_once_new(study: Study) -> Iterator[Study]:
    """Yield how earlier versions stored a new study, the last ones first: with their safe choices, and with none.

    ``study`` is as it is written, with what it turns off.
    """
    yield _without_what_is_off(protected(study, Quorum(), clips=False))
    yield _without_what_is_off(study)


USUAL_QUORUM = Quorum(decides=0.015)
"""The quorum of a new study; with 1 %, hostile clients cost too much in 40 rounds (docs/robustness.md)."""


def protected(study: Study, quorum: Quorum = USUAL_QUORUM, *, clips: bool = True) -> Study:
    """Return a study with the safe choice wherever it makes none.

    Args:
        study: the study.
        quorum: that of RProp behind a clip.
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
    """Return a study that says nothing of what it turns off, with the digest that it had before there was such."""
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
    """Return a pipeline with a quorum, if it says nothing of one, and clips by step sizes before a mean."""
    optimizer = pipeline.optimizer
    if not (isinstance(optimizer, RProp) and pipeline.traits >= {"clips by steps", "mean"}):
        return pipeline
    return replace(pipeline, optimizer=replace(optimizer, quorum=optimizer.quorum or quorum))


def _clipped(line: Line) -> Pipeline:
    """Return a line's pipeline with the usual clip, if it says nothing of one.

    A line can clip if it takes the mean, of updates that are no signs and need not be summed to be read. Gradients for
    RProp are measured by its step sizes, since it moves each weight by its own, however small a number has decided the
    sign; and clipped well below the usual norm: it looks at no length, and the loudest honest clients are few.
    """
    signs = line.parts.has_any("sends signs", "equal lengths")
    if line.pipeline.clip is not None or not line.pipeline.is_linear or signs:
        return line.pipeline
    by_sign = isinstance(line.pipeline.optimizer, RProp) and line.parts.has("gradient")
    clip = ClipByQuantile(units="step", multiple=0.1) if by_sign else ClipByQuantile()
    with_clip = replace(line.pipeline, clip=clip)
    try:
        receiving(replace(line, pipeline=with_clip))
    except (InvalidSettings, ExtensionFailed):  # whoever checks the study is told, if it fails without a clip too
        return line.pipeline
    return with_clip
