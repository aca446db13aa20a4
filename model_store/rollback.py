"""Publishing an old version again: a rollback, or the continuation of a line after its store was restored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from fedping.model_store.chain import LARGEST_NUMBER
from fedping.model_store.store import ModelStore, lost
from fedping.model_store.version import GuardState, Lineage, Version
from fedping.protocol.errors import InvalidSettings


def rollback(store: ModelStore, study: str, line: str, to: int, *, created: str, code_version: str) -> Version:
    """Publish version ``to``'s weights and optimizer state as the line's next version, and return that version.

    Numbers only grow: clients with a later version see a newer one, and pings of the versions in between stay stale.
    Nothing is deleted.

    Raises:
        StoreError: there is no such version.
        InvalidSettings: ``to`` is already the head.
        VersionConflict: a round published in the meantime; run it again.
    """
    head = store.head(study, line)
    if to == head.iteration:
        raise InvalidSettings(
            f"line '{line}' of study '{study}' is at version {to} already; there is nothing to roll back"
        )
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
    """Return the version after ``head`` that repeats ``target``, under the next number or a larger one; pure.

    ``stopped``: training is over with it (:class:`fedping.model_store.version.Lineage`), by the rule of ``settings``,
    which are those of the head if None.
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
    """Return what the rounds to come are compared with: all figures that the guard has seen, and no alarm of before."""
    return None if guard is None else GuardState(figures=guard.figures)


def continue_at(
    store: ModelStore, study: str, line: str, number: int, *, seen: int = -1, created: str, code_version: str
) -> Version:
    """Publish the head's weights and optimizer state again, as version ``number``, and return that version.

    For a store restored from a copy: clients may have fetched versions that it no longer has, and no number may ever
    refer to two models. Numbers up to ``number`` are skipped, and pings of them are stale. This also skips the head's
    pings, for when a round cannot make a version from them.

    Args:
        store: the store of the line.
        study: the study's name.
        line: the line's name.
        number: the new version's number, larger than any that may have been published.
        seen: the largest number known elsewhere to have been published; -1 for none.
        created: now, ISO 8601 in UTC.
        code_version: written into the lineage.

    Raises:
        InvalidSettings: the number is not larger than those that were published.
        StoreError: a file in the store is in the way.
        VersionConflict: a round published in the meantime.
    """
    head = store.head(study, line)
    if head.lineage.origin == "continued" and head.iteration == number:
        store.refresh_public(study, line)  # finishes what an interrupted call may have left
        return head
    if number <= head.iteration:
        raise InvalidSettings(
            f"line '{line}' of study '{study}' is at version {head.iteration}; give --from a number above it, and "
            "above every version that clients may have fetched"
        )
    seen = max(seen, store.largest_seen(study, line))
    if number <= seen:
        raise InvalidSettings(lost(study, line, head.iteration, seen, "what was kept beside it"))
    if number >= LARGEST_NUMBER:
        raise InvalidSettings(f"--from {number} is too large; versions go up to {LARGEST_NUMBER - 1:,}")
    version = repeated(head, head, number=number, origin="continued", created=created, code_version=code_version)
    store.publish(version)
    return version


def difference(old: Version, new: Version, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the differences between two versions of a line with these weight names, weight by weight in wire order.

    Each entry has ``name``, ``old``, ``new`` (as published) and ``change``; equal weights are left out.
    """
    rows = enumerate(zip(old.model, new.model, strict=True))
    return [{"name": names[i], "old": a, "new": b, "change": b - a} for i, (a, b) in rows if a != b]
