"""Round stages for a line with a held or staged version.

Each round reads the whole stage from the landed pings, so a round can be killed and repeated. The lineage records the
figures on which the decision is based (`fedping.model_store.version.StageState`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedping.model_store.decisions import describe_missing, promote, withdrawal
from fedping.model_store.version import GuardState, InputFile, StageResult, StageState, Version
from fedping.protocol.guard import Stage
from fedping.server_jobs.round.aggregate import arms_of, in_order, joined
from fedping.server_jobs.round.context import RoundContext, RoundState
from fedping.server_jobs.round.guard import stage_of, verdict
from fedping.server_jobs.round.manifest import Window, list_landed, work_on
from fedping.server_jobs.round.ping_filter import key_of_lots
from fedping.server_jobs.round.plan import StageSide, rules_for
from fedping.server_jobs.round.result import RoundResult, with_lineage
from fedping.server_jobs.round.stopping import minutes_since, time_after


@dataclass(frozen=True, slots=True)
class StageReading:
    """The pings of both sides of a stage.

    Attributes:
        seen: the results of both sides.
        stale: the number of pings of older versions that have landed since the staged version was computed.
        until_ms: the latest landing time that was read, Unix ms.
    """

    seen: StageState
    stale: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldState(RoundState):
    """The state of a round of a line with a held version.

    Attributes:
        held: the held version.
        reading: the pings of both sides of its stage; None before they are read, or if the version is already to be
            withdrawn.
    """

    held: Version
    reading: StageReading | None = None


def report_held(context: RoundContext, state: HeldState) -> RoundResult:
    """Stage: report the version that is held until the operator decides."""
    return with_lineage(state.held, replace(state.result, status="held"))


def read_trial(context: RoundContext, state: HeldState) -> HeldState:
    """Stage: read the pings of both sides, unless an earlier round decided to withdraw the version."""
    lineage = state.held.lineage
    clients = lineage.aggregate.clients if lineage.aggregate else 0
    result = replace(state.result, clients=clients, counts=lineage.counts, arms=lineage.arms)
    decided = context.store.held.intended(context.study.name, context.line.name)
    if decided is not None:
        return replace(state, result=result, version=decided)
    reading = read_stage(context, state.held)
    context.options.on_step("listed")
    context.store.held.note_stage(state.held, reading.seen)
    return replace(state, result=replace(result, stage=reading.seen), reading=reading)


def decide_trial(context: RoundContext, state: HeldState) -> HeldState | RoundResult:
    """Stage: wait until both sides have enough pings; record the withdrawal if the version did worse."""
    if state.reading is None:
        return state
    stage, seen, held = _stage(context), state.reading.seen, state.held
    minutes = minutes_since(held, context.now_ms)
    decision = verdict(stage, seen)
    if decision is None or minutes < stage.minutes:
        missing, until = describe_missing(stage, seen), time_after(held, stage.minutes)
        return replace(state.result, status="staged", missing=missing, until=until)
    context.options.on_step("judged")
    if decision.decision == "promoted":
        return state
    version = withdrawal(
        context.head,
        held,
        GuardState(alarms=(decision.why,), decision="withdrawn", stage=seen),
        created=context.options.clock(),
        code_version=context.options.code_version,
        until=state.reading.until_ms,
    )
    version = context.store.held.intend(version)
    context.options.on_step("intended")
    return replace(state, version=version)


def publish_trial(context: RoundContext, state: HeldState) -> HeldState:
    """Stage: publish the staged version to all clients, or republish the newest version instead."""
    if state.version is not None:
        context.store.publish(state.version)
        guard = state.version.lineage.guard or GuardState()
        alarms = guard.alarms or ("by a person's decision",)
        restored = context.head.iteration
        result = replace(state.result, status="withdrawn", restored=restored, alarms=alarms, stage=guard.stage)
    else:
        assert state.reading is not None
        reading, created = state.reading, context.options.clock()
        promote(
            context.store, state.held, reading.seen, created=created, stale=reading.stale, until_ms=reading.until_ms
        )
        result = replace(state.result, status="published")
    context.record(context.store.head(context.study.name, context.line.name).iteration)
    context.options.on_step("published")
    return replace(state, result=result)


def _stage(context: RoundContext) -> Stage:
    stage = stage_of(context.line)
    assert stage is not None
    return stage


def read_stage(context: RoundContext, staged: Version) -> StageReading:
    """Return the results of a staged version and of the head, from the landed pings.

    Both sides count for the same period: pings of the head count if they landed after the staged version was computed.

    Raises:
        UnreadableFile: a landed file is damaged, or doesn't contain the study's pings.
    """
    landing, study, head = context.landing, context.study, context.head
    used = {file.path for file in staged.lineage.inputs}
    window = Window(staged.lineage.window_end_ms, context.now_ms)
    before = list_landed(landing, study, head.line, head.iteration, window)
    since = list_landed(landing, study, head.line, staged.iteration, window)
    stayed = tuple(file for file in before.inputs if file.path not in used)
    share = _stage(context).share
    side = StageSide(study=study.name, line=head.line, iteration=staged.iteration, share=share, inside=True)
    seen = StageState(
        share=share,
        tried=_side_result(context, staged, staged.iteration, since.inputs, side),
        stayed=_side_result(context, staged, head.iteration, stayed, replace(side, inside=False)),
    )
    return StageReading(seen=seen, stale=before.stale, until_ms=max(before.window_end_ms, since.window_end_ms))


def _side_result(
    context: RoundContext, staged: Version, iteration: int, inputs: tuple[InputFile, ...], side: StageSide
) -> StageResult:
    """Return the results of the clients on one side, which evaluated a version. Their updates aren't read."""
    if not inputs:
        return StageResult()
    study = context.study
    rules = rules_for(study, side.line, iteration, key=key_of_lots(staged.digest, inputs))
    applying = {arm.name for arm in study.arms if arm.applies and not arm.personal}  # their losses differ
    rules = replace(rules, submits=(False,) * len(rules.arms), measures=True, side=side)
    whole = joined(in_order(context.engine.partials(work_on(context.landing, inputs, rules)), rules.shards))
    places = [place for place, arm in enumerate(rules.arms) if arm in applying]
    return StageResult(
        clients=sum(whole.arms[place].clients for place in places),
        arms={name: arm for name, arm in arms_of(whole, rules).items() if name in applying},
    )
