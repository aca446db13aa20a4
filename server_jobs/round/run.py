"""One round of one line, step by step: list, aggregate, step, publish.

It may be killed anywhere. Until the version is published nothing has changed, and a repetition reads the same pings;
publishing is one compare-and-swap of a document that holds weights, state and lineage together; what clients fetch is
derived from it, and the next round brings it up to date if this one could not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import structs

from fedping.model_store.decisions import (
    describe_missing,
    describe_staged,
    promote,
    rolled_back,
    with_stage,
    withdrawal,
)
from fedping.model_store.store import ModelStore, StoreError, VersionConflict, lost
from fedping.model_store.version import (
    FORMAT,
    ArmSummary,
    ClientSketch,
    GuardState,
    Influence,
    Lineage,
    StageState,
    Version,
    date_trouble,
)
from fedping.protocol.clock import milliseconds_of, time_at
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import FedpingError, TemporaryFailure
from fedping.protocol.landing import open_landing, partition
from fedping.protocol.location import Place
from fedping.protocol.model import UnfitModel, out_of_range, validate_spec
from fedping.protocol.spec import published
from fedping.protocol.stopping_settings import EarlyStop, IterationLength
from fedping.protocol.study import Line, Study
from fedping.protocol.update import DENSE
from fedping.protocol.upload import receiving
from fedping.server_jobs.optimize import BrokenLink, state_to_document
from fedping.server_jobs.round.aggregate import RoundAggregate, ShardPartial, combined, in_order
from fedping.server_jobs.round.capacity import key_of_lots
from fedping.server_jobs.round.clipping import first_bound, has_to_measure
from fedping.server_jobs.round.engine import Engine
from fedping.server_jobs.round.guard import fallen, looks_at_new_clients, watched
from fedping.server_jobs.round.influence import needs_influence
from fedping.server_jobs.round.manifest import Manifest, late_for, list_landed, work_on
from fedping.server_jobs.round.new_clients import estimated, no_clients, salt_for, with_more
from fedping.server_jobs.round.plan import Rules, rules_for
from fedping.server_jobs.round.staging import describe_trial, read_stage, stage_of, verdict
from fedping.server_jobs.round.step import apply_step, next_clip_bound, state_of
from fedping.server_jobs.round.stopping import clients_missing, iteration_ended, stop_if_over

if TYPE_CHECKING:
    from fedping.server_jobs.privacy.noise import Noise
    from fedping.server_jobs.round.helper_client import Helper

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySpent:
    """What a private line has spent, its last round included.

    Attributes:
        releases: how many rounds have released something.
        rounds_left: how many may yet; None where nothing bounds them.
        epsilon, delta: the guarantee of those that were; None where the operator gives none.
        most: the epsilon that the line may spend.
        noise: the standard deviation of the noise on an arm's number of clients; 0 where clients add it.
        stepped: whether the last round moved the weights.
        local: whether clients add noise themselves.
        refused: how many clients the last round left out because the helper could not use their shares.
    """

    releases: int
    rounds_left: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    most: float | None = None
    noise: float = 0.0
    stepped: bool = True
    local: bool = False
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What one line's round on version ``iteration`` came to, for people and programs.

    Attributes:
        status: ``published`` version ``iteration + 1``; ``held`` it back, now or in an earlier round; ``discarded``
            what was held, by somebody's decision, and published version ``restored`` again instead; ``staged`` it to
            a share of the clients, now or in an earlier round; ``withdrawn`` it from these, so that version
            ``iteration + 2`` repeats ``restored``; ``rolled_back`` the line by its guard, to version ``restored``;
            ``waiting`` for more clients, nothing kept; ``early``, for the iteration lasts on, nothing kept; ``nothing``
            has landed; ``lost`` to another round, which published that version first; ``stopped``, for training turned
            out to be over, so that version ``restored`` was published again, after ``iteration + 1`` if the round made
            one; ``over``: so it was before, and nothing is done; ``exhausted``: a private line has spent what it may,
            and nothing was read; ``asked``: a line of shares waits for its helper, and its request is kept; ``paused``
            or ``ended``: so is the study, and no round was begun.
        clients: those with a usable update.
        counts: as in :class:`fedping.model_store.version.Lineage`, like ``arms``.
        alarms: why the version was held or withdrawn, or the line rolled back.
        stage: of a version that is or was staged, what was heard of it.
        until: when an iteration that lasts on ends in any case, or, without ``missing``, before when it does not.
        missing: what would end it sooner; of a line of shares, for what it waits.
        since: when a line of shares has asked its helper, or since when the study rests, ISO 8601 in UTC.
        influence: who moved the model, as in :class:`fedping.model_store.version.Aggregate`.
        update_bytes: the size of the used updates as encoded; of a private line, and where nothing was read, 0.
        privacy: what a private line has spent; of such a line, numbers of clients are those that the noise shows.
        capped: clients that count for fewer examples than they claim, as in
            :class:`fedping.model_store.version.Aggregate`.
    """

    status: Literal[
        "published",
        "held",
        "discarded",
        "staged",
        "withdrawn",
        "rolled_back",
        "waiting",
        "early",
        "nothing",
        "lost",
        "stopped",
        "over",
        "exhausted",
        "asked",
        "paused",
        "ended",
    ]
    study: str
    line: str
    iteration: int
    clients: int = 0
    min_clients: int
    counts: dict[str, int] = field(default_factory=dict)
    arms: dict[str, ArmSummary] = field(default_factory=dict)
    alarms: tuple[str, ...] = ()
    restored: int | None = None
    until: str | None = None
    missing: str = ""
    since: str | None = None
    influence: Influence | None = None
    stage: StageState | None = None
    privacy: PrivacySpent | None = None
    update_bytes: int = 0
    capped: int | None = None

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        where = f"{self.study}/{self.line}"
        match self.status:
            case "published":
                return f"{where}: {self._published}"
            case "stopped":
                made = f"{self._published}; " if self.counts else ""
                return (
                    f"{where}: {made}training is over, and version {self.restored}, which had the lowest loss, is "
                    f"published again as version {self.iteration + (2 if self.counts else 1)}"
                )
            case "rolled_back":
                return (
                    f"{where}: rolled back to version {self.restored}, which version {self.iteration + 1} repeats: "
                    f"{'; '.join(self.alarms)}"
                )
            case "discarded":
                return (
                    f"{where}: published version {self.iteration + 1}, which repeats version {self.restored}; the "
                    "pings of the held version count nowhere"
                )
            case "held":
                return (
                    f"{where}: version {self.iteration + 1} is held back and version {self.iteration} stays: "
                    f"{'; '.join(self.alarms)}. {decide_by(self.study, self.line)}"
                )
            case "staged":
                waits = self.missing or f"it is tried until {(self.until or '')[:19].replace('T', ' ')} UTC at least"
                share = self.stage.share if self.stage else 0.0
                return f"{where}: {describe_staged(self.iteration + 1, share)}; {waits}"
            case "withdrawn":
                return (
                    f"{where}: version {self.iteration + 1} is withdrawn, and version {self.restored} published again "
                    f"as version {self.iteration + 2}: {'; '.join(self.alarms)}"
                )
            case "over":
                return (
                    f"{where}: training is over, and version {self.iteration} is version {self.restored} again, which "
                    f"had the lowest loss; 'fedping store rollback {self.study} {self.line} --to {self.restored}' lets "
                    "it begin anew"
                )
            case "early":
                until = f"until {(self.until or '')[:19].replace('T', ' ')} UTC"
                lasts = f"; {self.missing}, and its iteration lasts {until} at most" if self.missing else f" {until}"
                return f"{where}: version {self.iteration} stays{lasts}"
            case "asked":
                since = (self.since or "")[:19].replace("T", " ")
                return (
                    f"{where}: version {self.iteration} stays; the helper was asked for the sums of {self.clients:,} "
                    f"clients at {since} UTC, and its answer is not there: {self.missing}"
                )
            case "waiting" if self.missing:
                return f"{where}: version {self.iteration} stays; {self.missing}"
            case "waiting":
                return (
                    f"{where}: version {self.iteration} stays; {self.clients:,} of at least {self.min_clients:,} "
                    "clients have sent a usable update"
                )
            case "paused" | "ended":
                return f"{where}: no round, for the study {'is paused' if self.status == 'paused' else 'has ended'}"
            case "nothing":
                return f"{where}: nothing to do; no ping of version {self.iteration} has landed"
            case "lost":
                return (
                    f"{where}: another round published version {self.iteration + 1} first; this one published nothing, "
                    "and nothing is lost"
                )
            case "exhausted":
                assert self.privacy is not None
                return (
                    f"{where}: version {self.iteration} stays, and nothing was read; the line has been released "
                    f"{self.privacy.releases:,} times, which is all that its guarantee allows"
                )

    @property
    def _published(self) -> str:
        if self.privacy is not None:
            return self._released(self.privacy)
        used, others = self.counts["used"], sum(self.counts.values()) - self.counts["used"]
        tried = f": {describe_trial(self.stage)}" if self.stage is not None else ""
        return (
            f"published version {self.iteration + 1} from {used:,} pings of {self.clients:,} clients ({others:,} other "
            f"pings not used){tried}"
        )

    def _released(self, spent: PrivacySpent) -> str:
        about = (
            f"about {self.clients:,} clients (noise of ± {spent.noise:,.0f})"
            if spent.noise
            else (f"{self.clients:,} clients" + (", each with noise of its own" if spent.local else ""))
        )
        made = f"published version {self.iteration + 1} from {about}"
        if not spent.stepped:
            why = f"too few for a step, which takes {self.min_clients:,}"
            if self.clients >= self.min_clients:
                why = "its step failed, or led to weights that no client could read"
            made += f", which repeats version {self.iteration}: {why}"
        if spent.refused:
            of = "a client's share" if spent.refused == 1 else f"the shares of {spent.refused:,} clients"
            made += f"; {of} the helper could not use, and left out"
        if spent.epsilon is None or spent.rounds_left is None:
            return made
        one = "no round is" if spent.rounds_left == 0 else "1 round is"
        left = f"{one if spent.rounds_left < 2 else f'{spent.rounds_left:,} rounds are'} left"
        return f"{made}; epsilon {spent.epsilon:.3g} of {spent.most:g} so far, and {left}"


