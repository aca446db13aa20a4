"""One round of one line: a list of stages, from the landed pings of the newest version to the next version.

A round can be killed at any point. Until the version is published, nothing has changed, and a repetition reads the
same pings. Publication is one compare-and-swap of a document with weights, state and lineage. The files that clients
fetch are derived from that document; if this round can't do that, the next round does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from fedping.model_store.decisions import describe_missing, rolled_back, with_stage
from fedping.model_store.store import ModelStore, VersionConflict
from fedping.model_store.version import StageState, Version
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import Landing, open_landing
from fedping.protocol.location import Place
from fedping.protocol.model import UnfitModel, out_of_range, validate_spec
from fedping.protocol.stopping_settings import IterationLength
from fedping.protocol.update import DENSE
from fedping.protocol.upload import receiving
from fedping.server_jobs.optimize import BrokenLink
from fedping.server_jobs.round.aggregate import RoundAggregate
from fedping.server_jobs.round.context import (
    RoundContext,
    RoundOptions,
    RoundState,
    Stage,
    end_if_over,
    list_pings,
    open_line,
    run_stages,
)
from fedping.server_jobs.round.engine import Engine
from fedping.server_jobs.round.guard import fallen, stage_of
from fedping.server_jobs.round.next_version import Provenance, aggregate_pings, next_version
from fedping.server_jobs.round.private import (
    PrivateState,
    add_noise,
    check_guarantee,
    compute_release,
    count_epsilon,
    delete_earlier_pings,
    delete_used_pings,
    end_if_exhausted,
    publish_release,
    read_budget,
    sum_vectors,
    unless_overtaken,
)
from fedping.server_jobs.round.result import RoundResult, with_lineage
from fedping.server_jobs.round.shared import add_answer, ask_helper, check_helper, delete_request, keep_request
from fedping.server_jobs.round.staging import HeldState, decide_trial, publish_trial, read_trial, report_held
from fedping.server_jobs.round.stopping import clients_missing, iteration_ended, minutes_since, stop_if_over, time_after
from fedping.server_jobs.row_noise import noise_of_round


def run_round(
    store: ModelStore, landing: Place | Landing, study: str, line: str, engine: Engine, options: RoundOptions
) -> RoundResult:
    """Compute and publish a line's next version from the landed pings of the newest version.

    Args:
        store: the model store.
        landing: the landing folder, or its address.
        study: the study's name.
        line: the line's name.
        engine: computes the aggregate; unused if no ping has landed.
        options: the other settings.

    Raises:
        FedpingError: the store, the landing folder or a file in it can't be used, an upload link isn't installed, or no
            ping fits the model spec. No version was published.
        TemporaryFailure: the line's iterations have a length in time, and its newest version is dated in the future.
        UnfitModel: the step leads to weights that clients couldn't read. No version was published.
        BrokenLink: the line's aggregation, optimizer or a constraint failed. No version was published.
    """
    context = open_line(store, open_landing(landing), study, line, engine, options)
    with _naming_version(context.head):
        outcome = _run(context)
    return outcome if isinstance(outcome, RoundResult) else outcome.result


def _run(context: RoundContext) -> RoundState | RoundResult:
    """Run the stages of a round, which depend on the line."""
    nothing = context.nothing
    if context.line.privacy is not None:
        stages = PRIVATE if context.line.privacy.shared is None else TWO_SERVERS
        return run_stages(stages, context, PrivateState(result=nothing))
    study, line = context.study.name, context.line.name
    held = None if context.head.lineage.stopped else context.store.held.held_version(study, line)
    if held is None:
        return run_stages(PLAIN if stage_of(context.line) is None else STAGED, context, PlainState(result=nothing))
    if held.staged is None:
        return run_stages(HELD, context, HeldState(result=nothing, held=held))
    # The settings that the staged version was computed with, which recomputation uses too.
    _, settings = context.store.studies.settings(study, held.lineage.settings)
    context = replace(context, study=settings, line=settings.line(line))
    return run_stages(TRIAL, context, HeldState(result=nothing, held=held))


@contextmanager
def _naming_version(head: Version) -> Iterator[None]:
    """Add the unpublished version and the remedy to a link's error, because links don't know the version."""
    try:
        yield
    except BrokenLink as error:
        raise BrokenLink(
            f"version {head.iteration + 1} of line '{head.line}' of study '{head.study}' was not published: {error}. "
            "Fix that and run the same command again, or create a new study if that changes an extension's code."
        ) from error


S = TypeVar("S", bound=RoundState)


def end_training(context: RoundContext, state: S) -> S | RoundResult:
    """Stage: if training is over, publish the best version again and end the round.

    It checks the version published by the round, or else the head, because training may end before or after a step.
    """
    rule = context.line.early_stopping or context.options.early_stopping
    if rule is None:
        return state
    provenance = _provenance(context)
    try:
        best = stop_if_over(context.store, context.landing, state.version or context.head, rule, provenance)
    except VersionConflict:  # another round published it, or the operator rolled the line back
        return state
    return state if best is None else replace(state.result, status="stopped", restored=best)


def wait_for_least_length(context: RoundContext, state: S) -> S | RoundResult:
    """Stage: end the round if the iteration hasn't reached its minimum length."""
    length = _length(context)
    if length is not None and minutes_since(context.head, context.now_ms) < length.least:
        return replace(state.result, status="early", until=time_after(context.head, length.least))
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainState(RoundState):
    """The state of a round of a line that isn't private, with the aggregate of its pings."""

    aggregate: RoundAggregate | None = None


