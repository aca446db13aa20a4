"""The folder of an institution: its identity, its progress, and a ping until it is answered.

- identity.key: seed of its id and of its draws, created once; readable by its owner only
- joined.json: the study and model of the folder, and the terms that were agreed to
- progress.json: the newest version with an accepted ping; contributions to a private line; the held-out share
- table.json: the table's file, and keyed marks of some of its rows (`same_table.py`)
- waiting.json: a ping without an answer
- sent.ndjson: log of what has left this machine: a line for each ping before it is posted, and one when it is accepted
  or rejected, without its update
- clients.sqlite: state that the training keeps with the client, if any
- held-out/: such a folder of the client that evaluates on held-out rows, if any

A ping is on disk before it is posted, and posted with the same bytes until it is answered, so that ingest counts it
once, however often this process is killed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import msgspec
import numpy as np
from msgspec import Raw, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.client_sim.client import Progress
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.formats import with_format, without_format
from fedping.protocol.links import Upload
from fedping.protocol.local_files import make_folder, others_may_use, replace_private, sync_folder, write_secret
from fedping.protocol.ping import NO_VERSION
from fedping.protocol.privacy import Privacy
from fedping.protocol.row_privacy import composed
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm
from fedping.protocol.training import Training

SEED_BYTES = 16

UNANSWERED = "unanswered"
"""The outcome of a ping that is about to be posted for the first time."""

_T = TypeVar("_T", bound=Struct)


class Asked(Struct, frozen=True, kw_only=True):
    """Terms of a study for an institution, except those that may change later: shares, and a helper's offers.

    Attributes:
        arm: the institution's arm, as if the arm had all clients.
        spec, training, upload, privacy: settings of its line.
    """

    arm: Arm
    spec: ModelSpec
    training: Training
    upload: Upload
    privacy: Privacy | None


class Consent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An institution's consent.

    Attributes:
        protected: whether each row, or person, is protected; else the party that chooses the model may compute rows.
        numbers: m of an update.
        training: digest of the training.
        versions: T, maximum number of answered versions; None without a limit.
        epsilon: ε of the table.
        delta: δ of the table.
        noise: z of each sum of a training; in sums of institutions, z of the whole sum.
        noise_evaluation: z of each sum on held-out rows; 0 without held-out rows.
        sums: number of sums of a training.
        person: column of the person that a row belongs to; None if rows are protected.
        begun: number of earlier pings, which don't count as versions.
        since: newest version that was answered before the rows were protected; -1 for none.
        share: in sums of institutions, z of this institution's noise; else 0.
        institutions: minimum number of institutions in a sum; 0 if each institution protects its rows itself.
        colluding: number of institutions that may collude with the operator, in this institution's judgement.
    """

    protected: bool
    numbers: int
    training: str
    versions: int | None = None
    epsilon: float = 0.0
    delta: float = 0.0
    noise: float = 0.0
    noise_evaluation: float = 0.0
    sums: int = 0
    person: str | None = None
    begun: int = 0
    since: int = NO_VERSION
    share: float = 0.0
    institutions: int = 0
    colluding: int = 0

    @property
    def cost(self) -> float:
        """Privacy cost of a training: μ² of Gaussian differential privacy."""
        return self.sums / self.noise**2

    @property
    def cost_of_evaluation(self) -> float:
        """Privacy cost of an evaluation on held-out rows: μ² of Gaussian differential privacy."""
        return 1 / self.noise_evaluation**2

    @property
    def mu(self) -> float:
        """Gaussian differential privacy μ of a row, or person, over all versions together."""
        evaluation = self.cost_of_evaluation if self.noise_evaluation else 0.0
        each = max(self.cost, evaluation) if self.person is None else self.cost + evaluation
        return composed([each**0.5] * (self.versions or 0))

    @property
    def mu_alone(self) -> float:
        """The μ of :attr:`mu` if all other institutions collude, so that only this institution's noise counts."""
        return self.mu * self.noise / self.share if self.share else self.mu


class Joined(Struct, frozen=True, kw_only=True):
    """The study, line and model of a folder, and the terms that were agreed to.

    In folders of older programs ``asked`` and ``consent`` are None; ``consent`` also after a run that only shows a
    ping.
    """

    study: str
    line: str
    spec_digest: str
    asked: Asked | None = None
    consent: Consent | None = None

    @property
    def place(self) -> tuple[str, str]:
        """The study and its line."""
        return self.study, self.line


