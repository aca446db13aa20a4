"""The quarantine for damaged frames, and the note about failing compaction.

The note's file has a fixed size and is written in place, because a full disk is the most likely failure.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedping.protocol.formats import NewerFormat, with_format, without_format
from fedping.protocol.local_files import for_the_group, make_folder, sync_folder
from fedping.protocol.log import tell
from fedping.protocol.notation import utc_now
from fedping.server_jobs.ingest.counters import Counters
from fedping.server_jobs.ingest.segments import Cause, Damage
from fedping.server_jobs.ingest.settings import LOGGED

TORN, BAD = ".torn", ".bad"
"""Suffixes of files in the quarantine: pieces whose pings were never accepted, and pieces whose pings may have been."""

_WHY: dict[Cause, str] = {
    "torn": "its writer died during the write",
    "checksum": "its checksum is wrong",
    "header": "its header is damaged",
    "short": "its end is missing",
    "records": "it is intact, but its lines are not pings",
}


@dataclass(frozen=True)
class Piece:
    """An unreadable piece of a segment."""

    segment: Path
    damage: Damage
    data: bytes

    @property
    def name(self) -> str:
        """The name of the piece's file. It is always the same, so that a repeated pass keeps the piece only once."""
        return f"{self.segment.stem}.{self.damage.start}{TORN if self.damage.cause == 'torn' else BAD}"


def pieces_of(segment: Path, data: bytes, damaged: Iterable[Damage]) -> tuple[Piece, ...]:
    """Return the damaged pieces of a segment's bytes."""
    return tuple(Piece(segment, damage, data[damage.start : damage.end]) for damage in damaged)


def keep(folder: Path, pieces: Iterable[Piece]) -> None:
    """Write pieces to the quarantine, flush them to disk, and log each piece."""
    for piece in pieces:
        folder = _free(folder, Path.is_dir)
        make_folder(folder)
        kept = _free(folder / piece.name, Path.is_file)
        with open(kept, "wb", opener=for_the_group) as sink:
            sink.write(piece.data)
            sink.flush()
            os.fsync(sink.fileno())
        sync_folder(folder)
        sync_folder(folder.parent)
        tell(_sentence(piece, kept), "warning" if piece.damage.cause == "torn" else "error", before=LOGGED)


def _free(wanted: Path, fits: Callable[[Path], bool]) -> Path:
    """Return a path, or a numbered variant of it if another kind of file is in its place.

    Otherwise that file would make every pass fail. The result is the same as long as the file exists.
    """
    beside = (wanted.with_name(f"{wanted.stem}.{n}{wanted.suffix}") for n in itertools.count(1))
    return next(path for path in itertools.chain([wanted], beside) if fits(path) or not os.path.lexists(path))


def count(counters: Counters, pieces: Iterable[Piece]) -> None:
    """Count the kept pieces, and the accepted pings in them."""
    for piece in pieces:
        if piece.damage.cause == "torn":
            counters.add("torn", 1)
        else:
            counters.add("quarantined", 1)
            counters.add("quarantined_pings", piece.damage.rows)


def _sentence(piece: Piece, kept: Path) -> str:
    where = f"at byte {piece.damage.start} of journal segment {piece.segment.name}"
    if piece.damage.cause == "torn":
        return f"an unfinished write {where}, whose pings were never accepted, was moved to {kept}"
    return (
        f"about {piece.damage.rows} pings {where} cannot be read ({_WHY[piece.damage.cause]}); they were accepted "
        f"but have not landed, and are kept in {kept}"
    )


_BYTES = 4096
_LONGEST_WHY = 1000


class Failing(msgspec.Struct, frozen=True):
    """Failed passes since the last success: the time of the first, their number, and the last error."""

    since: str
    times: int
    why: str


class FailureNote:
    """The compactor's note about failing passes; raises :class:`OSError` if it can't be created anywhere.

    The note of an earlier process of the same ingest is kept until a pass succeeds.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._now = failing(path)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
        self._write(b"" if self._now is None else with_format(msgspec.json.encode(self._now)))

    def failed(self, why: str) -> None:
        """Note a failed pass."""
        before = self._now or Failing(utc_now(), 0, "")
        self._now = Failing(before.since, before.times + 1, why[:_LONGEST_WHY])
        self._write(with_format(msgspec.json.encode(self._now)))

    def succeeded(self) -> None:
        """Clear the note."""
        if self._now is not None:
            self._now = None
            self._write(b"")

    def _write(self, data: bytes) -> None:
        os.pwrite(self._file, data[:_BYTES].ljust(_BYTES), 0)


def failing_in_words(path: Path) -> str | None:
    """Return a sentence if the note reports failing compaction, else None."""
    now = failing(path)
    if now is None:
        return None
    return (
        f"compaction has failed {now.times} times since {now.since}: {now.why}; the pings stay in the journal and "
        "land when the cause is repaired"
    )


def failing(path: Path) -> Failing | None:
    """Return the failures reported by the note; None without failures."""
    try:
        return msgspec.json.decode(without_format(path.read_bytes(), f"the note {path}"), type=Failing)
    except NewerFormat as error:
        return Failing("an unknown time", 0, str(error))
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
