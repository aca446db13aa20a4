"""`fedping study pause`, `resume`, `end`, `change` and `history`: a study's states and settings while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from fedping.client_sim.learning.study_files import study_as_written
from fedping.commands.study_file import checked, own_model_option
from fedping.options import LocalPath, current_user, json_option, store_option
from fedping.protocol.errors import FedpingError, TemporaryFailure
from fedping.protocol.notation import utc_now
from fedping.protocol.study import Declared, State, as_once_new

if TYPE_CHECKING:
    from fedping.model_store.history import Entry
    from fedping.model_store.store import ModelStore
    from fedping.protocol.location import Place

_MOST_WORDS = 500


def _one_line(_: click.Context, __: click.Parameter, value: str) -> str:
    words = " ".join(value.split())
    if len(words) > _MOST_WORDS or not words.isprintable():
        raise click.BadParameter(f"give at most {_MOST_WORDS} printable characters")
    return words


because_option = click.option(
    "--because", default="", metavar="TEXT", callback=_one_line, help="Reason, recorded in the study's history."
)


@click.command()
@click.argument("name")
@because_option
@store_option
def pause(name: str, because: str, store_path: Place) -> None:
    """Pause the study NAME: no round publishes a version until you resume it.

    Clients don't notice. Their pings are still accepted and land, and count in the next round.
    """
    _declare(store_path, name, "paused", because, "no round publishes a version; pings are still accepted and land")


@click.command()
@click.argument("name")
@because_option
@store_option
def end(name: str, because: str, store_path: Place) -> None:
    """End the study NAME: clients are informed, their pings are rejected, and no round publishes a version.

    Within seconds, study.json reports the end to clients at their next fetch, and ingest answers pings with 410. Landed
    pings stay, except for private lines: the next 'fedping round' or scheduled round deletes them, without a new
    version.
    """
    _declare(store_path, name, "ended", because, "clients are informed, and pings are no longer accepted")


@click.command()
@click.argument("name")
@because_option
@store_option
def resume(name: str, because: str, store_path: Place) -> None:
    """Resume the study NAME, which was paused or has ended."""
    _declare(store_path, name, "running", because, "pings are accepted, and rounds publish versions")


def _declare(store_path: Place, name: str, state: State, because: str, words: str) -> None:
    from fedping.model_store.store import StoreError, open_store

    store = open_store(store_path)
    after = store.history.newest(name)
    try:
        if store.studies.declared(name).state == state and name in store.studies.names():
            click.echo(f"study '{name}' already {_IS[state]}; nothing changed")
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
@click.option("--dry-run", is_flag=True, help="Show what would change, without changing it.")
@because_option
@store_option
@json_option
def change(
    file: Path, own_models: tuple[str, ...], dry_run: bool, because: str, store_path: Place, as_json: bool
) -> None:
    """Change the settings of a stored study to the edited TOML FILE, if they may change while it runs.

    These may: of each line 'guard', 'length', 'early_stopping', 'limits', 'participation', and 'min_clients' and
    'most_votes' of 'pipeline'; of the study 'limits', 'metrics', 'segments', 'unwanted_updates', 'tickets' and
    'shards'; the arms' shares, and new arms. Clients stay in their arm, or leave the study if the arm gets smaller;
    clients that join an arm were in none. All other changes are rejected, and a private study can't change at all.

    The next rounds use the new settings, and ingest does within seconds. Earlier versions are recomputed with their own
    settings. The study's history records what changed, by whom and why. Safe to repeat.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.extensions import with_recorded_code
    from fedping.protocol.study_changes import changes, check_change, reassign_clients

    store = open_store(store_path)
    wanted = checked(file, own_models, store_path)
    after = store.history.newest(wanted.name)
    now = store.study(wanted.name)
    # the file of a study older than today's safe choices is read with the earlier ones, or without any
    read = [with_recorded_code(each, now) for each in (wanted, *as_once_new(study_as_written(file)))]
    wanted = min(read, key=lambda each: len(changes(now, each)))
    check_change(*(msgspec.structs.replace(each, pieces=()) for each in (now, wanted)))
    wanted = reassign_clients(now, wanted)
    sentences = tuple(each.in_words for each in check_change(now, wanted) if each.place != "pieces")
    if sentences and not dry_run:
        store.studies.change(wanted, sentences, at=utc_now(), by=current_user(), because=because, after=after)
    if as_json:
        document = {"study": wanted.name, "changes": sentences, "changed": bool(sentences) and not dry_run}
        click.echo(msgspec.json.encode(document).decode())
        return
    if not sentences:
        click.echo(f"study '{wanted.name}' already has these settings in {store_path}; nothing changed")
        return
    for sentence in sentences:
        click.echo(f"  {sentence}")
    if dry_run:
        click.echo(f"study '{wanted.name}' can change this way; nothing changed yet")
    else:
        click.echo(f"study '{wanted.name}' has these settings from its next round on")