def decide_by(study: str, line: str) -> str:
    """Return what is to be done about a version that is held back."""
    return (
        f"Look at it ('fedping store held {study} {line}'), then publish it with 'fedping round {study} {line} "
        "--release', or leave it and its pings behind with --discard."
    )


def run_round(
    store: ModelStore,
    landing: Place,
    study: str,
    line: str,
    engine: Engine,
    *,
    clock: Callable[[], str],
    code_version: str,
    length: IterationLength | None = None,
    early_stopping: EarlyStop | None = None,
    on_step: Callable[[str], None] = lambda step: None,
    privacy_key: bytes | None = None,
    keep: bool = False,
    noise: Noise | None = None,
    helper: Helper | None = None,
) -> RoundResult:
    """Turn the landed pings of a line's newest version into the next one.

    Args:
        store: where the versions are.
        landing: the landing folder.
        study: the study's name.
        line: the line's name.
        engine: computes the aggregate; not asked for anything if nothing has landed.
        clock: returns now, ISO 8601 in UTC, for the version's ``created``.
        code_version: written into the lineage.
        length: when an iteration ends, where the line does not say.
        early_stopping: when training is over, where the line does not say.
        on_step: told the step that has just been done: ``repaired``, ``listed``, ``aggregated``, ``stepped``,
            ``published`` or ``held``; ``staged`` once clients are shown what is held for that; ``judged`` where a stage
            has shown enough; of a private line ``drawn`` and ``deleted`` too, and of one of shares ``summed``,
            ``asked``, ``answered`` and ``forgotten``.
        privacy_key: the key of a private line's coins (`fedping.server_jobs.privacy.sampling_key`), and that which
            requests to helpers are signed with (`fedping.server_jobs.privacy.leader`); not needed without either.
        keep: whether the pings of a private line stay after its round, which breaks what its clients are promised.
        noise: what draws the noise of a private line; None for the operating system. Another, which protects nobody, is
            for a study that is declared to be simulated.
        helper: the way to the helper of a line of shares; None if its answers come by hand.

    Raises:
        FedpingError: the store, the landing folder or a file in it cannot be used, an upload link is not here, or no
            ping fits the model spec; nothing was published.
        TemporaryFailure: the line's iterations last for a time, and its newest version is dated in the future.
        UnfitModel: the step leads to weights that no client could read; nothing was published.
        BrokenLink: the line's aggregation, optimizer or a constraint failed; nothing was published.
    """
    entry, the_study = store.studies.settings(study)
    noted = open_landing(landing).read_published(
        store.where, study, line
    )  # before the head: another round may publish in between
    head = store.head(study, line, noted)
    settings = the_study.line(line)
    receiving(settings)  # or nothing could be read of what has landed
    _refuse_an_older_copy(landing, store.where, head, noted)
    store.public.refresh(study, line)
    on_step("repaired")
    result = RoundResult(
        status="nothing", study=study, line=line, iteration=head.iteration, min_clients=settings.pipeline.min_clients
    )
    private = None
    if settings.privacy is not None:
        from fedping.server_jobs.round.private import PrivateRound  # which is made of what is here

        private = PrivateRound.of(store, landing, the_study, settings, head, privacy_key, keep, noise, helper)
    if head.lineage.stopped:
        return replace(result, status="over", restored=head.lineage.restored)
    if private is not None and private.exhausted:
        return replace(result, status="exhausted", privacy=private.spent)
    if (held := store.held.held_version(study, line)) is not None:
        if held.staged is not None:
            _, as_staged = store.studies.settings(study, held.lineage.settings)  # by which it is computed again, too
            return _stage(store, landing, as_staged, head, held, engine, result, clock, code_version, on_step)
        return with_lineage(held, replace(result, status="held"))
    length, rule = settings.length or length, settings.early_stopping or early_stopping
    best = _restored(store, landing, head, rule, entry, clock, code_version)
    if best is not None:
        return replace(result, status="stopped", restored=best)
    window, now = head.lineage.window_end_ms, milliseconds_of(clock())
    minutes = _minutes_since(head, now) if length is not None else 0.0
    if length is not None and minutes < length.least:
        return replace(result, status="early", until=_after(head, length.least))

    def listed() -> Manifest:
        late = late_for(store, study, settings, head.iteration)
        found = list_landed(landing, the_study, line, head.iteration, window, late, now_ms=now)
        on_step("listed")
        return found

    if private is not None:
        lost_to_another = replace(result, status="lost")
        try:
            with _told_of(head):
                result, version = private.made(result, listed, engine, time_at(now), code_version, on_step)
        except FedpingError:
            if store.lines.newest(study, line) != head.iteration:  # and it has deleted the pings
                return lost_to_another
            raise
        if version is None:
            return result
        try:
            store.publish(version)
        except VersionConflict:  # the other round's noise is the one that counts, and this one's is seen by nobody
            return lost_to_another
        open_landing(landing).record_published(store.where, study, line, version.iteration)
        private.note(version)
        on_step("published")
        private.delete(upto=head.iteration)
        on_step("deleted")
        private.forget()
        if private.shared is not None:
            on_step("forgotten")
        best = _restored(store, landing, version, rule, entry, clock, code_version)
        return replace(result, status="published" if best is None else "stopped", restored=best)
    manifest = listed()
    if manifest.rows == 0:
        return result
    with _told_of(head):
        aggregate = aggregate_of(landing, the_study, head, manifest, engine)
    on_step("aggregated")
    _refuse_another_model(aggregate, settings, partition(landing, study, line, head.iteration))
    counts = {**aggregate.counts, "stale": manifest.stale, "future": manifest.future}
    made = aggregate.updates
    result = replace(
        result,
        clients=made.clients,
        counts=counts,
        arms=aggregate.arms,
        influence=made.influence,
        update_bytes=aggregate.update_bytes,
        capped=made.capped,
    )
    if length is not None and not iteration_ended(length, minutes, made):
        told = clients_missing(length, made)
        return replace(result, status="early", until=_after(head, length.most), missing=told)
    if aggregate.updates.clients < settings.pipeline.min_clients:
        return replace(result, status="waiting")
    with _told_of(head):
        version = next_version(
            the_study, settings, head, aggregate, manifest, created=clock(), code_version=code_version, entry=entry
        )
        if fall := fallen(settings.guard, version.lineage.guard):
            target = _before_the_fall(store, head, fall.rounds)
            version = rolled_back(target, head, fall.why, created=version.created, code_version=code_version)
            result = replace(result, status="rolled_back", alarms=(fall.why,), restored=target.iteration)
    on_step("stepped")
    try:
        if broken := out_of_range(version.model, settings.spec) or validate_spec(version.model, settings.spec):
            told = f"version {version.iteration} of line '{line}' of study '{study}' was not published: {broken}"
            raise UnfitModel(told, broken)
        if result.status != "rolled_back" and version.lineage.guard is not None and version.lineage.guard.alarms:
            store.hold(version)
            on_step("held")
            return with_lineage(store.held.held_version(study, line) or version, replace(result, status="held"))
        if result.status != "rolled_back" and (stage := stage_of(settings)) is not None:
            store.hold(with_stage(version, stage))
            on_step("held")
            store.public.refresh(study, line)
            on_step("staged")
            seen = StageState(share=stage.share)
            return replace(result, status="staged", stage=seen, missing=describe_missing(stage, seen))
        store.publish(version)
    except UnfitModel as error:
        remedy = _remedy(head, partition(landing, study, line, head.iteration))
        raise UnfitModel(f"{error}; {remedy}", error.reason) from error
    except VersionConflict:
        return replace(result, status="lost")
    open_landing(landing).record_published(store.where, study, line, version.iteration)
    on_step("published")
    if result.status == "rolled_back":
        return result
    best = _restored(store, landing, version, rule, entry, clock, code_version)
    return replace(result, status="published" if best is None else "stopped", restored=best)


