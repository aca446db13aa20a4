"""`fedping dashboard team` and `fedping dashboard changes`: people, roles and the list of changes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import replace

from fedping.options import LocalPath, current_user, json_option, runs_option, store_option
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.log import tell
from fedping.protocol.notation import utc_now

if TYPE_CHECKING:
    from fedping.dashboard.changes.log import Change
    from fedping.dashboard.team import Role, Team
    from fedping.protocol.location import Place

TEAM_VARIABLE = "FEDPING_DASHBOARD_TEAM"

_team_option = click.option(
    "--team",
    "file",
    type=LocalPath(dir_okay=False),
    required=True,
    envvar=TEAM_VARIABLE,
    show_envvar=True,
    help="File with the people who may use the dashboard.",
)

_roles = click.Choice(["reader", "analyst", "operator"])

_by_proxy_option = click.option(
    "--by-proxy", is_flag=True, help="Create no token: the proxy authenticates the person under this name."
)


@click.group()
def team() -> None:
    """Manage the people who may use a dashboard, and their roles; 'fedping dashboard --team FILE' admits them.

    A reader sees all pages. An analyst also counts results, writes notes, and starts and stops experiments. An operator
    also rolls lines back, decides about held versions, and deletes runs. A change applies from the next request on.
    """


@team.command()
@click.argument("name")
@click.option("--role", type=_roles, required=True, help="Role: what the person may do.")
@_by_proxy_option
@_team_option
def add(name: str, role: Role, by_proxy: bool, file: Path) -> None:
    """Add the person NAME and print their token. It is shown only once: the file stores only its SHA-256."""
    from fedping.dashboard.team import Member, Team, changing, new_token, read_team, token_digest, with_member

    if by_proxy and not name.isascii():
        raise InvalidSettings(
            f"the dashboard's server accepts only ASCII letters in headers, so a proxy can't send the name {name!r}; "
            "let the proxy send an e-mail address or an account name"
        )
    token = "" if by_proxy else new_token()
    digest = token_digest(token) if token else ""
    member = Member(name=name, role=role, digest=digest, since=utc_now(), by=current_user())
    with changing(file) as write:
        before = read_team(file) if file.exists() else Team()
        write(with_member(before, member))
    click.echo(token or f"the proxy authenticates {name}; no token was created")
    if by_proxy and before.proxy is None:
        tell("the team has no proxy yet; name it with 'fedping dashboard team proxy'", "warning")


@team.command()
@click.argument("name")
@click.option("--role", type=_roles, help="Another role.")
@click.option(
    "--new-token", is_flag=True, help=("Create and print a new token; the old one and its cookies stop working.")
)
@_team_option
def change(name: str, role: Role | None, new_token: bool, file: Path) -> None:
    """Give the person NAME another role or a new token."""
    from fedping.dashboard import team as people
    from fedping.dashboard.team import changing, known_member, read_team, token_digest

    if role is None and not new_token:
        raise click.UsageError("nothing to change; give --role, --new-token or both")
    token = people.new_token() if new_token else ""
    with changing(file) as write:
        now = read_team(file)
        was = known_member(now, name)
        member = replace(
            was,
            role=role or was.role,
            digest=token_digest(token) if token else was.digest,
            since=utc_now(),
            by=current_user(),
        )
        write(replace(now, members=tuple(member if each is was else each for each in now.members)))
    click.echo(token or f"{name} is now {member.role} (before: {was.role})")


@team.command()
@click.argument("name")
@_team_option
def remove(name: str, file: Path) -> None:
    """Remove the person NAME; their token and open pages end at once."""
    from fedping.dashboard.team import changing, read_team, without_member

    with changing(file) as write:
        write(without_member(read_team(file), name))
    click.echo(f"{name} is no longer on the team")


@team.command()
@click.option("--header", help="Header with the person's name, of letters and digits, such as RemoteUser.")
@click.option(
    "--from", "addresses", multiple=True, help=("Address or network from where the proxy connects; repeatable.")
)
@click.option("--others", type=_roles, help="Role of people who are not on the team.  [default: rejected]")
@click.option("--none", "remove_it", is_flag=True, help="Trust no header from now on.")
@_team_option
def proxy(header: str | None, addresses: tuple[str, ...], others: Role | None, remove_it: bool, file: Path) -> None:
    """Trust the header of a proxy that authenticates people.

    The proxy must set the header in every request, so that it replaces one from the visitor. Start the dashboard with
    --allow-host and the host name that people open.
    """
    from fedping.dashboard.team import Proxy, Team, changing, checked_proxy, is_loopback, read_team

    if remove_it == bool(header or addresses or others) or (not remove_it and not (header and addresses)):
        raise click.UsageError("give --header and --from, or --none alone")
    trusted = None if remove_it else checked_proxy(Proxy(header=header or "", addresses=addresses, others=others))
    with changing(file) as write:
        write(replace(read_team(file) if file.exists() else Team(), proxy=trusted))
    if trusted is None:
        click.echo("no proxy header is trusted")
        return
    click.echo(f"the header {trusted.header} is trusted from {', '.join(trusted.addresses)}")
    if is_loopback(trusted):
        tell(
            "every program on this machine can send that header; use this only if nothing but the proxy runs here",
            "warning",
        )


@team.command("list")
@json_option
@_team_option
def list_(file: Path, as_json: bool) -> None:
    """List the people with their roles and how they log in; the file holds no tokens."""
    from fedping.dashboard.team import read_team

    found = read_team(file)
    if as_json:
        members = [
            {
                "name": each.name,
                "role": each.role,
                "known_by": "token" if each.digest else "proxy",
                "since": each.since,
                "by": each.by,
            }
            for each in found.members
        ]
        click.echo(msgspec.json.encode({"members": members, "proxy": found.proxy}).decode())
        return
    click.echo("\n".join(_in_words(found)) or "the team has no members")


def _in_words(found: Team) -> list[str]:
    width = max((len(each.name) for each in found.members), default=0)
    lines = [
        f"{each.name:<{width}}  {each.role:<8}  {'by token' if each.digest else 'by proxy'}  since {each.since[:10]}"
        for each in found.members
    ]
    if found.proxy is not None:
        others = f"; others are {found.proxy.others}s" if found.proxy.others else ""
        lines.append(f"header {found.proxy.header} from {', '.join(found.proxy.addresses)}{others}")
    return lines


@click.command()
@runs_option("The dashboard's folder of runs, which holds its list of changes.")
@click.option("--study", default="", help="Only changes about this study.")
@click.option(
    "--most", type=click.IntRange(1, 100_000), default=50, show_default=True, help=("Maximum number of changes.")
)
@store_option
@json_option
def changes(runs: Path, study: str, most: int, store_path: Place, as_json: bool) -> None:
    """Show who changed what, newest first: changes by the dashboard, and in the studies' histories."""
    from fedping.dashboard.changes.log import ChangeLog
    from fedping.dashboard.changes.views import as_row, changes_in
    from fedping.dashboard.settings import DashboardSettings

    folder = DashboardSettings(store=store_path, landing=runs, journal=runs, runs=runs).changes_folder
    if not runs.is_dir():
        raise InvalidSettings(f"the folder of runs {runs} does not exist; give the dashboard's with --runs")
    found, troubles = changes_in(ChangeLog(folder), store_path, study=study, most=most)
    for each in troubles:
        tell(each, "warning")
    if as_json:
        click.echo(msgspec.json.encode([as_row(each) for each in found]).decode())
        return
    for one in islice(found, most):
        click.echo("\n".join(_lines(one)))
    if not found:
        click.echo("no change has been recorded")


def _lines(one: Change) -> list[str]:
    from fedping.protocol.log import shown
    from fedping.server_jobs.health.findings import format_time

    outcome = "" if one.outcome == "done" else f" [{one.outcome}]"
    head = f"{format_time(one.at)}  {one.by or 'a program'} ({one.role})  {one.what}{outcome}"
    about = f": {one.about}" if one.about else ""
    told = one.reason or (f"{one.before or '–'} → {one.after or '–'}" if one.before or one.after else "")
    return [shown(f"{head}{about}", ""), *([f"    {shown(told, '')}"] if told else [])]
