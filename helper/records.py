"""A helper's records in SQLite: its pinned lines, its offers, its answers, and the documents in the answers.

An answer and its documents are written in one transaction, which is on disk before a byte of the answer is sent.
Versions and documents are keys of tables, so a version has one answer, and a document is in one answer: if two
processes answer the same request, only one of them can write.

A copy of the records lacks later answers, so that a helper with it would answer their requests again, with other noise.
So the records identify their original file, and a copy must be restored (`fedping.helper.folder`), with the first
version of each line that may be answered.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from fedping.protocol.errors import FedpingError
from fedping.protocol.sharing.exchange import DOCUMENT_BYTES, Refused
from fedping.protocol.sharing.offer import Offer

FORMAT = 1
BUSY_SECONDS = 60.0
"""Maximum seconds to wait while another process writes; a million documents take some seconds."""

LAST_VERSION = 2**63 - 1
"""The largest version, which is the largest number that SQLite can store."""

_SCHEMA = """
CREATE TABLE folder (identity TEXT NOT NULL, file TEXT NOT NULL);
CREATE TABLE lines (
    id INTEGER PRIMARY KEY, study TEXT NOT NULL, line TEXT NOT NULL, rounds INTEGER,
    first INTEGER NOT NULL DEFAULT 0, UNIQUE (study, line)
);
CREATE TABLE offers (
    number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, line INTEGER NOT NULL REFERENCES lines, terms TEXT NOT NULL,
    signature TEXT NOT NULL, retired TEXT
);
CREATE TABLE answers (
    line INTEGER NOT NULL REFERENCES lines, version INTEGER NOT NULL, request TEXT NOT NULL, answer BLOB NOT NULL,
    made TEXT NOT NULL, clients INTEGER NOT NULL, refused INTEGER NOT NULL, PRIMARY KEY (line, version)
);
CREATE TABLE documents (
    line INTEGER NOT NULL REFERENCES lines, document BLOB NOT NULL, PRIMARY KEY (line, document)
) WITHOUT ROWID;
"""
_LOOKED_UP_AT_ONCE = 500


class Unavailable(FedpingError):
    """The records exist but can't be opened now, such as on a full disk or without permission."""


class Pinned(NamedTuple):
    """A line that a helper has joined.

    Attributes:
        number: the line's number in the records.
        study: the name of its study.
        line: its name.
        rounds: maximum number of answered versions under the line's guarantee; None for any number.
        first: first version that may be answered; earlier versions only if their answers are in the records.
    """

    number: int
    study: str
    line: str
    rounds: int | None
    first: int


class Offered(NamedTuple):
    """An offer, and the time when it was retired; None if it was not retired."""

    offer: Offer
    retired: str | None


class Answered(NamedTuple):
    """The digest of a request, and the answer in the form that is sent."""

    request: str
    answer: bytes


class NewAnswer(NamedTuple):
    """An answer to be recorded.

    Attributes:
        version: the version that the answer is for.
        answered: the request's digest, and the answer.
        made: time of the answer, ISO 8601 in UTC.
        refused: the number of clients that the answer leaves out.
    """

    version: int
    answered: Answered
    made: str
    refused: int


class Totals(NamedTuple):
    """The totals of a line's records.

    Attributes:
        answers: number of answers; in a restored folder, all versions before the first allowed version count as
            answered.
        newest: the newest answered version and the answer's time; None if no version was answered.
        documents: number of document ids.
    """

    answers: int
    newest: tuple[int, str] | None
    documents: int