def aggregate_landed(context: RoundContext, state: PlainState) -> PlainState | RoundResult:
    """Stage: aggregate the listed pings, or end the round if there are none."""
    manifest = state.manifest
    assert manifest is not None
    if manifest.rows == 0:
        return state.result
    aggregate = aggregate_pings(context.landing, context.study, context.head, manifest, context.engine)
    context.options.on_step("aggregated")
    _check_model(context, aggregate)
    learned = {arm.name for arm in context.study.arms if arm.line == context.line.name and arm.submits}
    examples = sum(arm.examples for name, arm in aggregate.arms.items() if name in learned)
    result = replace(
        state.result,
        clients=aggregate.updates.clients,
        counts={**aggregate.counts, "stale": manifest.stale, "future": manifest.future},
        arms=aggregate.arms,
        influence=aggregate.updates.influence,
        update_bytes=aggregate.update_bytes,
        capped=aggregate.updates.capped,
        noise_if_protected=noise_of_round(context.line, aggregate.updates.clients, examples),
    )
    return replace(state, result=result, aggregate=aggregate)


def wait_for_updates(context: RoundContext, state: PlainState) -> PlainState | RoundResult:
    """Stage: end the round if the iteration isn't over, or too few clients have sent a usable update."""
    length, head = _length(context), context.head
    assert state.aggregate is not None
    updates = state.aggregate.updates
    if length is not None and not iteration_ended(length, minutes_since(head, context.now_ms), updates):
        missing, until = clients_missing(length, updates), time_after(head, length.most)
        return replace(state.result, status="early", until=until, missing=missing)
    if updates.clients < context.line.pipeline.min_clients:
        return replace(state.result, status="waiting")
    return state


def compute_next(context: RoundContext, state: PlainState) -> PlainState:
    """Stage: compute the next version."""
    assert state.aggregate is not None
    assert state.manifest is not None
    provenance = _provenance(context)
    version = next_version(context.study, context.head, state.aggregate, state.manifest, provenance)
    context.options.on_step("stepped")
    return replace(state, version=version)


def roll_back_if_fallen(context: RoundContext, state: PlainState) -> PlainState | RoundResult:
    """Stage: if the model does worse than the control, publish the last version before that, and end the round."""
    version = _version(state)
    fall = fallen(context.line.guard, version.lineage.guard)
    if fall is None:
        return state
    target = _before_the_fall(context.store, context.head, fall.rounds)
    created, code_version = version.created, context.options.code_version
    rollback = rolled_back(target, context.head, fall.why, created=created, code_version=code_version)
    result = replace(state.result, alarms=(fall.why,), restored=target.iteration)
    outcome = run_stages(ROLLBACK, context, replace(state, result=result, version=rollback))
    return outcome if isinstance(outcome, RoundResult) else replace(outcome.result, status="rolled_back")


def check_weights(context: RoundContext, state: PlainState) -> PlainState:
    """Stage: raise :class:`UnfitModel` if clients couldn't read the version's weights, or rounds its state."""
    version, spec, head = _version(state), context.line.spec, context.head
    reason = out_of_range(version.model, spec) or validate_spec(version.model, spec)
    if reason is None and (where := version.unreadable):
        reason = f"its {where} can't be written as a number"
    if reason is not None:
        raise UnfitModel(
            f"version {version.iteration} of line '{head.line}' of study '{head.study}' was not published: {reason}. "
            f"Move the files with the offending pings out of {context.folder} and run the same command again, or "
            f"discard all of its pings with 'fedping store continue {head.study} {head.line} --from "
            f"{version.iteration}', which publishes version {head.iteration} again under that number.",
            reason,
        )
    return state


def hold_if_alarming(context: RoundContext, state: PlainState) -> PlainState | RoundResult:
    """Stage: if the guard raises an alarm, hold the version until the operator decides, and end the round."""
    version = _version(state)
    if version.lineage.guard is None or not version.lineage.guard.alarms:
        return state
    context.store.hold(version)
    context.options.on_step("held")
    held = context.store.held.held_version(version.study, version.line) or version
    return with_lineage(held, replace(state.result, status="held"))


