"""The index of runs, in SQLite next to the runs: the values that the list shows and sorts by.

The runs' files are authoritative. Every run has a stamp of its files (their times and sizes). If the stamp differs from
that in the index, the run is read again before it is shown, and at the next scan of the folder. A damaged or deleted
index, or one of another fedping version, is rebuilt. Several processes may share an index.

A scan runs within a request up to a time limit, then continues in a thread. It reads the newest runs first, and pauses
during requests.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from fedping.dashboard.answers import WrongState
from fedping.dashboard.runs.entries import Kept, Stamp, kept_of, stamp_of
from fedping.dashboard.runs.places import FOLDER as LABELS
from fedping.protocol import __version__
from fedping.protocol.local_files import is_settled

T = TypeVar("T")

FOLDER, FILE = ".index", "runs.sqlite"
"""Folder and file of the index, in the folder of the runs."""

_FORMAT = f"3 {__version__}"
"""Format of the index, with the version of fedping; an index with another one is rebuilt."""

_CHUNK = 50
"""Runs written in one transaction, so that other processes never wait for long."""

_AT_ONCE = 30
"""Steps of a scan, each a run or a chunk of stamps, that are done within a request even after its time limit."""

_MOST_REMEMBERED = 16
"""Maximum number of cached answers, which are valid until the index changes."""

_QUICK = 0.1
"""Seconds below which a scan is quick enough for every reading of a folder that has just changed."""

_WAIT = 5.0
"""Seconds to wait for another process that writes."""

_SCHEMA = (
    "DROP TABLE IF EXISTS run",
    "DROP TABLE IF EXISTS name",
    "DROP TABLE IF EXISTS value",
    "CREATE TABLE run (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, stamp TEXT NOT NULL, title TEXT, state TEXT, "
    "kind TEXT, described TEXT, took REAL, best TEXT, tags TEXT, text TEXT, alike TEXT, seeds TEXT, decides TEXT, "
    "upwards INTEGER, variants TEXT, seal INTEGER NOT NULL, kept BLOB NOT NULL)",  # long columns are last
    "DROP TABLE IF EXISTS known",
    "CREATE TABLE known (place INTEGER PRIMARY KEY, name TEXT, runs INTEGER, texts INTEGER)",
    "CREATE TABLE name (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE value (name INTEGER, run INTEGER, variant INTEGER, text TEXT, number REAL, deviation REAL, "
    "seeds INTEGER, PRIMARY KEY (name, run, variant)) WITHOUT ROWID",
)

BREAK = "\n"
"""Separator before, between and after the tags of a run, and between the names of its variants."""

_AT_REST = ("finished", "failed", "stopped", "lost")
"""States that change only with a run's files; a run in any other state is read again whenever it is shown."""

SETTINGS = "settings."
"""Prefix of a setting's dotted name in the name of its column; the column of a metric is named "split metric"."""


class Progress(NamedTuple):
    """The progress of a scan: of the folder's ``all`` runs, ``known`` are up to date in the index."""

    known: int
    all: int


class Shown(NamedTuple):
    """A run with its index entry, up to date with its files."""

    id: str
    kept: Kept


class Row(NamedTuple):
    """The values of a run in the index, to filter, sort and group by."""

    key: int
    id: str
    title: str
    state: str
    kind: str
    described: str
    took: float | None
    best: str | None
    alike: str | None
    seeds: str
    decides: str | None
    upwards: int
    variants: str

    @property
    def names(self) -> list[str]:
        """The names of the run's variants, in order; empty with one variant."""
        return self.variants.split(BREAK) if self.variants else []


class Value(NamedTuple):
    """A run's value of a setting, or of a metric with its standard deviation between seeds and the number of seeds."""

    text: str | None
    number: float | None
    deviation: float | None
    seeds: int | None