def _stage(
    store: ModelStore,
    landing: Place,
    study: Study,
    head: Version,
    held: Version,
    engine: Engine,
    result: RoundResult,
    clock: Callable[[], str],
    code_version: str,
    on_step: Callable[[str], None],
) -> RoundResult:
    """Look whether a staged version has shown enough, and publish it to everybody, or withdraw it."""
    stage = stage_of(study.line(head.line))
    assert stage is not None
    made = held.lineage.aggregate
    result = replace(result, clients=made.clients if made else 0, counts=held.lineage.counts, arms=held.lineage.arms)
    try:
        decided = store.held.intended(head.study, head.line)
        if decided is None:
            now = milliseconds_of(clock())
            look = read_stage(landing, study, head, held, stage.share, engine, now_ms=now)
            on_step("listed")
            store.held.note_stage(held, look.seen)
            result = replace(result, stage=look.seen)
            minutes = _minutes_since(held, now)
            found = verdict(stage, look.seen)
            if found is None or minutes < stage.minutes:
                short = describe_missing(stage, look.seen)
                return replace(result, status="staged", missing=short, until=_after(held, stage.minutes))
            on_step("judged")
            if found.decision == "withdrawn":
                watch = GuardState(alarms=(found.why,), decision="withdrawn", stage=look.seen)
                decided = withdrawal(head, held, watch, created=clock(), code_version=code_version, until=look.until_ms)
                decided = store.held.intend(decided)
                on_step("intended")
            else:
                promote(store, held, look.seen, created=clock(), stale=look.stale, until_ms=look.until_ms)
                result = replace(result, status="published")
        if decided is not None:
            store.publish(decided)
            guard = decided.lineage.guard or GuardState()
            told = guard.alarms or ("somebody has decided so",)
            result = replace(result, status="withdrawn", restored=head.iteration, alarms=told, stage=guard.stage)
    except VersionConflict:
        return replace(result, status="lost")
    published = store.head(head.study, head.line).iteration
    open_landing(landing).record_published(store.where, head.study, head.line, published)
    on_step("published")
    return result


