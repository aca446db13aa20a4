"""What a line's guard leads to: a held version is published after all, or left behind; a line is rolled back.

A version that is held because it is staged has been fetched by some. So it is left behind under another number than its
own, which is fenced off: `intended` says what is to take its place, before the fence is made.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from fedping.model_store.rollback import repeated
from fedping.model_store.store import ModelStore
from fedping.model_store.version import Decision, GuardState, StageState, Version
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.guard import Stage


def release(store: ModelStore, study: str, line: str, *, created: str) -> Version:
    """Publish the version that is held, as it was computed, and return it.

    Raises:
        InvalidSettings: none is held, or the study is paused or has ended.
        VersionConflict: another version was published in the meantime; nothing was.
    """
    held = _held(store, study, line)
    released = replace(
        held, created=created, lineage=replace(held.lineage, guard=_told(held, held.lineage.guard, "released"))
    )
    store.publish(released)
    return released


def discard(store: ModelStore, study: str, line: str, *, created: str, code_version: str) -> Version:
    """Publish the newest version once more in the place of the one that is held, and return it.

    The pings that have led to the held version are of a version that is no longer the newest then, and count nowhere.
    The held version stays in the store, to be looked at.

    Raises:
        InvalidSettings: none is held, or the study is paused or has ended.
        VersionConflict: another version was published in the meantime; nothing was.
    """
    held, head = _held(store, study, line), store.head(study, line)
    if held.staged:
        watch = GuardState(decision="discarded", stage=held.staged)
        instead = store.intend(withdrawal(head, held, watch, created=created, code_version=code_version))
        store.publish(instead)
        return instead
    again = repeated(head, head, created=created, code_version=code_version)
    instead = replace(again, lineage=replace(again.lineage, guard=_told(again, held.lineage.guard, "discarded")))
    store.publish(instead)
    return instead


def promote(store: ModelStore, held: Version, seen: StageState, *, created: str, stale: int, until_ms: int) -> Version:
    """Publish a staged version to everybody for what its stage has shown, and return it.

    Args:
        store: where it is staged.
        held: the version.
        seen: what was heard of its stage.
        created: when it is published.
        stale: how many pings of versions before its parent have landed meanwhile.
        until_ms: up to which landing, in milliseconds since 1970, pings of other versions have been looked at.

    Raises:
        VersionConflict: another version was published in the meantime; nothing was.
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
    """Return the version that repeats the newest one after the number of a staged one, which is given up; pure.

    It is to be intended before it is published (:meth:`fedping.model_store.store.ModelStore.intend`).

    Args:
        head: the newest version.
        held: the staged one.
        decided: what the lineage is to tell: the decision, its reason, and the stage.
        created: when it is published.
        code_version: for the lineage.
        until: up to which landing, in milliseconds since 1970, pings of other versions have been looked at; None for
            the head's.
    """
    number = held.iteration + 1
    again = repeated(
        head,
        head,
        number=number,
        origin="continued",
        created=created,
        code_version=code_version,
        settings=held.lineage.settings,  # by whose stage it was judged
    )
    figures = again.lineage.guard.figures if again.lineage.guard else {}
    window = again.lineage.window_end_ms if until is None else until
    return replace(
        again, lineage=replace(again.lineage, guard=replace(decided, figures=figures, beyond=0), window_end_ms=window)
    )


def with_stage(version: Version, stage: Stage) -> Version:
    """Return a version as it is held while a share of the clients tries it; pure."""
    guard = replace(version.lineage.guard or GuardState(), stage=StageState(share=stage.share))
    return replace(version, lineage=replace(version.lineage, guard=guard))


def describe_staged(iteration: int, share: float) -> str:
    """Return that a version is staged, as a part of a sentence."""
    return f"version {iteration} is staged to {100 * share:g} % of clients"


def describe_missing(stage: Stage, seen: StageState) -> str:
    """Return who is still to be heard, in words; empty if enough have been."""
    tried, stayed = (0 if side is None else side.clients for side in (seen.tried, seen.stayed))
    short: Iterable[str] = (
        f"{heard:,} of {stage.clients:,} {who}"
        for heard, who in ((tried, "heard"), (stayed, "heard of those who stay"))
        if heard < stage.clients
    )
    return ", ".join(short)


def rolled_back(target: Version, head: Version, why: str, *, created: str, code_version: str) -> Version:
    """Return the version after ``head`` that repeats ``target`` because the guard rolls the line back; pure."""
    again = repeated(target, head, created=created, code_version=code_version)
    return replace(again, lineage=replace(again.lineage, guard=_told(again, GuardState(alarms=(why,)), "rolled_back")))


def with_decision(version: Version, again: Version) -> Version:
    """Return a version that was computed again with what was decided of the published one, which nobody can compute."""
    guard = version.lineage.guard
    if guard is None or not guard.decision:
        return again
    reasons = again.lineage.guard if guard.decision in ("released", "promoted") else guard  # those are computed again
    window = version.lineage.window_end_ms if guard.decision == "withdrawn" else again.lineage.window_end_ms
    told = replace(_told(again, reasons, guard.decision), stage=guard.stage)
    return replace(again, lineage=replace(again.lineage, guard=told, window_end_ms=window))


def _told(version: Version, reasons: GuardState | None, decision: Decision) -> GuardState:
    """Return what a version's guard has seen, with a decision and its reasons."""
    seen = version.lineage.guard or GuardState()
    return replace(seen, alarms=reasons.alarms if reasons else (), decision=decision)


def _held(store: ModelStore, study: str, line: str) -> Version:
    held = store.held(study, line)
    if held is None:
        raise InvalidSettings(f"no version of line '{line}' of study '{study}' is held; there is nothing to decide")
    if (state := store.declared(study).state) != "running":
        raise InvalidSettings(
            f"study '{study}' {'is paused' if state == 'paused' else 'has ended'}, and publishes nothing; 'fedping "
            f"study resume {study}' lets it go on, and the version stays held until you decide"
        )
    return held
