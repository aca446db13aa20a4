"""The ledger of a table: all that was released about its rows, over all studies, and the remaining budget.

The ledger is a file of JSON lines next to the table, with a copy. Each line has the SHA-256 of the line before. A
release is written as a line before its noise is drawn, and this line determines the noise: the same version, weights
and terms give the same numbers each time. Other weights for an answered version are rejected, and the rejection is a
line, too. The longer one of the two copies counts. A ledger that was restored from a backup charges each study for the
versions that may have been answered since the backup.

The first line has a secret that determines the noise. So a ledger is as confidential as its table: only its owner may
read it.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedping.protocol.discrete_gaussian import Bits
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.local_files import others_may_use, replace_private, sync_folder
from fedping.protocol.notation import format_count, utc_now
from fedping.protocol.ping import NO_VERSION
from fedping.protocol.row_privacy import epsilon_of, mu_of

FEWEST_CHANGED = 10
"""Minimum number of changed rows of a table. If one row changes, the difference of two releases is about that row."""

MOST_BYTES = 2**30
"""Maximum size of a ledger."""

_SECRET_BYTES = 32
_MARK_BYTES = 8

Role = Literal["training", "evaluation"]
What = Literal["opened", "budget", "table", "release", "refused", "restored", "lost", "stated"]


class BudgetEnded(FedpingError):
    """A table's budget is used up."""


class OtherWeights(FedpingError):
    """A version has other weights than when it was answered. Exit code 6."""

    exit_code = 6


class AlreadyAnswered(FedpingError):
    """A version was answered from another table or under other terms, and is not answered twice."""


class LedgerTrouble(FedpingError):
    """A ledger is lost, damaged or forked; nothing about its table is released until a person states what was spent."""