def _before_the_fall(store: ModelStore, head: Version, rounds: int) -> Version:
    """Return the version before the first of the last ``rounds`` that were measured, the head among them.

    Where that first one repeats an older version, it is the one before that: what a rollback has left behind is not
    brought back by the next.
    """
    numbers = store.iterations(head.study, head.line)
    first = store.version(head.study, head.line, numbers[max(0, len(numbers) - rounds)])
    while first.lineage.restored is not None:
        first = store.version(head.study, head.line, first.lineage.restored)
    return first if first.parent is None else store.version(head.study, head.line, first.parent)


def with_lineage(version: Version, result: RoundResult) -> RoundResult:
    """Return the result of a round with what the lineage of the version that it has made, or held, tells of it."""
    made, guard = version.lineage.aggregate, version.lineage.guard
    return replace(
        result,
        clients=made.clients if made else 0,
        influence=made.influence if made else None,
        counts=version.lineage.counts,
        arms=version.lineage.arms,
        alarms=guard.alarms if guard else (),
        restored=version.lineage.restored,
    )


def _restored(
    store: ModelStore,
    landing: Place,
    head: Version,
    rule: EarlyStop | None,
    entry: int,
    clock: Callable[[], str],
    code_version: str,
) -> int | None:
    """Publish the best version again if training is over, and return its number; None if it goes on."""
    if rule is None:
        return None
    try:
        return stop_if_over(store, landing, head, rule, created=clock(), code_version=code_version, settings=entry)
    except VersionConflict:  # another round has found the same, or somebody has rolled the line back
        return None


