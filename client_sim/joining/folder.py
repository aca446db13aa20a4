"""What an institution keeps on its disk: who it is, how far it has come, and a ping until somebody has taken it.

identity.key     the seed of its id and of all that it draws, made once; nobody but the owner may read it
joined.json      which study and model the folder is of, and what the study asked for when that was agreed to
progress.json    the newest version of which a ping was taken; what a private line was given; what was held out
waiting.json     a ping that is about to be posted, or was, and nobody has answered
sent.ndjson      what has left this machine: a line for each ping before it is posted, and one when it is taken or
                 refused, without its update
clients.sqlite   what the training leaves with its clients, where it does
held-out/        such a folder of the client that tells how versions do on rows that are held out, where any are

A ping is on disk before it is posted, and posted with the same bytes until it is answered, so that ingest counts it
once however often this process is killed.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.formats import with_format, without_format
from fedping.protocol.links import Upload
from fedping.protocol.local_files import make_folder, others_may_use, sync_folder, write_secret
from fedping.protocol.privacy import Privacy
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm
from fedping.protocol.training import Training

SEED_BYTES = 16

UNANSWERED = "unanswered"
"""The outcome of a ping that is about to be posted for the first time."""

_T = TypeVar("_T", bound=Struct)


class Asked(Struct, frozen=True, kw_only=True):
    """What a study asks of an institution, without what may change while it takes part: shares, and offers of a helper.

    Attributes:
        arm: its arm, as if that was everybody's.
        spec, training, upload, privacy: of its line.
    """

    arm: Arm
    spec: ModelSpec
    training: Training
    upload: Upload
    privacy: Privacy | None


class Joined(Struct, frozen=True, kw_only=True):
    """Which study, line and model a folder is of, and what the study asked for when that was agreed to.

    ``asked`` is None in folders that are older than it.
    """

    study: str
    line: str
    spec_digest: str
    asked: Asked | None = None

    @property
    def place(self) -> tuple[str, str]:
        """The study and its line."""
        return self.study, self.line


class Progress(Struct, frozen=True, kw_only=True):
    """How far an institution has come.

    Attributes:
        version: the newest version of which the server has taken its ping; -1 for none.
        moved: the newest version on which its own state has moved, where the training keeps any, or to which it has
            contributed, where the line is private: it does not train on that again, whatever became of the ping.
        sent: how many pings were taken.
        contributed: to how many versions of a private line it has contributed, whatever became of the pings.
        held_out: the share of the rows that nothing is learned from, 0 for none; None in folders that are older.
    """

    version: int = -1
    moved: int = -1
    sent: int = 0
    contributed: int = 0
    held_out: float | None = None


class Waiting(Struct, frozen=True, kw_only=True):
    """A ping that is to be posted: its document id, its JSON as it is sent, and before when it is not (Unix time)."""

    version: int
    document_id: UUID
    body: Raw
    not_before: float = 0.0


class Sent(Struct, frozen=True, kw_only=True):
    """A line about a ping that is posted or was answered; one of a private line tells neither loss nor examples.

    Attributes:
        time: when it was answered, or is posted for the first time.
        version: that it was made from.
        document_id: of the ping.
        examples: number of rows.
        loss: of the version on these rows.
        bytes: length of the ping.
        sha256: of these bytes.
        outcome: "accepted", "rejected", or "unanswered" before the first post; lines without it, of earlier versions of
            fedping, are of accepted pings.
        reason: why it was refused, as the server says.
        numbers: of the update; 0 if it has none, or it is encoded.
        norm: of the update; None if it has none, or it is encoded.
        encoding: of the update; None if it has none, or it is numbers.
    """

    time: str
    version: int
    document_id: UUID
    examples: int | None
    loss: float | None
    bytes: int
    sha256: str
    outcome: str = "accepted"
    reason: str = ""
    numbers: int = 0
    norm: float | None = None
    encoding: str | None = None


@dataclass(frozen=True)
class StateFolder:
    """An institution's folder, opened and held against other processes: see :func:`open_folder`."""

    path: Path
    seed: int

    @property
    def secret(self) -> bytes:
        """32 bytes that nobody else can work out, and that are no part of what a training draws by."""
        return hmac.digest(self.seed.to_bytes(SEED_BYTES, "big"), b"secret of a client of private lines", "sha256")

    @property
    def states(self) -> Path:
        """Where a training's state is kept."""
        return self.path / "clients.sqlite"

    @property
    def progress(self) -> Progress:
        """How far the institution has come."""
        return self._read("progress.json", Progress) or Progress()

    @property
    def waiting(self) -> Waiting | None:
        """The ping that is to be posted, if there is one; one that was answered may still lie there after a kill."""
        found = self._read("waiting.json", Waiting)
        return found if found is not None and found.version > self.progress.version else None

    def keep(self, ping: Waiting) -> None:
        """Have a ping on disk, which can then be posted."""
        self._write("waiting.json", ping)

    def advance(self, progress: Progress) -> None:
        """Note how far the institution has come."""
        self._write("progress.json", progress)

    @property
    def has_trained(self) -> bool:
        """Whether anything that was learned from its rows was taken, is on its way, or is kept here."""
        progress = self.progress
        return bool(progress.sent) or progress.moved >= 0 or self.waiting is not None

    def begin(self, sent: Sent) -> None:
        """Note on disk that the waiting ping is about to be posted, unless the last line is about it."""
        self._tell(sent)

    def settle(self, progress: Progress, sent: Sent) -> None:
        """Note that the waiting ping was answered, and how far the institution has come by that."""
        self._tell(sent)
        self.advance(progress)
        self.drop()

    def drop(self) -> None:
        """Give the waiting ping up, as if it had never been made."""
        (self.path / "waiting.json").unlink(missing_ok=True)
        sync_folder(self.path)

    def belongs_to(self, joined: Joined) -> Joined:
        """Have the folder be of a study, and return what it was before, or is now if it was of none.

        Raises:
            InvalidSettings: it is of another study, line or model.
        """
        before = self._read("joined.json", Joined)
        if before is None:
            self.agree(joined)
            return joined
        if before.place != joined.place or before.spec_digest != joined.spec_digest:
            what = (
                f"study '{before.study}', line '{before.line}'"
                if before.place != joined.place
                else f"another model spec of study '{before.study}'"
            )
            raise InvalidSettings(f"the folder {self.path} is of {what}; give another with --state")
        if before.asked is None:
            self.agree(joined)
            return joined
        return before

    def agree(self, joined: Joined) -> None:
        """Note what is agreed to."""
        self._write("joined.json", joined)

    def _tell(self, sent: Sent) -> None:
        path = self.path / "sent.ndjson"
        line = msgspec.json.encode(sent) + b"\n"
        told = path.read_bytes() if path.exists() else b""
        if told and not told.endswith(b"\n"):  # of one that was killed while it wrote
            told = told[: told.rfind(b"\n") + 1]
            os.truncate(path, len(told))
        if _tells(told[told[:-1].rfind(b"\n") + 1 :], sent):  # of one that was killed before the ping was dropped
            return
        with _told(self.path):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(line)
                file.flush()
                os.fsync(handle)
            if not told:
                sync_folder(self.path)

    def _read(self, name: str, kind: type[_T]) -> _T | None:
        path = self.path / name
        try:
            return msgspec.json.decode(without_format(path.read_bytes(), str(path)), type=kind)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FedpingError(
                f"{path} is damaged ({error}); delete it, or give another folder with --state, which makes "
                "another client"
            ) from error

    def _write(self, name: str, document: Struct) -> None:
        """Write a document so that after a kill or a power cut it is there as it was, or as it is now."""
        hidden = self.path / f".{name}.unfinished"
        with _told(self.path):
            handle = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(with_format(msgspec.json.encode(document)))
                file.flush()
                os.fsync(handle)
            os.replace(hidden, self.path / name)
            sync_folder(self.path)


