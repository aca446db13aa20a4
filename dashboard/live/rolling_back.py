"""Rolling a line back from the page: what would be published, and publishing exactly that or nothing."""

from __future__ import annotations

from typing import Any

from fedping.dashboard.live.history import seen_as
from fedping.dashboard.live.lineage import changes_between
from fedping.model_store import ModelStore, Version, VersionConflict
from fedping.model_store.decisions import repeated
from fedping.protocol.errors import InvalidSettings


def plan(store: ModelStore, study: str, line: str, to: int) -> dict[str, Any]:
    """Return what a rollback to version ``to`` would publish, and ``seen``, the newest version that it assumes.

    Raises:
        StoreError: there is no such version.
        InvalidSettings: it is the newest.
    """
    head = store.head(study, line)
    _refuse_the_newest(study, line, head, to)
    target = store.version(study, line, to)
    changes = changes_between(store.study(study), head, target)
    same = "" if changes["count"] else " No published weight differs from those that clients have now."
    return {
        "seen": seen_as(head),
        "newest": head.iteration,
        "next": head.iteration + 1,
        "to": to,
        "created": target.created,
        "changes": changes,
        "title": f"Roll back to version {to}",
        "typed": to,
        "sentence": (
            f"Version {head.iteration + 1} will be published with the weights and the optimizer's state of version "
            f"{to}. Clients fetch it from then on; nothing is deleted, and rounds go on from it.{same}"
        ),
    }


def roll_back(
    store: ModelStore, study: str, line: str, to: int, seen: str, *, created: str, code_version: str
) -> Version:
    """Publish what :func:`plan` showed, if the newest version is still the one that it showed.

    It builds on the very version that was seen, while `fedping.model_store.decisions.rollback` would follow a version
    that a round has just published and nobody has looked at.

    Raises:
        StoreError: there is no such version.
        InvalidSettings: it is the newest.
        VersionConflict: another version was published since; nothing was published now.
        FedpingError: nothing can be published in this store.
    """
    head = store.head(study, line)
    if seen != seen_as(head):
        raise _overtaken(study, line, seen, head.iteration)
    _refuse_the_newest(study, line, head, to)
    store.check_publishing()
    restored = repeated(store.version(study, line, to), head, created=created, code_version=code_version)
    try:
        store.publish(restored)
    except VersionConflict as error:
        raise _overtaken(study, line, seen, restored.iteration) from error
    return restored


def _refuse_the_newest(study: str, line: str, head: Version, to: int) -> None:
    if to == head.iteration:
        raise InvalidSettings(f"line '{line}' of study '{study}' is at version {to}; there is nothing to roll back")


def _overtaken(study: str, line: str, seen: str, there: int) -> VersionConflict:
    return VersionConflict(
        f"version {there} of line '{line}' of study '{study}' was published since you looked, at version "
        f"{seen.partition('.')[0]}; nothing was rolled back: look at the new one and decide again"
    )
