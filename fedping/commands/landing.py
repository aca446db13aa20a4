"""`fedping landing`: flush, import, copy, count and remove landed pings; show the clients of small lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
import msgspec

from fedping.commands.study_life import because_option
from fedping.options import (
    AnyPlace,
    ClientId,
    LocalPath,
    current_user,
    journal_of,
    journal_option,
    json_option,
    landing_option,
    store_option,
    trust_of,
    trust_options,
)
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.location import child, key_in
from fedping.protocol.notation import utc_now
from fedping.terminal import status

if TYPE_CHECKING:
    from fedping.model_store.store import ModelStore
    from fedping.protocol.landed_file import UnreadableFile
    from fedping.protocol.landing import Landing
    from fedping.protocol.location import Place
    from fedping.server_jobs.deletion import ErasurePlan, Pruning


@click.group()
def landing() -> None:
    """Landed pings: clients and evaluations of small lines; remove old pings, or those of one client; copy them."""


@landing.command("flush")
@click.argument("url", default="http://127.0.0.1:8082")
@click.option(
    "--timeout",
    type=click.IntRange(1, 600),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="Longest time to wait for ingest.",
)
@trust_options
def flush_(url: str, timeout: int, ca: Path | None, insecure: bool) -> None:
    """Make ingest land every accepted ping, and wait until all are in Parquet.

    URL is the address of ingest's operations port.  [default: http://127.0.0.1:8082]

    Exits with 75 if ingest does not answer or needs more time: try again later. Safe to repeat.
    """
    from fedping.server_jobs.ingest.backlog import flush

    flush(url, timeout, trust_of(url, ca, insecure))
    click.echo(f"Every ping that ingest at {url} had accepted is in Parquet.")


dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be removed, without removing it.")


@dataclass(frozen=True, kw_only=True)
class RemovalOptions:
    """The options of both removals, `prune` and `forget`, by their names in Python."""

    dry_run: bool
    because: str
    store_path: Place
    landing: Place
    as_json: bool


@landing.command()
@click.argument("studies", nargs=-1)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    required=True,
    metavar="VERSIONS",
    help="Number of each line's newest versions that must stay recomputable.",
)
@dry_run_option
@because_option
@store_option
@landing_option
@json_option
def prune(studies: tuple[str, ...], keep: int, **options: Any) -> None:
    """Remove landed pings older than the newest VERSIONS of the STUDIES (default: all that are not private).

    Keeps all pings needed to recompute these versions or by upcoming rounds: pings of the newest version, and late ones
    that still count. Older versions stay, but can't be recomputed any more, and analyses lack their pings. The study's
    history names them before the removal.

    Safe to repeat: after an interruption, the same command continues. Pings that landed in the last hour stay. If no
    ping can be removed, it prints the reason.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import open_landing
    from fedping.server_jobs.deletion import deletion_lock, plan_pruning

    given = RemovalOptions(**options)
    store, pings = open_store(given.store_path), open_landing(given.landing)
    names = studies or tuple(name for name in store.studies.names() if not store.study(name).is_private)
    if not names and not given.as_json:
        there = "has only private studies, whose rounds delete the pings" if store.studies.names() else "has no study"
        click.echo(f"nothing to remove: the store at {given.store_path} {there}")
    with deletion_lock(pings, looks=given.dry_run):
        plans = [plan_pruning(store, pings, name, keep, int(time.time() * 1000)) for name in names]
        for plan in plans:
            if plan.files and not given.dry_run:
                _prune(store, plan, given.because)
            _show_pruning(plan, given)


def _prune(store: ModelStore, plan: Pruning, because: str) -> None:
    """Record the removal in the study's history, then remove the files."""
    from fedping.server_jobs.deletion import remove_pruned

    versions = {line: numbers for line, numbers in plan.versions.items() if numbers}
    store.studies.note(
        plan.study, "pruned", plan.told, at=utc_now(), by=current_user(), because=because, versions=versions
    )
    with status(f"{plan.study}: removing landed files") as set_status:
        for number in remove_pruned(plan):
            set_status(f"{plan.study}: removed {number:,} of {len(plan.files):,} landed files")


