"""`fedping store`: commands for a line's versions: history, contents, differences, rollback, recomputation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fedping import __version__
from fedping.options import AnyPlace, LocalPath, json_option, landing_option, store_option
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.log import tell
from fedping.protocol.notation import milliseconds_of, utc_now, with_minus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedping.model_store.store import ModelStore
    from fedping.model_store.version import Version
    from fedping.protocol.location import Place
    from fedping.server_jobs.round.recompute import Recomputed


def tell_oddities(store: ModelStore, study: str, line: str) -> None:
    """Print notes about foreign and missing files among a line's versions."""
    for note in store.lines.notes(study, line):
        tell(note, "warning", before="note: ", study=study, line=line)


def chosen_line(store: ModelStore, study: str, line: str | None) -> str:
    """Return the name of a study's line; if ``line`` is None, of the study's only line.

    Raises:
        FedpingError: the study or the line is unknown, or ``line`` is None and the study has several lines.
    """
    settings = store.study(study)
    if line is None and len(settings.lines) != 1:
        there = ", ".join(each.name for each in settings.lines) or "none"
        raise InvalidSettings(
            f"LINE is missing: study '{study}' has the lines {there}; give one of them after the study"
        )
    return settings.lines[0].name if line is None else settings.line(line).name


@click.group()
def store() -> None:
    """Versions: history, differences, rollback, recomputation; continue after a restored backup."""


@store.command()
@click.argument("study")
@click.argument("line", required=False)
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, help="Number of versions to list.")
@click.option(
    "--sketches",
    is_flag=True,
    help="For --json: include the sketches of known clients (lineage.known), 2 kB a version of guarded lines.",
)
@store_option
@json_option
def history(study: str, line: str | None, last: int, sketches: bool, store_path: Place, as_json: bool) -> None:
    """List the newest versions of a LINE, with their time, origin, and numbers of clients and pings.

    LINE can be omitted if the study has one line.

    --json prints the whole lineage of each. Instead of a guard's sketch of all clients so far, it has their approximate
    number, 'known_clients'.
    """
    if sketches and not as_json:
        raise InvalidSettings("--sketches needs --json; add that, or remove the option")
    from fedping.model_store.store import MissingVersion, open_store
    from fedping.model_store.version import date_trouble

    opened = open_store(store_path)
    line = chosen_line(opened, study, line)
    versions = []
    for n in opened.iterations(study, line)[-last - 1 :]:  # and the parent of the first listed version
        try:
            versions.append(opened.version(study, line, n))
        except MissingVersion as error:  # a continuation whose mark is lost
            click.echo(f"note: {error}", err=True)
    tell_oddities(opened, study, line)
    dates, now = {v.iteration: v.created for v in versions}, milliseconds_of(utc_now())
    versions = versions[-last:]
    for v in versions:
        if (trouble := date_trouble(v.created, dates.get(v.parent or 0), now)) is not None:
            words = f"version {v.iteration} of line '{line}' {trouble}: set the clocks of all machines by NTP"
            tell(words, "warning", before="note: ", study=study, line=line, version=v.iteration)
    if as_json:
        click.echo(msgspec.json.encode([_row(v, sketches) for v in versions]).decode())
        return
    click.echo(f"{'version':>7}  {'published (UTC)':<23}  {'from':<12}  {'clients':>8}  {'pings':>9}  {'unused':>8}")
    for v in versions:
        aggregate = v.lineage.aggregate
        again = "continues" if v.lineage.origin == "continued" else "stops at" if v.lineage.stopped else "version"
        origin = f"{again} {v.lineage.restored}" if v.lineage.restored is not None else v.lineage.origin
        origin = "taken over" if v.lineage.warm_start is not None else origin
        unused = sum(n for reason, n in v.lineage.counts.items() if reason != "used")
        numbers: tuple[object, object, object] = (
            (aggregate.clients, aggregate.pings, unused) if aggregate else ("", "", "")
        )
        if v.lineage.privacy is not None:
            numbers = (f"~{v.lineage.counts['used']}", "", "")
        click.echo(
            f"{v.iteration:>7}  {v.created[:23]:<23}  {origin:<12}  {numbers[0]:>8}  {numbers[1]:>9}  {numbers[2]:>8}"
        )
        if (begun := v.lineage.warm_start) is not None:
            click.echo(f"{'':>7}  it starts from the weights of {begun.taken.told}, where both lines have them")


