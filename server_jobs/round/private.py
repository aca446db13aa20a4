"""The stages of a private line's round (`fedping.server_jobs.round.run`).

A private round always publishes a version with noise, independent of the landed pings, and is charged to the budget.
If publication depended on the pings, it would leak information about them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedping.model_store.helper_requests import HelperRequest
from fedping.model_store.store import VersionConflict
from fedping.model_store.version import Answered, PrivacyEvent, Version
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import Landing, landed_at, open_landing
from fedping.protocol.location import Place
from fedping.protocol.notation import milliseconds_of, time_at
from fedping.protocol.privacy import Privacy, frame_of
from fedping.protocol.study import Line, Study
from fedping.server_jobs.privacy.budget import Spent, beyond_promise, check_key, epsilon_after, rounds_left, spent
from fedping.server_jobs.privacy.keys import Coins
from fedping.server_jobs.privacy.noise import SystemNoise, has_its_size
from fedping.server_jobs.round.aggregate import combined
from fedping.server_jobs.round.context import RoundContext, RoundState, Stage, run_stages
from fedping.server_jobs.round.engine import Engine
from fedping.server_jobs.round.manifest import Manifest, list_landed, work_on
from fedping.server_jobs.round.plan import Rules, rules_for
from fedping.server_jobs.round.private_release import (
    check_release,
    event_of,
    next_private,
    noise_in_clients,
    released,
    released_places,
    sigma_of,
)
from fedping.server_jobs.round.private_sums import Sums
from fedping.server_jobs.round.result import PrivacySpent, RoundResult

NOTHING_SPENT = Spent(0, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateState(RoundState):
    """The state of a private round.

    Attributes:
        before: the budget spent by the line's earlier rounds.
        counted: epsilon after this round, and the accountant's name (`epsilon_after`).
        request, answer: for a two-server line, the request to the helper, and its answer.
        sums: the exact sums by arm. They are dropped as soon as noise is added, and left out of ``repr``.
        answered: for a two-server line, the lineage's entry about the helper's answer.
        event: the release of the round.
    """

    before: Spent = NOTHING_SPENT
    counted: tuple[float | None, str] = (None, "")
    request: HelperRequest | None = field(default=None, repr=False)
    answer: bytes = field(default=b"", repr=False)
    sums: Sums | None = field(default=None, repr=False)
    answered: Answered | None = None
    event: PrivacyEvent | None = None


def read_budget(context: RoundContext, state: PrivateState) -> PrivateState:
    """Stage: read the line's spent budget, and check the caller's noise and key.

    Raises:
        FedpingError: the line has no derived noise, the key is missing or wrong, or the caller passes noise for a study
            that isn't a simulation. No ping was read.
    """
    if context.options.noise is not None and not context.store.studies.declared(context.study.name).simulated:
        raise FedpingError(
            f"study '{context.study.name}' is not declared to be simulated, so only the system's noise protects its "
            "clients. Run the round without passing noise. Nothing was read."
        )
    before = spent(context.store, context.head)
    sigma_of(context.line)
    check_key(_privacy(context), context.line.name, before.last, context.options.privacy_key)
    return replace(state, before=before)


def delete_earlier_pings(context: RoundContext, state: PrivateState) -> PrivateState:
    """Stage: delete pings that an earlier round left because it was killed."""
    head = context.head
    newest_used = head.iteration if head.lineage.stopped else head.iteration - 1
    _delete(context, upto=None if _is_exhausted(context, state) else newest_used)
    return state


def check_guarantee(context: RoundContext, state: PrivateState) -> PrivateState:
    """Stage: raise if this round would break the line's guarantee.

    Raises:
        FedpingError: the settings differ from those at the line's start, the noise is too small, or rounds of another
            copy of the store have released more. No ping was read.
    """
    if not _is_exhausted(context, state):
        _check_settings(context)
        _check_noise(context, state.before.releases)
        _check_copy(context)
    return state


def end_if_exhausted(context: RoundContext, state: PrivateState) -> PrivateState | RoundResult:
    """Stage: end the round of a line that has spent its budget."""
    if not _is_exhausted(context, state):
        return state
    epsilon, _ = epsilon_after(_privacy(context), state.before.releases)
    return replace(state.result, status="exhausted", privacy=_spent(context, state.before.releases, epsilon))


def unless_overtaken(*stages: Stage[PrivateState]) -> Stage[PrivateState]:
    """Combine stages into one that returns ``lost`` if they fail because another round has published first.

    The other round has also deleted the pings, which is why stages may fail.
    """

    def run(context: RoundContext, state: PrivateState) -> PrivateState | RoundResult:
        try:
            return run_stages(stages, context, state)
        except FedpingError:
            if context.store.lines.newest(context.study.name, context.line.name) != context.head.iteration:
                return _lost(context)
            raise

    return run


def count_epsilon(context: RoundContext, state: PrivateState) -> PrivateState:
    """Stage: check that a step is possible, and compute the epsilon after this round, before any ping is read.

    Raises:
        FedpingError: a link fails, or a package of the accountant isn't installed.
    """
    check_release(context.line, context.head)
    return replace(state, counted=epsilon_after(_privacy(context), state.before.releases + 1))


def sum_vectors(context: RoundContext, state: PrivateState) -> PrivateState | RoundResult:
    """Stage: sum the clients' vectors by arm, exactly.

    If only clients add noise, their number isn't secret, and without pings no version is published.
    """
    assert state.manifest is not None
    if _privacy(context).central is None and state.manifest.rows == 0:
        return state.result
    rules = private_rules(context.study, context.line, context.head.iteration, context.head.digest, context.key)
    sums = exact_sums(context.landing, state.manifest, rules, context.engine)
    context.options.on_step("aggregated")
    return replace(state, sums=sums)


def add_noise(context: RoundContext, state: PrivateState) -> PrivateState:
    """Stage: draw and add the noise, and drop the exact sums."""
    assert state.sums is not None
    noisy = released(context.study, context.line, state.sums, context.options.noise or SystemNoise())
    releases = state.before.releases + 1
    event = event_of(context.line, noisy, releases, context.key, state.counted, state.answered)
    context.options.on_step("drawn")
    return replace(state, sums=None, event=event)


def compute_release(context: RoundContext, state: PrivateState) -> PrivateState | RoundResult:
    """Stage: compute the next version from the noisy sums.

    If only clients add noise, a step with too few clients isn't published. After a helper's answer it is published
    anyway, because the helper gives only one answer per version.
    """
    assert state.event is not None
    event, study, line = state.event, context.study, context.line
    created, code_version = time_at(context.now_ms), context.options.code_version
    version = next_private(study, line, context.head, event, created=created, code_version=code_version)
    context.options.on_step("stepped")
    lineage = version.lineage
    assert lineage.privacy is not None
    stepped = lineage.privacy.stepped
    submitting = [arm.name for arm in study.arms if arm.line == line.name and arm.submits]
    clients = sum(lineage.arms[name].pings for name in submitting)
    result = replace(state.result, clients=clients, counts=lineage.counts, arms=lineage.arms)
    if _privacy(context).central is None and state.answered is None and not stepped:
        return replace(result, status="waiting")
    privacy = replace(
        _spent(context, event.releases, event.epsilon),
        noise=noise_in_clients(event, line),
        stepped=stepped,
        refused=state.answered.refused if state.answered is not None else 0,
    )
    return replace(state, result=replace(result, privacy=privacy), version=version)


def publish_release(context: RoundContext, state: PrivateState) -> PrivateState | RoundResult:
    """Stage: publish the version. If another round was first, its noise counts, and this round's noise stays secret."""
    assert state.version is not None
    try:
        context.store.publish(state.version)
    except VersionConflict:
        return _lost(context)
    context.record(state.version.iteration)
    # Recorded once more by the landing folder's own address, for rounds on any copy of the store.
    landing = context.landing
    landing.record_published(str(landing), context.study.name, context.line.name, state.version.iteration)
    context.options.on_step("published")
    return replace(state, result=replace(state.result, status="published"))