class Release(Struct, frozen=True, kw_only=True):
    """A release of sums over a table.

    Attributes:
        study, line: the receivers.
        role: a training, or an evaluation on held-out rows.
        version: number of the model's version.
        weights: SHA-256 of its weights.
        terms: digest of everything else that determines the released numbers, such as the training, the noise and the
            table.
        cost: μ² of all sums of the release.
        division: digest of the division of the table's rows between the roles; empty if a row may be in both.
    """

    study: str
    line: str
    role: Role
    version: int
    weights: str
    terms: str
    cost: float
    division: str = ""

    @property
    def asker(self) -> tuple[str, str, str]:
        """The study, line and role."""
        return self.study, self.line, self.role


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a ledger.

    Attributes:
        number: number of the line, from 0.
        before: SHA-256 of the line before; empty for the first.
        time: time at which the line was written.
        what: ``opened`` with a secret and a budget, ``budget`` for another budget, ``table`` with a mark of each row,
            ``release`` before noise is drawn, ``refused`` for other weights, ``restored`` when a backup was restored,
            ``lost`` for versions that may have been answered after the backup, ``stated`` for spending that a person
            states.
        release: the release that was made or rejected.
        cost: μ² of ``lost`` and ``stated``.
        versions: number of versions that ``lost`` covers.
        epsilon, delta: the budget.
        units: number of rows, or persons.
        marks: a mark of each row, in base64.
        secret: secret of the noise, in hexadecimal.
    """

    number: int
    before: str
    time: str
    what: What
    release: Release | None = None
    cost: float = 0.0
    versions: int = 0
    epsilon: float = 0.0
    delta: float = 0.0
    units: int = 0
    marks: str = ""
    secret: str = ""


@dataclass(frozen=True)
class Spent:
    """The spending on a study: the number of versions with pings, and μ²."""

    study: str
    versions: int
    cost: float


@dataclass(frozen=True)
class Book:
    """The entries of a ledger with an unbroken chain.

    Attributes:
        entries: all entries.
        last: SHA-256 of the last line.
    """

    entries: tuple[Entry, ...] = ()
    last: str = ""

    @cached_property
    def budget(self) -> tuple[float, float]:
        """ε and δ of the table."""
        found = [each for each in self.entries if each.what in ("opened", "budget")]
        return found[-1].epsilon, found[-1].delta

    @cached_property
    def allowed(self) -> float:
        """The budget as μ² of Gaussian differential privacy."""
        return mu_of(*self.budget) ** 2

    @cached_property
    def spent(self) -> float:
        """Privacy cost, μ², of everything that was, or may have been, released about any row."""
        return _spent(self.entries)

    @property
    def left(self) -> float:
        """The remaining budget, as μ²."""
        return max(0.0, self.allowed - self.spent)

    @property
    def spent_epsilon(self) -> float:
        """ε of all releases, at the δ of the budget."""
        return epsilon_of(self.spent**0.5, self.budget[1])

    def with_budget(self, epsilon: float, delta: float) -> Book:
        """Return the same entries with another budget."""
        if self.budget == (epsilon, delta):
            return self
        entry = Entry(number=len(self.entries), before="", time="", what="budget", epsilon=epsilon, delta=delta)
        return Book((*self.entries, entry), self.last)

    def versions_left(self, cost: float) -> int:
        """Return the number of versions of this cost that the remaining budget allows."""
        return int(self.left * (1 + _ROUNDING) / cost) if cost > 0 else 0

    def by_study(self) -> tuple[Spent, ...]:
        """Return the spending by study, in the order of their first release; "" is for a person's statement."""
        entries: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.what in ("release", "lost", "stated"):
                entries.setdefault(entry.release.study if entry.release is not None else "", []).append(entry)
        return tuple(
            Spent(study, sum(1 if each.what == "release" else each.versions for each in own), _spent(own))
            for study, own in entries.items()
        )

    def released(self, release: Release) -> Release | None:
        """Return the release that answered a version, if any."""
        same = (
            entry.release
            for entry in self.entries
            if entry.what == "release"
            and entry.release is not None
            and (entry.release.asker, entry.release.version) == (release.asker, release.version)
        )
        return next(same, None)

    def answered(self, asker: tuple[str, str, str]) -> int:
        """Return the newest answered version of a study, including possibly lost answers; -1 for none."""
        versions = (
            entry.release.version
            for entry in self.entries
            if entry.what in ("release", "lost") and entry.release is not None and entry.release.asker == asker
        )
        return max(versions, default=NO_VERSION)

    def may_lack(self, asker: tuple[str, str, str]) -> bool:
        """Return whether a backup was restored after a study's last answer, and the study isn't charged for it yet."""
        for entry in reversed(self.entries):
            if entry.what == "restored":
                return True
            if entry.release is not None and entry.release.asker == asker and entry.what in ("release", "lost"):
                return False
        return False

    @property
    def marks(self) -> NDArray[np.uint64] | None:
        """The marks of the rows of the last release; None before the first."""
        found = [entry.marks for entry in self.entries if entry.what == "table"]
        return np.frombuffer(base64.b64decode(found[-1]), "<u8") if found else None

    @property
    def secret(self) -> bytes:
        """The secret of the noise."""
        return bytes.fromhex(self.entries[0].secret)

    def bits(self, release: Release) -> Bits:
        """Return the reproducible random bytes of a release's noise: SHAKE-256 of a key and a counter."""
        content = msgspec.json.encode(release)
        key = hmac.digest(self.secret, b"noise\0" + content, "sha256")
        counter = iter(range(2**63))
        return lambda size: hashlib.shake_256(key + next(counter).to_bytes(8, "big")).digest(size)

    def document_id(self, release: Release) -> UUID:
        """Return the id of a release's ping, the same each time, so that a repeated ping is counted once."""
        made = hmac.digest(self.secret, b"document\0" + msgspec.json.encode(release), "sha256")
        return UUID(bytes=made[:16], version=4)


_ROUNDING = 1e-9
"""Relative error of sums of costs by rounding."""


