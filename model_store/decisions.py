"""Versions published by operators or the guard, without a round: rollbacks, continuations, release and discard.

Some clients have fetched a staged version, so discarding it also fences off its number. The version that replaces it
has another number, and is recorded as `intended` before the fence is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from fedping.model_store.store import ModelStore, lost
from fedping.model_store.version import Decision, GuardState, Lineage, StageState, Version
from fedping.model_store.versions import LARGEST_NUMBER
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.guard import Stage


def rollback(store: ModelStore, study: str, line: str, to: int, *, created: str, code_version: str) -> Version:
    """Publish the weights and optimizer state of version ``to`` as the line's next version, and return this version.

    Numbers only grow: clients with a later version still get a newer number, and pings of the versions in between are
    stale. Nothing is deleted.

    Raises:
        StoreError: the version doesn't exist.
        InvalidSettings: ``to`` is already the head.
        VersionConflict: a round published a version in the meantime; run the rollback again.
    """
    head = store.head(study, line)
    if to == head.iteration:
        raise InvalidSettings(f"line '{line}' of study '{study}' is already at version {to}. Nothing to roll back")
    restored = repeated(store.version(study, line, to), head, created=created, code_version=code_version)
    store.publish(restored)
    return restored


def repeated(
    target: Version,
    head: Version,
    *,
    number: int | None = None,
    origin: Literal["rollback", "continued"] = "rollback",
    stopped: bool = False,
    created: str,
    code_version: str,
    settings: int | None = None,
) -> Version:
    """Return the version after ``head`` that repeats ``target``, under the next number or a larger one.

    ``stopped`` is whether training ends with this version (:class:`fedping.model_store.version.Lineage`). ``settings``
    is the history entry with the rule that caused the repetition; None for the head's entry.
    """
    return msgspec.structs.replace(
        target,
        iteration=head.iteration + 1 if number is None else number,
        parent=head.iteration,
        parent_digest=head.digest,
        created=created,
        lineage=Lineage(
            origin=origin,
            code_version=code_version,
            config_digest=head.lineage.config_digest,
            window_end_ms=head.lineage.window_end_ms,
            restored=target.iteration,
            guard=_remembered(head.lineage.guard),
            known=head.lineage.known,
            stopped=stopped,
            settings=head.lineage.settings if settings is None else settings,
        ),
    )


def _remembered(guard: GuardState | None) -> GuardState | None:
    """Return the guard's state for future rounds: with all its figures, but without earlier alarms."""
    return None if guard is None else GuardState(figures=guard.figures)


def continue_at(
    store: ModelStore, study: str, line: str, number: int, *, seen: int = -1, created: str, code_version: str
) -> Version:
    """Publish the head's weights and optimizer state again as version ``number``, and return this version.

    This is for a store restored from a backup: clients may have fetched versions that it no longer has, and no number
    may ever refer to two models. Numbers before ``number`` are skipped, and their pings are stale. The head's pings
    become stale too, so the function also helps if no round can compute a version from them.

    Args:
        store: the store of the line.
        study: the study's name.
        line: the line's name.
        number: the new version's number, larger than any that may have been published.
        seen: the largest version number that is known to have been published; -1 for none.
        created: now, ISO 8601 in UTC.
        code_version: version of fedping, for the lineage.

    Raises:
        InvalidSettings: the number is not larger than all published numbers.
        StoreError: a foreign file in the store has the version's name.
        VersionConflict: a round published in the meantime.
    """
    head = store.head(study, line)
    if head.lineage.origin == "continued" and head.iteration == number:
        store.public.refresh(study, line)  # finishes what an interrupted call may have left
        return head
    if number <= head.iteration:
        raise InvalidSettings(
            f"line '{line}' of study '{study}' is at version {head.iteration}; give --from a number above it, and "
            "above every version that clients may have fetched"
        )
    seen = max(seen, store.lines.largest_seen(study, line))
    if number <= seen:
        raise InvalidSettings(lost(study, line, head.iteration, seen, "the documents stored with it"))
    if number >= LARGEST_NUMBER:
        raise InvalidSettings(f"--from {number} is too large; versions go up to {LARGEST_NUMBER - 1:,}")
    version = repeated(head, head, number=number, origin="continued", created=created, code_version=code_version)
    store.publish(version)
    return version


