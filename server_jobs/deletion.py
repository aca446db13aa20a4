"""Deletes landed pings, and reports which versions can't be recomputed afterwards.

*Pruning* removes the pings that neither the kept versions nor upcoming rounds need. A version is recomputed from the
files in its manifest and, where late pings count, from the files that earlier rounds used. Upcoming rounds use the
files of the newest version, and of earlier versions whose pings are still accepted late. Other files are removed if
they landed before the first round of the kept versions. Analyses keep all pings of every arm from then on.

*Erasure* removes the pings of one client from every landed file. Published versions stay unchanged: they are means
over many clients, and one client's contribution can't be removed. They can no longer be recomputed, because their
files have changed.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedping.model_store.store import ModelStore
from fedping.model_store.version import Sources
from fedping.protocol.errors import FedpingError, InvalidSettings, TemporaryFailure
from fedping.protocol.landed_file import LandedFile, UnreadableFile, check_columns, closest_document, printable
from fedping.protocol.landing import Landing, landed_at, rewrite, shard_of, shards_in, study_of
from fedping.protocol.local_files import for_the_group
from fedping.protocol.location import Place, key_in
from fedping.protocol.study import Line, Study
from fedping.server_jobs.ingest.segments import CLOSED, OPEN, segments
from fedping.server_jobs.round.manifest import late_for

LOCK = ".giving-up.lock"


@contextmanager
def deletion_lock(landing: Landing, *, looks: bool = False) -> Iterator[None]:
    """Hold the lock of a landing folder while pings are removed; the system releases it if the process dies.

    A caller that only reads (``looks``) needs neither the lock nor permission to write. Buckets have no locks. There,
    a second removal has no effect, and files that another process writes in the meantime are not overwritten.

    Raises:
        FedpingError: another process holds the lock, or the folder does not exist or can't be written.
    """
    landing.check()
    folder = landing.place
    if looks or not isinstance(folder, Path):
        yield
        return
    try:
        with open(folder / LOCK, "a", opener=for_the_group) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError as error:
        raise TemporaryFailure(
            f"another 'fedping landing' command is removing pings from {landing}. Run this one again when it is done."
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # reported in the same way by every command
        where = error.filename or folder / LOCK
        raise FedpingError(
            f"can't write {os.fspath(where)} ({error.strerror}). Run the command again as the user of ingest; pings "
            "that are already removed stay removed."
        ) from error


def describe_versions(numbers: tuple[int, ...]) -> str:
    """Return versions in words: "version 3", "versions 3 to 9", "versions 3 to 9, 12"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    noun = "version" if len(numbers) == 1 else "versions"
    return f"{noun} {', '.join(f'{low:,}' if low == high else f'{low:,} to {high:,}' for low, high in runs)}"


SETTLED_MS = 3_600_000
"""Minimum age of a file that is removed, in milliseconds. Ingest searches younger files for retried pings, and for
pings of an interrupted compaction."""


Reason: TypeAlias = Literal["foreign", "recompute", "upcoming", "newer", "last_hour"]

