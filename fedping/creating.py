"""Studies made by a program or a notebook: checked, and with the safe choices, as `fedping study create` makes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fedping.error_text import python_names
from fedping.protocol import __version__
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import with_recorded_code
from fedping.protocol.landing import SHARDS
from fedping.protocol.limits import check_new_limits
from fedping.protocol.location import Place, place_of
from fedping.protocol.notation import utc_now
from fedping.protocol.study import Study, as_once_new, new_study, study_as_written

if TYPE_CHECKING:
    from fedping.model_store.store import ModelStore


def create_study(study: str | Path | Study, store: str | Path = "store", *, own_models: Collection[str] = ()) -> Study:
    """Store a study and publish version 0 of each of its lines, as `fedping study create` does; return it as stored.

    It is checked as by `fedping study check`, whose warnings are Python's. Where it makes no choice it gets the safe
    one: a clip and a quorum, a guard, limits, and arms by the client's id. Safe to repeat.

    Args:
        study: a study file, or a study.
        store: the store's folder, or its address at ``s3://``, ``gs://`` or ``az://``; made if it does not exist.
        own_models: names of models of the product's own clients, which are not checked.

    Raises:
        InvalidSettings: it is not a study, or one that clients could not take part in.
        StoreError: a study of this name exists with other settings, or its version 0 was lost.
    """
    from fedping.model_store.store import open_store
    from fedping.server_jobs.optimize import first_versions

    with python_names(store="'store'", own_model="'own_models'"):
        place = place_of(store)
        written = study if isinstance(study, Study) else study_as_written(Path(study))
        made, told = ready(new_study(written), own_models, place)
        for sentence in told:
            warnings.warn(f"study '{made.name}': {sentence}", stacklevel=2)
        there = open_store(place, create=True)
        made = as_stored(there, made, written)
        there.create_study(made, first_versions(made, created=utc_now(), code_version=__version__))
        return made


def ready(
    study: Study,
    own_models: Collection[str],
    store: Place | None,
    on_noise: Callable[[], None] = lambda: None,
) -> tuple[Study, list[str]]:
    """Return a study that can be stored, and what to know before, one sentence each.

    Its private lines have the noise that keeps their guarantee: what it is stored with, or ours.

    Args:
        study: the study, with the safe choices.
        own_models: as in :func:`create_study`.
        store: where it may be stored already; None for nowhere.
        on_noise: called before noise is derived, which may take seconds.

    Raises:
        InvalidSettings: clients could not take part in it, a shard has no room for what an aggregation keeps, or its
            limits have all losses count alike.
    """
    from fedping.client_sim.learning.checking import check_study

    told = check_study(study, own_models)
    _check_limits(study, store)
    study = _with_noise(study, store, on_noise)
    _check_room(study)
    return study, told


def as_stored(store: ModelStore, study: Study, written: Study) -> Study:
    """Return a study as a store has it, if that is the same; else as it is.

    One that is stored with the safe choices of an earlier version, or from before there were such, keeps them; of one
    whose shares have changed, no file says where its arms lie.
    """
    if study.name not in store.studies.names():
        return study
    stored = store.study(study.name)
    bare = replace(stored, pieces=())
    ways = (with_recorded_code(replace(each, pieces=()), bare) for each in (study, *as_once_new(written)))
    return stored if any(each == bare for each in ways) else study


def _check_limits(study: Study, store: Place | None) -> None:
    """Raise :class:`InvalidSettings` if all losses would count alike, unless the study is stored with such limits."""
    if study.limits is None:
        return
    try:
        check_new_limits(study.name, study.limits)
    except InvalidSettings:
        if store is None:
            raise
        from fedping.model_store.store import open_store

        there = open_store(store, create=True)
        stored = there.study(study.name).limits if study.name in there.studies.names() else None
        if stored is None or (stored.loss, stored.clip_loss) != (study.limits.loss, study.limits.clip_loss):
            raise


def _check_room(study: Study) -> None:
    """Raise :class:`InvalidSettings` if an aggregation that keeps updates has no room for one in each shard."""
    if study.shards == SHARDS:
        return
    from fedping.server_jobs.round.accumulator import partial_size
    from fedping.server_jobs.round.aggregations import accumulator_for

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
