"""Options that several subcommands share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import Place, local_path


class LocalPath(click.Path):
    """A path on this machine: see :func:`fedping.protocol.location.local_path`."""

    def __init__(self, *, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        try:
            path = local_path(os.fspath(value))
        except InvalidSettings as error:
            self.fail(str(error), param, ctx)
        return super().convert(path, param, ctx)


class AnyPlace(LocalPath):
    """A folder on this machine, or a bucket: see :func:`fedping.protocol.location.place_of`."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the place."""
        from fedping.protocol.location import place_of

        try:
            place = place_of(value)
        except InvalidSettings as error:
            self.fail(str(error), param, ctx)
        return super().convert(place, param, ctx) if isinstance(place, Path) else place


def seconds_in(option: str, text: str, least: float = 0.0) -> float:
    """Return the seconds of a time such as 45s, 10m or 6h.

    Raises:
        InvalidSettings: it isn't a time, or is shorter than ``least`` seconds.
    """
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        seconds = float(text[:-1]) * units[text[-1:]]
    except (KeyError, ValueError):
        seconds = -1.0
    if not least <= seconds < float("inf"):
        at_least = f", at least {least:g}s" if least else ""
        raise InvalidSettings(
            f"{option} {text} is not a time; give seconds, minutes or hours, such as 45s, 10m or 6h{at_least}"
        )
    return seconds


store_option = click.option(
    "--store",
    "store_path",
    type=AnyPlace(),
    default=Path("store"),
    show_default=True,
    envvar="FEDPING_STORE",
    show_envvar=True,
    help="Folder of the model store; or its place in an object store: s3://, gs:// or az://BUCKET/FOLDER.",
)

landing_option = click.option(
    "--landing",
    type=AnyPlace(),
    default=Path("landing"),
    show_default=True,
    envvar="FEDPING_LANDING",
    show_envvar=True,
    help="Folder where pings land in Parquet; or its place in an object store, as of --store.",
)


class WithSubcommands(click.Command):
    """A command with arguments of its own, and others behind its name, which are imported where they are used.

    Args:
        subcommands: where each of them is, by its word: the module of :mod:`fedping.commands`, and its name there.
        settings: those of :class:`click.Command`.
    """

    def __init__(self, *, subcommands: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self._subcommands = subcommands

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of one of them."""
        if not args or args[0] not in self._subcommands:
            return super().make_context(info_name, args, parent, **extra)
        module, name = self._subcommands[args[0]]
        command: click.Command = getattr(import_module(f"fedping.commands.{module}"), name)
        return command.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)


journal_option = click.option(
    "--journal",
    type=LocalPath(),
    default=None,
    envvar="FEDPING_JOURNAL",
    show_envvar=True,
    help="Folder of ingest's journal, on a local disk.  [default: .journal in --landing; ./journal if in a bucket]",
)


def journal_of(journal: Path | None, landing: Place) -> Path:
    """Return the folder of the journal: that of --journal, or the default, which is never in a bucket."""
    return journal or (landing / ".journal" if isinstance(landing, Path) else Path("journal"))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of text.")

log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    envvar="FEDPING_LOG_FORMAT",
    show_envvar=True,
    expose_value=False,  # fedping.protocol.log reads it earlier, for errors before the command runs
    help="Format of the log: text for people, or JSON on stderr for machines, one object a line.",
)
