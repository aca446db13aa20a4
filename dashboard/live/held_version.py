"""Deciding from the page what becomes of a version that is held back: what would happen, and doing just that."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from fedping.dashboard.live.history import seen_as
from fedping.dashboard.live.lineage import changes_between
from fedping.model_store import ModelStore, Version, VersionConflict
from fedping.model_store.decisions import discard, release
from fedping.protocol.errors import InvalidSettings

Choice: TypeAlias = Literal["release", "discard"]


def plan_for_held(store: ModelStore, study: str, line: str, choice: Choice) -> dict[str, Any]:
    """Return what would be published, and ``seen``, the held version that it is about.

    Raises:
        InvalidSettings: no version is held.
    """
    held = _held(store, study, line)
    head = store.head(study, line)
    if choice == "release":
        title = f"Publish version {held.iteration}"
        who = "All clients" if held.staged else "Clients"
        sentence = f"Version {held.iteration} will be published as it was computed. {who} fetch it from then on."
        new = held
    else:
        title = f"Leave version {held.iteration} behind"
        number = held.iteration + bool(held.staged)  # some have a staged one, so that no other gets its number
        sentence = (
            f"Version {number} will be published with the weights and the optimizer's state of version "
            f"{head.iteration}. The pings behind the version that is held count nowhere; it stays in the store, to be "
            "looked at."
        )
        new = head
    return {
        "seen": seen_as(held),
        "next": held.iteration + (choice == "discard" and held.staged is not None),
        "changes": changes_between(store.study(study), head, new),
        "title": title,
        "typed": held.iteration,
        "sentence": sentence,
    }


def decide(
    store: ModelStore, study: str, line: str, choice: Choice, seen: str, *, created: str, code_version: str
) -> Version:
    """Do what :func:`plan_for_held` showed, if the same version is still held; return what was published.

    Raises:
        InvalidSettings: no version is held.
        VersionConflict: another version is held, or was published since; nothing was done.
        FedpingError: nothing can be published in this store.
    """
    if seen_as(_held(store, study, line)) != seen:
        raise VersionConflict(
            f"another version of line '{line}' of study '{study}' is held than the one that you looked at; nothing was "
            "done: look at it and decide again"
        )
    store.check_publishing()
    if choice == "release":
        return release(store, study, line, created=created)
    return discard(store, study, line, created=created, code_version=code_version)


def _held(store: ModelStore, study: str, line: str) -> Version:
    held = store.held.held_version(study, line)
    if held is None:
        raise InvalidSettings(
            f"no version of line '{line}' of study '{study}' is held any more; there is nothing to decide"
        )
    return held
