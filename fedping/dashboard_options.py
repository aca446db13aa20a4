"""What `fedping dashboard` and `fedping ingest --dashboard` share: options, the token, the address to open."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedping.options import LocalPath
from fedping.protocol import log
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.log import tell

if TYPE_CHECKING:
    from fedping.dashboard.settings import DashboardSettings

TOKEN_VARIABLE = "FEDPING_DASHBOARD_TOKEN"

_runs_option = click.option(
    "--runs",
    type=LocalPath(),
    default=Path("runs"),
    show_default=True,
    envvar="FEDPING_RUNS",
    show_envvar=True,
    help="Folder of the runs that are started from the dashboard.",
)

# No --token: a command line is readable by every user of the machine.
_token_option = click.option(
    "--token-file",
    type=LocalPath(),
    default=None,
    help=f"File with the token that visitors must show; else {TOKEN_VARIABLE}.  [default: one that is printed]",
)

_viewers_option = click.option(
    "--viewers",
    type=click.IntRange(0, 1000),
    default=32,
    show_default=True,
    help="Pages kept up to date over an open connection; further ones ask every 3 seconds.",
)

_no_token_option = click.option(
    "--no-token", is_flag=True, help="Let everybody with an account on this machine in; on loopback only."
)

_allow_host_option = click.option(
    "--allow-host", multiple=True, help="With --no-token, another host name under which it may be opened; repeatable."
)

_data_option = click.option(
    "--data",
    type=LocalPath(file_okay=False),
    multiple=True,
    help="Folder whose files experiments described on the page may use; repeatable.  [default: none]",
)

_runs_at_once_option = click.option(
    "--runs-at-once",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Runs to work on at a time; the rest wait.",
)

_refresh_option = click.option(
    "--refresh",
    type=click.FloatRange(min=1),
    help="Count the results of every study again after so many minutes, as interim looks: the test is valid however "
    "often it is looked at.  [default: only when asked]",
)

_OPTIONS = (
    _token_option,
    _no_token_option,
    _allow_host_option,
    _data_option,
    _viewers_option,
    _runs_option,
    _runs_at_once_option,
    _refresh_option,
)

_F = TypeVar("_F", bound=Callable[..., Any])


def dashboard_options(command: _F) -> _F:
    """Give a command the options of a dashboard, all but where it listens and what it reads."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def dashboard_settings(
    *, token_file: Path | None, host: str, no_token: bool, allow_host: tuple[str, ...], **rest: Any
) -> DashboardSettings:
    """Return the settings, with the token that the operator gave, else one of ours, which is to be printed.

    On loopback it is the same at every start, so that pages that are open, and bookmarks, go on.

    Raises:
        InvalidSettings: the token is too short, or its file cannot be read; none is wanted, but one is given or needed.
    """
    from fedping.dashboard.guard import kept_token, new_token
    from fedping.dashboard.settings import DashboardSettings

    settings = DashboardSettings(host=host, hosts=allow_host, token=_given(token_file), **rest)
    if no_token and (settings.token is not None or settings.beyond_loopback):
        why = f"{host} is reached from other machines" if settings.token is None else "you also give a token"
        raise InvalidSettings(f"--no-token lets everybody on this machine in, but {why}; remove one of the two")
    if no_token or settings.token is not None:
        return settings
    from dataclasses import replace

    if settings.beyond_loopback and log.is_json():
        raise InvalidSettings(
            "the dashboard would have to print a token of its own, and a log is no place for it; give --token-file or "
            f"set {TOKEN_VARIABLE}"
        )
    try:
        token = new_token() if settings.beyond_loopback else kept_token(settings.token_file)
    except (OSError, UnicodeDecodeError):
        token = new_token()  # what is wrong with the folder is told when the dashboard is prepared
    return replace(settings, token=token, token_is_ours=True)


def at(settings: DashboardSettings) -> str:
    """Return the address to open, with the token only if it is ours: what is printed may be kept, as by a journal."""
    if settings.token_is_ours and log.is_json():
        return f"{_url(settings)}/ (its token is in {settings.token_file})"
    return f"{_url(settings)}/?token={settings.token}" if settings.token_is_ours else f"{_url(settings)}/"


def _url(settings: DashboardSettings) -> str:
    host = "localhost" if settings.host in ("0.0.0.0", "::") else settings.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{settings.port}"


def _given(file: Path | None) -> str | None:
    from fedping.dashboard.guard import checked_token

    if file is not None:
        try:
            token = checked_token(file.read_text(encoding="utf-8"))
            open_to_all = bool(file.stat().st_mode & 0o004)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise InvalidSettings(f"the token file {file} cannot be read: {reason}; correct --token-file") from error
        if open_to_all:
            tell(f"every user of this machine can read the token in {file}; run chmod 600 {file}", "warning")
        return token
    given = os.environ.get(TOKEN_VARIABLE)
    return None if given is None else checked_token(given)
