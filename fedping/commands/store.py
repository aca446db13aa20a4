"""`fedping store`: the versions of a line - history, one version, differences, rollback, fence, recomputation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fedping import __version__
from fedping.options import AnyPlace, LocalPath, json_option, landing_option, store_option
from fedping.protocol.log import tell
from fedping.protocol.notation import milliseconds_of, utc_now, with_minus

if TYPE_CHECKING:
    from fedping.model_store.store import ModelStore
    from fedping.protocol.location import Place


def tell_oddities(store: ModelStore, study: str, line: str) -> None:
    """Print what lies among a line's versions and is none of them, and what is missing there."""
    for note in store.lines.notes(study, line):
        tell(note, "warning", before="note: ", study=study, line=line)


@click.group()
def store() -> None:
    """Versions: history, differences, rollback, recomputation; continue after a restored backup."""


@store.command()
@click.argument("study")
@click.argument("line")
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, help="How many versions to list.")
@store_option
@json_option
def history(study: str, line: str, last: int, store_path: Place, as_json: bool) -> None:
    """List the newest versions of a LINE: when, from how many clients and pings, and the loss of their parent."""
    from fedping.model_store.store import MissingVersion, open_store
    from fedping.model_store.version import date_trouble

    opened = open_store(store_path)
    opened.study(study).line(line)
    versions = []
    for n in opened.iterations(study, line)[-last - 1 :]:  # with the parent of the first that is listed
        try:
            versions.append(opened.version(study, line, n))
        except MissingVersion as error:  # a fence whose mark is lost
            click.echo(f"note: {error}", err=True)
    tell_oddities(opened, study, line)
    dates, now = {v.iteration: v.created for v in versions}, milliseconds_of(utc_now())
    versions = versions[-last:]
    for v in versions:
        if (trouble := date_trouble(v.created, dates.get(v.parent or 0), now)) is not None:
            words = f"version {v.iteration} of line '{line}' {trouble}: set the clocks of all machines by NTP"
            tell(words, "warning", before="note: ", study=study, line=line, version=v.iteration)
    if as_json:
        rows = [
            {"iteration": v.iteration, "created": v.created, "digest": v.digest, "lineage": v.lineage} for v in versions
        ]
        click.echo(msgspec.json.encode(rows).decode())
        return
    click.echo(f"{'version':>7}  {'published (UTC)':<23}  {'from':<12}  {'clients':>8}  {'pings':>9}  {'unused':>8}")
    for v in versions:
        made = v.lineage.aggregate
        again = "continues" if v.lineage.origin == "continued" else "stops at" if v.lineage.stopped else "version"
        origin = f"{again} {v.lineage.restored}" if v.lineage.restored is not None else v.lineage.origin
        origin = "taken over" if v.lineage.warm_start is not None else origin
        unused = sum(n for reason, n in v.lineage.counts.items() if reason != "used")
        numbers: tuple[object, object, object] = (made.clients, made.pings, unused) if made else ("", "", "")
        if v.lineage.privacy is not None:
            numbers = (f"~{v.lineage.counts['used']}", "", "")
        click.echo(
            f"{v.iteration:>7}  {v.created[:23]:<23}  {origin:<12}  {numbers[0]:>8}  {numbers[1]:>9}  {numbers[2]:>8}"
        )
        if (begun := v.lineage.warm_start) is not None:
            click.echo(f"{'':>7}  its weights are those of {begun.taken.told}, as far as the lines have the same")


@store.command()
@click.argument("study")
@click.argument("line")
@click.argument("columns", type=LocalPath(dir_okay=False))
@store_option
def scales(study: str, line: str, columns: Path, store_path: Place) -> None:
    """Print the file COLUMNS with the means, deviations and class weights that a study of scales has found."""
    import numpy as np

    from fedping.client_sim.joining.columns import as_toml, check_spec, read_columns, scaled
    from fedping.model_store.store import open_store
    from fedping.protocol.errors import FedpingError

    agreed, opened = read_columns(columns), open_store(store_path)
    check_spec(opened.study(study).line(line).spec, agreed)
    newest = opened.lines.newest(study, line)
    if newest == 0:
        raise FedpingError(
            f"line '{line}' of study '{study}' has no round yet; run one when all institutions have sent"
        )
    click.echo(as_toml(scaled(agreed, np.array(opened.version(study, line, newest).weights))), nl=False)