def _minutes_since(version: Version, now: int) -> float:
    """Return how old a version is, in minutes, ``now`` in milliseconds since 1970.

    Raises:
        TemporaryFailure: it is dated in the future: nothing would end before that time comes.
    """
    if (trouble := date_trouble(version.created, None, now)) is not None:
        number, where = version.iteration, f"{version.study} {version.line}"
        ends = f"'fedping store continue {where} --from {number + 1}' publishes it again, and leaves its pings behind"
        if version.lineage.guard is not None and version.lineage.guard.stage is not None:
            ends = f"'fedping round {where} --release' or --discard decides about it now"
        raise TemporaryFailure(
            f"version {number} of line '{version.line}' of study '{version.study}' {trouble}, so its age is not known; "
            f"nothing was published. Set the clocks of all machines by NTP. If that date is far off, {ends}."
        )
    return (now - milliseconds_of(version.created)) / MINUTE_MS


def _after(head: Version, minutes: float) -> str:
    """Return when a version will be so many minutes old."""
    return time_at(milliseconds_of(head.created) + minutes * MINUTE_MS)


def aggregate_of(
    landing: Place,
    study: Study,
    parent: Version,
    manifest: Manifest,
    engine: Engine,
    *,
    bounded: bool = True,
    published: Lineage | None = None,
) -> RoundAggregate:
    """Return what the pings of a manifest come to; ``bounded`` as in `fedping.server_jobs.round.plan.Rules`.

    Where updates are clipped at a norm that no earlier round has left, they are read twice. Of a version that was
    ``published`` before there was something to tell of all of them, it is not told now either.
    """
    line, key = study.line(parent.line), key_of_lots(parent.digest, manifest.inputs)
    bound = next_clip_bound(line, state_of(line, parent))
    rules = rules_for(study, line.name, parent.iteration, key=key, bounded=bounded, bound=bound)
    sees, knows = needs_influence(line), looks_at_new_clients(line.guard)
    if published is not None:
        made = published.aggregate
        sees, knows = made is not None and made.influence is not None, published.known is not None
        rules = replace(rules, shards=published.shards)
    known = parent.lineage.known
    looking = replace(rules, sees=sees, salt=_salt(known, key) if knows else b"")

    def partials(rules: Rules) -> Iterator[ShardPartial]:
        return in_order(engine.partials(work_on(landing, manifest.inputs, rules, manifest.before)), rules.shards)

    if has_to_measure(line, bound):
        measured = (partial.total for partial in partials(replace(rules, measures=True)))
        looking = replace(looking, bound=first_bound(line, measured))
    found = combined(partials(looking), looking)
    if published is not None and (published.aggregate is None or published.aggregate.capped is None):
        found = replace(found, updates=structs.replace(found.updates, capped=None))
    if found.registers is None:
        return found
    together = with_more(known or no_clients(looking.salt), found.registers)
    influence = found.updates.influence
    if known is not None and influence is not None:
        influence = structs.replace(influence, new_clients=round(estimated(together) - estimated(known)))
    return replace(found, updates=structs.replace(found.updates, influence=influence), known=together)