def difference(old: Version, new: Version, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the differences between two versions of a line, weight by weight in the order of ``names``.

    Each entry has ``name``, ``old`` and ``new`` (as published) and ``change``; equal weights are left out.
    """
    rows = enumerate(zip(old.model, new.model, strict=True))
    return [{"name": names[i], "old": a, "new": b, "change": b - a} for i, (a, b) in rows if a != b]


def release(store: ModelStore, study: str, line: str, *, created: str) -> Version:
    """Publish a line's held version unchanged, and return it.

    Raises:
        InvalidSettings: no version is held, or the study is paused or has ended.
        VersionConflict: another version was published in the meantime; this call published nothing.
    """
    held = _held(store, study, line)
    released = replace(
        held, created=created, lineage=replace(held.lineage, guard=_told(held, held.lineage.guard, "released"))
    )
    store.publish(released)
    return released


def discard(store: ModelStore, study: str, line: str, *, created: str, code_version: str) -> Version:
    """Publish the newest version once more instead of the held version, and return it.

    The held version's pings then belong to a version that is no longer the newest, and are not counted. The held
    version stays in the store for inspection.

    Raises:
        InvalidSettings: no version is held, or the study is paused or has ended.
        VersionConflict: another version was published in the meantime; this call published nothing.
    """
    held, head = _held(store, study, line), store.head(study, line)
    if held.staged:
        watch = GuardState(decision="discarded", stage=held.staged)
        instead = store.held.intend(withdrawal(head, held, watch, created=created, code_version=code_version))
        store.publish(instead)
        return instead
    again = repeated(head, head, created=created, code_version=code_version)
    instead = replace(again, lineage=replace(again.lineage, guard=_told(again, held.lineage.guard, "discarded")))
    store.publish(instead)
    return instead


def promote(store: ModelStore, held: Version, seen: StageState, *, created: str, stale: int, until_ms: int) -> Version:
    """Publish a staged version to all clients on the basis of its stage's results, and return it.

    Args:
        store: store with the staged version.
        held: the staged version.
        seen: results of the stage.
        created: time of publication.
        stale: number of pings of versions before its parent that have landed in the meantime.
        until_ms: landing time, in milliseconds since 1970, up to which pings of other versions have been read.

    Raises:
        VersionConflict: another version was published in the meantime; this call published nothing.
    """
    counts = {**held.lineage.counts, "stale": held.lineage.counts.get("stale", 0) + stale}
    guard = replace(held.lineage.guard or GuardState(), decision="promoted", stage=seen)
    lineage = replace(held.lineage, counts=counts, window_end_ms=until_ms, guard=guard)
    made = replace(held, created=created, lineage=lineage)
    store.publish(made)
    return made


def withdrawal(
    head: Version, held: Version, decided: GuardState, *, created: str, code_version: str, until: int | None = None
) -> Version:
    """Return the replacement of a withdrawn staged version: the newest repeated, numbered after the staged one.

    It must be recorded as intended before it is published (:meth:`fedping.model_store.held.HeldVersions.intend`).

    Args:
        head: the newest version.
        held: the staged version.
        decided: the lineage's guard state: the decision, its reason, and the stage.
        created: time of publication.
        code_version: version of fedping, for the lineage.
        until: landing time, in milliseconds since 1970, up to which pings of other versions have been read; None for
            that of the head.
    """
    number = held.iteration + 1
    again = repeated(
        head,
        head,
        number=number,
        origin="continued",
        created=created,
        code_version=code_version,
        settings=held.lineage.settings,  # whose stage decided
    )
    figures = again.lineage.guard.figures if again.lineage.guard else {}
    window = again.lineage.window_end_ms if until is None else until
    return replace(
        again, lineage=replace(again.lineage, guard=replace(decided, figures=figures, beyond=0), window_end_ms=window)
    )


def with_stage(version: Version, stage: Stage) -> Version:
    """Return a version in the form in which it is held while only a share of the clients gets it."""
    guard = replace(version.lineage.guard or GuardState(), stage=StageState(share=stage.share))
    return replace(version, lineage=replace(version.lineage, guard=guard))


def describe_staged(iteration: int, share: float) -> str:
    """Return a phrase for a staged version."""
    return f"version {iteration} is staged to {100 * share:g} % of clients"


def describe_missing(stage: Stage, seen: StageState) -> str:
    """Return a phrase for the number of clients that a stage still lacks; empty if there are enough."""
    tried, stayed = (0 if side is None else side.clients for side in (seen.tried, seen.stayed))
    short: Iterable[str] = (
        f"{heard:,} of {stage.clients:,} {who}"
        for heard, who in ((tried, "heard"), (stayed, "heard of those who stay"))
        if heard < stage.clients
    )
    return ", ".join(short)


def rolled_back(target: Version, head: Version, why: str, *, created: str, code_version: str) -> Version:
    """Return the version after ``head`` that repeats ``target``, for an automatic rollback by the guard."""
    again = repeated(target, head, created=created, code_version=code_version)
    return replace(again, lineage=replace(again.lineage, guard=_told(again, GuardState(alarms=(why,)), "rolled_back")))


def with_decision(version: Version, again: Version) -> Version:
    """Return a recomputed version with the decision of the published version, which cannot be recomputed."""
    guard = version.lineage.guard
    if guard is None or not guard.decision:
        return again
    reasons = again.lineage.guard if guard.decision in ("released", "promoted") else guard  # those are recomputed
    window = version.lineage.window_end_ms if guard.decision == "withdrawn" else again.lineage.window_end_ms
    told = replace(_told(again, reasons, guard.decision), stage=guard.stage)
    return replace(again, lineage=replace(again.lineage, guard=told, window_end_ms=window))


def _told(version: Version, reasons: GuardState | None, decision: Decision) -> GuardState:
    """Return a version's guard state with a decision, and its reasons as alarms."""
    seen = version.lineage.guard or GuardState()
    return replace(seen, alarms=reasons.alarms if reasons else (), decision=decision)


def _held(store: ModelStore, study: str, line: str) -> Version:
    held = store.held.held_version(study, line)
    if held is None:
        raise InvalidSettings(f"no version of line '{line}' of study '{study}' is held. Nothing to decide")
    if (state := store.studies.declared(study).state) != "running":
        raise InvalidSettings(
            f"study '{study}' {'is paused' if state == 'paused' else 'has ended'}, and publishes nothing. Resume it "
            f"with 'fedping study resume {study}'; the version stays held until you decide"
        )
    return held