def _row(version: Version, sketches: bool) -> dict[str, Any]:
    from fedping.server_jobs.round.new_clients import estimated

    known = version.lineage.known
    return {
        "iteration": version.iteration,
        "created": version.created,
        "digest": version.digest,
        "lineage": version.lineage if sketches else msgspec.structs.replace(version.lineage, known=None),
        "known_clients": None if known is None else round(estimated(known)),
    }


@store.command()
@click.argument("study")
@click.argument("line")
@click.argument("columns", type=LocalPath(dir_okay=False))
@store_option
def scales(study: str, line: str, columns: Path, store_path: Place) -> None:
    """Print the file COLUMNS with the means, deviations and class weights computed by a study of scales."""
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
@click.argument("line", required=False)
@click.argument("version", type=int, required=False)
@store_option
def show(study: str, line: str | None, version: int | None, store_path: Place) -> None:
    """Print a VERSION (default: the newest) as JSON: weights, state and lineage.

    LINE can be omitted if the study has one line and the newest version is wanted.
    """
    from fedping.model_store.store import open_store

    opened = open_store(store_path)
    line = chosen_line(opened, study, line)
    document = opened.head(study, line) if version is None else opened.version(study, line, version)
    click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())


@store.command()
@click.argument("study")
@click.argument("line", required=False)
@store_option
@json_option
def held(study: str, line: str | None, store_path: Place, as_json: bool) -> None:
    """Show the held or staged version of a LINE, with the reasons and the changed weights.

    'fedping round STUDY LINE --release' publishes it, --discard discards it. LINE can be omitted if the study has one
    line.
    """
    from fedping.model_store.decisions import describe_missing, describe_staged, difference
    from fedping.model_store.store import open_store

    opened = open_store(store_path)
    line = chosen_line(opened, study, line)
    names = opened.study(study).line(line).spec.names
    version = opened.held.held_version(study, line)
    guard = version.lineage.guard if version else None
    if as_json:
        click.echo(msgspec.json.encode(version).decode())
        return
    if version is None or guard is None:
        click.echo(f"{study}/{line} has no held version")
        return
    # the settings that it was computed with, and is compared by
    settings = opened.studies.settings(study, version.lineage.settings)[1].line(line)
    if version.staged and settings.guard and (stage := settings.guard.stage):
        heard = describe_missing(stage, opened.held.stage(study, line, version.iteration) or version.staged)
        waits = f"; {heard} by the last round" if heard else ""
        staged = describe_staged(version.iteration, version.staged.share)
        click.echo(f"{study}/{line}: {staged}, since {version.created}{waits}")
    else:
        click.echo(f"version {version.iteration} of {study}/{line}, computed {version.created}, is held:")
    for alarm in guard.alarms:
        click.echo(f"  - {alarm}")
    _show_changes(difference(opened.head(study, line), version, names), version.iteration - 1, version.iteration)


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
        click.echo(f"versions {old} and {new} have the same weights")


@store.command()
@click.argument("study")
@click.argument("line", required=False)
@click.option("--to", "target", type=int, required=True, help="The version whose weights and state are restored.")
@store_option
@landing_option
def rollback(study: str, line: str | None, target: int, store_path: Place, landing: Place) -> None:
    """Publish an old version's weights and optimizer state again, as the next version of a LINE.

    LINE can be omitted if the study has one line.

    Fails for an older copy of the store, because rounds record published versions in the landing folder.
    """
    from fedping.model_store.decisions import rollback as roll_back
    from fedping.model_store.store import open_store
    from fedping.server_jobs.round import noting

    _warn_without_landing(landing)
    opened = open_store(store_path)
    line = chosen_line(opened, study, line)
    opened.check_publishing()
    with noting(opened, landing, study, line):
        restored = roll_back(opened, study, line, target, created=utc_now(), code_version=__version__)
    click.echo(f"published version {restored.iteration}, which repeats version {target}; clients fetch it from now on")


@store.command(name="continue")
@click.argument("study")
@click.argument("line", required=False)
@click.option("--from", "number", type=int, required=True, help="The next version's number.")
@store_option
@landing_option
def continue_(study: str, line: str | None, number: int, store_path: Place, landing: Place) -> None:
    """Continue a LINE at an unpublished number, after an older copy of the store was restored.

    The newest version of the copy is published again under that number, and rounds continue from it. Clients with a
    version in between fetch it like all others; their pings until then land but don't count.

    Safe to repeat. It deletes no data and never reuses a version number. LINE can be omitted if the study has one line.
    """
    from fedping.model_store.decisions import continue_at
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import open_landing

    _warn_without_landing(landing)
    opened = open_store(store_path)
    line = chosen_line(opened, study, line)
    seen = open_landing(landing).read_published(str(store_path), study, line)
    opened.check_publishing()
    version = continue_at(opened, study, line, number, seen=seen, created=utc_now(), code_version=__version__)
    click.echo(
        f"published version {version.iteration}, which repeats version {version.parent}; clients fetch it from now "
        "on, and rounds continue from it"
    )


