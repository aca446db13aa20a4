"""Recomputation of a published version from its lineage, and comparison of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import fields

from fedping.model_store.decisions import repeated, with_decision
from fedping.model_store.store import ModelStore, StoreError
from fedping.model_store.version import Lineage, Version
from fedping.protocol.errors import FedpingError
from fedping.protocol.extensions import OtherCode
from fedping.protocol.landing import Landing, open_landing
from fedping.protocol.location import Place, child
from fedping.protocol.study import Line, Study
from fedping.server_jobs.optimize import first_state, first_versions, in_order
from fedping.server_jobs.privacy.budget import spent
from fedping.server_jobs.round.engine import Engine
from fedping.server_jobs.round.guard import stage_of, verdict
from fedping.server_jobs.round.manifest import Late, Manifest, late_for
from fedping.server_jobs.round.next_version import Provenance, aggregate_pings, next_version
from fedping.server_jobs.round.ping_file import open_ping_file
from fedping.server_jobs.round.private import noise_has_its_size
from fedping.server_jobs.round.private_release import next_private, replay_event
from fedping.server_jobs.round.stopping import version_to_keep
from fedping.server_jobs.warm_start import recompute_warm_start


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The result of a recomputation.

    Attributes:
        identical: whether the version has the same bits.
        differences: a phrase for each difference.
        noise: whether a private line's noise has the declared size; None if that can no longer be checked.
        given: the reason why the weights of a warm start weren't recomputed; empty otherwise.
    """

    identical: bool
    differences: tuple[str, ...]
    noise: bool | None = None
    given: str = ""


def recompute(
    store: ModelStore,
    landing: Place | Landing,
    study: str,
    line: str,
    iteration: int,
    engine: Engine,
    privacy_key: bytes | None = None,
    taken_from: ModelStore | None = None,
) -> Recomputed:
    """Recompute a version and compare the whole document: weights, state, aggregate and counts, bit for bit.

    A round's version is computed from its parent and the pings of its manifest; version 0 from the study; a rollback
    or a continuation from the version that it repeats. For a version of early stopping, the losses are used again to
    decide whether training was over, and which version was the best. Facts that can't be computed are copied: the
    time, the code version, the number of stale and future pings, the decision about a held version, and the results
    of a stage. The stage's decision is recomputed from its results.

    The settings are those of that time, from the study's history.

    A version of a private line is computed from the released sums. If its pings were kept, the size of the noise is
    also checked, which requires the line's key if clients are sampled.

    Args:
        store: the model store.
        landing: the landing folder, or its address.
        study: the study's name.
        line: the line's name.
        iteration: the version.
        engine: computes the partials.
        privacy_key: the key of a private line.
        taken_from: the store of the version with the weights of a warm start; None for ``store``. If that version no
            longer exists, the weights are copied.

    Raises:
        FedpingError: the version doesn't exist, or a file of its manifest is missing, damaged, or has changed.
        InvalidSettings: ``privacy_key`` isn't the key of the round.
        OtherCode: the code of an extension differs from the code that the version was computed with.
    """
    landing = open_landing(landing)
    version = store.version(study, line, iteration)
    _, the_study = store.studies.settings(study, version.lineage.settings)
    settings = the_study.line(line)
    given = ""
    try:
        if version.parent is None:
            again, given = _first_again(taken_from or store, the_study, version)
        else:
            again = _again(store, landing, the_study, settings, version, engine)
        again = _decided_again(settings, with_decision(version, _in_the_format_of(version, again, settings)))
    except OtherCode as error:
        raise OtherCode(
            f"version {iteration} of line '{line}' of study '{study}' was computed with other code: {error}"
        ) from error
    noise = noise_has_its_size(landing, the_study, settings, version, engine, privacy_key) if settings.privacy else None
    return Recomputed(version.digest == again.digest, tuple(_differences(version, again)), noise, given)


def _in_the_format_of(version: Version, again: Version, line: Line) -> Version:
    """Return a recomputed version in the format of the published version."""
    if version.format > 1:
        return again
    return msgspec.structs.replace(again, format=1, state=in_order(again.state, first_state(line)))


def _decided_again(line: Line, again: Version) -> Version:
    """Return a version with the decision about its stage recomputed from the recorded results."""
    guard, stage = again.lineage.guard, stage_of(line)
    if guard is None or guard.stage is None or stage is None or guard.decision not in ("promoted", "withdrawn"):
        return again
    outcome = verdict(stage, guard.stage)
    alarms = (outcome.why,) if outcome is not None and outcome.decision == "withdrawn" else ()
    decided = msgspec.structs.replace(guard, decision=outcome.decision if outcome else "", alarms=alarms)
    return msgspec.structs.replace(again, lineage=msgspec.structs.replace(again.lineage, guard=decided))


