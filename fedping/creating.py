"""Creation of studies from a program or a notebook, with the checks and safe choices of `fedping study create`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fedping.client_sim.learning.study_files import study_as_written
from fedping.error_text import python_names
from fedping.protocol import __version__
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import with_recorded_code
from fedping.protocol.landing import SHARDS
from fedping.protocol.limits import check_new_limits
from fedping.protocol.location import Place, place_of
from fedping.protocol.notation import utc_now
from fedping.protocol.pipeline import OwnAggregation
from fedping.protocol.study import Study, as_once_new, new_study

if TYPE_CHECKING:
    from fedping.model_store.store import ModelStore


def create_study(study: str | Path | Study, store: str | Path = "store", *, own_models: Collection[str] = ()) -> Study:
    """Store a study and publish version 0 of its lines, as `fedping study create` does; return the stored study.

    The study is checked as by `fedping study check`; warnings are Python's. Settings that are left open get safe
    choices: a clip and a quorum, a guard, limits, and arms by the client's id. A repeated call has no further effect.

    Args:
        study: a study file, or a study.
        store: the store's folder, or its address at ``s3://``, ``gs://`` or ``az://``; created if it does not exist.
        own_models: names of models of the product's own clients; these models are not checked.

    Raises:
        InvalidSettings: the file does not describe a study that clients can take part in.
        StoreError: a study of this name exists with other settings, or its version 0 was lost.
    """
    from fedping.model_store.store import open_store
    from fedping.server_jobs.optimize import first_versions

    with python_names(store="'store'", own_model="'own_models'"):
        place = place_of(store)
        written = study if isinstance(study, Study) else study_as_written(Path(study))
        new, sentences = ready(new_study(written), own_models, place)
        for sentence in sentences:
            warnings.warn(f"study '{new.name}': {sentence}", stacklevel=2)
        model_store = open_store(place, create=True)
        new = as_stored(model_store, new, written)
        model_store.create_study(new, first_versions(new, created=utc_now(), code_version=__version__))
        return new


def ready(
    study: Study,
    own_models: Collection[str],
    store: Place | None,
    on_noise: Callable[[], None] = lambda: None,
) -> tuple[Study, list[str]]:
    """Return a study that can be stored, and warnings about it, one sentence each.

    Private lines get the noise for their guarantee: from the stored study if there is one, otherwise newly derived.

    Args:
        study: the study, with the safe choices.
        own_models: as in :func:`create_study`.
        store: a store that may already contain the study; None for no store.
        on_noise: called before noise is derived, which may take seconds.

    Raises:
        InvalidSettings: clients could not take part in the study, a shard has too little memory for the aggregation, or
            the limits make all losses count the same.
    """
    from fedping.client_sim.learning.checking import check_study

    sentences = check_study(study, own_models)
    _check_limits(study, store)
    study = _with_noise(study, store, on_noise)
    _check_room(study)
    return study, sentences


def as_stored(store: ModelStore, study: Study, written: Study) -> Study:
    """Return the stored study if it equals ``study`` or ``written``; else ``study``.

    A study that was stored with an earlier fedping's safe choices, or without any, keeps them. A study whose shares
    have changed keeps its arms' ranges, which files don't contain.
    """
    if study.name not in store.studies.names():
        return study
    stored = store.study(study.name)
    bare = replace(stored, pieces=())
    versions = (with_recorded_code(replace(each, pieces=()), bare) for each in (study, *as_once_new(written)))
    return stored if any(each == bare for each in versions) else study


def _check_limits(study: Study, store: Place | None) -> None:
    """Raise :class:`InvalidSettings` if the limits make all losses equal, unless the study is stored with them."""
    if study.limits is None:
        return
    try:
        check_new_limits(study.name, study.limits)
    except InvalidSettings:
        if store is None:
            raise
        from fedping.model_store.store import open_store

        model_store = open_store(store, create=True)
        stored = model_store.study(study.name).limits if study.name in model_store.studies.names() else None
        if stored is None or (stored.loss, stored.clip_loss) != (study.limits.loss, study.limits.clip_loss):
            raise


def _check_room(study: Study) -> None:
    """Raise :class:`InvalidSettings` if an aggregation needs senders or more memory per shard than there is."""
    own = [line for line in study.lines if isinstance(line.pipeline.aggregate, OwnAggregation)]
    if study.shards == SHARDS and not own:
        return
    from fedping.server_jobs.round.accumulator import partial_size
    from fedping.server_jobs.round.aggregations import accumulator_for, refuse_senders

    for line in own:
        refuse_senders(line)
    for line in study.lines:
        partial_size(accumulator_for(line), line, study.shards)


def _with_noise(study: Study, store: Place | None, on_noise: Callable[[], None]) -> Study:
    from fedping.server_jobs.privacy.budget import needs_accounting, stored_with_noise, with_noise

    if not needs_accounting(study):
        return study
    if store is not None:
        from fedping.model_store.store import open_store

        stored = stored_with_noise(open_store(store, create=True), study)
        if stored is not None:
            return stored
    on_noise()
    return with_noise(study)
