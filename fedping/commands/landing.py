"""`fedping landing`: what landed pings show; remove old pings, or those of a client; copy them."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click
import msgspec

from fedping.commands.study_life import because_option, current_user
from fedping.options import AnyPlace, LocalPath, journal_of, journal_option, json_option, landing_option, store_option
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.location import child, key_in
from fedping.protocol.notation import utc_now
from fedping.terminal import status

if TYPE_CHECKING:
    from fedping.protocol.location import Place


@click.group()
def landing() -> None:
    """Landed pings: what they tell of institutions; remove old ones, or those of one client; copy them elsewhere."""


@landing.command("flush")
@click.argument("url", default="http://127.0.0.1:8082")
@click.option(
    "--timeout",
    type=click.IntRange(1, 600),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for ingest.",
)
def flush_(url: str, timeout: int) -> None:
    """Have ingest land every ping that it has accepted, and wait until all are in Parquet.

    URL is the address of ingest's operations port.  [default: http://127.0.0.1:8082]

    Exits with 75 if the same command may succeed later: ingest does not answer, or needs more time. Safe to repeat.
    """
    from fedping.server_jobs.ingest.backlog import flush

    flush(url, timeout)
    click.echo("Every ping that ingest had accepted is in Parquet.")


dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")


@landing.command()
@click.argument("studies", nargs=-1)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    required=True,
    metavar="VERSIONS",
    help="How many of the newest versions of each line can still be computed again.",
)
@dry_run_option
@because_option
@store_option
@landing_option
@json_option
def prune(
    studies: tuple[str, ...],
    keep: int,
    dry_run: bool,
    because: str,
    store_path: Place,
    landing: Place,
    as_json: bool,
) -> None:
    """Remove landed pings that are older than the newest VERSIONS of the STUDIES (default: all that are not private).

    What these versions are computed again from stays, and so does what rounds to come may take: pings of the newest
    version, and late ones that still count. Older versions can no longer be computed again, and analyses lack their
    pings; the versions themselves stay. The study's history says what was given up, before anything is removed.

    Safe to repeat: after an interruption the same command goes on. Nothing that landed in the last hour is removed.
    """
    from fedping.model_store.store import open_store
    from fedping.server_jobs.deletion import deletion_lock, plan_pruning, remove_pruned

    store = open_store(store_path)
    names = studies or tuple(name for name in store.studies.names() if not store.study(name).is_private)
    with deletion_lock(landing, looks=dry_run):
        found = [plan_pruning(store, landing, name, keep, int(time.time() * 1000)) for name in names]
        for one in found:
            if one.files and not dry_run:
                versions = {line: numbers for line, numbers in one.versions.items() if numbers}
                store.studies.note(
                    one.study, "pruned", one.told, at=utc_now(), by=current_user(), because=because, versions=versions
                )
                with status(f"{one.study}: removing landed files") as tell:
                    for number in remove_pruned(one):
                        tell(f"{one.study}: removed {number:,} of {len(one.files):,} landed files")
            if as_json:
                made = {
                    "study": one.study,
                    "files": len(one.files),
                    "bytes": one.bytes,
                    "given_up": one.versions,
                    "kept_from": one.kept,
                    "removed": bool(one.files) and not dry_run,
                }
                click.echo(msgspec.json.encode(made).decode())
                continue
            what = "would go" if dry_run else "removed"
            if not one.files:
                click.echo(f"study '{one.study}': nothing to remove")
                continue
            click.echo(f"study '{one.study}', {what}: {one.told[0]}")
            for told in one.told[1:]:
                click.echo(f"  {told}")


@landing.command()
@click.argument("client_id", type=click.UUID)
@dry_run_option
@because_option
@store_option
@landing_option
@journal_option
@json_option
def forget(
    client_id: UUID,
    dry_run: bool,
    because: str,
    store_path: Place,
    landing: Place,
    journal: Path | None,
    as_json: bool,
) -> None:
    """Remove all pings of CLIENT_ID from the landing folder, of every study, and name the versions they went into.

    These versions stay as they are published, and can no longer be computed again; the study's history says so, and
    not whose pings they were. Rounds go on. Exits with 1 if pings of the client wait in ingest's journal: they land
    soon, and the same command removes them then. Run it where ingest runs, with its --journal; a warning says so where
    there is no journal. It is safe to repeat, and goes on after an interruption.

    What is not looked into: backups, the journal's quarantine, and what clients send from now on.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.landed_file import UnreadableFile
    from fedping.server_jobs.deletion import (
        ErasurePlan,
        deletion_lock,
        describe_versions,
        erase,
        find_pings,
        pending_pings,
        versions_of,
    )

    store = open_store(store_path)
    with deletion_lock(landing, looks=dry_run), status("looking into the landed files") as tell:
        journal = journal_of(journal, landing)
        waiting = pending_pings(journal, client_id)  # first: they may land meanwhile
        found: list[ErasurePlan] = []
        damaged: list[UnreadableFile] = []
        for looked, one in enumerate(find_pings(landing, client_id), 1):
            tell(f"looked into {looked:,} landed files")
            if isinstance(one, UnreadableFile):
                damaged.append(one)
            elif one is not None:
                found.append(one)
        made_of: dict[str, dict[str, tuple[int, ...]]] = {}
        known = set(store.studies.names())
        for name in sorted({one.study for one in found} & known):
            files = [one.file for one in found if one.study == name]
            versions = versions_of(store, name, landing, files)
            made_of[name] = {line: numbers for line, numbers in versions.items() if numbers}
            if not dry_run:
                told = [f"pings of one client removed from {len(files):,} landed files"]
                told += [
                    f"line {line}: versions {describe_versions(numbers)} were made of these, and can no longer be "
                    "computed again"
                    for line, numbers in made_of[name].items()
                ]
                store.studies.note(
                    name,
                    "forgotten",
                    tuple(told),
                    at=utc_now(),
                    by=current_user(),
                    because=because,
                    versions=made_of[name],
                    files=tuple(key_in(landing, file) for file in files),
                )
        for number, one in enumerate([] if dry_run else found, 1):
            tell(f"wrote {number:,} of {len(found):,} landed files again")
            erase(one, client_id)
    pings = sum(one.pings for one in found)
    if as_json:
        made = {"pings": pings, "files": len(found), "versions": made_of, "removed": bool(found) and not dry_run}
        made |= {"waiting": None if waiting is None else len(waiting), "damaged": len(damaged)}
        click.echo(msgspec.json.encode(made).decode())
    elif not found:
        click.echo("no landed ping is of this client")
    else:
        what = "would be removed" if dry_run else "removed"
        click.echo(f"{pings:,} pings in {len(found):,} landed files {what}")
        for name, versions in made_of.items():
            for line, numbers in versions.items():
                click.echo(f"  they went into versions {describe_versions(numbers)} of {name}/{line}")
    if waiting is None:
        click.echo(
            f"fedping: warning: there is no journal at {journal}, so pings of this client that have not landed "
            "yet were not looked for; run the command where ingest runs, with its --journal",
            err=True,
        )
    if damaged:
        raise FedpingError(f"{damaged[0]}; {len(damaged):,} landed files could not be looked into")
    if waiting:
        raise FedpingError(
            f"{len(waiting):,} segments of ingest's journal have pings of this client that have not landed yet; run "
            "the same command again in a few minutes"
        )


