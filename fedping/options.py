"""Options that several subcommands share."""

from __future__ import annotations

import ast
import base64
import getpass
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import click
from click.types import UUIDParameterType

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import Place, local_path, without_secrets

if TYPE_CHECKING:
    from fedping.protocol.trust import Trust


def current_user() -> str:
    """Return the name of the system's user who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return f"user {os.getuid()}"


class LocalPath(click.Path):
    """Option type of a path on this machine; see :func:`fedping.protocol.location.local_path`."""

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
    """Option type of a folder on this machine or in a bucket; see :func:`fedping.protocol.location.place_of`."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the place."""
        from fedping.protocol.location import place_of

        try:
            place = place_of(value)
        except InvalidSettings as error:
            self.fail(str(error), param, ctx)
        return super().convert(place, param, ctx) if isinstance(place, Path) else place


class ClientId(UUIDParameterType):
    """Option type of a client's id: a UUID in any spelling, or its 16 bytes as readers of Parquet print them."""

    name = "client id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the UUID."""
        if isinstance(value, UUID):
            return value
        ways = (_of_uuid, _of_hexadecimal, _of_python, _of_duckdb, _of_base64)
        for read in ways if len(value) <= _MOST_OF_AN_ID else ():
            with suppress(ValueError, SyntaxError):
                return read(value)
        return self.fail(
            f"{value!r} is not a client id. Give a UUID, 32 hexadecimal digits, or the 16 bytes as pandas, DuckDB, "
            "Spark or JSON (base64) print them, in quotes.",
            param,
            ctx,
        )


_MOST_OF_AN_ID = 128
"""Maximum length of a client's id in any spelling, in characters."""


def _of_uuid(text: str) -> UUID:
    return UUID(text.strip())


def _of_hexadecimal(text: str) -> UUID:
    r"""Parse [10 56 6B …] (Spark), 10 56 6b … (Trino), \x10566b… (PostgreSQL), 0x10566b… and X'10566b…' (SQL)."""
    digits = re.sub(r"^(\\x|0x|x'|\[)|['\]]$|\s", "", text, flags=re.IGNORECASE)
    return UUID(bytes=bytes.fromhex(digits))


def _of_python(text: str) -> UUID:
    if not re.fullmatch(r"b(['\"]).*\1", text.strip()):
        raise ValueError
    return UUID(bytes=ast.literal_eval(text.strip()))


def _of_duckdb(text: str) -> UUID:
    r"""Parse \x10Vk+…: \x and two digits for unprintable bytes, characters for the others."""
    pieces = re.findall(r"\\x([0-9A-Fa-f]{2})|([ -\[\]-~])", text)
    if sum(4 if digits else 1 for digits, _ in pieces) != len(text) or not any(digits for digits, _ in pieces):
        raise ValueError  # half a UUID is also 16 characters
    return UUID(bytes=b"".join(bytes.fromhex(digits) or plain.encode() for digits, plain in pieces))


def _of_base64(text: str) -> UUID:
    return UUID(bytes=base64.b64decode(text.strip(), validate=True))


def seconds_in(option: str, text: str, least: float = 0.0) -> float:
    """Return the seconds of a time such as 45s, 10m or 6h.

    Raises:
        InvalidSettings: the text isn't a time, or the time is shorter than ``least`` seconds.
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


_Command = TypeVar("_Command", bound=Callable[..., Any])


def trust_options(command: _Command) -> _Command:
    """Add --ca and --insecure to a command that connects to a server; :func:`trust_of` reads them."""
    ca = click.option(
        "--ca",
        type=LocalPath(dir_okay=False),
        metavar="FILE",
        help="PEM file of the only certificate authorities to trust.  [default: this machine's authorities]",
    )
    insecure = click.option(
        "--insecure",
        is_flag=True,
        help="Accept any certificate, for tests only: anyone on the network path can impersonate the server.",
    )
    return ca(insecure(command))


def trust_of(url: str, ca: Path | None, insecure: bool) -> Trust:
    """Return the trust settings of --ca and --insecure, and warn about the latter.

    Raises:
        InvalidSettings: both are given, the file has no certificates, or the address is not of https.
    """
    from fedping.protocol.log import tell
    from fedping.protocol.trust import Trust

    trust = Trust(ca, insecure)
    if trust != Trust() and not url.lower().startswith("https://"):
        option = "--insecure" if insecure else "--ca"
        raise InvalidSettings(f"{option} has no effect: {without_secrets(url)} is not an https address; remove it")
    if insecure:
        tell(
            "warning: with --insecure anyone on the network path can impersonate the server, read what is sent, and "
            "answer in its place",
            "warning",
        )
    return trust


store_option = click.option(
    "--store",
    "store_path",
    type=AnyPlace(),
    default=Path("store"),
    show_default=True,
    envvar="FEDPING_STORE",
    show_envvar=True,
    help="Folder of the model store, or its address in an object store: s3://, gs:// or az://BUCKET/FOLDER.",
)

landing_option = click.option(
    "--landing",
    type=AnyPlace(),
    default=Path("landing"),
    show_default=True,
    envvar="FEDPING_LANDING",
    show_envvar=True,
    help="Folder where pings land in Parquet, or its address in an object store, as for --store.",
)


def runs_option(help: str) -> Callable[[_Command], _Command]:
    """Return the option --runs of the dashboard's commands, with its help."""
    return click.option(
        "--runs",
        type=LocalPath(),
        default=Path("runs"),
        show_default=True,
        envvar="FEDPING_RUNS",
        show_envvar=True,
        help=help,
    )


class WithSubcommands(click.Command):
    """A command that has arguments and also subcommands, which are imported only when used.

    Args:
        subcommands: by name, the module of :mod:`fedping.commands` and the command's attribute there.
        settings: the settings of :class:`click.Command`.
    """

    def __init__(self, *, subcommands: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self._subcommands = subcommands

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of a subcommand, or of the command itself."""
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
    help=(
        "Folder of ingest's journal, on a local disk.  [default: .journal in --landing; ./journal if that is a bucket]"
    ),
)


def journal_of(journal: Path | None, landing: Place) -> Path:
    """Return the journal's folder: --journal, or the default, which is never in a bucket."""
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