def _show_pruning(plan: Pruning, given: RemovalOptions) -> None:
    if given.as_json:
        document = {
            "study": plan.study,
            "files": len(plan.files),
            "bytes": plan.bytes,
            "given_up": plan.versions,
            "kept_from": plan.kept,
            "removed": bool(plan.files) and not given.dry_run,
            "stays": plan.stays,
        }
        click.echo(msgspec.json.encode(document).decode())
    elif not plan.files:
        click.echo(f"study '{plan.study}': nothing to remove")
        for sentence in plan.why_nothing:
            click.echo(f"  {sentence}")
    else:
        files, *versions = plan.told
        click.echo(f"study '{plan.study}', {'would be removed' if given.dry_run else 'removed'}: {files}")
        for sentence in versions:
            click.echo(f"  {sentence}")


@landing.command()
@click.argument("client_id", type=ClientId())
@dry_run_option
@because_option
@store_option
@landing_option
@journal_option
@json_option
def forget(client_id: UUID, journal: Path | None, **options: Any) -> None:
    """Remove all pings of CLIENT_ID, of every study, from the landing folder, and list the versions that used them.

    These versions stay published, but can't be recomputed any more; the study's history names them, but not the client.
    Rounds continue. Exits with 1 if the client has pings in ingest's journal: repeat the command after they have
    landed. Run it where ingest runs, with its --journal; it warns if that is missing. Safe to repeat, and continues
    after an interruption.

    CLIENT_ID is a UUID, or the 16 bytes of the Parquet column client_id as pandas, DuckDB, Spark or JSON print them.

    It doesn't search backups or the journal's quarantine, and doesn't reject later pings of the client.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import open_landing
    from fedping.protocol.notation import format_count
    from fedping.server_jobs.deletion import deletion_lock, pending_pings

    given = RemovalOptions(**options)
    store, pings = open_store(given.store_path), open_landing(given.landing)
    journal = journal_of(journal, given.landing)
    with deletion_lock(pings, looks=given.dry_run), status("searching the landed files") as set_status:
        waiting = pending_pings(journal, client_id)  # first, as they may land in the meantime
        erasure = _planned_erasure(store, pings, client_id, set_status)
        if not given.dry_run:
            _erase(store, erasure, client_id, given, set_status)
    _show_erasure(erasure, waiting, given)
    if waiting is None:
        click.echo(
            f"fedping: warning: there is no journal at {journal}, so pings that have not landed yet were not "
            "searched; run the command where ingest runs, with its --journal",
            err=True,
        )
    if erasure.damaged:
        unread = format_count(len(erasure.damaged), "landed file")
        raise FedpingError(f"{erasure.damaged[0]}; {unread} could not be searched")
    if waiting:
        raise FedpingError(
            f"pings of this client that have not landed yet are in {format_count(len(waiting), 'segment')} of ingest's "
            "journal; run the same command again in a few minutes"
        )


@dataclass(frozen=True)
class Erasure:
    """The landed files with pings of one client.

    Attributes:
        plans: the files, with the number of pings in each.
        damaged: errors of the files that can't be searched.
        versions: the versions that used the files, by study and line.
    """

    plans: list[ErasurePlan]
    damaged: list[UnreadableFile]
    versions: dict[str, dict[str, tuple[int, ...]]]

    def files_of(self, study: str) -> list[Place]:
        """Return the files with pings of a study."""
        return [plan.file for plan in self.plans if plan.study == study]


def _planned_erasure(
    store: ModelStore, landing: Landing, client_id: UUID, set_status: Callable[[str], None]
) -> Erasure:
    from fedping.protocol.landed_file import UnreadableFile
    from fedping.server_jobs.deletion import find_pings, versions_of

    erasure = Erasure([], [], {})
    for number, result in enumerate(find_pings(landing, client_id), 1):
        set_status(f"searched {number:,} landed files")
        if isinstance(result, UnreadableFile):
            erasure.damaged.append(result)
        elif result is not None:
            erasure.plans.append(result)
    for study in sorted({plan.study for plan in erasure.plans} & set(store.studies.names())):
        versions = versions_of(store, study, landing, erasure.files_of(study))
        erasure.versions[study] = {line: numbers for line, numbers in versions.items() if numbers}
    return erasure


def _erase(
    store: ModelStore, erasure: Erasure, client_id: UUID, given: RemovalOptions, set_status: Callable[[str], None]
) -> None:
    """Record the removal in the studies' histories, then rewrite the files without the client's pings."""
    from fedping.protocol.notation import format_count
    from fedping.server_jobs.deletion import describe_versions, erase

    for study, versions in erasure.versions.items():
        files = erasure.files_of(study)
        sentences = [f"pings of one client were removed from {format_count(len(files), 'landed file')}"]
        sentences += [
            f"line {line}: {describe_versions(numbers)} {'was' if len(numbers) == 1 else 'were'} computed from "
            "these, and can no longer be recomputed"
            for line, numbers in versions.items()
        ]
        store.studies.note(
            study,
            "forgotten",
            tuple(sentences),
            at=utc_now(),
            by=current_user(),
            because=given.because,
            versions=versions,
            files=tuple(key_in(given.landing, file) for file in files),
        )
    for number, plan in enumerate(erasure.plans, 1):
        set_status(f"rewrote {number:,} of {len(erasure.plans):,} landed files")
        erase(plan, client_id)


def _show_erasure(erasure: Erasure, waiting: list[str] | None, given: RemovalOptions) -> None:
    from fedping.protocol.notation import format_count
    from fedping.server_jobs.deletion import describe_versions

    pings = sum(plan.pings for plan in erasure.plans)
    if given.as_json:
        document = {
            "pings": pings,
            "files": len(erasure.plans),
            "versions": erasure.versions,
            "removed": bool(erasure.plans) and not given.dry_run,
            "waiting": None if waiting is None else len(waiting),
            "damaged": len(erasure.damaged),
        }
        click.echo(msgspec.json.encode(document).decode())
    elif not erasure.plans:
        click.echo("this client has no landed pings")
    else:
        outcome = "would be removed" if given.dry_run else "removed"
        files = format_count(len(erasure.plans), "landed file")
        click.echo(f"{format_count(pings, 'ping')} in {files} {outcome}")
        for study, versions in erasure.versions.items():
            for line, numbers in versions.items():
                click.echo(f"  they were used for {describe_versions(numbers)} of {study}/{line}")


@landing.command()
@click.argument("studies", nargs=-1)
@click.option(
    "--to", type=AnyPlace(), required=True, help=("The other landing folder, or its address in an object store.")
)
@store_option
@landing_option
@json_option
def copy(studies: tuple[str, ...], to: Place, store_path: Place, landing: Place, as_json: bool) -> None:
    """Copy the landed pings of the STUDIES (default: all that are not private) to another landing folder.

    The copies have the same names and bytes, so versions can be recomputed from them. Run it again to update the copy.
    Private studies are not copied, because their pings must be deleted after use; nor are studies that the store lacks,
    because they may be private.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import copy_landed, open_landing, study_of
    from fedping.protocol.notation import format_count

    open_landing(landing).check()
    store = open_store(store_path)
    known = {name: store.study(name) for name in studies or store.studies.names()}
    private = [name for name, study in known.items() if study.is_private]
    if studies and private:
        raise InvalidSettings(
            f"study '{private[0]}' is private: it guarantees its clients that used pings are deleted, so its pings "
            "can't be copied; leave it out of the command"
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
            f"fedping: warning: the store at {store_path} lacks these studies, which may be private, so they are not "
            f"copied: {', '.join(sorted(unknown))}; correct --store",
            err=True,
        )
    with status("copying landed files") as set_status:
        for name, files in of_studies.items():
            new = 0
            for number, file in enumerate(files, 1):
                with suppress(FileNotFoundError):  # removed since it was listed
                    new += copy_landed(file, child(to, key_in(landing, file)))
                set_status(f"{name}: {number:,} of {len(files):,} landed files")
            if as_json:
                click.echo(msgspec.json.encode({"study": name, "files": len(files), "new": new}).decode())
            else:
                verb = "is" if len(files) == 1 else "are"
                count = format_count(len(files), "landed file")
                click.echo(f"study '{name}': {count} {verb} in {to}, {new:,} of them new")