class Waiting(Struct, frozen=True, kw_only=True):
    """A ping that waits to be posted: its document id, its JSON, and its earliest time (Unix seconds).

    ``weights`` is the digest of the weights that it was trained on (:func:`served_digest`); empty in files of earlier
    programs.
    """

    version: int
    document_id: UUID
    body: Raw
    not_before: float = 0.0
    weights: str = ""


class KnownTable(Struct, frozen=True, kw_only=True):
    """The table of the last run that could send: its file, and keyed marks of some of its rows, 8 bytes each."""

    data: str
    marks: bytes


class Sent(Struct, frozen=True, kw_only=True):
    """A line of the log about a posted or answered ping; pings of a private line have neither loss nor examples.

    Attributes:
        time: time of the answer, or of the first post.
        version: version that the ping was trained on.
        document_id: id of the ping.
        examples: number of rows.
        loss: loss of the version on these rows.
        bytes: length of the ping.
        sha256: digest of these bytes.
        outcome: "accepted", "rejected", or "unanswered" before the first post; lines without it, of earlier versions of
            fedping, are of accepted pings.
        reason: the server's reason for a rejection.
        numbers: number of weights of the update; 0 without an update, or if it is encoded.
        norm: norm of the update; None without an update, or if it is encoded.
        encoding: encoding of the update; None without an update, or if it is numbers.
        weights: digest of the weights that the ping was trained on; empty in lines of earlier programs.
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
    weights: str = ""


def weights_digest(weights: NDArray[np.float64]) -> str:
    """Return the SHA-256 (hexadecimal) of weights as little-endian float64."""
    return hashlib.sha256(np.ascontiguousarray(weights, "<f8").tobytes()).hexdigest()


def served_digest(spec: ModelSpec, weights: NDArray[np.float64]) -> str:
    """Return the SHA-256 (hexadecimal) of weights and their spec's digest, for comparison between institutions.

    The spec counts, because the same weights with another model would also single out an institution.
    """
    return hashlib.sha256(f"{spec.digest}|{weights_digest(weights)}".encode()).hexdigest()


@dataclass(frozen=True)
class StateFolder:
    """An institution's folder, open and locked: see :func:`open_folder`."""

    path: Path
    seed: int

    @property
    def secret(self) -> bytes:
        """Secret of 32 bytes, independent of the draws of the training."""
        return hmac.digest(self.seed.to_bytes(SEED_BYTES, "big"), b"secret of a client of private lines", "sha256")

    @property
    def states(self) -> Path:
        """File of the training's state."""
        return self.path / "clients.sqlite"

    @property
    def progress(self) -> Progress:
        """The institution's progress."""
        return self._read("progress.json", Progress) or Progress()

    @property
    def joined(self) -> Joined | None:
        """The study that the folder belongs to; None for a new folder."""
        return self._read("joined.json", Joined)

    @property
    def consent(self) -> Consent | None:
        """The person's consent; None before any."""
        joined = self.joined
        return None if joined is None else joined.consent

    @property
    def waiting(self) -> Waiting | None:
        """The pending ping, if any. After a crash the file may still have an accepted one, which is ignored."""
        ping = self._read("waiting.json", Waiting)
        return ping if ping is not None and ping.version > self.progress.version else None

    @property
    def table(self) -> KnownTable | None:
        """The table of the last run that could send; None before, and in folders of older programs."""
        return self._read("table.json", KnownTable)

    def keep_table(self, table: KnownTable) -> None:
        """Write the table of a run that can send."""
        if self.table != table:
            self._write("table.json", table)

    def keep(self, ping: Waiting) -> None:
        """Write a ping, which can then be posted."""
        self._write("waiting.json", ping)

    def advance(self, progress: Progress) -> None:
        """Write the progress."""
        self._write("progress.json", progress)

    @property
    def has_trained(self) -> bool:
        """Whether the folder has an accepted or pending ping of its rows, or a state of the training."""
        progress = self.progress
        return bool(progress.sent) or progress.moved >= 0 or self.waiting is not None

    def posted_since(self, time: str) -> int:
        """Return the number of pings posted since a time, ISO 8601 in UTC, regardless of the answers.

        Pings of different weights under one version share a document id, but each of them counts.
        """
        return len({sent.sha256 for sent in takewhile(lambda sent: sent.time >= time, self.log())})

    def log(self) -> Iterator[Sent]:
        """Yield the lines of the log, the newest first."""
        path = self.path / "sent.ndjson"
        lines = path.read_bytes().splitlines() if path.exists() else []
        for line in reversed(lines):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # from a process killed while writing
                yield msgspec.json.decode(line, type=Sent)

    def begin(self, sent: Sent) -> None:
        """Log that the pending ping is about to be posted, unless the last line is about it."""
        self._log(sent)

    def settle(self, progress: Progress, sent: Sent) -> None:
        """Log the answer to the pending ping, write the progress, and remove the ping."""
        self._log(sent)
        self.advance(progress)
        self.drop()

    def drop(self) -> None:
        """Remove the pending ping."""
        (self.path / "waiting.json").unlink(missing_ok=True)
        sync_folder(self.path)

    def belongs_to(self, joined: Joined) -> Joined:
        """Assign the folder to a study, and return its earlier terms, or ``joined`` for a new folder.

        Raises:
            InvalidSettings: the folder belongs to another study, line or model.
        """
        before = self._read("joined.json", Joined)
        if before is None:
            self.agree(joined)
            return joined
        if before.place != joined.place or before.spec_digest != joined.spec_digest:
            owner = (
                f"study '{before.study}', line '{before.line}'"
                if before.place != joined.place
                else f"another model spec of study '{before.study}'"
            )
            raise InvalidSettings(f"the folder {self.path} belongs to {owner}; give another with --state")
        if before.asked is None:
            self.agree(joined)
            return joined
        return before

    def agree(self, joined: Joined) -> None:
        """Write the terms that are agreed to."""
        self._write("joined.json", joined)

    def keep_consent(self, consent: Consent) -> None:
        """Write the consent, in a folder that belongs to a study."""
        before = self._read("joined.json", Joined)
        assert before is not None, "the folder belongs to a study"
        self._write("joined.json", replace(before, consent=consent))

    def _log(self, sent: Sent) -> None:
        path = self.path / "sent.ndjson"
        line = msgspec.json.encode(sent) + b"\n"
        log = path.read_bytes() if path.exists() else b""
        if log and not log.endswith(b"\n"):  # from a process killed while writing
            log = log[: log.rfind(b"\n") + 1]
            os.truncate(path, len(log))
        last_line = log[log[:-1].rfind(b"\n") + 1 :]
        if _is_logged(last_line, sent):  # logged by a process that was killed before it removed the ping
            return
        with _usable(self.path):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(line)
                file.flush()
                os.fsync(handle)
            if not log:
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
        """Write a document atomically: after a kill or a power cut, the file has its old or its new content."""
        with _usable(self.path):
            replace_private(self.path / name, with_format(msgspec.json.encode(document)))


