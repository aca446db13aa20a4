r"""The list of changes that people made with the dashboard: who, when, what, before and after.

    <n>.jsonl     lines of JSON, the oldest file first; the newest grows

A change has two lines. The first is written before the change, so that a change that can't be recorded isn't made; the
second has the outcome. If the process is killed in between, the outcome stays "unknown". A line is on disk before the
request continues. An incomplete line, left by a killed process, is skipped. The number of files and their size are
bounded; the oldest file is removed.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fedping.protocol.errors import FedpingError
from fedping.protocol.local_files import sync_folder
from fedping.protocol.notation import time_at

Outcome: TypeAlias = Literal["done", "refused", "unknown"]

FILE_BYTES = 4 << 20
"""Size at which the next file starts, in bytes."""

MOST_FILES = 64
"""Maximum number of files: 256 MiB, or about 400,000 changes."""

MOST_TEXT = 2400
"""Maximum characters of the state before or after a change: enough for a note of 1,000 and its position."""

SHORT = 200
"""Maximum characters of a name or an address."""


_BEGUN = re.compile(rb'\{("requested":\{)?"id":"([^"]{1,200})"')
"""Pattern for the beginning of a line: group 1 marks the line of a request, group 2 is the change's id."""


class NotRecorded(FedpingError):
    """A change can't be written to the list, so it was not made."""


class Change(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change that a person requested with the dashboard.

    Attributes:
        id: unique id; ids of later changes sort after those of earlier ones.
        at: when it was requested, ISO 8601 in UTC.
        by: the person's name.
        role: the person's role at that time.
        action: name of the action, such as "live.rollback".
        what: the action in words.
        about: the study and line, or the run, that was changed.
        before: the state before the change.
        after: the state after the change.
        outcome: "done", "refused", or "unknown" after an internal error or if the dashboard was killed meanwhile.
        reason: the message of a refusal or an error; empty without one.
    """

    id: str
    at: str
    by: str
    role: str
    action: str
    what: str
    about: str = ""
    before: str = ""
    after: str = ""
    outcome: Outcome = "unknown"
    reason: str = ""


class _Line(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a file: the change as requested, or its outcome."""

    requested: Change | None = None
    id: str = ""
    outcome: Outcome = "unknown"
    about: str = ""
    before: str = ""
    after: str = ""
    reason: str = ""


class ChangeLog:
    """The list of changes in a folder; several processes may write to it at the same time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, change: Change) -> None:
        """Record that a change is about to be made.

        Raises:
            NotRecorded: the list can't be written, so the change must not be made.
        """
        try:
            self._append(_Line(requested=_shortened(change)))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise NotRecorded(
                f"the list of changes in {self.folder} can't be written ({reason}), so the change was not made; free "
                "some space or correct the permissions, and try again"
            ) from error

    def end(self, change: Change) -> None:
        """Record the outcome of a change.

        Raises:
            OSError: the list can't be written, so that it shows an unknown outcome.
        """
        short = _shortened(change)
        self._append(
            _Line(
                id=short.id,
                outcome=short.outcome,
                about=short.about,
                before=short.before,
                after=short.after,
                reason=short.reason,
            )
        )

    def newest_first(self, about: str = "") -> Iterator[Change]:
        """Yield the changes, newest first.

        Args:
            about: yield only changes about this study, without decoding the others; empty for all changes.
        """
        wanted = about.encode()
        ended: dict[bytes, bytes] = {}
        passed = b""  # the next newer file, if it was skipped: a pending change may have its outcome there
        for file in reversed(self._files()):
            try:
                data = file.read_bytes()
            except FileNotFoundError:  # removed meanwhile
                return
            if wanted not in data:
                passed = data
                continue
            for line in reversed(data.split(b"\n")):
                begun = _BEGUN.match(line)
                if begun is None:
                    continue
                if begun[1] is None:
                    ended[begun[2]] = line
                    continue
                end = ended.pop(begun[2], b"") or _end_in(passed, begun[2])
                if wanted not in line and wanted not in end:
                    continue
                found = _read(line)
                if found is None or found.requested is None:
                    continue
                change = _joined(found.requested, _read(end))
                if not about or about in change.about.split():
                    yield change
            passed = b""

    def _append(self, line: _Line) -> None:
        data = msgspec.json.encode(line) + b"\n"
        with self._locked():
            files = self._files()
            newest = files[-1] if files else self.folder / "1.jsonl"
            if files and newest.stat().st_size + len(data) > FILE_BYTES:
                newest = self.folder / f"{_number(newest) + 1}.jsonl"
            new = not newest.exists()
            handle = os.open(newest, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = os.fstat(handle).st_size
                if size and os.pread(handle, 1, size - 1) != b"\n":  # a killed process left an incomplete line
                    data = b"\n" + data
                _write_all(handle, data, size)
            finally:
                os.close(handle)
            if new:
                sync_folder(self.folder)
                for old in files[: max(0, len(files) + 1 - MOST_FILES)]:
                    old.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield

    def _files(self) -> list[Path]:
        """Return the files, the oldest first."""
        return sorted((each for each in self.folder.glob("*.jsonl") if _number(each)), key=_number)


def _write_all(handle: int, data: bytes, size: int) -> None:
    """Append to a file and sync it; on an error such as a full disk, restore the file's previous ``size``."""
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise


def _end_in(data: bytes, id: bytes) -> bytes:
    """Return the line with a change's outcome from a file's contents; empty if there is none."""
    at = data.find(b'{"id":"' + id + b'"')
    return data[at:].partition(b"\n")[0] if at >= 0 else b""


def _read(line: bytes) -> _Line | None:
    """Return a decoded line; None if it is damaged or empty."""
    try:
        return msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _joined(change: Change, end: _Line | None) -> Change:
    if end is None:
        return change
    return replace(
        change,
        outcome=end.outcome,
        about=end.about or change.about,
        before=end.before,
        after=end.after,
        reason=end.reason,
    )


def _number(file: Path) -> int:
    return int(file.stem) if file.stem.isascii() and file.stem.isdigit() and len(file.stem) < 10 else 0


def new_change(*, by: str, role: str, action: str, what: str, about: str = "") -> Change:
    """Return a new change, with the present time and a unique id."""
    millisecond, rest = divmod(time.time_ns(), 1_000_000)
    at = time_at(millisecond)
    id = f"{at}-{rest:06d}{secrets.token_hex(3)}"
    return Change(id=id, at=at, by=by, role=role, action=action, what=what, about=about)


def _shortened(change: Change) -> Change:
    return replace(
        change,
        by=_cut(change.by, SHORT),
        what=_cut(change.what, SHORT),
        about=_cut(change.about, SHORT),
        before=_cut(change.before, MOST_TEXT),
        after=_cut(change.after, MOST_TEXT),
        reason=_cut(change.reason, MOST_TEXT),
    )


def _cut(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters, with surrogates replaced, because JSON can't have them."""
    text = text.encode(errors="replace").decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"