class Records:
    """The opened records of a helper; a context manager that closes them."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> Records:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._database.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Combine all writes of the block in one transaction; other processes wait."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def lines(self) -> list[Pinned]:
        """Return the lines in the order of pinning."""
        return [Pinned(*row) for row in self._all("SELECT id, study, line, rounds, first FROM lines ORDER BY id")]

    def line(self, study: str, line: str) -> Pinned | None:
        """Return a line; None if it is not pinned."""
        rows = self._all("SELECT id, study, line, rounds, first FROM lines WHERE study = ? AND line = ?", study, line)
        return Pinned(*rows[0]) if rows else None

    def pin(self, study: str, line: str, rounds: int | None) -> int:
        """Pin a line; return its number."""
        rows = self._database.execute(
            "INSERT INTO lines (study, line, rounds) VALUES (?, ?, ?) RETURNING id", (study, line, rounds)
        ).fetchall()
        number: int = rows[0][0]
        return number

    def begin_at(self, line: int, first: int) -> None:
        """Refuse versions before ``first`` from now on, unless they are in the records."""
        self._database.execute("UPDATE lines SET first = ? WHERE id = ?", (first, line))

    def offers(self, line: int) -> list[Offered]:
        """Return a line's offers, the newest last."""
        rows = self._all("SELECT terms, signature, retired FROM offers WHERE line = ? ORDER BY number", line)
        return [Offered(Offer(terms=terms, signature=signature), retired) for terms, signature, retired in rows]

    def add_offer(self, line: int, offer: Offer) -> None:
        """Record a new offer of a line."""
        self._database.execute(
            "INSERT INTO offers (id, line, terms, signature) VALUES (?, ?, ?, ?)",
            (offer.id, line, offer.terms, offer.signature),
        )

    def retire(self, offer: bytes, when: str) -> None:
        """Record that an offer is retired."""
        self._database.execute("UPDATE offers SET retired = ? WHERE id = ?", (when, offer))

    def answered(self, line: int, version: int) -> Answered | None:
        """Return the recorded answer for a version; None if there is none."""
        rows = self._all("SELECT request, answer FROM answers WHERE line = ? AND version = ?", line, version)
        return Answered(*rows[0]) if rows else None

    def answer_to(self, request: str) -> bytes | None:
        """Return the answer to the request with this digest; None if there is none."""
        rows = self._all("SELECT answer FROM answers WHERE request = ?", request)
        return rows[0][0] if rows else None

    def totals(self, line: int) -> Totals:
        """Return the totals of a line."""
        answers = self.answers(line)
        newest = self._all("SELECT version, made FROM answers WHERE line = ? ORDER BY version DESC LIMIT 1", line)
        [[documents]] = self._all("SELECT count(*) FROM documents WHERE line = ?", line)
        return Totals(answers, newest[0] if newest else None, documents)

    def answers(self, line: int) -> int:
        """Return the number of a line's versions that were answered, or may have been before a backup was restored."""
        [[answers]] = self._all(
            "SELECT first + (SELECT count(*) FROM answers WHERE line = lines.id AND version >= first) "
            "FROM lines WHERE id = ?",
            line,
        )
        number: int = answers
        return number

    def used(self, line: int, documents: Sequence[bytes]) -> frozenset[bytes]:
        """Return those of the given documents that are in an answer.

        Args:
            line: the line's number.
            documents: for each arm, the document ids of 16 bytes, one after the other.
        """
        if not self._all("SELECT 1 FROM documents WHERE line = ? LIMIT 1", line):
            return frozenset()
        used = set[bytes]()
        ids = (each for arm in documents for each in _ids(arm))
        while some := list(islice(ids, _LOOKED_UP_AT_ONCE)):
            marks = ",".join("?" * len(some))
            query = f"SELECT document FROM documents WHERE line = ? AND document IN ({marks})"
            used.update(bytes(each) for (each,) in self._all(query, line, *some))
        return frozenset(used)

    def keep(self, line: int, new: NewAnswer, documents: Sequence[bytes], *, but: Set[bytes] = frozenset()) -> None:
        """Record an answer and its documents; call this within :meth:`writing`.

        Args:
            line: the line's number.
            new: the answer.
            documents: for each arm, the document ids of 16 bytes, one after the other.
            but: those of the documents that are in an earlier answer.

        Raises:
            Refused: a document is in an answer that another process has made in the meantime.
        """
        clients = sum(len(arm) // DOCUMENT_BYTES for arm in documents)
        try:
            self._database.execute(
                "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)",
                (line, new.version, *new.answered, new.made, clients, new.refused),
            )
            self._database.executemany(
                "INSERT INTO documents VALUES (?, ?)",
                ((line, each) for arm in documents for each in _ids(arm) if each not in but),
            )
        except sqlite3.IntegrityError as error:
            raise Refused(
                "storage", "another answer has a document of this request in the meantime: ask again"
            ) from error

    def copy_to(self, path: Path) -> None:
        """Copy the records to a new file; the copy must be restored before it can be used."""
        copy = sqlite3.connect(path, isolation_level=None)
        try:
            self._database.backup(copy)
            copy.execute("UPDATE folder SET file = ''")
            copy.execute("PRAGMA journal_mode = DELETE")
        finally:
            copy.close()
        path.chmod(0o600)

    def _all(self, query: str, *values: object) -> list[Any]:
        return self._database.execute(query, values).fetchall()


def make_records(path: Path, identity: str) -> None:
    """Create empty records of a helper in a new file.

    Raises:
        OSError: the file can't be written.
    """
    try:
        database = _connected(path)
        try:
            database.executescript(_SCHEMA)
            database.execute("INSERT INTO folder VALUES (?, ?)", (identity, _file(path)))
            database.execute(f"PRAGMA user_version = {FORMAT}")
        finally:
            database.close()
    except sqlite3.Error as error:
        raise OSError(0, f"{path.name}: {error}") from error
    path.chmod(0o600)


def open_records(path: Path, identity: str, *, a_copy: bool = False) -> Records:
    """Open the records of a helper.

    Args:
        path: the file of the records.
        identity: the helper's identity.
        a_copy: whether a copy, such as a backup, may be opened.

    Raises:
        Unavailable: the records can't be opened now.
        FedpingError: the records are missing or damaged, belong to another helper or a newer fedping, or are a copy
            that may not be opened.
    """
    if not path.exists():
        raise FedpingError(f"the records {path} are missing; restore the folder from a backup")
    try:
        database = _connected(path)
        try:
            [(format_,)] = database.execute("PRAGMA user_version").fetchall()
            if format_ != FORMAT:
                raise FedpingError(
                    f"the records {path} have format {format_}, but this fedping reads {FORMAT}. Upgrade fedping"
                )
            [(whose, file)] = database.execute("SELECT identity, file FROM folder").fetchall()
            if whose != identity:
                raise FedpingError(
                    f"the records {path} are not of the helper whose key is next to them; restore a backup"
                )
            if file != _file(path) and not a_copy:
                raise FedpingError(
                    f"the records {path} are a copy, which lacks later answers and might answer their requests again; "
                    "make it a helper's folder with 'fedping helper restore'"
                )
        except BaseException:
            database.close()
            raise
    except sqlite3.OperationalError as error:
        raise Unavailable(
            f"the records {path} cannot be opened: {error}; free space on that disk, or run the command as the owner "
            "of the folder"
        ) from error
    except (sqlite3.Error, ValueError) as error:
        raise FedpingError(f"the records {path} cannot be read: {error}; restore the folder from a backup") from error
    return Records(database)


def adopt(path: Path) -> None:
    """Mark a copy as the original records of the folder that it is in."""
    database = _connected(path)
    try:
        database.execute("UPDATE folder SET file = ?", (_file(path),))
    finally:
        database.close()
    path.chmod(0o600)


def _connected(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")  # a commit is on disk before it returns
    database.execute("PRAGMA foreign_keys = ON")
    return database


def _file(path: Path) -> str:
    """Return the device and inode of a file, which distinguish the file from its copies."""
    stat = path.stat()
    return f"{stat.st_dev}:{stat.st_ino}"


def _ids(documents: bytes) -> Iterable[bytes]:
    return (documents[at : at + DOCUMENT_BYTES] for at in range(0, len(documents), DOCUMENT_BYTES))
