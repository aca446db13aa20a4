"""Reading the file of a study for a command: checked, with the safe choices, and told what to be warned of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedping.creating import ready
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.study import Study, study_from_toml

if TYPE_CHECKING:
    from fedping.protocol.location import Place

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
    try:
        the_study, warnings = ready(study_from_toml(file, new=True), own_models, store_path, _tell_of_noise)
    except InvalidSettings as error:
        said = str(error)  # what a whole study judges of itself does not know in which file it stood
        raise InvalidSettings(said if str(file) in said else f"the study file {file}: {said}") from error
    for warning in warnings:
        click.echo(f"fedping: warning: the study file {file}: {warning}", err=True)
    return the_study


def _tell_of_noise() -> None:
    click.echo("fedping: working out how much noise keeps the guarantee, which may take some seconds", err=True)
