"""Reading the file of a study for a command: checked, with the safe choices, and told what to be warned of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import SHARDS
from fedping.protocol.study import Study, study_from_toml

if TYPE_CHECKING:
    from fedping.protocol.place import Place

own_model_option = click.option(
    "--own-model",
    "own_models",
    multiple=True,
    metavar="NAME",
    help="A model of the product's own clients: neither its weights nor its settings are checked. May be repeated.",
)


def checked(file: Path, own_models: tuple[str, ...], store_path: Place | None = None) -> Study:
    """Return the study of a file, having told what to be warned of; with the noise that a store has it with, if any.

    Raises:
        InvalidSettings: the file does not describe a study, or one that clients could not take part in.
    """
    from fedping.client_sim.learning.checking import check_study

    try:
        the_study = study_from_toml(file, new=True)
        warnings = check_study(the_study, own_models)
        the_study = _with_noise(the_study, store_path)
        _check_room(the_study)
    except InvalidSettings as error:
        said = str(error)  # what a whole study judges of itself does not know in which file it stood
        raise InvalidSettings(said if str(file) in said else f"the study file {file}: {said}") from error
    for warning in warnings:
        click.echo(f"fedping: warning: the study file {file}: {warning}", err=True)
    return the_study


def _check_room(the_study: Study) -> None:
    """Raise :class:`InvalidSettings` if an aggregation that keeps updates has no room for one in each shard."""
    if the_study.shards == SHARDS:
        return
    from fedping.server_jobs.round.accumulator import accumulator_for, room_in

    for line in the_study.lines:
        room_in(accumulator_for(line), line, the_study.shards)


def _with_noise(the_study: Study, store_path: Place | None) -> Study:
    """Return a study whose private lines have the noise that keeps their guarantee: what it is stored with, or ours."""
    from fedping.server_jobs.privacy.budget import needs_accounting, stored_with_noise, with_noise

    if not needs_accounting(the_study):
        return the_study
    if store_path is not None:
        from fedping.model_store.store import open_store

        stored = stored_with_noise(open_store(store_path, create=True), the_study)
        if stored is not None:
            return stored
    click.echo("fedping: working out how much noise keeps the guarantee, which may take some seconds", err=True)
    return with_noise(the_study)
