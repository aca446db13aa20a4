"""`fedping dashboard`, and the options that `fedping ingest --dashboard` shares with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedping.commands.dashboard_team import TEAM_VARIABLE, changes, team
from fedping.options import (
    LocalPath,
    journal_of,
    journal_option,
    landing_option,
    log_format_option,
    runs_option,
    store_option,
)
from fedping.protocol import log
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.log import say, tell

if TYPE_CHECKING:
    from fedping.dashboard.settings import DashboardSettings
    from fedping.protocol.location import Place

TOKEN_VARIABLE = "FEDPING_DASHBOARD_TOKEN"

_runs_option = runs_option("Folder for runs that are started from the dashboard.")


# No --token: a command line is readable by every user of the machine.
_token_option = click.option(
    "--token-file",
    type=LocalPath(),
    default=None,
    help=f"File with the token that visitors need; else {TOKEN_VARIABLE}.  [default: create one and print it]",
)

_team_option = click.option(
    "--team",
    type=LocalPath(dir_okay=False),
    default=None,
    envvar=TEAM_VARIABLE,
    show_envvar=True,
    help=(
        "File with the people who may use the dashboard, each with a role and a token; 'fedping dashboard team' "
        "writes it."
    ),
)

_viewers_option = click.option(
    "--viewers",
    type=click.IntRange(0, 1000),
    default=32,
    show_default=True,
    help="Number of pages that are updated over an open connection; further pages poll every 3 seconds.",
)

_no_token_option = click.option(
    "--no-token", is_flag=True, help="Admit every user of this machine without a token; on loopback only."
)

_allow_host_option = click.option(
    "--allow-host",
    multiple=True,
    help="With --no-token, or behind a proxy that names its visitors: another host name to accept; repeatable.",
)

_data_option = click.option(
    "--data",
    type=LocalPath(file_okay=False),
    multiple=True,
    help="Folder with files that experiments described on the page may use; repeatable.  [default: none]",
)

_runs_at_once_option = click.option(
    "--runs-at-once",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Maximum number of runs at a time; the rest wait.",
)

_refresh_option = click.option(
    "--refresh",
    type=click.FloatRange(min=1),
    help="Analyze every study again after this many minutes, as interim looks; the test stays valid after any number "
    "of looks.  [default: only on request]",
)

_F = TypeVar("_F", bound=Callable[..., Any])


def dashboard_options(command: _F) -> _F:
    """Add the options of :class:`DashboardOptions` to a command."""
    for option in (
        _refresh_option,
        _runs_at_once_option,
        _runs_option,
        _viewers_option,
        _data_option,
        _allow_host_option,
        _no_token_option,
        _team_option,
        _token_option,
    ):
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True)
class DashboardOptions:
    """A dashboard's options, except its address and its store and landing folder; see their help."""

    token_file: Path | None
    team: Path | None
    no_token: bool
    allow_host: tuple[str, ...]
    data: tuple[Path, ...]
    viewers: int
    runs: Path
    runs_at_once: int
    refresh: float | None

    @classmethod
    def names(cls) -> set[str]:
        """Return the names of the options in Python."""
        return {field.name for field in fields(cls)}

    def settings(self, *, store: Place, landing: Place, journal: Path, host: str, port: int) -> DashboardSettings:
        """Return the settings, with the operator's token or a new one that the caller prints.

        On loopback that token is the same at every start, so that open pages and bookmarks stay valid.

        Raises:
            InvalidSettings: the token is too short, its file or the team's can't be read, or --no-token contradicts
                other options.
        """
        from fedping.dashboard.guard import kept_token
        from fedping.dashboard.settings import DashboardSettings
        from fedping.dashboard.team import new_token

        settings = DashboardSettings(
            store=store,
            landing=landing,
            journal=journal,
            runs=self.runs,
            host=host,
            port=port,
            token=_operators_token(self.token_file),
            hosts=self.allow_host,
            viewers=self.viewers,
            runs_at_once=self.runs_at_once,
            refresh=self.refresh,
            data=self.data,
            team=self.team,
        )
        if self.team is not None:
            return self._with_team(settings)
        if self.no_token and (settings.token is not None or settings.beyond_loopback):
            why = f"{host} is reached from other machines" if settings.token is None else "you also give a token"
            raise InvalidSettings(f"--no-token admits every user of this machine, but {why}; remove one of the two")
        if self.no_token or settings.token is not None:
            return settings
        if settings.beyond_loopback and log.is_json():
            raise InvalidSettings(
                f"the dashboard doesn't print its token into a log; give --token-file or set {TOKEN_VARIABLE}"
            )
        try:
            token = new_token() if settings.beyond_loopback else kept_token(settings.token_file)
        except (OSError, UnicodeDecodeError):
            token = new_token()  # a faulty folder is reported when the dashboard is prepared
        return replace(settings, token=token, token_is_ours=True)

    def _with_team(self, settings: DashboardSettings) -> DashboardSettings:
        """Return the settings of a dashboard that admits its team, and the operator's token if there is one."""
        from fedping.dashboard.team import read_team

        if self.no_token:
            raise InvalidSettings("--no-token admits every user of this machine, but you also give --team; remove one")
        assert self.team is not None
        if not any(each.role == "operator" for each in read_team(self.team).members) and settings.token is None:
            tell(f"the team in {self.team} has no operator", "warning")
        return settings


def _operators_token(file: Path | None) -> str | None:
    """Return the token of --token-file or of the environment; None without either."""
    from fedping.dashboard.guard import checked_token

    if file is None:
        variable = os.environ.get(TOKEN_VARIABLE)
        return None if variable is None else checked_token(variable)
    try:
        token = checked_token(file.read_text(encoding="utf-8"))
        is_readable_by_all = bool(file.stat().st_mode & 0o004)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidSettings(f"the token file {file} cannot be read: {reason}; correct --token-file") from error
    if is_readable_by_all:
        tell(f"every user of this machine can read the token in {file}; run chmod 600 {file}", "warning")
    return token


def at(settings: DashboardSettings) -> str:
    """Return the address to open, with the token only if the dashboard created it: printed text may end up in a log."""
    host = "localhost" if settings.host in ("0.0.0.0", "::") else settings.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
    if settings.token_is_ours and log.is_json():
        return f"{url}/ (its token is in {settings.token_file})"
    return f"{url}/?token={settings.token}" if settings.token_is_ours else f"{url}/"


@click.group(invoke_without_command=True)
@store_option
@landing_option
@journal_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(1, 65535), default=8081, show_default=True, help="Port to listen on.")
@dashboard_options
@log_format_option
def dashboard(
    store_path: Place,
    landing: Place,
    journal: Path | None,
    host: str,
    port: int,
    **options: Any,
) -> None:
    """Serve the dashboard: watch studies live, read their results, and describe, start and compare experiments.

    Visitors need a token: the one in --token-file or FEDPING_DASHBOARD_TOKEN, otherwise one that the dashboard creates
    and prints as part of its address. A browser that has opened that address stays logged in. Runs continue when the
    dashboard stops.

    For several people, --team gives each a role (reader, analyst or operator) and a token, or trusts a proxy's login.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    from fedping.dashboard.application import prepare, serve

    settings = DashboardOptions(**options).settings(
        store=store_path, landing=landing, journal=journal_of(journal, landing), host=host, port=port
    )
    prepare(settings)
    serve(settings, ready=lambda: say(f"The dashboard is at {at(settings)}. Ctrl-C stops it; runs continue."))


dashboard.add_command(team)
dashboard.add_command(changes)