@store.command()
@click.argument("study")
@click.argument("line")
@click.argument("version", type=int, required=False)
@store_option
def show(study: str, line: str, version: int | None, store_path: Place) -> None:
    """Print a VERSION (default: the newest) as JSON: weights, state and lineage."""
    from fedping.model_store.store import open_store

    opened = open_store(store_path)
    found = opened.head(study, line) if version is None else opened.version(study, line, version)
    click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())


@store.command()
@click.argument("study")
@click.argument("line")
@store_option
@json_option
def held(study: str, line: str, store_path: Place, as_json: bool) -> None:
    """Show the version of a LINE that its guard holds back or stages: why, and what it would change.

    'fedping round STUDY LINE --release' publishes it, --discard leaves it behind.
    """
    from fedping.model_store.decisions import describe_missing, describe_staged, difference
    from fedping.model_store.store import open_store

    opened = open_store(store_path)
    names = opened.study(study).line(line).spec.names
    found = opened.held.held_version(study, line)
    guard = found.lineage.guard if found else None
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    if found is None or guard is None:
        click.echo(f"no version of {study}/{line} is held back")
        return
    settings = opened.studies.settings(study, found.lineage.settings)[1].line(
        line
    )  # by which it was made, and is judged
    if found.staged and settings.guard and (stage := settings.guard.stage):
        heard = describe_missing(stage, opened.held.stage(study, line, found.iteration) or found.staged)
        waits = f"; {heard} by the last round" if heard else ""
        click.echo(
            f"{study}/{line}: {describe_staged(found.iteration, found.staged.share)}, since {found.created}{waits}"
        )
    else:
        click.echo(f"version {found.iteration} of {study}/{line}, computed {found.created}, is held back:")
    for alarm in guard.alarms:
        click.echo(f"  - {alarm}")
    _show_changes(difference(opened.head(study, line), found, names), found.iteration - 1, found.iteration)


@store.command()
@click.argument("study")
@click.argument("line")
@click.argument("old", type=int)
@click.argument("new", type=int, required=False)
@store_option
@json_option
def diff(study: str, line: str, old: int, new: int | None, store_path: Place, as_json: bool) -> None:
    """Show which published weights differ between version OLD and version NEW (default: the newest)."""
    from fedping.model_store.decisions import difference
    from fedping.model_store.store import open_store

    opened = open_store(store_path)
    later = opened.head(study, line) if new is None else opened.version(study, line, new)
    names = opened.study(study).line(line).spec.names
    changes = difference(opened.version(study, line, old), later, names)
    if as_json:
        click.echo(msgspec.json.encode(changes).decode())
    else:
        _show_changes(changes, old, later.iteration)


def _show_changes(changes: list[dict[str, Any]], old: int, new: int) -> None:
    for change in changes:
        before, after = with_minus(f"{change['old']:>12g}"), with_minus(f"{change['new']:>12g}")
        click.echo(f"{change['name']:<28} {before} -> {after}  ({with_minus(format(change['change'], '+g'))})")
    if not changes:
        click.echo(f"versions {old} and {new} publish the same weights")


@store.command()
@click.argument("study")
@click.argument("line")
@click.option("--to", "target", type=int, required=True, help="The version whose weights and state to restore.")
@store_option
@landing_option
def rollback(study: str, line: str, target: int, store_path: Place, landing: Place) -> None:
    """Publish an old version's weights and optimizer state again, as the next version of a LINE.

    Publishes nothing into an older copy of the store, as rounds have noted in the landing folder what they published.
    """
    from fedping.model_store.decisions import rollback as roll_back
    from fedping.model_store.store import open_store
    from fedping.server_jobs.round import noting

    _warn_without(landing)
    opened = open_store(store_path)
    opened.check_publishing()
    with noting(opened, landing, study, line):
        restored = roll_back(opened, study, line, target, created=utc_now(), code_version=__version__)
    click.echo(f"published version {restored.iteration}, which repeats version {target}; clients fetch it from now on")


