"""The life of a study: paused, resumed, ended, changed while it runs, and the history that tells who did so and why."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fedping.commands.study_file import checked, own_model_option
from fedping.options import LocalPath, json_option, store_option
from fedping.protocol.notation import utc_now
from fedping.protocol.study import Declared, State, as_once_new, study_as_written

if TYPE_CHECKING:
    from fedping.model_store.history import Entry
    from fedping.model_store.store import ModelStore
    from fedping.protocol.location import Place

_MOST_WORDS = 500


def _one_line(_: click.Context, __: click.Parameter, value: str) -> str:
    words = " ".join(value.split())
    if len(words) > _MOST_WORDS or not words.isprintable():
        raise click.BadParameter(f"give up to {_MOST_WORDS} printable characters")
    return words


because_option = click.option(
    "--because", default="", metavar="TEXT", callback=_one_line, help="Why; kept in the study's history."
)


def current_user() -> str:
    """Return who runs this command, as the system calls them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return f"user {os.getuid()}"


@click.command()
@click.argument("name")
@because_option
@store_option
def pause(name: str, because: str, store_path: Place) -> None:
    """Pause the study NAME: no round makes a version until you resume it.

    Clients notice nothing. Their pings are still taken and land. As no version follows, they count in the next round.
    """
    _declare(store_path, name, "paused", because, "no round makes a version; pings are still taken and land")


@click.command()
@click.argument("name")
@because_option
@store_option
def end(name: str, because: str, store_path: Place) -> None:
    """End the study NAME: clients are told, their pings are no longer taken, and no round makes a version.

    Within seconds, study.json says that the study has ended, which clients see at their next fetch, and ingest answers
    pings with 410. What has landed stays; but pings of private lines go with the next 'fedping round', or the next time
    of a schedule, which makes no version any more.
    """
    _declare(store_path, name, "ended", because, "clients are told, and pings are no longer taken")


@click.command()
@click.argument("name")
@because_option
@store_option
def resume(name: str, because: str, store_path: Place) -> None:
    """Resume the study NAME, which was paused or has ended."""
    _declare(store_path, name, "running", because, "pings are taken, and rounds make versions")


def _declare(store_path: Place, name: str, state: State, because: str, words: str) -> None:
    from fedping.model_store.store import StoreError, open_store

    store = open_store(store_path)
    after = store.history.newest(name)
    try:
        if store.studies.declared(name).state == state and name in store.studies.names():
            click.echo(f"study '{name}' {_IS[state]} already; nothing changed")
            return
    except StoreError as error:
        click.echo(f"fedping: {error}; the state is replaced", err=True)
    declared = Declared(state=state, since=utc_now(), by=current_user(), because=because)
    store.studies.declare(name, declared, after=after)
    click.echo(f"study '{name}' {_IS[state]}: {words}")


_IS: dict[State, str] = {"running": "is running", "paused": "is paused", "ended": "has ended"}


@click.command()
@click.argument("file", type=LocalPath())
@own_model_option
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@because_option
@store_option
@json_option
def change(
    file: Path, own_models: tuple[str, ...], dry_run: bool, because: str, store_path: Place, as_json: bool
) -> None:
    """Change the settings of a stored study to those of its edited TOML FILE, as far as they may change while it runs.

    These may: of each line 'guard', 'length', 'early_stopping', 'limits', 'participation', and 'min_clients' and
    'most_votes' of 'pipeline'; of the study 'limits', 'metrics', 'segments', 'unwanted_updates', 'tickets' and
    'shards'; the arms' shares, and new arms. Clients stay in their arm, or leave the study if the arm gets smaller;
    those that join an arm were in none. All other differences are refused, and nothing of a private study may change.

    The next rounds have the new settings, and ingest within seconds. Versions from before are computed again with the
    settings that held then. The study's history says what has changed, who did it and why. Safe to repeat.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.extensions import with_recorded_code
    from fedping.protocol.study_changes import changes, check_change, reassign_clients

    store = open_store(store_path)
    wanted = checked(file, own_models, store_path)
    after = store.history.newest(wanted.name)
    now = store.study(wanted.name)
    # the file of a study from before today's safe choices is taken with those of then, or by its word
    read = [with_recorded_code(each, now) for each in (wanted, *as_once_new(study_as_written(file)))]
    wanted = min(read, key=lambda each: len(changes(now, each)))
    check_change(*(msgspec.structs.replace(each, pieces=()) for each in (now, wanted)))
    wanted = reassign_clients(now, wanted)
    told = tuple(each.in_words for each in check_change(now, wanted) if each.place != "pieces")
    if told and not dry_run:
        store.studies.change(wanted, told, at=utc_now(), by=current_user(), because=because, after=after)
    if as_json:
        made = {"study": wanted.name, "changes": told, "changed": bool(told) and not dry_run}
        click.echo(msgspec.json.encode(made).decode())
        return
    if not told:
        click.echo(f"study '{wanted.name}' is in {store_path} with these settings; nothing changed")
        return
    for each in told:
        click.echo(f"  {each}")
    if dry_run:
        click.echo(f"study '{wanted.name}' may change so; nothing changed yet")
    else:
        click.echo(f"study '{wanted.name}' has these settings from its next rounds on")


@click.command()
@click.argument("name")
@store_option
@json_option
def history(name: str, store_path: Place, as_json: bool) -> None:
    """Show what was declared, changed and given up of the study NAME: when, by whom and why."""
    from fedping.model_store.store import open_store

    entries = open_store(store_path).studies.history(name)
    if as_json:
        rows = [
            {
                "number": entry.number,
                "kind": entry.kind,
                "at": entry.at,
                "by": entry.by,
                "because": entry.because,
                "told": entry.told,
                "versions": entry.versions,
            }
            for entry in entries
        ]
        click.echo(msgspec.json.encode(rows).decode())
        return
    for entry in entries:
        click.echo("\n".join(_described(entry)))
    if not entries:
        click.echo(f"nothing was declared or changed of study '{name}' since it was created")


def _described(entry: Entry) -> list[str]:
    from fedping.server_jobs.health.findings import format_time

    who = f" by {entry.by}" if entry.by else ""
    why = f", because: {entry.because}" if entry.because else ""
    return [
        f"{entry.number:>4}  {format_time(entry.at)}  {entry.kind}{who}{why}",
        *(f"        {each}" for each in entry.told),
    ]


def as_declared(store: ModelStore, name: str) -> list[str]:
    """Return in words what holds of a stored study beside its settings; nothing of one that has just run since ever."""
    from fedping.server_jobs.health.findings import format_time

    declared, (entry, _) = store.studies.declared(name), store.studies.settings(name)
    told = []
    if declared.since and not declared.simulated:
        told.append(f"  it {_IS[declared.state]} since {format_time(declared.since)}{declared.told}")
    if entry:
        told.append(f"  its settings are those of entry {entry} of its history: 'fedping study history {name}'")
    return told