@landing.command()
@click.argument("study")
@click.argument("lines", nargs=-1)
@store_option
@landing_option
@json_option
def clients(study: str, lines: tuple[str, ...], store_path: Place, landing: Place, as_json: bool) -> None:
    """List the clients of the LINES (default: all) of a STUDY of few clients, such as institutions.

    The list starts with the most recent client. Ids are shortened, rows are as reported by the client, up to the
    study's limit. A line with more than 100 clients is only counted. Clients of private studies can't be listed.

    The last line estimates the noise of their mean update if they protect their rows like 'fedping join'; pings don't
    show whether they do.
    """
    from fedping.commands.round import lines_of
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import open_landing
    from fedping.protocol.notation import format_count, time_at
    from fedping.server_jobs.participants import list_participants, noise_if_protected
    from fedping.server_jobs.row_noise import IF_PROTECTED

    store, pings = open_store(store_path), open_landing(landing)
    for line in lines_of(store, study, lines):
        participants = list_participants(pings, store.study(study), line)
        noise = noise_if_protected(participants.listed, store.study(study), line)
        if as_json:
            found = {**msgspec.to_builtins(participants), "noise_if_protected": noise}
            click.echo(msgspec.json.encode({"study": study, "line": line, **found}).decode())
            continue
        count = format_count(participants.clients, "client") + (" has" if participants.clients == 1 else " have")
        at_least = "" if participants.complete else "at least "
        click.echo(f"{study}/{line}: {at_least}{count} sent valid pings")
        for one in participants.listed:
            heard = time_at(one.heard_ms)[:19].replace("T", " ")
            click.echo(
                f"  {one.client}  {one.arm:<16} heard {heard} UTC   version {one.version:>5}   "
                f"{one.examples:>10,} rows   {one.pings:>6,} pings"
            )
        if noise is not None:
            click.echo(f"  noise on each number of their mean update: {noise:.2g}, {IF_PROTECTED}")