@landing.command()
@click.argument("studies", nargs=-1)
@click.option("--to", type=AnyPlace(), required=True, help="The other landing folder, or its place in an object store.")
@store_option
@landing_option
@json_option
def copy(studies: tuple[str, ...], to: Place, store_path: Place, landing: Place, as_json: bool) -> None:
    """Copy the landed pings of the STUDIES (default: all that are not private) to another landing folder.

    The files are the same, byte for byte, and under the same names, so that versions are computed again from there. Run
    it again to bring the copy up to date. Pings of a private study are deleted once they have been used, and so are not
    copied; nor are those of a study that the store does not have, which may be private.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import copy_landed, open_landing, study_of

    open_landing(landing).check()
    store = open_store(store_path)
    known = {name: store.study(name) for name in studies or store.studies.names()}
    private = [name for name, study in known.items() if study.is_private]
    if studies and private:
        raise InvalidSettings(
            f"study '{private[0]}' is private, and its clients are promised that their pings are deleted once they "
            "have been used; they are not copied"
        )
    of_studies: dict[str, list[Place]] = {name: [] for name in known if name not in private}
    unknown = set()
    for file in open_landing(landing).all_files():
        if (name := study_of(file)) in of_studies:
            of_studies[name].append(file)
        elif not studies and name not in known:
            unknown.add(name)
    if unknown:
        click.echo(
            f"fedping: warning: not copied, since the store at {store_path} does not have them and cannot tell whether "
            f"they are private: {', '.join(sorted(unknown))}; correct --store",
            err=True,
        )
    with status("copying landed files") as tell:
        for name, files in of_studies.items():
            new = 0
            for number, file in enumerate(files, 1):
                with suppress(FileNotFoundError):  # removed since it was listed
                    new += copy_landed(file, child(to, key_in(landing, file)))
                tell(f"{name}: {number:,} of {len(files):,} landed files")
            if as_json:
                click.echo(msgspec.json.encode({"study": name, "files": len(files), "new": new}).decode())
            else:
                click.echo(f"study '{name}': {len(files):,} landed files are in {to}, {new:,} of them new")


@landing.command()
@click.argument("study")
@click.argument("lines", nargs=-1)
@store_option
@landing_option
@json_option
def clients(study: str, lines: tuple[str, ...], store_path: Place, landing: Place, as_json: bool) -> None:
    """List who takes part in the LINES (default: all) of a STUDY of few clients, such as institutions.

    Who was heard last comes first. Ids are shortened, rows are as many as a client says, up to the study's limit, and a
    line of more than 100 clients is counted and not listed. Of private studies there is nothing to list.
    """
    from fedping.commands.round import lines_of
    from fedping.model_store.store import open_store
    from fedping.protocol.notation import time_at
    from fedping.server_jobs.participants import list_participants

    store = open_store(store_path)
    for line in lines_of(store, study, lines):
        roll = list_participants(landing, store.study(study), line)
        if as_json:
            click.echo(msgspec.json.encode({"study": study, "line": line, **msgspec.to_builtins(roll)}).decode())
            continue
        at_least = "" if roll.complete else "at least "
        click.echo(f"{study}/{line}: {at_least}{roll.clients:,} clients have sent pings that count")
        for one in roll.listed:
            heard = time_at(one.heard_ms)[:19].replace("T", " ")
            click.echo(
                f"  {one.client}  {one.arm:<16} heard {heard} UTC   version {one.version:>5}   "
                f"{one.examples:>10,} rows   {one.pings:>6,} pings"
            )


@landing.command()
@click.argument("study")
@click.argument("lines", nargs=-1)
@store_option
@landing_option
@json_option
def evaluation(study: str, lines: tuple[str, ...], store_path: Place, landing: Place, as_json: bool) -> None:
    """Show how the versions of the LINES (default: all) of a STUDY do on rows that institutions have held out.

    As their clients tell in arms that apply the versions and do not submit: 'fedping join --hold-out'. Each counts once
    a version, with as many rows as the study's limit and the line's 'most_votes' let it have. The newest 20,000 pings
    are read.
    """
    from fedping.commands.round import lines_of
    from fedping.model_store.store import open_store
    from fedping.server_jobs.participants import MOST_PINGS, evaluations

    store = open_store(store_path)
    for line in lines_of(store, study, lines):
        found = evaluations(landing, store.study(study), line)
        if not found and not as_json:
            click.echo(
                f"{study}/{line}: nothing is told of rows that are held out, in the newest {MOST_PINGS:,} pings at most"
            )
        for one in found:
            if as_json:
                click.echo(msgspec.json.encode({"study": study, "line": line, **msgspec.to_builtins(one)}).decode())
                continue
            classes = ""
            if one.accuracy is not None and one.balanced_accuracy is not None and one.worst is not None:
                classes = (
                    f"   accuracy {one.accuracy:.4f}, balanced over classes {one.balanced_accuracy:.4f}, worst client "
                    f"{one.worst:.4f}"
                )
            click.echo(
                f"{study}/{line}: version {one.version:>5} on {one.examples:,} rows of {one.clients:,} clients in arm "
                f"'{one.arm}'   loss {one.loss:.4f}{classes}"
            )


@landing.command()
@click.argument("study")
@store_option
@landing_option
@json_option
def outcomes(study: str, store_path: Place, landing: Place, as_json: bool) -> None:
    """Count the later outcomes that have landed in a STUDY, by column: of how many clients, and what is odd.

    Repeated ones count once. Of outcomes that name their choice, it shows how many name one that has not landed or was
    pruned, and how many ingest received later than their time after it: a device may have been away meanwhile.
    """
    from fedping.model_store.store import open_store
    from fedping.server_jobs.outcome_counts import count_outcomes

    the_study = open_store(store_path).study(study)
    counts = count_outcomes(landing, the_study)
    if not counts and not as_json:
        click.echo(f"study '{study}' declares no later outcome")
    for one in counts:
        if as_json:
            click.echo(msgspec.json.encode({"study": study, **msgspec.to_builtins(one)}).decode())
            continue
        odd = [f"{one.repeated:,} repeated"]
        if one.without_choice is not None:
            odd += [f"{one.without_choice:,} of no landed choice", f"{one.received_late:,} received late"]
        arms = ", ".join(f"{arm} {number:,}" for arm, number in one.arms.items()) or "none"
        click.echo(f"{one.column:<24} {one.outcomes:>12,} of {one.clients:,} clients   {arms}   {', '.join(odd)}")


@landing.command("import")
@click.argument("files", nargs=-1, required=True, type=LocalPath(dir_okay=False))
@click.option("--study", "name", required=True, help="The study whose pings the rows are.")
@click.option(
    "--map",
    "named",
    multiple=True,
    metavar="OURS=THEIRS",
    help="A field of a ping, and the column that has it, such as client_id=visitor. May be repeated.",
)
@click.option("--key", default="", metavar="COLUMNS", help="Columns that identify a row, for rows without document_id.")
@click.option("--strict", is_flag=True, help="Import nothing if a row would be left out.")
@click.option("--dry-run", is_flag=True, help="Say what would be left out, and import nothing.")
@store_option
@landing_option
@journal_option
@json_option
def import_(
    files: tuple[Path, ...],
    name: str,
    named: tuple[str, ...],
    key: str,
    strict: bool,
    dry_run: bool,
    store_path: Place,
    landing: Place,
    journal: Path | None,
    as_json: bool,
) -> None:
    """Import rows of Parquet FILES, or of JSON lines, from your own pipeline as pings of a study, or as later outcomes.

    Each row is decoded and admitted as a ping that is posted, and lands through the journal; run the command where
    ingest runs. A row that does not fit is left out and counted by its reason. Rows that have landed before are
    skipped, so that the same command may be repeated.
    """
    from fedping.model_store.store import open_store
    from fedping.server_jobs.importing import Import, run_import

    if wrong := [each for each in named if "=" not in each.strip("=")]:
        raise InvalidSettings(f"--map '{wrong[0]}' has no '='. Write it as client_id=visitor")
    store = open_store(store_path)
    request = Import(
        study=store.study(name),
        store=store,
        files=files,
        names=dict(each.split("=", 1) for each in named),
        key=[each.strip() for each in key.split(",") if each.strip()],
    )
    where = journal_of(journal, landing)
    with status("reading") as tell:
        found = run_import(request, landing, where, dry_run=dry_run or strict, tell=tell)
        refused = strict and bool(found.left_out)
        if strict and not dry_run and not refused:
            found = run_import(request, landing, where, dry_run=False, tell=tell)
    if as_json:
        made = {
            "rows": found.rows,
            "pings": found.pings,
            "known": found.known,
            "left_out": dict(found.left_out.most_common()),
            "examples": found.examples,
            "ignored": found.ignored,
            "imported": not dry_run and not refused,
        }
        click.echo(msgspec.json.encode(made).decode())
    else:
        what = "would be imported" if dry_run or refused else "imported"
        click.echo(f"{found.rows:,} rows: {found.pings:,} pings {what}, {found.known:,} had landed before")
        for reason, number in found.left_out.most_common():
            click.echo(f"  {number:,} left out, {reason}; the first: {found.examples[reason]}")
        if found.ignored:
            click.echo(f"  columns that are no field of such pings: {', '.join(found.ignored)}")
    if refused:
        raise FedpingError(
            f"{sum(found.left_out.values()):,} rows would be left out, and --strict imports all or nothing; correct "
            "them, or run it without --strict"
        )