def _is_logged(line: bytes, sent: Sent) -> bool:
    """Return whether a line of the log is about the same ping, with the same answer, if ``sent`` has one."""
    try:
        other = msgspec.json.decode(line, type=Sent)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    same = (other.document_id, other.sha256) == (sent.document_id, sent.sha256)
    return same and sent.outcome in (UNANSWERED, other.outcome)


def any_seed() -> int:
    """Return a seed for a new client, from the operating system."""
    return secrets.randbits(8 * SEED_BYTES)


@contextmanager
def open_folder(path: Path, new_seed: Callable[[], int] = any_seed) -> Iterator[StateFolder]:
    """Open an institution's folder, created if necessary, and lock it against other processes.

    Args:
        path: the folder.
        new_seed: returns the seed of a new client.

    Raises:
        InvalidSettings: another process has locked the folder, other users may read its key, or it has other files.
        FedpingError: the folder can't be written.
    """
    with _usable(path):
        if path.exists() and not (path / "identity.key").exists() and any(_others(path)):
            raise InvalidSettings(f"the folder {path} is not a folder of 'fedping join'. Give another with --state")
        make_folder(path)
        path.chmod(0o700)
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidSettings(
                f"another 'fedping join' works with the folder {path}; end it, or give another with --state"
            ) from error
        yield StateFolder(path, _seed(path / "identity.key", new_seed))
    finally:
        os.close(lock)


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Raise :class:`FedpingError` if a folder can't be written; every command reports a full disk itself."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FedpingError(f"cannot use the folder {path}: {error.strerror}; give another with --state") from error


def _others(path: Path) -> Iterator[str]:
    return (name for name in os.listdir(path) if not name.startswith("."))


def _seed(path: Path, new_seed: Callable[[], int]) -> int:
    """Return the seed in the key file at ``path``, which is created if it doesn't exist."""
    if not path.exists():
        seed = new_seed()
        with _usable(path.parent):
            unfinished = path.with_name(".identity.key.unfinished")
            unfinished.unlink(missing_ok=True)
            write_secret(unfinished, seed.to_bytes(SEED_BYTES, "big"))
            os.replace(unfinished, path)
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
