"""The context of a round, and the stages that run in it.

A round is a list of stages (`fedping.server_jobs.round.run`). Each stage gets the context, which never changes, and
the state from the previous stage. It returns the next state, or the result, which ends the round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from fedping.model_store.store import ModelStore, StoreError, VersionConflict, lost
from fedping.model_store.version import Version
from fedping.protocol.landing import Landing, open_landing, partition
from fedping.protocol.location import Place
from fedping.protocol.notation import milliseconds_of
from fedping.protocol.stopping_settings import EarlyStop, IterationLength
from fedping.protocol.study import Line, Study
from fedping.protocol.upload import receiving
from fedping.server_jobs.privacy.budget import needs_key
from fedping.server_jobs.privacy.noise import Noise
from fedping.server_jobs.round.engine import Engine
from fedping.server_jobs.round.helper_client import Helper
from fedping.server_jobs.round.manifest import Manifest, Window, late_for, list_landed
from fedping.server_jobs.round.result import RoundResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOptions:
    """The caller's settings for a round.

    Attributes:
        clock: returns the current time, ISO 8601 in UTC, for the version's ``created``.
        code_version: recorded in the lineage.
        length: length of an iteration, if the line doesn't set it.
        early_stopping: criteria for the end of training, if the line doesn't set them.
        on_step: called after each step with its name: ``repaired``, ``listed``, ``aggregated``, ``stepped``,
            ``published`` or ``held``; ``staged`` when the clients of the stage can fetch the version; ``judged`` and
            ``intended`` when a stage is decided; for a private line also ``drawn`` and ``deleted``; for a two-server
            line also ``summed``, ``asked``, ``answered`` and ``forgotten``.
        privacy_key: the key that samples the clients of a private line and signs requests to helpers
            (`fedping.server_jobs.privacy.keys`); None if the line needs neither.
        keep: whether to keep the pings of a private line after its round, which breaks its guarantee.
        noise: source of a private line's noise; None for the operating system. Other noise doesn't protect clients, and
            is accepted only if the study is declared to be simulated.
        helper: the connection to the helper of a two-server line; None if its answers arrive as files.
    """

    clock: Callable[[], str]
    code_version: str
    length: IterationLength | None = None
    early_stopping: EarlyStop | None = None
    on_step: Callable[[str], None] = lambda step: None
    privacy_key: bytes | None = field(default=None, repr=False, compare=False)
    keep: bool = False
    noise: Noise | None = None
    helper: Helper | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext:
    """A line with its newest version, and all objects that a round on it may use.

    Attributes:
        store: the model store.
        landing: the landing folder.
        study, line: the settings that apply.
        settings: the number of the entry with these settings in the study's history.
        head: the line's newest version, from which the round starts.
        engine: computes the aggregates.
        options: the caller's settings.
        now_ms: the start of the round, Unix ms.
    """

    store: ModelStore
    landing: Landing
    study: Study
    line: Line
    settings: int
    head: Version
    engine: Engine
    options: RoundOptions
    now_ms: int

    @property
    def folder(self) -> Place:
        """The folder of the landed pings of the newest version."""
        return partition(self.landing.place, self.study.name, self.line.name, self.head.iteration)

    @property
    def key(self) -> bytes | None:
        """The privacy key; None if the line doesn't need a key."""
        privacy = self.line.privacy
        return self.options.privacy_key if privacy is not None and needs_key(privacy) else None

    @property
    def nothing(self) -> RoundResult:
        """The result of a round that did nothing."""
        return RoundResult(
            status="nothing",
            study=self.study.name,
            line=self.line.name,
            iteration=self.head.iteration,
            min_clients=self.line.pipeline.min_clients,
        )

    def record(self, iteration: int) -> None:
        """Record the number of a published version next to the pings."""
        self.landing.record_published(self.store.where, self.study.name, self.line.name, iteration)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """State between the stages of a round: the result so far, the listed files, and the version to publish."""

    result: RoundResult
    manifest: Manifest | None = None
    version: Version | None = None


S = TypeVar("S", bound=RoundState)

Stage: TypeAlias = Callable[[RoundContext, S], S | RoundResult]
"""A stage of a round: a function that returns the next state, or the result that ends the round."""


def run_stages(stages: Sequence[Stage[S]], context: RoundContext, state: S) -> S | RoundResult:
    """Run stages in order until one returns a result.

    The result is ``lost`` if another round publishes the version first.
    """
    try:
        for stage in stages:
            outcome = stage(context, state)
            if isinstance(outcome, RoundResult):
                return outcome
            state = outcome
    except VersionConflict:
        return replace(state.result, status="lost")
    return state


def open_line(
    store: ModelStore, landing: Landing, study: str, line: str, engine: Engine, options: RoundOptions
) -> RoundContext:
    """Complete the public files of an earlier round if it was killed, and return the context of a round.

    Raises:
        StoreError: the line doesn't exist or can't be read, or an older copy of the store was restored.
        FedpingError: an upload link isn't installed.
    """
    entry, settings = store.studies.settings(study)
    # Read before the head, because another round may publish in the meantime.
    recorded = landing.read_published(store.where, study, line)
    head = store.head(study, line, recorded)
    receiving(settings.line(line))  # raises if a link is not installed, which could not read any ping
    _check_newest(landing, store.where, head, recorded)
    store.public.refresh(study, line)
    options.on_step("repaired")
    return RoundContext(
        store=store,
        landing=landing,
        study=settings,
        line=settings.line(line),
        settings=entry,
        head=head,
        engine=engine,
        options=options,
        now_ms=milliseconds_of(options.clock()),
    )


def list_pings(context: RoundContext, state: S) -> S:
    """Stage: list the landed files that the round reads."""
    study, line, head = context.study, context.line, context.head
    late = late_for(context.store, study.name, line, head.iteration)
    window = Window(head.lineage.window_end_ms, context.now_ms)
    manifest = list_landed(context.landing, study, line.name, head.iteration, window, late)
    context.options.on_step("listed")
    return replace(state, manifest=manifest)


def end_if_over(context: RoundContext, state: S) -> S | RoundResult:
    """Stage: end a round on a line whose training is over."""
    lineage = context.head.lineage
    return replace(state.result, status="over", restored=lineage.restored) if lineage.stopped else state


@contextmanager
def noting(store: ModelStore, landing: Place | Landing, study: str, line: str) -> Iterator[None]:
    """Make a publication by the operator in this context as safe as a round's publication.

    The store must have the newest version, and the number of the published version is recorded next to the pings.

    Args:
        store: the model store.
        landing: the landing folder, or its address.
        study: the study's name.
        line: the line's name.

    Raises:
        StoreError: the study doesn't exist, or rounds have published later versions than this copy of the store has.
    """
    landing = open_landing(landing)
    store.study(study).line(line)  # checks the name, which could otherwise be any path
    recorded = landing.read_published(store.where, study, line)
    _check_newest(landing, store.where, store.head(study, line), recorded)
    yield
    if landing.exists():
        landing.record_published(store.where, study, line, store.head(study, line).iteration)


def _check_newest(landing: Landing, store: str, head: Version, recorded: int) -> None:
    """Raise if rounds have published versions after the head; record the head if it isn't recorded yet.

    Raises:
        StoreError: an older copy of the store was restored.
    """
    if recorded > head.iteration:
        raise StoreError(lost(head.study, head.line, head.iteration, recorded, str(landing)))
    if recorded < head.iteration and landing.exists():
        landing.record_published(store, head.study, head.line, head.iteration)