def delete_used_pings(context: RoundContext, state: PrivateState) -> PrivateState:
    """Stage: delete the pings of the round's version and of all earlier versions."""
    _delete(context, upto=context.head.iteration)
    context.options.on_step("deleted")
    return state


def delete_pings(landing: Place | Landing, study: str, line: str, upto: int | None) -> None:
    """Delete a line's landed pings of all versions up to ``upto``, or of all versions if ``upto`` is None."""
    landing = open_landing(landing)
    for number, files in landing.files_by_iteration(study, line).items():
        if upto is None or number <= upto:
            for file in files:
                landing.remove(file)


def _delete(context: RoundContext, upto: int | None) -> None:
    if not context.options.keep:
        delete_pings(context.landing, context.study.name, context.line.name, upto)


def _privacy(context: RoundContext) -> Privacy:
    assert context.line.privacy is not None
    return context.line.privacy


def _is_exhausted(context: RoundContext, state: PrivateState) -> bool:
    return rounds_left(_privacy(context), state.before.releases) == 0


def _lost(context: RoundContext) -> RoundResult:
    return replace(context.nothing, status="lost")


def _spent(context: RoundContext, releases: int, epsilon: float | None) -> PrivacySpent:
    privacy = _privacy(context)
    central = privacy.central
    return PrivacySpent(
        releases=releases,
        rounds_left=rounds_left(privacy, releases),
        epsilon=epsilon,
        delta=central.delta if central else None,
        most=central.epsilon if central else None,
        local=privacy.local is not None,
        of_rows=privacy.rows is not None,
    )