@store.command(name="continue")
@click.argument("study")
@click.argument("line")
@click.option("--from", "number", type=int, required=True, help="The next version's number.")
@store_option
@landing_option
def continue_(study: str, line: str, number: int, store_path: Place, landing: Place) -> None:
    """Continue a LINE at a number that was never published, after an older copy of the store was restored.

    The newest version there is published once more under that number, and rounds go on from it. Clients that have a
    version in between fetch it like all others; their pings until then land and are not counted.

    Safe to repeat. Nothing is deleted, and no number is published twice.
    """
    from fedping.model_store.decisions import continue_at
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import open_landing

    _warn_without(landing)
    opened = open_store(store_path)
    opened.study(study).line(line)
    seen = open_landing(landing).read_published(str(store_path), study, line)
    opened.check_publishing()
    made = continue_at(opened, study, line, number, seen=seen, created=utc_now(), code_version=__version__)
    click.echo(
        f"published version {made.iteration}, which repeats version {made.parent}; clients fetch it from now on, and "
        "rounds go on from it"
    )


@store.command()
@click.argument("study")
@click.option("--to", "target", type=AnyPlace(), required=True, help="The other store: a folder or a bucket.")
@store_option
def copy(study: str, target: Place, store_path: Place) -> None:
    """Copy a STUDY with all its versions into another store, from a folder to a bucket or back.

    Its rounds may go on meanwhile: if one publishes a version, run the same command again. Damage is refused, and names
    the file. Safe to repeat; what is there already is compared. Of two stores let rounds go on in one only: two that go
    on have two models, and of a private line each would spend the budget.
    """
    from fedping.model_store.copying import copy_study
    from fedping.model_store.store import open_store
    from fedping.terminal import status

    with status("copying") as say:
        source, there = open_store(store_path), open_store(target, create=True)
        copied = copy_study(source, there, study, lambda files: say(f"copying, file {files:,}"))
    click.echo(
        f"study '{study}' is in {target}: {copied.files:,} files, {copied.new:,} of them new ({copied.bytes:,} bytes)"
    )


def _warn_without(landing: Place) -> None:
    """Warn if there is no landing folder, whose notes say what rounds have published."""
    from fedping.protocol.landing import open_landing

    if not open_landing(landing).exists():
        click.echo(
            f"fedping: warning: there is no landing folder at {landing}, so it could not be checked which versions "
            "rounds have noted there as published; if it is elsewhere, give --landing",
            err=True,
        )


@store.command()
@click.argument("study")
@click.argument("line")
@click.argument("version", type=int)
@click.option("--engine", "engine_name", type=click.Choice(["numpy", "spark"]), default="numpy", show_default=True)
@click.option(
    "--privacy-key",
    "privacy_key",
    type=LocalPath(dir_okay=False),
    help="File of a private line's key: where its pings were kept, the size of the noise is checked too.",
)
@click.option(
    "--from-store",
    "from_store",
    type=AnyPlace(),
    help="The store of the version that version 0 took weights over from.  [default: that of --store]",
)
@store_option
@landing_option
def recompute(
    study: str,
    line: str,
    version: int,
    engine_name: str,
    privacy_key: Path | None,
    from_store: Place | None,
    store_path: Place,
    landing: Place,
) -> None:
    """Compute a VERSION again from its lineage and the landed pings, and check that it is the same to the last bit.

    Exits with 1 if it is not. A version of a private line is computed from what was released; a version 0 that took
    weights over, from the version that they are of. If that one is gone, they are taken as they are, which is said.
    """
    from fedping.model_store.store import open_store
    from fedping.server_jobs.privacy.keys import read_key
    from fedping.server_jobs.round import engine_named
    from fedping.server_jobs.round import recompute as compute_again

    with engine_named(engine_name) as engine:
        key = None if privacy_key is None else read_key(privacy_key)
        taken_from = None if from_store is None else open_store(from_store)
        again = compute_again(open_store(store_path), landing, study, line, version, engine, key, taken_from)
    if again.given:
        click.echo(f"note: {again.given}")
    if again.noise is not None:
        size = "has the size that it should have" if again.noise else "does NOT have the size that it should have"
        click.echo(f"the noise of version {version} of {study}/{line} {size}, by the pings that were kept")
    if again.identical:
        click.echo(f"version {version} of {study}/{line} is bit-identical when computed again from its lineage")
        if again.noise is False:
            raise click.exceptions.Exit(1)
        return
    click.echo(f"version {version} of {study}/{line} differs when computed again: {'; '.join(again.differences)}")
    raise click.exceptions.Exit(1)