STAYS: dict[Reason, str] = {
    "foreign": "fedping gives no such names",
    "recompute": "they are needed to recompute the kept versions",
    "upcoming": "upcoming rounds may use their pings",
    "newer": "they landed after the oldest kept version was computed, and analyses read them",
    "last_hour": "they landed within the last hour",
}
"""Reasons why pruning keeps landed files, in the order of the checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """A plan of pruning: the landed files of one study to remove.

    Attributes:
        study: the study's name.
        files: the files to remove.
        bytes: total size of these files.
        versions: by line, the versions that can be recomputed before the pruning but not afterwards.
        kept: by line, the oldest version that can still be recomputed.
        stays: the number of landed files that are kept, by reason (:data:`STAYS`). A file counts for its first reason.
    """

    study: str
    landing: Landing
    files: tuple[Place, ...]
    bytes: int
    versions: Mapping[str, tuple[int, ...]]
    kept: Mapping[str, int]
    stays: Mapping[Reason, int]

    @property
    def told(self) -> tuple[str, ...]:
        """Phrases about the files to remove and the versions that can no longer be recomputed."""
        gone = f"{len(self.files):,} landed file{'' if len(self.files) == 1 else 's'} of {self.bytes:,} bytes"
        lost = (
            f"line {line}: {describe_versions(numbers)} can no longer be recomputed; versions from "
            f"{self.kept[line]:,} on can"
            for line, numbers in self.versions.items()
            if numbers
        )
        return (gone, *lost)

    @property
    def why_nothing(self) -> tuple[str, ...]:
        """Phrases with the reasons why all landed files are kept, and what to change."""
        if not any(self.stays.values()):
            return (f"it has no pings in {self.landing}",)
        reasons = tuple(
            f"{number:,} landed file{' stays' if number == 1 else 's stay'}: {STAYS[reason]}"
            for reason, number in self.stays.items()
            if number
        )
        whole = ", ".join(line for line, oldest in self.kept.items() if oldest == 0)
        more = f"every version of {whole} is kept; a smaller --keep may remove pings" if whole else ""
        return (*reasons, more) if more else reasons


def plan_pruning(store: ModelStore, landing: Landing, name: str, keep: int, now_ms: int) -> Pruning:
    """Return a plan that keeps the newest ``keep`` versions of each line recomputable.

    Pings of arms without a line, and later outcomes, aren't used by any version. They are kept from the same time on
    as the pings of all lines.

    Raises:
        InvalidSettings: the study is private, so its rounds delete their pings.
        StoreError: the study doesn't exist, or a version can't be read.
    """
    study = store.study(name)
    if study.is_private:
        raise InvalidSettings(f"study '{name}' is private. Its rounds delete its pings, so it has nothing to prune.")
    latest = now_ms - SETTLED_MS
    parts = [_of_line(store, landing, study, line, keep, latest) for line in study.lines]
    since = min((part.since for part in parts), default=0)
    files = [file for part in parts for file in part.files]
    stays = Counter(chain.from_iterable(part.stays for part in parts))
    beside = _Bounds(since, latest)
    for landed in (*landing.files_by_iteration(study.name, None).values(), landing.outcome_files(study.name)):
        for file in landed:
            reason = beside.reason(file)
            if reason is None:
                files.append(file)
            else:
                stays[reason] += 1
    return Pruning(
        study=name,
        landing=landing,
        files=tuple(files),
        bytes=sum(_size(landing, file) for file in files),
        versions={part.line: part.versions for part in parts},
        kept={part.line: part.oldest for part in parts},
        stays={reason: stays[reason] for reason in STAYS},
    )


def _size(landing: Landing, file: Place) -> int:
    try:
        return landing.size(file)
    except FileNotFoundError:  # another process has pruned it
        return 0


def remove_pruned(plan: Pruning) -> Iterator[int]:
    """Remove the files one by one, and folders that become empty; yield the number removed so far."""
    for number, file in enumerate(plan.files, 1):
        plan.landing.remove(file)
        yield number


@dataclass(frozen=True, slots=True)
class _Part:
    """A line's files to remove, and reasons to keep others; pings from ``since`` (Unix ms, 0: all) on are kept."""

    line: str
    files: tuple[Place, ...]
    stays: tuple[Reason, ...]
    versions: tuple[int, ...]
    oldest: int
    since: int


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Newest times (Unix ms) of files to remove: ``since``, for the kept versions, and ``latest``, for ingest."""

    since: int
    latest: int

    def reason(self, file: Place, *, needed: bool = False, upcoming: bool = False) -> Reason | None:
        """Return the first reason to keep a landed file; None if it is removed."""
        stamp = landed_at(file)
        if stamp is None:
            return "foreign"
        if needed:
            return "recompute"
        if upcoming:
            return "upcoming"
        if stamp > self.since:
            return "newer"
        return "last_hour" if stamp > self.latest else None


def _of_line(store: ModelStore, landing: Landing, study: Study, line: Line, keep: int, latest: int) -> _Part:
    head = store.head(study.name, line.name)
    numbers = store.iterations(study.name, line.name)
    sources = {number: store.versions.sources(study.name, line.name, number) for number in numbers}
    kept = numbers[-keep:]
    needed = {path for number in kept for path in _needed(store, study, line, sources[number])}
    staleness = line.pipeline.staleness
    # one version more, for a concurrent round on the version before, which is about to lose
    floor = head.iteration - 1 - (0 if staleness is None else staleness.most)
    parent = sources[kept[0]].parent
    since = 0 if parent is None else sources[parent].lineage.window_end_ms
    landed = landing.files_by_iteration(study.name, line.name)
    bounds = _Bounds(since, latest)
    reasons = {
        file: bounds.reason(file, needed=key_in(landing.place, file) in needed, upcoming=number >= floor)
        for number, of_one in landed.items()
        for file in of_one
    }
    files = tuple(file for file, reason in reasons.items() if reason is None)
    stays = tuple(reason for reason in reasons.values() if reason is not None)
    going = {key_in(landing.place, file) for file in files}
    keys = {key_in(landing.place, file) for file in chain.from_iterable(landed.values())}
    # a version some of whose files are gone can't be recomputed already
    inputs = {number: _inputs(sources[number]) for number in numbers[:-keep]}
    recomputable = [number for number, paths in inputs.items() if paths and paths <= keys]
    lost = tuple(number for number in recomputable if going.intersection(_needed(store, study, line, sources[number])))
    return _Part(line.name, files, stays, lost, kept[0], since)


def _needed(store: ModelStore, study: Study, line: Line, version: Sources) -> Iterator[str]:
    """Yield the paths of the files that a version is recomputed from."""
    inputs = version.lineage.inputs
    yield from (file.path for file in inputs)
    if version.parent is not None and any(file.age for file in inputs):
        late = late_for(store, study.name, line, version.parent)
        yield from (file.path for file in (late.before(inputs, version.parent) if late else ()))


def _inputs(version: Sources) -> set[str]:
    return {file.path for file in version.lineage.inputs}


_OVERLAP = 64
_PIECE = 2**22


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """A landed file with pings of a client, and the number of these pings."""

    file: Place
    pings: int

    @property
    def study(self) -> str:
        """The study of the file."""
        return study_of(self.file)


def find_pings(landing: Landing, client: UUID) -> Iterator[ErasurePlan | UnreadableFile | None]:
    """Search all landed files: yield a plan for each with pings of a client, an error if unreadable, else None."""
    for file in landing.all_files():
        try:
            pings = _rows(landing.open(file), client)
        except FileNotFoundError:  # deleted by a private line's round
            continue
        except UnreadableFile as error:
            yield error
            continue
        yield ErasurePlan(file, pings) if pings else None


def _rows(landed: LandedFile, client: UUID) -> int:
    """Return the number of a client's pings in a file. Of a sharded file, only the client's shard is read."""
    groups = None
    if (shards := shards_in(landed.footer.metadata, landed.footer.num_row_groups)) > 1:
        groups = [int(shard_of(np.frombuffer(client.bytes, np.uint8).reshape(1, 16), shards)[0])]
    check_columns(landed, closest_document(landed), ["client_id"])
    return sum(pc.sum(_is_of(batch.column(0), client)).as_py() or 0 for batch in landed.batches(["client_id"], groups))


def _is_of(column: pa.Array, client: UUID) -> pa.Array:
    return pc.equal(column, pa.scalar(client.bytes, column.type))


def erase(plan: ErasurePlan, client: UUID) -> None:
    """Rewrite a file without the pings of a client. If there are no other pings, an empty file remains.

    A file that a private line's round has deleted in the meantime is skipped.

    Raises:
        UnreadableFile: the file is damaged.
        ChangedMeanwhile: another process has replaced the file.
        OSError: the file can't be written, and is unchanged.
    """

    def without(table: pa.Table) -> pa.Table:
        return table.filter(pc.invert(_is_of(table.column("client_id").combine_chunks(), client)))

    with suppress(FileNotFoundError):
        rewrite(plan.file, without)


def versions_of(store: ModelStore, study: str, landing: Landing, files: list[Place]) -> Mapping[str, tuple[int, ...]]:
    """Return, by line, the versions that were computed from any of these landed files."""
    paths = {key_in(landing.place, file) for file in files}
    return {
        line.name: tuple(
            number
            for number in store.iterations(study, line.name)
            if any(file.path in paths for file in store.versions.sources(study, line.name, number).lineage.inputs)
        )
        for line in store.study(study).lines
    }


def pending_pings(journal: Path, client: UUID) -> list[str] | None:
    """Return the journal's segments with pings of a client that have not landed; None if there is no journal."""
    if not journal.is_dir():
        return None
    text = str(client).encode()
    paths = [*segments(journal, OPEN), *segments(journal, CLOSED)]
    return [printable(path.name) for path in paths if _contains(path, text)]


def _contains(path: Path, text: bytes) -> bool:
    """Return whether a segment contains some bytes. The segment may be rolled or landed in the meantime."""
    for there in (path, path.with_suffix(CLOSED)):
        try:
            with open(there, "rb") as source:
                before = b""
                while piece := source.read(_PIECE):
                    if text in before + piece:
                        return True
                    before = piece[-_OVERLAP:]
                return False
        except FileNotFoundError:
            continue
    return False
