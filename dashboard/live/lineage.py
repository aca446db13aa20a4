"""The lineage of a version in words; see `docs/reference.md` for the outcomes of pings."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fedping.model_store import ModelStore, StoreError, Version
from fedping.model_store.decisions import difference
from fedping.model_store.version import GuardState
from fedping.protocol.study import Study

MOST_FILES = 200
MOST_CHANGES = 60

OUTCOMES = {
    "used": "used in the mean",
    "duplicate": "an earlier row has the same document id",
    "wrong_version": "the row's version differs from its folder's",
    "bad_loss": "the loss is not a finite number",
    "other_arm": "the arm does not train this line",
    "no_example": "the interaction ended without a choice, or the client had no data",
    "no_update": "none was sent",
    "bad_update": "the update can't be read, has another encoding than the line's, or is beyond the line's limits",
    "stale": "of an older version; landed since the round before",
    "future": "of a newer version; landed since the round before",
    "over_capacity": "the round was full",
    "not_enrolled": "the client's id is assigned to another arm, or to the other side of the stage",
    "beyond_limits": "a loss or a rank beyond the study's limits",
    "not_first": "another ping of the same client counts",
    "not_sampled": "the client was not selected for the version, or not sampled by the private round",
}
"""The outcomes of a ping in a round, in words."""


class WeightChange(Struct, frozen=True, kw_only=True):
    """A published weight that differs between two versions."""

    name: str
    old: float
    new: float
    change: float


def changes_between(study: Study, old: Version, new: Version, most: int = MOST_CHANGES) -> dict[str, Any]:
    """Return the number of published weights that differ, and the ``most`` largest changes.

    Changes are compared in units of the weights' first step sizes.
    """
    spec = study.line(new.line).spec
    steps = dict(zip(spec.names, spec.steps.start.tolist(), strict=True))
    every = [WeightChange(**entry) for entry in difference(old, new, spec.names)]
    largest = sorted(every, key=lambda one: -abs(one.change) / steps[one.name])[:most]
    kept = {one.name for one in largest}
    return {"count": len(every), "of": spec.m, "largest": [one for one in every if one.name in kept]}


def lineage_of(store: ModelStore, study: str, line: str, number: int) -> dict[str, Any]:
    """Return a version's lineage.

    Raises:
        StoreError: there is no such version, or it cannot be read.
    """
    the_study = store.study(study)
    version = store.version(study, line, number)
    lineage = version.lineage
    aggregate = lineage.aggregate
    return {
        "version": version.iteration,
        "created": version.created,
        "made_by": _origin(version),
        "origin": lineage.origin,
        "restored": lineage.restored,
        "parent": version.parent,
        "parent_digest": version.parent_digest,
        "digest": version.digest,
        "spec_digest": version.spec_digest,
        "config_digest": lineage.config_digest,
        "code_version": lineage.code_version,
        "window_end_ms": lineage.window_end_ms or None,
        "clients": None if aggregate is None else aggregate.clients,
        "pings": None if aggregate is None else aggregate.pings,
        "weight": None if aggregate is None else aggregate.weight,
        "counts": [{"reason": r, "pings": n, "words": OUTCOMES.get(r, "")} for r, n in lineage.counts.items()],
        "ages": lineage.ages,
        "arms": lineage.arms,
        "privacy": _released(version),
        "alarms": lineage.guard.alarms if lineage.guard else (),
        "stage": lineage.guard.stage if lineage.guard else None,
        "files": {
            "count": len(lineage.inputs),
            "rows": sum(file.rows for file in lineage.inputs),
            "first": lineage.inputs[:MOST_FILES],
        },
        "changes": _from_parent(store, the_study, version),
    }


def _released(version: Version) -> dict[str, Any] | None:
    """Return the release of a private round, without its vectors; None for any other version."""
    event = version.lineage.privacy
    if event is None:
        return None
    names = ("sigma", "noise_multiplier", "sensitivity", "sampling", "releases", "epsilon", "delta", "accountant")
    shared = None if event.shared is None else {"helper": event.shared.helper, "refused": event.shared.refused}
    return {name: getattr(event, name) for name in (*names, "stepped")} | {"shared": shared}


def _origin(version: Version) -> str:
    match version.lineage.origin:
        case "created" if (begun := version.lineage.warm_start) is not None:
            return f"Published with the study, with weights that were taken over from {begun.taken.told}"
        case "created":
            return "Published with the study, from the start weights of its spec"
        case "round":
            guard = version.lineage.guard
            if version.lineage.privacy is not None:
                return f"Computed by a private round on version {version.parent}, only from its released sums"
            return f"Computed by a round from the pings of version {version.parent}{_decided(guard)}"
        case "rollback" if version.lineage.guard and version.lineage.guard.decision == "discarded":
            return f"Repeats version {version.lineage.restored} in place of a held version that was discarded"
        case "rollback" if version.lineage.guard and version.lineage.guard.decision == "rolled_back":
            return f"Repeats version {version.lineage.restored}: the line's guard has rolled it back"
        case "rollback" if version.lineage.stopped:
            return (
                f"Published by early stopping, because training is over: repeats version {version.lineage.restored}, "
                "which had the lowest loss"
            )
        case "rollback":
            return f"Published by a rollback: repeats version {version.lineage.restored}"
        case "continued" if (guard := version.lineage.guard) and guard.gives_up:
            return (
                f"Repeats version {version.lineage.restored} in place of version {version.iteration - 1}, which was "
                f"staged and then {guard.decision}"
            )
        case "continued":
            return (
                f"Published by 'fedping store continue': repeats version {version.lineage.restored} under an unused "
                "number"
            )


def _decided(guard: GuardState | None) -> str:
    if guard is None or guard.decision not in ("released", "promoted"):
        return ""
    if guard.stage is None:
        return ", held, and then published"
    return f", staged for {100 * guard.stage.share:g} % of clients, and then published"


def _from_parent(store: ModelStore, study: Study, version: Version) -> dict[str, Any] | None:
    if version.parent is None:
        return None
    try:
        parent = store.version(study.name, version.line, version.parent)
    except StoreError:
        return None
    return changes_between(study, parent, version)