def _tells(line: bytes, sent: Sent) -> bool:
    """Return whether a line of the log is of the same ping, with the same answer if that has one."""
    try:
        other = msgspec.json.decode(line, type=Sent)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    same = (other.document_id, other.sha256) == (sent.document_id, sent.sha256)
    return same and sent.outcome in (UNANSWERED, other.outcome)


def any_seed() -> int:
    """Return the seed of a new client, from the operating system."""
    return secrets.randbits(8 * SEED_BYTES)


@contextmanager
def open_folder(path: Path, new_seed: Callable[[], int] = any_seed) -> Iterator[StateFolder]:
    """Open an institution's folder, which is made if need be, and hold it against other processes.

    Args:
        path: where it is.
        new_seed: returns the seed of a client that is new.

    Raises:
        InvalidSettings: another process has it, others than its owner may read its key, or there is something else.
        FedpingError: it cannot be written.
    """
    with _told(path):
        if path.exists() and not (path / "identity.key").exists() and any(_others(path)):
            raise InvalidSettings(f"the folder {path} has something else in it; give another with --state")
        make_folder(path)
        path.chmod(0o700)
        held = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidSettings(
                f"another 'fedping join' works with the folder {path}; end it, or give another with --state"
            ) from error
        yield StateFolder(path, _seed(path / "identity.key", new_seed))
    finally:
        os.close(held)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Tell in a sentence that a folder cannot be written; of a full disk every command tells alike."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FedpingError(f"cannot use the folder {path}: {error.strerror}; give another with --state") from error


def _others(path: Path) -> Iterator[str]:
    return (name for name in os.listdir(path) if not name.startswith("."))


def _seed(path: Path, new_seed: Callable[[], int]) -> int:
    """Return the seed in a key's file, which is made if it is not there."""
    if not path.exists():
        seed = new_seed()
        with _told(path.parent):
            made = path.with_name(".identity.key.unfinished")
            made.unlink(missing_ok=True)
            write_secret(made, seed.to_bytes(SEED_BYTES, "big"))
            os.replace(made, path)
            sync_folder(path.parent)
    try:
        text, mode = path.read_text(encoding="ascii").strip(), path.stat().st_mode
        secret = bytes.fromhex(text)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise FedpingError(
            f"the key {path} cannot be read: {why}; take it from a backup, or give another folder with --state"
        ) from error
    if others_may_use(mode):
        raise InvalidSettings(f"others than its owner may use the key {path}; correct that with 'chmod 600 {path}'")
    if len(secret) != SEED_BYTES:
        raise FedpingError(f"the key {path} is damaged; take it from a backup, or give another folder with --state")
    return int.from_bytes(secret, "big")