def _salt(known: ClientSketch | None, key: bytes) -> bytes:
    return bytes.fromhex(known.salt) if known is not None else salt_for(key)


@contextmanager
def _told_of(head: Version) -> Iterator[None]:
    """Say of a link that failed in which round it did."""
    try:
        yield
    except BrokenLink as error:
        raise BrokenLink(
            f"version {head.iteration + 1} of line '{head.line}' of study '{head.study}' was not published: {error}; "
            "fix that, then run the same command again, or begin anew if that takes other code of an extension"
        ) from error


def next_version(
    study: Study,
    line: Line,
    parent: Version,
    aggregate: RoundAggregate,
    manifest: Manifest,
    *,
    created: str,
    code_version: str,
    entry: int = 0,
) -> Version:
    """Return the version that follows from a round's aggregate; pure.

    ``entry`` is that of the study's history whose settings the study and line are.
    """
    key = key_of_lots(parent.digest, manifest.inputs)
    there, after = apply_step(line, np.array(parent.weights), state_of(line, parent), aggregate.total, key)
    weights = tuple(there.tolist())
    return Version(
        format=FORMAT,
        study=study.name,
        line=line.name,
        iteration=parent.iteration + 1,
        parent=parent.iteration,
        parent_digest=parent.digest,
        created=created,
        spec_digest=line.spec.digest,
        names=line.spec.document_names,
        model=published(line.spec, weights),
        weights=weights,
        state=state_to_document(after),
        lineage=Lineage(
            origin="round",
            code_version=code_version,
            config_digest=digest_of(line),
            inputs=manifest.inputs,
            counts={**aggregate.counts, "stale": manifest.stale, "future": manifest.future},
            ages=aggregate.ages,
            arms=aggregate.arms,
            aggregate=aggregate.updates,
            window_end_ms=manifest.window_end_ms,
            guard=watched(line.guard, study, parent, aggregate.updates, aggregate.arms, there),
            known=aggregate.known,
            settings=entry,
            shards=study.shards,
        ),
    )