def _spent(entries: Iterable[Entry]) -> float:
    """Return the maximum μ² that entries reveal about a row, which has one of the roles in each division."""
    costs: dict[tuple[str, str], float] = {}
    for entry in entries:
        if entry.what not in ("release", "lost", "stated"):
            continue
        division = entry.release.division if entry.release is not None else ""
        role = entry.release.role if entry.release is not None and division else ""
        cost = entry.release.cost if entry.what == "release" and entry.release is not None else entry.cost
        costs[division, role] = costs.get((division, role), 0.0) + cost
    largest: dict[str, float] = {}
    for (division, _), cost in costs.items():
        largest[division] = max(largest.get(division, 0.0), cost)
    return sum(largest.values())


@dataclass(frozen=True)
class Ledger:
    """A ledger on disk.

    Attributes:
        path: path of the file; its copy in the same folder has the suffix ``.copy``.
    """

    path: Path

    @property
    def copy(self) -> Path:
        """Path of the ledger's copy."""
        return self.path.with_name(f"{self.path.name}.copy")

    @property
    def exists(self) -> bool:
        """Whether one of the two copies exists."""
        return self.path.exists() or self.copy.exists()

    def read(self) -> Book:
        """Return the ledger's entries.

        Raises:
            LedgerTrouble: both copies are lost or damaged, or they have different histories.
        """
        with self._locked():
            return self._read()[0]

    def stale(self) -> tuple[Path, ...]:
        """Return the copies that are damaged, lost or lack entries; writing the next entry repairs them."""
        with self._locked():
            return tuple(self._read()[2])

    def open(self, epsilon: float, delta: float, units: int) -> Book:
        """Return the ledger's entries, after creating the ledger, or writing the budget if it is another one."""
        with self._locked():
            if not any(map(_content, (self.path, self.copy))):  # no ledger, or one with an incomplete first line
                secret = secrets.token_bytes(_SECRET_BYTES).hex()
                return self._append(Book(), what="opened", epsilon=epsilon, delta=delta, units=units, secret=secret)
            book = self._completed()
            if book.budget == (epsilon, delta):
                return book
            return self._append(book, what="budget", epsilon=epsilon, delta=delta, units=units)

    def take_table(self, rows: Sequence[bytes], *, write: bool = True) -> str:
        """Write the marks of a table's rows, if they have changed; return a digest of the marks.

        Args:
            rows: the content of each row, in any order.
            write: whether a release about these rows follows; else nothing is written.

        Raises:
            InvalidSettings: fewer than :data:`FEWEST_CHANGED` rows have changed since the last release about the table.
        """
        with self._locked():
            book = self._completed()
            marks = np.sort(np.array([_mark(book.secret, row) for row in rows], "<u8"))
            changed = _changed(book.marks, marks)
            if 0 < changed < FEWEST_CHANGED:
                raise InvalidSettings(
                    f"{format_count(changed, 'row')} of the table changed since its last ping, and the difference of "
                    f"the pings before and after would reveal {'this row' if changed == 1 else 'these rows'}. Wait "
                    f"until {FEWEST_CHANGED} rows have changed, or join with the unchanged table"
                )
            if write and changed:
                self._append(book, what="table", units=len(rows), marks=base64.b64encode(marks.tobytes()).decode())
        return hashlib.sha256(marks.tobytes()).hexdigest()

    def charge(self, release: Release, known: int = NO_VERSION, since: int = NO_VERSION, most: int = 2**31) -> Book:
        """Write a release before its noise is drawn; an existing one is not charged again.

        Args:
            release: the release.
            known: the newest answered version, according to the institution's folder.
            since: the newest version that was answered before the rows were protected.
            most: maximum number of versions to charge for entries missing from a restored ledger.

        Raises:
            OtherWeights: the version was answered with other weights.
            AlreadyAnswered: the version was answered from another table, or under other terms.
            BudgetEnded: the table's budget does not suffice.
        """
        with self._locked():
            book = self._completed()
            before = book.released(release)
            if before is not None:
                if before.weights != release.weights:
                    self._refuse(book, release)
                if before != release:
                    raise AlreadyAnswered(
                        f"version {release.version} of study '{release.study}' was answered already, from another "
                        "table or by other terms; a version is answered only once"
                    )
                return book
            answered = max(book.answered(release.asker), since)
            newest = max(known, release.version - 1 if book.may_lack(release.asker) else NO_VERSION)
            if (lost := min(newest - answered, most)) > 0:
                book = self._charge_lost(book, msgspec.structs.replace(release, version=newest), lost)
            entry = Entry(number=0, before="", time="", what="release", release=release)
            if _spent([*book.entries, entry]) > book.allowed * (1 + _ROUNDING):
                raise BudgetEnded(ended(book))
            return self._append(book, what="release", release=release)

    def _charge_lost(self, book: Book, newest: Release, versions: int) -> Book:
        asked = msgspec.structs.replace(newest, weights="", terms="", cost=0.0)
        return self._append(book, what="lost", release=asked, cost=versions * newest.cost, versions=versions)

    def _refuse(self, book: Book, release: Release) -> None:
        if not any(each.what == "refused" and each.release == release for each in book.entries[-1000:]):
            self._append(book, what="refused", release=release)
        raise OtherWeights(
            f"version {release.version} of study '{release.study}' has other weights than when it was answered, and "
            "would get a second answer by them. Nothing was sent, and the ledger records it. Ask the study's operator "
            "why"
        )

    def restored(self) -> Book:
        """Record that a backup was restored; each study is charged for versions that may have been answered since."""
        with self._locked():
            return self._append(self._completed(), what="restored")

    def state(self, epsilon: float, delta: float, spent: float) -> Book:
        """Begin a new ledger with the spending that a person states, and keep the remains of the lost one.

        Args:
            epsilon: ε of the budget.
            delta: δ of the budget.
            spent: ε that was spent.
        """
        with self._locked():
            for path in (self.path, self.copy):
                if path.exists():
                    os.replace(path, _free(path))
            secret = secrets.token_bytes(_SECRET_BYTES).hex()
            book = self._append(Book(), what="opened", epsilon=epsilon, delta=delta, secret=secret)
            cost = mu_of(spent, delta) ** 2 if spent > 0 else 0.0
            return self._append(self._append(book, what="stated", cost=cost), what="restored")

    def _append(self, book: Book, **values: Any) -> Book:
        entry = Entry(number=len(book.entries), before=book.last, time=utc_now(), **values)
        line = msgspec.json.encode(entry) + b"\n"
        for path in (self.path, self.copy):
            _write(path, line, append=True)
        return Book((*book.entries, entry), hashlib.sha256(line).hexdigest())

    def _completed(self) -> Book:
        """Return the entries, after extending the shorter copy to the length of the longer one."""
        book, content, stale = self._read()
        for path in stale:
            _write(path, content, append=False)
        return book

    def _read(self) -> tuple[Book, bytes, list[Path]]:
        """Return the entries of the longer copy, its bytes, and the copies that lack some of them."""
        if not self.exists:
            raise LedgerTrouble(
                f"the ledger {self.path} does not exist. Check the table's path, or give its ledger with --ledger "
                "('fedping join' creates it)"
            )
        found = {path: _content(path) for path in (self.path, self.copy)}
        books = {path: _parsed(content) for path, content in found.items()}
        whole = [path for path in found if books[path][1] is None]
        if not whole:
            problem = books[self.path][1] or ""
            raise LedgerTrouble(f"both copies of the ledger {self.path} are damaged ({problem}); {_REMEDY}")
        best = max(whole, key=lambda path: len(found[path]))
        book, content = books[best][0], found[best]
        if not book.entries:
            raise LedgerTrouble(f"the ledger {self.path} is empty; {_REMEDY}")
        for path, other in found.items():
            if path == best or content.startswith(other):
                continue
            # a damaged copy may have had more lines; an intact copy that differs has another history
            if books[path][1] is None or other.count(b"\n") > content.count(b"\n"):
                raise LedgerTrouble(
                    f"the ledger {self.path} and its copy {self.copy} have different histories; {_REMEDY}"
                )
        return book, content, [path for path, other in found.items() if other != content]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the ledger against other processes, which may take part in other studies with the same table."""
        lock = self.path.with_name(f".{self.path.name}.lock")
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FedpingError(
                f"cannot write the ledger {self.path}: {error.strerror}; give another place with --ledger"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


_REMEDY = (
    "restore a backup and run 'fedping join ledger TABLE --restored', or, without a backup, state an upper bound of "
    "the spent epsilon with 'fedping join ledger TABLE --spent EPSILON'"
)


def ended(book: Book) -> str:
    """Return sentences on the consequences of a used-up budget."""
    epsilon, delta = book.budget
    return (
        f"the table's budget is spent (epsilon {book.spent_epsilon:.3g} of {epsilon:g}, delta {delta:.2g}, over all "
        "studies), and it sends nothing more. Everything sent stays protected. Join with a table of other rows, or "
        "choose a larger --epsilon, which weakens the protection of every row"
    )


def ledger_of(data: Path) -> Ledger:
    """Return the ledger of a table: a file next to it."""
    return Ledger(data.parent / f"{data.name}.ledger")


def _mark(secret: bytes, row: bytes) -> int:
    return int.from_bytes(hmac.digest(secret, b"row\0" + row, "sha256")[:_MARK_BYTES], "big")


def _changed(before: NDArray[np.uint64] | None, now: NDArray[np.uint64]) -> int:
    """Return the number of added or of removed rows, whichever is larger; before the first release, all rows."""
    if before is None:
        return len(now) + FEWEST_CHANGED
    old, new = Counter(before.tolist()), Counter(now.tolist())
    return max((old - new).total(), (new - old).total())


def _content(path: Path) -> bytes:
    """Return the complete lines of a copy; a process that was killed while writing may have left an incomplete one."""
    try:
        if others_may_use(path.stat().st_mode):
            raise InvalidSettings(
                f"the ledger {path} is open to users other than its owner, and its secret determines the noise. Run "
                f"'chmod 600 {path}'"
            )
        if path.stat().st_size > MOST_BYTES:
            raise LedgerTrouble(f"the ledger {path} is longer than {MOST_BYTES:,} bytes, the maximum; {_REMEDY}")
        content = path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise FedpingError(f"cannot read the ledger {path}: {error.strerror}") from error
    return content[: content.rfind(b"\n") + 1]


def _parsed(content: bytes) -> tuple[Book, str | None]:
    """Return the entries of a copy, and its defect, if there is one."""
    entries: list[Entry] = []
    last = ""
    for number, line in enumerate(content.splitlines(keepends=True)):
        try:
            entry = msgspec.json.decode(line, type=Entry)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return Book(), f"line {number + 1} is not an entry"
        if (entry.number, entry.before) != (number, last) or (number == 0) != (entry.what == "opened"):
            return Book(), f"line {number + 1} does not follow the line before"
        entries.append(entry)
        last = hashlib.sha256(line).hexdigest()
    return Book(tuple(entries), last), None


def _write(path: Path, content: bytes, *, append: bool) -> None:
    """Write to a copy atomically: after a kill or a power cut, it has its old or its new content."""
    try:
        if append:
            _cut_unfinished(path)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(handle)
            sync_folder(path.parent)
        else:
            replace_private(path, content)
    except OSError as error:
        raise FedpingError(f"cannot write the ledger {path}: {error.strerror}; nothing is sent without it") from error


def _cut_unfinished(path: Path) -> None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    if content and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def _free(path: Path) -> Path:
    """Return an unused file name in the same folder."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in range(1, 2**31))
    return next(name for name in names if not name.exists())
