"""Rolling a line back: forwards, as a new version that repeats an old one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from model_store.store import ModelStore
from model_store.version import Lineage, Version
from protocol.errors import InvalidSettings


def rollback(store: ModelStore, study: str, line: str, to: int, *, created: str, code_version: str) -> Version:
    """Publish version ``to``'s weights and optimizer state as the line's next version, and return that version.

    Numbers only grow: clients that hold a later version see a newer one, and the pings of the versions in between stay
    stale. Nothing is deleted.

    Raises:
        StoreError: there is no such version.
        InvalidSettings: ``to`` is the head already.
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


def repeated(target: Version, head: Version, *, created: str, code_version: str) -> Version:
    """Return the version after ``head`` that repeats ``target``; pure."""
    return msgspec.structs.replace(
        target,
        iteration=head.iteration + 1,
        parent=head.iteration,
        parent_digest=head.digest,
        created=created,
        lineage=Lineage(
            origin="rollback",
            code_version=code_version,
            config_digest=head.lineage.config_digest,
            window_end_ms=head.lineage.window_end_ms,
            restored=target.iteration,
        ),
    )


def difference(old: Version, new: Version, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return, weight by weight in wire order, what changed between two versions of one line with weights so named.

    Each entry has ``name``, ``old``, ``new`` (as published) and ``change``, only for the weights that differ.
    """
    rows = enumerate(zip(old.model, new.model, strict=True))
    return [{"name": names[i], "old": a, "new": b, "change": b - a} for i, (a, b) in rows if a != b]