@landing.command()
@click.argument("study")
@click.argument("lines", nargs=-1)
@store_option
@landing_option
@json_option
def evaluation(study: str, lines: tuple[str, ...], store_path: Place, landing: Place, as_json: bool) -> None:
    """Show the loss and accuracy of the versions of the LINES (default: all) of a STUDY on held-out rows.

    Institutions hold out rows with 'fedping join --hold-out', and report on them in arms that apply the versions but do
    not submit. Each client counts once for a version, with at most the rows that the study's limit and the line's
    'most_votes' allow. The command reads the newest 20,000 pings.
    """
    from fedping.commands.round import lines_of
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import open_landing
    from fedping.protocol.notation import format_count
    from fedping.server_jobs.participants import MOST_PINGS, evaluations

    store, pings = open_store(store_path), open_landing(landing)
    for line in lines_of(store, study, lines):
        found = evaluations(pings, store.study(study), line)
        if not found and not as_json:
            click.echo(f"{study}/{line}: none of the newest {MOST_PINGS:,} pings reports on held-out rows")
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
                f"{study}/{line}: version {one.version:>5} on {format_count(one.examples, 'row')} of "
                f"{format_count(one.clients, 'client')} in arm "
                f"'{one.arm}'   loss {one.loss:.4f}{classes}"
            )


@landing.command()
@click.argument("study")
@store_option
@landing_option
@json_option
def outcomes(study: str, store_path: Place, landing: Place, as_json: bool) -> None:
    """Count the landed later outcomes of a STUDY by column, with the number of clients and anomalies.

    Repeated outcomes count once. For outcomes that name their choice, it shows the number whose choice has not landed
    or was pruned, and the number received later than the outcome's time, for example because a device was offline.
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
            odd += [f"{one.without_choice:,} without a landed choice", f"{one.received_late:,} received late"]
        arms = ", ".join(f"{arm} {number:,}" for arm, number in one.arms.items()) or "none"
        click.echo(f"{one.column:<24} {one.outcomes:>12,} of {one.clients:,} clients   {arms}   {', '.join(odd)}")


@landing.command("import")
@click.argument("files", nargs=-1, required=True, type=LocalPath(dir_okay=False))
@click.option("--study", "name", required=True, help="The study of the pings.")
@click.option(
    "--map",
    "named",
    multiple=True,
    metavar="OURS=THEIRS",
    help="A field of the pings and the column with its values, such as client_id=visitor. May be repeated.",
)
@click.option(
    "--key", default="", metavar="COLUMNS", help=("Columns that together identify a row, for rows without document_id.")
)
@click.option("--strict", is_flag=True, help="Import nothing if a row would be skipped.")
@click.option("--dry-run", is_flag=True, help="Show which rows would be skipped, without importing.")
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

    Each row is checked like a posted ping, and lands through the journal; run the command where ingest runs. Invalid
    rows are skipped and counted by reason. Rows that have landed before are ignored, so the command is safe to repeat.
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
            click.echo(f"  {number:,} skipped, {reason}; the first: {found.examples[reason]}")
        if found.ignored:
            click.echo(f"  ignored columns, which are no fields of these pings: {', '.join(found.ignored)}")
    if refused:
        raise FedpingError(
            f"{sum(found.left_out.values()):,} rows would be skipped, so --strict imports none; correct them, or "
            "remove --strict"
        )