@contextmanager
def noting(store: ModelStore, landing: Place, study: str, line: str) -> Iterator[None]:
    """Let somebody publish a version by hand as safely as a round: not into an older copy of the store, and noted.

    Raises:
        StoreError: there is no such study, or rounds have published more than there is; nothing was done.
    """
    store.study(study).line(line)  # or the name may be none, and lead anywhere
    noted = open_landing(landing).read_published(store.where, study, line)
    _refuse_an_older_copy(landing, store.where, store.head(study, line), noted)
    yield
    if open_landing(landing).exists():
        open_landing(landing).record_published(store.where, study, line, store.head(study, line).iteration)


def _refuse_an_older_copy(landing: Place, store: str, head: Version, noted: int) -> None:
    """Raise if rounds have published more than there is; note the head if they have not been told of it yet.

    Raises:
        StoreError: an older copy of the store was put back.
    """
    if noted > head.iteration:
        raise StoreError(lost(head.study, head.line, head.iteration, noted, str(landing)))
    if noted < head.iteration and open_landing(landing).exists():
        open_landing(landing).record_published(store, head.study, head.line, head.iteration)


def _remedy(head: Version, folder: Place) -> str:
    return (
        f"pings in {folder} have led there: move those that are to blame away and run the same command again, or leave "
        f"all of them behind with 'fedping store continue {head.study} {head.line} --from {head.iteration + 1}', which "
        f"publishes version {head.iteration} once more under that number"
    )


def _refuse_another_model(aggregate: RoundAggregate, line: Line, folder: Place) -> None:
    bad = aggregate.counts["bad_update"]
    if bad and not aggregate.counts["used"]:
        raise FedpingError(
            f"none of the {bad:,} updates in {folder} is one of {line.spec.m} finite numbers, as model spec "
            f"'{line.spec.name}' of line '{line.name}' has weights{_encoded(line)}{_limited(line)}; the pings are of "
            "another model: move the folder away, and let the clients send to the study that they belong to; nothing "
            "was published"
        )


def _limited(line: Line) -> str:
    return "" if line.limits is None else ", and within the line's limits"


def _encoded(line: Line) -> str:
    encoding = receiving(line).encoding
    return "" if encoding == DENSE else f", in the encoding '{encoding}'"