def _first_again(store: ModelStore, study: Study, version: Version) -> tuple[Version, str]:
    """Return the recomputed version 0, and the reason if the weights of its warm start were copied."""
    origin, given, weights = version.lineage.warm_start, "", version.weights
    if origin is not None:
        try:
            weights = recompute_warm_start(store, study.line(version.line), origin)
        except StoreError as error:
            given = f"the weights that version 0 took over from {origin.taken.told} were not checked ({error})"
    warm = {} if origin is None else {version.line: (weights, origin)}
    firsts = first_versions(study, created=version.created, code_version=version.lineage.code_version, warm=warm)
    return next(first for first in firsts if first.line == version.line), given


def _again(store: ModelStore, landing: Landing, study: Study, line: Line, version: Version, engine: Engine) -> Version:
    created, code = version.created, version.lineage.code_version
    assert version.parent is not None
    parent = store.version(study.name, line.name, version.parent)
    if version.lineage.restored is not None:
        restored, stopped = version.lineage.restored, version.lineage.stopped
        if stopped and line.early_stopping is not None:
            best = version_to_keep(store, study.name, line.name, parent.iteration, line.early_stopping)
            restored, stopped = (restored, False) if best is None else (best, True)
        target = store.version(study.name, line.name, restored)
        entry = version.lineage.settings  # settings of the decision, which may be newer
        if version.lineage.origin == "continued":
            return repeated(
                target,
                parent,
                number=version.iteration,
                origin="continued",
                created=created,
                code_version=code,
                settings=entry,
            )
        return repeated(target, parent, stopped=stopped, created=created, code_version=code, settings=entry)
    if version.lineage.privacy is not None:
        event = replay_event(line, version.lineage.privacy, spent(store, parent).releases + 1)
        return next_private(study, line, parent, event, created=created, code_version=code)
    late = late_for(store, study.name, line, parent.iteration)
    try:
        manifest = _kept_manifest(landing, study, version, late)
    except FedpingError as error:
        if why := _deletion(store, version):
            raise FedpingError(
                f"version {version.iteration} of line '{line.name}' of study '{study.name}' can no longer be "
                f"recomputed: {why}"
            ) from error
        raise
    aggregate = aggregate_pings(landing, study, parent, manifest, engine, version.lineage)
    provenance = Provenance(created=created, code_version=code, settings=version.lineage.settings)
    return next_version(study, parent, aggregate, manifest, provenance)


def _deletion(store: ModelStore, version: Version) -> str:
    """Return the time and reason of a deletion of a version's landed pings; empty if none were deleted."""
    for entry in store.studies.history(version.study):
        if version.iteration in entry.versions.get(version.line, ()):
            who = f" by {entry.by}" if entry.by else ""
            why = f", because: {entry.because}" if entry.because else ""
            when = f"on {entry.at[:10]}{who}{why}"
            if entry.kind == "pruned":
                return f"its landed pings were pruned, {when}. Restore them from a copy if you need it."
            return f"the landed pings of a forgotten client were removed, {when}. The version stays."
    return ""


def _kept_manifest(landing: Landing, study: Study, version: Version, late: Late | None) -> Manifest:
    """Return the manifest of a version, after a check that its files haven't changed."""
    lineage = version.lineage
    for file in lineage.inputs:
        place = child(landing.place, file.path)
        pings = open_ping_file(place, study.document)
        if pings.rows != file.rows:
            raise FedpingError(
                f"{place} has {pings.rows:,} pings, but version {version.iteration} was computed from {file.rows:,}. "
                "Restore the original file from a copy."
            )
        if file.digest and pings.landed.digest != file.digest:
            raise FedpingError(
                f"{place} is not the file that version {version.iteration} was computed from: its digest is "
                f"{pings.landed.digest}, not {file.digest}. Restore the original file from a copy."
            )
    return Manifest(
        inputs=lineage.inputs,
        before=late.before(lineage.inputs, version.iteration - 1) if late else (),
        stale=lineage.counts["stale"],
        future=lineage.counts["future"],
        window_end_ms=lineage.window_end_ms,
    )


def _differences(one: Version, other: Version) -> Iterator[str]:
    """Yield a phrase for each field in which two versions differ, including the fields of the lineage."""
    for field in fields(Version):
        if field.name != "lineage" and getattr(one, field.name) != getattr(other, field.name):
            yield _difference(field.name, getattr(one, field.name), getattr(other, field.name))
    for field in fields(Lineage):
        if getattr(one.lineage, field.name) != getattr(other.lineage, field.name):
            yield _difference(field.name, getattr(one.lineage, field.name), getattr(other.lineage, field.name))


def _difference(name: str, published: object, again: object) -> str:
    if isinstance(published, tuple) and isinstance(again, tuple) and len(published) == len(again):
        places = [i for i, (a, b) in enumerate(zip(published, again, strict=True)) if a != b]
        at = places[0]
        return (
            f"{name} differs at {len(places)} of {len(again)} places, first at {at}: {published[at]!r} published, "
            f"{again[at]!r} recomputed"
        )
    return f"{name} was published as {published!r} and recomputed as {again!r}"