def _check_settings(context: RoundContext) -> None:
    """Raise :class:`FedpingError` if a line's settings differ from those of its versions.

    The guarantee was derived for the same noise, sampling share and bound in all rounds.
    """
    if context.head.lineage.config_digest != digest_of(context.line):
        raise FedpingError(
            f"the settings of the private line '{context.line.name}' differ from those at the creation of study "
            f"'{context.study.name}', for which its guarantee was derived. Restore its study.json from a copy, or "
            "create a study with another name. Nothing was read."
        )


def _check_noise(context: RoundContext, before: int) -> None:
    """Raise :class:`FedpingError`, like 'fedping study create', if a line's noise is too small for its guarantee.

    The first round checks all future rounds. A later round checks only itself, because it computes its ε anyway.
    """
    privacy = _privacy(context)
    central = privacy.central
    if central is None:
        return
    releases = before + 1 if before else privacy.releases or central.rounds
    excess = beyond_promise(privacy, releases)
    if excess is not None:
        raise FedpingError(
            f"the private line '{context.line.name}' of study '{context.study.name}' has too little noise: "
            f"{releases:,} releases with noise_multiplier = {central.noise_multiplier:g} spend epsilon = "
            f"{excess:.4g}, and it guarantees {central.epsilon:g}. Create a study with another name with 'fedping "
            "study create', which derives the noise. Nothing was read."
        )


def _check_copy(context: RoundContext) -> None:
    """Raise :class:`FedpingError` if rounds of another copy of the store have released more about these clients.

    Otherwise, each of the two stores would lack the budget charged in the other.
    """
    study, line, head = context.study.name, context.line.name, context.head
    newest = context.landing.read_published(str(context.landing), study, line)
    if newest > head.iteration:
        raise FedpingError(
            f"the private line '{line}' of study '{study}' is at version {head.iteration} here, but a round in another "
            f"copy of the store has released version {newest} from these pings. Continue with that copy, or continue "
            f"this one after it with 'fedping store continue {study} {line} --from {newest + 1}', which counts the "
            "rounds in between as spent. Nothing was read."
        )


def private_rules(study: Study, line: Line, iteration: int, digest: str, key: bytes | None) -> Rules:
    """Return the rules of a version of a private line.

    Args:
        study: the study.
        line: the private line.
        iteration: the version.
        digest: the version's digest, in hexadecimal.
        key: the privacy key, which samples the clients; None to count all clients.
    """
    assert line.privacy is not None
    central, coins = line.privacy.central, None
    if key is not None and central is not None:
        coins = Coins(study.name, line.name, iteration, digest, central.sampling, key)
    return replace(rules_for(study, line.name, iteration, key=b"private"), coins=coins)


def exact_sums(landing: Place | Landing, manifest: Manifest, rules: Rules, engine: Engine) -> Sums:
    """Return the exact sums of a version's vectors by arm. They must never be stored or shown."""
    partials = engine.partials(work_on(open_landing(landing), manifest.inputs, rules))
    total: Sums = combined(partials, rules).total
    assert all(each.dtype == np.int64 for each in total.values())
    return total


def noise_has_its_size(
    landing: Landing, study: Study, line: Line, version: Version, engine: Engine, key: bytes | None
) -> bool | None:
    """Return whether a version's noise has the declared size, according to the pings of its round.

    The result is None if there is no noise, if a required key is missing, or if the pings were deleted, as intended.

    Raises:
        InvalidSettings: the key isn't the round's key.
    """
    event = version.lineage.privacy
    assert line.privacy is not None
    if line.privacy.shared is not None:  # neither server knows the exact sums
        return None
    if event is None or not event.sigma or (key is None and event.key_digest):
        return None
    if version.parent is None or version.parent_digest is None:
        return None
    key = check_key(line.privacy, line.name, event, key)
    landed = list_landed(landing, study, line.name, version.parent) if landing.exists() else None
    if landed is None or not landed.inputs:
        return None
    created = milliseconds_of(version.created)
    inputs = tuple(file for file in landed.inputs if (landed_at(Path(file.path)) or 0) <= created)
    rules = private_rules(study, line, version.parent, version.parent_digest, key)
    sums = exact_sums(landing, replace(landed, inputs=inputs), rules, engine)
    frame = frame_of(line.privacy, line.spec)
    arms = [arm for arm in study.arms if arm.line == line.name]
    noise = np.concatenate(
        [
            (np.array(event.released[arm.name], np.int64) - sums.get(number, 0))[released_places(frame, arm)]
            for number, arm in enumerate(arms)
        ]
    )
    return has_its_size(noise, event.sigma)