@click.command()
@click.argument("name")
@store_option
@json_option
def history(name: str, store_path: Place, as_json: bool) -> None:
    """Show the history of the study NAME: states, changes and removals, with time, user and reason."""
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
        click.echo(f"study '{name}' has not changed since its creation")


def _described(entry: Entry) -> list[str]:
    from fedping.server_jobs.health.findings import format_time

    who = f" by {entry.by}" if entry.by else ""
    why = f", because: {entry.because}" if entry.because else ""
    return [
        f"{entry.number:>4}  {format_time(entry.at)}  {entry.kind}{who}{why}",
        *(f"        {each}" for each in entry.told),
    ]


def as_declared(store: ModelStore, name: str) -> list[str]:
    """Return sentences about a stored study's state and the entry of its settings, if it was ever changed."""
    from fedping.server_jobs.health.findings import format_time

    declared, (entry, _) = store.studies.declared(name), store.studies.settings(name)
    sentences = []
    if declared.since and not declared.simulated:
        sentences.append(f"  it {_IS[declared.state]} since {format_time(declared.since)}{declared.told}")
    if entry:
        sentences.append(f"  its settings are from entry {entry} of its history: 'fedping study history {name}'")
    return sentences


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A study as `fedping study list` shows it.

    Attributes:
        study: name of the study.
        state: declared state of the study; "unreadable" if its documents are damaged (see ``error``).
        since: the time of that state, as ISO 8601 in UTC; empty if none was declared.
        by: user who declared the state.
        because: the reason given.
        pings: the type of ping that its clients send; empty if unreadable.
        versions: the newest version of each line; None if there is none to serve.
        error: the error of an unreadable study; empty otherwise.
    """

    study: str
    state: State | Literal["unreadable"]
    since: str = ""
    by: str = ""
    because: str = ""
    pings: str = ""
    versions: dict[str, int | None] = {}
    error: str = ""

    def in_words(self, width: int) -> str:
        """Return a row of the list, with the name padded to ``width`` columns."""
        from fedping.server_jobs.health.findings import format_time

        lines = ", ".join(
            f"{line} has no version" if version is None else f"{line} at version {version}"
            for line, version in self.versions.items()
        )
        since = f"since {format_time(self.since)}" if self.since else ""
        because = f"because: {self.because}" if self.because else ""
        rest = [self.error] if self.error else [lines or "no line", since, because]
        return f"{self.study:<{width}}  {self.state:<10}  {', '.join(each for each in rest if each)}"


def listed(store: ModelStore, name: str) -> Listed:
    """Return a study of a store as an entry of the list."""
    try:
        the_study, declared = store.study(name), store.studies.declared(name)
        newest = {line.name: store.lines.newest(name, line.name) for line in the_study.lines}
    except TemporaryFailure:  # of the whole store
        raise
    except FedpingError as error:
        return Listed(study=name, state="unreadable", error=str(error))
    return Listed(
        study=name,
        state=declared.state,
        since=declared.since,
        by=declared.by,
        because=declared.because,
        pings=the_study.pings,
        versions={line: None if number < 0 else number for line, number in newest.items()},
    )