@store.command()
@click.argument("study")
@click.option("--to", "target", type=AnyPlace(), required=True, help="The store to copy to: a folder or a bucket.")
@store_option
def copy(study: str, target: Place, store_path: Place) -> None:
    """Copy a STUDY with all its versions into another store, from a folder to a bucket or back.

    Rounds can continue: if one publishes a version in the meantime, run the same command again. A damaged file is
    reported and ends the copy. Safe to repeat; existing files are compared. Afterwards run rounds in only one of the
    stores: otherwise there are two models, and each store spends the budget of private lines.
    """
    from fedping.model_store.copying import copy_study
    from fedping.model_store.store import open_store
    from fedping.terminal import status

    with status("copying") as set_status:
        source, destination = open_store(store_path), open_store(target, create=True)
        copied = copy_study(source, destination, study, lambda files: set_status(f"copying, file {files:,}"))
    click.echo(
        f"study '{study}' is in {target}: {copied.files:,} files, {copied.new:,} of them new ({copied.bytes:,} bytes)"
    )


def _warn_without_landing(landing: Place) -> None:
    """Warn if the landing folder, which records the published versions, does not exist."""
    from fedping.protocol.landing import open_landing

    if not open_landing(landing).exists():
        click.echo(
            f"fedping: warning: the landing folder {landing} does not exist, so the versions recorded there can't be "
            "checked; correct --landing",
            err=True,
        )


@dataclass(frozen=True, kw_only=True)
class RecomputeOptions:
    """The options of the recomputation by their names in Python; see their help."""

    engine_name: str
    privacy_key: Path | None
    from_store: Place | None
    store_path: Place
    landing: Place


@store.command()
@click.argument("study")
@click.argument("line")
@click.argument("version", type=int)
@click.option("--engine", "engine_name", type=click.Choice(["numpy", "spark"]), default="numpy", show_default=True)
@click.option(
    "--privacy-key",
    "privacy_key",
    type=LocalPath(dir_okay=False),
    help="File of a private line's key, which also checks the size of the noise if the pings were kept.",
)
@click.option(
    "--from-store",
    "from_store",
    type=AnyPlace(),
    help="The store with the version that version 0 started from.  [default: --store]",
)
@store_option
@landing_option
@json_option
def recompute(study: str, line: str, version: int, as_json: bool, **options: Any) -> None:
    """Recompute a VERSION from its lineage and the landed pings, and check that it is the same to the last bit.

    Exits with 1 if it is not, or if a private line's noise has the wrong size. A version of a private line is
    recomputed from the released sums; a version 0 that took over weights, from their version. If that version is gone,
    the weights are used unchecked, with a note.
    """
    from fedping.model_store.store import open_store
    from fedping.server_jobs.privacy.keys import read_key
    from fedping.server_jobs.round import engine_named
    from fedping.server_jobs.round import recompute as compute_again

    given = RecomputeOptions(**options)
    with engine_named(given.engine_name) as engine:
        key = None if given.privacy_key is None else read_key(given.privacy_key)
        source = None if given.from_store is None else open_store(given.from_store)
        store = open_store(given.store_path)
        again = compute_again(store, given.landing, study, line, version, engine, key, source)
    where = f"version {version} of {study}/{line}"
    if as_json:
        found = {"study": study, "line": line, "version": version, "engine": given.engine_name}
        click.echo(msgspec.json.encode({**found, **msgspec.to_builtins(again)}).decode())
    else:
        for sentence in _in_words(again, where):
            click.echo(sentence)
    if not again.identical or again.noise is False:
        raise click.exceptions.Exit(1)


def _in_words(again: Recomputed, where: str) -> Iterator[str]:
    if again.given:
        yield f"note: {again.given}"
    if again.noise is not None:
        size = "has the correct size" if again.noise else "does NOT have the correct size"
        yield f"the noise of {where} {size}, compared with the kept pings"
    if again.identical:
        yield f"{where} is bit-identical when recomputed from its lineage"
    else:
        yield f"{where} differs when recomputed: {'; '.join(again.differences)}"
