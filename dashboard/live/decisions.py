"""Decisions about held versions and rollbacks: a plan shows the version to be published, a decision publishes it."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from fedping.dashboard.live.history import seen_as
from fedping.dashboard.live.lineage import changes_between
from fedping.model_store import ModelStore, Version, VersionConflict
from fedping.model_store.decisions import discard, release, repeated
from fedping.protocol.errors import InvalidSettings

Choice: TypeAlias = Literal["release", "discard"]


class Decision(Struct, frozen=True, forbid_unknown_fields=True):
    """The choice for a held version, and the identity of the held version that the plan showed."""

    choice: Choice
    seen: str


class RollbackRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The version to roll back to, and the identity of the newest version that the plan showed."""

    to: int
    seen: str


def plan_for_held(store: ModelStore, study: str, line: str, choice: Choice) -> dict[str, Any]:
    """Return a description of the version that the choice would publish; ``seen`` identifies the held version.

    Raises:
        InvalidSettings: the line has no held version.
    """
    held = _held(store, study, line)
    head = store.head(study, line)
    if choice == "release":
        title = f"Publish version {held.iteration}"
        who = "All clients" if held.staged else "Clients"
        sentence = f"Version {held.iteration} will be published as it was computed. {who} fetch it from then on."
        new = held
    else:
        title = f"Discard version {held.iteration}"
        number = held.iteration + bool(held.staged)  # no version reuses a staged version's number
        sentence = (
            f"Version {number} will be published with the weights and the optimizer's state of version "
            f"{head.iteration}. The pings of the held version are discarded; the version stays in the store for "
            "inspection."
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


def decide(store: ModelStore, study: str, line: str, decision: Decision, *, created: str, code_version: str) -> Version:
    """Carry out a plan of :func:`plan_for_held` if the same version is still held; return the published version.

    Raises:
        InvalidSettings: the line has no held version.
        VersionConflict: another version is held, or was published since; nothing was done.
        FedpingError: nothing can be published in this store.
    """
    if seen_as(_held(store, study, line)) != decision.seen:
        raise VersionConflict(
            f"line '{line}' of study '{study}' now holds another version than the one on your page, so no decision "
            "was made; inspect it and decide again"
        )
    store.check_publishing()
    if decision.choice == "release":
        return release(store, study, line, created=created)
    return discard(store, study, line, created=created, code_version=code_version)


def _held(store: ModelStore, study: str, line: str) -> Version:
    held = store.held.held_version(study, line)
    if held is None:
        raise InvalidSettings(
            f"line '{line}' of study '{study}' no longer has a held version, so no decision is needed"
        )
    return held


def plan(store: ModelStore, study: str, line: str, to: int) -> dict[str, Any]:
    """Return a description of the rollback to version ``to``; ``seen`` identifies the newest version at that time.

    Raises:
        StoreError: there is no such version.
        InvalidSettings: this version is the newest.
    """
    head = store.head(study, line)
    _refuse_the_newest(study, line, head, to)
    target = store.version(study, line, to)
    changes = changes_between(store.study(study), head, target)
    same = "" if changes["count"] else " The published weights equal the clients' current ones."
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
            f"{to}. Clients fetch it from then on, and rounds continue from it. Nothing is deleted.{same}"
        ),
    }


def roll_back(
    store: ModelStore, study: str, line: str, wanted: RollbackRequest, *, created: str, code_version: str
) -> Version:
    """Carry out a plan of :func:`plan`, unless another version was published since.

    `fedping.model_store.decisions.rollback`, in contrast, also follows a version that a round has published since.

    Raises:
        StoreError: there is no such version.
        InvalidSettings: this version is the newest.
        VersionConflict: another version was published since; nothing was published now.
        FedpingError: nothing can be published in this store.
    """
    head = store.head(study, line)
    if wanted.seen != seen_as(head):
        raise _overtaken(study, line, wanted.seen, head.iteration)
    _refuse_the_newest(study, line, head, wanted.to)
    store.check_publishing()
    restored = repeated(store.version(study, line, wanted.to), head, created=created, code_version=code_version)
    try:
        store.publish(restored)
    except VersionConflict as error:
        raise _overtaken(study, line, wanted.seen, restored.iteration) from error
    return restored


def _refuse_the_newest(study: str, line: str, head: Version, to: int) -> None:
    if to == head.iteration:
        raise InvalidSettings(f"line '{line}' of study '{study}' is already at version {to}, so no rollback is needed")


def _overtaken(study: str, line: str, seen: str, there: int) -> VersionConflict:
    return VersionConflict(
        f"version {there} of line '{line}' of study '{study}' was published while your page showed version "
        f"{seen.partition('.')[0]}, so the line was not rolled back; inspect the new version and decide again"
    )