class Column(NamedTuple):
    """A setting or metric as a column: the number of runs that have it and, for a setting, of its different values."""

    name: str
    runs: int
    texts: int

    @property
    def is_setting(self) -> bool:
        """Whether the column is a setting."""
        return self.name.startswith(SETTINGS)


class Condition(NamedTuple):
    """A condition on a column's value; ``is_`` is a comparison, one of :data:`COMPARISONS`."""

    column: str
    is_: str
    value: str


COMPARISONS = ("=", "!=", "<", "<=", ">", ">=", "~")
"""The comparisons; "~" means that the column's text contains the given value."""

OWN = ("title", "state", "kind", "best", "described", "took")
"""Columns of every run in addition to settings and metrics."""


class RunIndex:
    """The index of the runs in a folder; a process has one, shared by its threads.

    Args:
        folder: the folder of the runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.progress = Progress(0, 0)
        self.generation = 0
        """Number that grows with every change of the index."""
        self._lock = threading.RLock()
        self._database: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._times_opened = 0
        self._folder_was_there = False
        self._scanning = threading.Lock()
        self._steps: Iterator[Progress] | None = None
        self._took = 0.0
        self._ended: float | None = None
        self._changed: int | None = None
        self._requests = 0
        self._counting = threading.Lock()
        self._version = 0
        self._memory: tuple[int, dict[Hashable, Any]] = (0, {})
        self._building = False
        self._counted = -1
        self._count_next = float("-inf")

    @property
    def complete(self) -> bool:
        """Whether every run's stamp has been compared since this process opened the index."""
        return self._ended is not None

    @property
    def is_building(self) -> bool:
        """Whether the list lacks runs because many are still to be read."""
        return self._building

    def look(self, patience: float, least: float = 0.0) -> None:
        """Update the index for at most about ``patience`` seconds; a thread does the rest.

        Args:
            patience: the caller's time limit in seconds.
            least: seconds after the last scan during which only a change of the folder itself starts another scan.
        """
        self._open_again_if_replaced()
        wait = min(patience, threading.TIMEOUT_MAX) if self.complete else 0.0
        if not self._is_due(least) or not self._scanning.acquire(timeout=wait):
            return
        over = True
        try:
            over = self._scan(time.monotonic() + patience)
        finally:
            if over:
                self._scanning.release()
        if not over:
            threading.Thread(target=self._scan_to_the_end, daemon=True).start()

    def _is_due(self, least: float) -> bool:
        if self._ended is None:
            return True
        since, changed = time.monotonic() - self._ended, _changed(self.folder)
        if changed is None or changed != self._changed:
            return since >= self._took or not least or self._took < _QUICK
        return since >= (max(least, 30 * self._took) if least else self._took)

    def _scan_to_the_end(self) -> None:
        """Scan in a separate thread, which holds the scan lock."""
        try:
            self._scan(None)
        finally:
            self._scanning.release()

    def _scan(self, until: float | None) -> bool:
        """Scan to the end, or until a time of the monotonic clock; return whether the end was reached."""
        if self._steps is None:
            self._steps = self._scan_steps(_changed(self.folder))
        steps = self._steps
        try:
            for done, self.progress in enumerate(steps):
                if until is None:
                    self._make_way()
                elif done > _AT_ONCE and time.monotonic() > until:
                    return False
        except sqlite3.DatabaseError as error:
            with suppress(BusyIndex):  # the next look scans again
                self._recover(error)
        except BaseException:
            self._steps = None
            raise
        self._steps = None
        return True

    def _make_way(self) -> None:
        """Wait while requests are answered, at most one second, because they need the interpreter too."""
        until = time.monotonic() + 1.0
        while self._requests and time.monotonic() < until:
            time.sleep(0.002)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Pause a scan in another thread during the block."""
        with self._counting:
            self._requests += 1
        try:
            yield
        finally:
            with self._counting:
                self._requests -= 1

    def _scan_steps(self, changed: int | None) -> Iterator[Progress]:
        """Compare all stamps, read changed runs, newest first, and remove deleted ones."""
        began = time.monotonic()
        names, labels = _names(self.folder), set(_names(self.folder / LABELS, hidden=True))
        with self._lock:
            known = {id: (stamp, state) for id, stamp, state in self._rows("SELECT id, stamp, state FROM run")}
            opened = self._times_opened
        self._building = not known and len(names) > _CHUNK
        due: list[tuple[str, Stamp]] = []
        for place, id in enumerate(names):
            stamp = stamp_of(self.folder, id, labels)
            if stamp is None:
                continue
            before, state = known.pop(id, ("", ""))
            if before != stamp.text or state == "running":
                due.append((id, stamp))
            if place % _CHUNK == 0:
                yield Progress(self.progress.known, len(names))
        took = time.monotonic() - began
        self._forget(list(known))
        self._building = len(due) > _CHUNK
        for start in range(0, len(due), _CHUNK):
            found: list[tuple[str, Stamp, Kept]] = []
            for place, (id, stamp) in enumerate(due[start : start + _CHUNK]):
                if (kept := self._read(id)) is not None:
                    found.append((id, stamp, kept))
                yield Progress(len(names) - len(due) + start + place, len(names))
            if opened != self._times_opened:  # the index was rebuilt, so scan again
                return
            self._write(found)
        self._took, self._changed, self._ended = took, changed, time.monotonic()
        self._building = False
        if self.generation != self._counted and self._ended > self._count_next:
            self._counted = self.generation
            for _ in self._count_columns():
                yield Progress(len(names), len(names))
            now = time.monotonic()
            self._count_next = now + 30 * (now - self._ended)
        yield Progress(len(names), len(names))

    def _write(self, found: Sequence[tuple[str, Stamp, Kept]]) -> None:
        with self._lock, _transaction(self._connection()) as database:
            numbers, changed = _Names(database), False
            for id, stamp, kept in found:
                if kept.row["state"] not in _AT_REST:  # it is read again whenever it is shown
                    kept = msgspec.structs.replace(kept, row={**kept.row, "done": None})
                blob = zlib.compress(msgspec.msgpack.encode(kept), 1)
                text = stamp.text if stamp.settled else ""
                seal = _seal(text, blob)
                if database.execute("SELECT 1 FROM run WHERE id = ? AND seal = ?", (id, seal)).fetchone():
                    continue
                changed = True
                key = _forgotten(database, id)
                row = (key, id, text, *_facts(kept), seal, blob)
                cursor = database.execute(f"INSERT INTO run VALUES ({','.join('?' * len(row))})", row)
                values = [(numbers.of(name), cursor.lastrowid, *rest) for name, *rest in _values(kept)]
                database.executemany("INSERT INTO value VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        self.generation += changed

    def _forget(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        with self._lock, _transaction(self._connection()) as database:
            for id in ids:
                _forgotten(database, id)
        self.generation += 1

    # what it knows

    def fresh(self, ids: Iterable[str]) -> list[Shown]:
        """Return the runs' entries, up to date with their files, in the given order and without deleted runs."""
        wanted = list(ids)
        marks = ",".join("?" * len(wanted))
        rows = self._ask(f"SELECT id, stamp, seal, kept, state FROM run WHERE id IN ({marks})", wanted)
        known = {id: rest for id, *rest in rows}
        found = []
        for id in wanted:
            kept = self._as_kept(id, *known[id]) if id in known else self._read(id)
            if kept is not None:
                found.append(Shown(id, kept))
        return found

    def _as_kept(self, id: str, stamp: str, seal: int, blob: bytes, state: str) -> Kept | None:
        now = stamp_of(self.folder, id, None)
        if now is not None and now.text == stamp and state in _AT_REST and seal == _seal(stamp, blob):
            with suppress(msgspec.DecodeError, zlib.error):
                return msgspec.msgpack.decode(zlib.decompress(blob), type=Kept)
        return self._read(id)

    def _read(self, id: str) -> Kept | None:
        """Return a run's entry from its files; None if there is no such run, or its files cannot be read."""
        try:
            return kept_of(self.folder, id)
        except OSError:
            return None

    def choose(self, words: Sequence[str], conditions: Sequence[Condition], most: int = -1) -> list[Row]:
        """Return the runs that contain all ``words`` and meet all conditions, newest first.

        Args:
            words: the words to search for.
            conditions: on the columns.
            most: maximum number of runs; all if negative.
        """
        wheres, values = [], []
        for word in words:
            wheres.append("instr(text, ?) > 0")
            values.append(word.lower())
        for condition in conditions:
            where, more = _where(condition)
            wheres.append(where)
            values += more
        rows = self._ask(
            f"SELECT {', '.join(Row._fields)} FROM run {'WHERE' if wheres else ''} {' AND '.join(wheres)} "
            "ORDER BY described DESC, id DESC LIMIT ?",
            [*values, most],
        )
        return [Row(*row) for row in rows]

    def count(self) -> int:
        """Return the number of runs in the index."""
        return sum(self.states().values())

    def states(self) -> Mapping[str, int]:
        """Return the number of runs in each state."""
        return self.remembered("states", lambda: dict(self._ask("SELECT state, count(*) FROM run GROUP BY state", ())))

    def tags(self) -> list[str]:
        """Return all tags of runs."""
        rows = self.remembered("tags", lambda: self._ask("SELECT DISTINCT tags FROM run WHERE tags != ''", ()))
        return sorted({tag for (tags,) in rows for tag in tags.split(BREAK) if tag})

    def values(self, column: str, of: Sequence[int] | None = None) -> dict[int, dict[int, Value]]:
        """Return the values of a setting or a metric by run and variant; variant 0 stands for the run as a whole.

        Args:
            column: the column's name.
            of: the keys of the runs; all if None.
        """
        among = "" if of is None else f" AND run IN ({','.join(map(str, of))})"
        rows = self._ask(
            "SELECT run, variant, text, value.number, deviation, seeds FROM value "
            f"WHERE value.name = (SELECT number FROM name WHERE name.name = ?){among}",
            (column,),
        )
        found: dict[int, dict[int, Value]] = {}
        for run, variant, *value in rows:
            found.setdefault(run, {})[variant] = Value(*value)
        return found

    def columns(self) -> list[Column]:
        """Return the settings and metrics that runs have, as last counted."""
        return [Column(*row) for row in self._ask("SELECT name, runs, texts FROM known ORDER BY place", ())]

    def _count_columns(self) -> Iterator[None]:
        """Count the runs and texts of each column, one column per step, so that requests need not wait."""
        found = []
        with self._lock:
            names = self._rows("SELECT number, name FROM name ORDER BY number")
        for number, name in names:
            with self._lock:
                [(runs, texts)] = self._rows(
                    "SELECT sum(variant <= 1), count(DISTINCT text) FROM value WHERE name = ?", (number,)
                )
            if runs:
                found.append((number, name, runs, texts))
            yield
        with self._lock, _transaction(self._connection()) as database:
            database.execute("DELETE FROM known")
            database.executemany("INSERT INTO known VALUES (?, ?, ?, ?)", found)

    # the database

    def _ask(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a query; a damaged database is rebuilt first."""
        with self._lock:
            try:
                return self._rows(query, values)
            except sqlite3.DatabaseError as error:
                self._recover(error)
                return self._rows(query, values)

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection().execute(query, values).fetchall()

    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            self._times_opened += 1
            self._folder_was_there = self.folder.is_dir()
            self._database = _opened(self.folder)
            self._inode = _inode(self.folder)  # also of an unusable file, to notice another one
        return self._database

    def _open_again_if_replaced(self) -> None:
        """Reopen the index if another process has rebuilt or deleted it, or if the folder was created since."""
        with self._lock:
            if self._database is None:
                return
            now = _inode(self.folder)
            if now != self._inode or (not self._folder_was_there and self.folder.is_dir()):
                self._start_again()
                return
            with suppress(sqlite3.DatabaseError):  # the next query finds it
                version = self._database.execute("PRAGMA data_version").fetchone()[0]
                self.generation += version != self._version  # another process has written
                self._version = version

    def remembered(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return a key's cached value, computed again only after a change of the index."""
        generation = self.generation
        if self._memory[0] != generation or len(self._memory[1]) > _MOST_REMEMBERED:
            self._memory = (generation, {})
        memory = self._memory[1]
        if key not in memory:
            memory[key] = compute()
        return cast(T, memory[key])

    def _recover(self, error: sqlite3.DatabaseError) -> None:
        """Rebuild the index after an error, unless another process is writing it.

        Raises:
            BusyIndex: another process is writing the index.
        """
        with self._lock:
            if _is_busy(error):
                raise BusyIndex(
                    f"another process has been writing the index of runs, {self.folder / FOLDER / FILE}, for "
                    f"{_WAIT:g} s; reload the page"
                ) from error
            self._start_again()
            _remove(self.folder)

    def _start_again(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = self._inode = self._ended = None
        self._times_opened += 1
        self.generation += 1


class BusyIndex(WrongState):
    """Another process has been writing the index for too long."""


def _opened(folder: Path) -> sqlite3.Connection:
    """Return the index of a folder; in memory if no file can be written."""
    if folder.is_dir():
        for _ in range(2):
            try:
                (folder / FOLDER).mkdir(exist_ok=True)
                return _usable(str(folder / FOLDER / FILE))
            except sqlite3.DatabaseError as error:
                if _is_busy(error):
                    break
                _remove(folder)
            except OSError:
                break
    return _usable(":memory:")


def _usable(file: str) -> sqlite3.Connection:
    """Open a database, and recreate its tables if they differ.

    Raises:
        sqlite3.DatabaseError: the database is damaged, or cannot be written.
    """
    database = sqlite3.connect(file, timeout=_WAIT, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA cache_size = -65536")
        with _transaction(database):
            database.execute("CREATE TABLE IF NOT EXISTS format (text TEXT)")
            if database.execute("SELECT text FROM format").fetchall() != [(_FORMAT,)]:
                for statement in _SCHEMA:
                    database.execute(statement)
                database.execute("DELETE FROM format")
                database.execute("INSERT INTO format VALUES (?)", (_FORMAT,))
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _is_busy(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _inode(folder: Path) -> int | None:
    try:
        return (folder / FOLDER / FILE).stat().st_ino
    except OSError:
        return None


def _remove(folder: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        with suppress(OSError):
            (folder / FOLDER / f"{FILE}{suffix}").unlink(missing_ok=True)


def _changed(folder: Path) -> int | None:
    """Return a folder's time of modification; None if it is so recent that a further change might not alter it."""
    try:
        changed = folder.stat().st_mtime_ns
    except OSError:
        return None
    return changed if is_settled(changed) else None


def _names(folder: Path, hidden: bool = False) -> list[str]:
    """Return the names in a folder in reverse order, which puts the newest runs first: names begin with the date."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted((name for name in names if hidden or not name.startswith(".")), reverse=True)


def _forgotten(database: sqlite3.Connection, id: str) -> int | None:
    """Remove a run from the index; return its key, or None if the run was unknown."""
    row = database.execute("SELECT key FROM run WHERE id = ?", (id,)).fetchone()
    if row is None:
        return None
    database.execute("DELETE FROM value WHERE name IN (SELECT number FROM name) AND run = ?", row)
    database.execute("DELETE FROM run WHERE key = ?", row)
    return int(row[0])


class _Names:
    """The numbers of the names of settings and metrics."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._known = dict(database.execute("SELECT name, number FROM name"))

    def of(self, name: str) -> int:
        """Return the number of a name; a new name gets a new number."""
        if name not in self._known:
            cursor = self._database.execute("INSERT INTO name (name) VALUES (?)", (name,))
            self._known[name] = cursor.lastrowid
        return int(self._known[name])


def _facts(kept: Kept) -> tuple[Any, ...]:
    """Return a run's row in the table of runs, from the title on."""
    row = kept.row
    texts = (row["title"], row["id"], row["state"], row["kind"], row["by"], row["best"] or "", row["note"])
    return (
        row["title"],
        row["state"],
        row["kind"],
        row["described"],
        took(row),
        row["best"],
        BREAK.join(("", *row["tags"], "")) if row["tags"] else "",
        " ".join((*texts, *row["tags"])).lower(),
        kept.alike,
        ",".join(map(str, kept.seeds)),
        kept.decides,
        int(kept.upwards),
        BREAK.join(kept.names),
    )


def took(row: Mapping[str, Any]) -> float | None:
    """Return the seconds from a run's start to its end."""
    if row["started"] is None or row["ended"] is None:
        return None
    return (datetime.fromisoformat(row["ended"]) - datetime.fromisoformat(row["started"])).total_seconds()


def _values(kept: Kept) -> Iterator[tuple[Any, ...]]:
    """Yield name, variant, text, number, deviation and seeds of all settings and metrics of a run."""
    for name, text in kept.settings.items():
        yield SETTINGS + name, 0, text, number_in(text), None, None
    for place, variant in enumerate(kept.names, 1):
        for name, text in kept.differing.get(variant, {}).items():
            yield SETTINGS + name, place, text, number_in(text), None, None
    for name, found in kept.of_best.items():
        yield name, 0, None, *found
    for place, variant in enumerate(kept.names, 1):
        for name, found in kept.metrics.get(variant, {}).items():
            yield name, place, None, *found


def number_in(text: str) -> float | None:
    """Return the number in a text; None if the text is not a number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _seal(stamp: str, blob: bytes) -> int:
    return zlib.crc32(blob, zlib.crc32(stamp.encode()))


def _where(condition: Condition) -> tuple[str, list[Any]]:
    """Return a condition in SQL, and its values."""
    column, is_, value = condition
    if column == "tag":
        where, values = "instr(tags, ?) > 0", [f"{BREAK}{value}{BREAK}"]
        return (f"NOT {where}" if is_ == "!=" else where), values
    if column in (*OWN, "alike"):
        return _compared(column, column, is_, value)
    where, values = _compared("value.text", "value.number", "=" if is_ == "!=" else is_, value)
    named = "name = (SELECT number FROM name WHERE name = ?)"
    exists = f"EXISTS (SELECT 1 FROM value WHERE {named} AND run = run.key AND {where})"
    return (f"NOT {exists}" if is_ == "!=" else exists), [column, *values]


def _compared(text: str, number: str, is_: str, value: str) -> tuple[str, list[Any]]:
    if is_ == "~":
        return f"instr(lower({text}), lower(?)) > 0", [value]
    as_number = number_in(value)
    if is_ in ("=", "!="):
        where = f"({text} = ? OR {number} = ?)" if as_number is not None else f"{text} = ?"
        values = [value, as_number] if as_number is not None else [value]
        return (f"NOT coalesce({where}, 0)" if is_ == "!=" else where), values
    return f"{number} {is_} ?", [value if as_number is None else as_number]


_OPEN: OrderedDict[Path, RunIndex] = OrderedDict()
_OPENING = threading.Lock()
_MOST_OPEN = 8


def index_of(folder: Path) -> RunIndex:
    """Return the index of a folder of runs; a process has one per folder."""
    with _OPENING:
        if folder not in _OPEN:
            _OPEN[folder] = RunIndex(folder)
        _OPEN.move_to_end(folder)
        while len(_OPEN) > _MOST_OPEN:
            _OPEN.popitem(last=False)
        return _OPEN[folder]