def stage_version(context: RoundContext, state: PlainState) -> RoundResult:
    """Stage: offer the version to a share of the clients, and end the round."""
    settings = stage_of(context.line)
    assert settings is not None
    context.store.hold(with_stage(_version(state), settings))
    context.options.on_step("held")
    context.store.public.refresh(context.study.name, context.line.name)
    context.options.on_step("staged")
    seen = StageState(share=settings.share)
    return replace(state.result, status="staged", stage=seen, missing=describe_missing(settings, seen))


def publish(context: RoundContext, state: PlainState) -> PlainState:
    """Stage: publish the version."""
    version = _version(state)
    context.store.publish(version)
    context.record(version.iteration)
    context.options.on_step("published")
    return replace(state, result=replace(state.result, status="published"))


Stages: TypeAlias = tuple[Stage[S], ...]

_COMPUTE: Stages[PlainState] = (
    end_if_over,
    end_training,
    wait_for_least_length,
    list_pings,
    aggregate_landed,
    wait_for_updates,
    compute_next,
    roll_back_if_fallen,
    check_weights,
    hold_if_alarming,
)

PLAIN: Stages[PlainState] = (*_COMPUTE, publish, end_training)
"""A round of a line that isn't private."""

STAGED: Stages[PlainState] = (*_COMPUTE, stage_version)
"""A round whose version is first offered to a share of the clients. A later round (:data:`TRIAL`) decides about it."""

TRIAL: Stages[HeldState] = (read_trial, decide_trial, publish_trial)
"""A round of a line with a staged version."""

HELD: Stages[HeldState] = (report_held,)
"""A round of a line with a held version that awaits the operator's decision."""

ROLLBACK: Stages[PlainState] = (check_weights, publish)
"""The end of a round that rolls its line back."""

PRIVATE: Stages[PrivateState] = (
    read_budget,
    delete_earlier_pings,
    check_guarantee,
    end_if_over,
    end_if_exhausted,
    end_training,
    wait_for_least_length,
    unless_overtaken(
        count_epsilon,
        list_pings,
        sum_vectors,
        add_noise,
        compute_release,
    ),
    publish_release,
    delete_used_pings,
    end_training,
)
"""A round of a private line. Pings are deleted after the version is published, so a killed round can be repeated."""

TWO_SERVERS: Stages[PrivateState] = (
    read_budget,
    check_helper,
    delete_earlier_pings,
    check_guarantee,
    end_if_over,
    end_if_exhausted,
    end_training,
    wait_for_least_length,
    unless_overtaken(
        count_epsilon,
        keep_request,
        ask_helper,
        add_answer,
        add_noise,
        compute_release,
    ),
    publish_release,
    delete_used_pings,
    delete_request,
    end_training,
)
"""A round of a two-server line. Its request is stored before it is sent to the helper, and deleted after the pings."""


def _version(state: PlainState) -> Version:
    assert state.version is not None
    return state.version


def _length(context: RoundContext) -> IterationLength | None:
    return context.line.length or context.options.length


def _provenance(context: RoundContext) -> Provenance:
    options = context.options
    return Provenance(created=options.clock(), code_version=options.code_version, settings=context.settings)


def _before_the_fall(store: ModelStore, head: Version, rounds: int) -> Version:
    """Return the version before the last ``rounds`` versions, with which the model did worse.

    The last versions include the head. If the first of them repeats an older version, the result is the version
    before that older version, so that a rollback never restores a version abandoned by an earlier rollback.
    """
    numbers = store.iterations(head.study, head.line)
    first = store.version(head.study, head.line, numbers[max(0, len(numbers) - rounds)])
    while first.lineage.restored is not None:
        first = store.version(head.study, head.line, first.lineage.restored)
    return first if first.parent is None else store.version(head.study, head.line, first.parent)


def _check_model(context: RoundContext, aggregate: RoundAggregate) -> None:
    """Raise :class:`FedpingError` if there are updates but none fits the model spec."""
    line, bad = context.line, aggregate.counts["bad_update"]
    if not bad or aggregate.counts["used"]:
        return
    encoding = receiving(line).encoding
    encoded = "" if encoding == DENSE else f", in the encoding '{encoding}'"
    limited = "" if line.limits is None else ", and within the line's limits"
    raise FedpingError(
        f"none of the {bad:,} updates in {context.folder} consists of {line.spec.m} finite numbers, the number of "
        f"weights of model spec '{line.spec.name}' of line '{line.name}'{encoded}{limited}. The pings belong to "
        "another model: move the folder away, and let the clients send to the right study. No version was published."
    )
