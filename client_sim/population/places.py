"""A person's own Firefox history: the profile, a copy of its places.sqlite, and searches over its pages.

The browser holds an exclusive lock on its database, so no other process can open it. But its files can be copied: the
database and its write-ahead log are copied until neither changes during the copy. Nothing in the profile is written or
locked. Pages become numbers, without addresses and titles; choices are simulated.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.models import MAX_SAMPLED, Onward, PageTable, RankingModel, Visit, VisitType, searches_from
from fedping.client_sim.models.pages import ages_in_days, table_without_visits, write_visit
from fedping.client_sim.population.settings import PopulationSettings
from fedping.client_sim.population.synthetic import PAGES, Population, candidate_counts
from fedping.protocol.draws import Keys, child_keys
from fedping.protocol.errors import FedpingError
from fedping.protocol.location import local_path

DEFAULT = "default"
PLACES = "places.sqlite"


def find_places(profile: str, home: Path | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the ``places.sqlite`` that a person refers to.

    Args:
        profile: a profile's folder, a ``places.sqlite`` itself, or ``default`` for the default profile of Firefox on
            Linux (also as snap or flatpak), macOS or Windows.
        home: the person's home folder; the real one if None.
        environment: source of ``APPDATA`` and ``XDG_CONFIG_HOME``; the process' environment if None.

    Raises:
        PlacesError: the file or the default profile doesn't exist.
    """
    if profile == DEFAULT:
        return _default_places(home or Path.home(), os.environ if environment is None else environment)
    path = local_path(profile).expanduser()
    places = path / PLACES if path.is_dir() else path
    if not places.is_file():
        raise PlacesError(
            f"no Firefox history exists at {places}. Give a profile's folder (about:profiles shows it), or 'default'"
        )
    return places


def profile_roots(home: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return the folders that may contain a ``profiles.ini``, on all systems."""
    roots = [
        home / ".mozilla/firefox",
        Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "mozilla/firefox",
        home / "snap/firefox/common/.mozilla/firefox",
        home / ".var/app/org.mozilla.firefox/.mozilla/firefox",
        home / "Library/Application Support/Firefox",
    ]
    if environment.get("APPDATA"):
        roots.append(Path(environment["APPDATA"]) / "Mozilla/Firefox")
    return roots


def _default_places(home: Path, environment: Mapping[str, str]) -> Path:
    """Return the history of the first default profile with a history.

    An installation's own default takes precedence over the profile marked as default; among several Firefoxes, the most
    recently written history wins.
    """
    roots = profile_roots(home, environment)
    for defaults in (_installation_defaults, _marked_defaults):
        paths = [p / PLACES for root in roots for p in defaults(root) if (p / PLACES).is_file()]
        if paths:
            return max(paths, key=lambda places: places.stat().st_mtime)
    looked = ", ".join(str(root) for root in roots if root.is_dir()) or f"the usual folders under {home}"
    raise PlacesError(f"no default Firefox profile with a history in {looked}; give the profile's folder")


def _installation_defaults(root: Path) -> Iterator[Path]:
    for name, section in _profiles_ini(root).items():
        if name.startswith("Install") and "Default" in section:
            yield root / section["Default"]


def _marked_defaults(root: Path) -> Iterator[Path]:
    for name, section in _profiles_ini(root).items():
        if name.startswith("Profile") and section.get("Default") == "1" and "Path" in section:
            yield root / section["Path"]  # an absolute path stays absolute


def _profiles_ini(root: Path) -> Mapping[str, Mapping[str, str]]:
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parsed.read(root / "profiles.ini", encoding="utf-8-sig")
    except (configparser.Error, UnicodeError, OSError) as error:
        raise PlacesError(f"cannot read {root / 'profiles.ini'}; give the profile's folder instead") from error
    return parsed


NEWEST_KNOWN = 86
"""``user_version`` of Firefox 153, the newest tested version. Newer databases are read if their schema still fits."""

_BESIDE = ("", "-wal", "-journal")
_ATTEMPTS = 20

_NEEDED = {
    "moz_places": {"id", "url", "title", "visit_count", "typed"},
    "moz_historyvisits": {"id", "from_visit", "place_id", "visit_date", "visit_type"},
    "moz_bookmarks": {"type", "fk"},
}


class PlacesError(FedpingError):
    """The Firefox history doesn't exist at the expected place, or can't be read."""


@contextmanager
def copied(places: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a private copy of a ``places.sqlite``, which is deleted afterwards.

    Raises:
        PlacesError: the file cannot be read, is not a Places database, or lacks something that is needed.
    """
    with tempfile.TemporaryDirectory(prefix="fedping-places-") as folder:
        copy = Path(folder) / places.name
        _copy_unchanged(places, copy)
        try:
            with closing(sqlite3.connect(copy)) as connection:
                _check(connection, places)
                yield connection
        except sqlite3.DatabaseError as error:
            raise PlacesError(
                f"{places} is not a Firefox history, or is damaged ({error}); give another one"
            ) from error


def _copy_unchanged(places: Path, copy: Path) -> None:
    """Copy a consistent state of a database and its companion files."""
    try:
        for _ in range(_ATTEMPTS):
            before = _signature(places)
            for suffix in _BESIDE:
                _copy_if_there(places.with_name(places.name + suffix), copy.with_name(copy.name + suffix))
            if _signature(places) == before:
                return
    except OSError as error:
        raise PlacesError(f"cannot read {places}: {error.strerror}; check that you may read the profile") from error
    raise PlacesError(f"{places} changes all the time, so it cannot be copied; wait until Firefox is less busy")


def _copy_if_there(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    if source.exists():
        shutil.copyfile(source, target)


def _signature(places: Path) -> list[tuple[int, int] | None]:
    files = [places.with_name(places.name + suffix) for suffix in _BESIDE]
    stats = [file.stat() if file.exists() else None for file in files]
    return [(stat.st_mtime_ns, stat.st_size) if stat else None for stat in stats]


def _check(connection: sqlite3.Connection, places: Path) -> None:
    """Raise :class:`PlacesError` unless all required tables and columns exist."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "moz_places" not in tables:
        raise PlacesError(f"{places} is not a Firefox history: it has no table moz_places; give a places.sqlite")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for table, columns in _NEEDED.items():
        missing = columns - {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        if missing:
            age = "newer than" if version > NEWEST_KNOWN else "older than or different from"
            raise PlacesError(
                f"{places} has schema {version}, {age} the ones that fedping can read: {table} lacks "
                f"{', '.join(sorted(missing))}; use a profile of a Firefox from 2018 to schema {NEWEST_KNOWN}"
            )


_PAGES = """
SELECT id, visit_count, typed > 0, substr(url, 1, 6) = 'place:',
       EXISTS (SELECT 1 FROM moz_bookmarks WHERE type = 1 AND fk = moz_places.id) AS bookmarked,
       url, title
FROM moz_places
WHERE (visit_count > 0 AND EXISTS (SELECT 1 FROM moz_historyvisits WHERE place_id = moz_places.id))
   OR (bookmarked AND substr(url, 1, 6) <> 'place:')
ORDER BY id
"""
"""Query for pages with a score other than 0; other pages are never suggested."""

_NEWEST_VISITS = f"""
SELECT place_id, place, visit_date, visit_type,
       CASE WHEN visit_type IN ({VisitType.PERM_REDIRECT:d}, {VisitType.TEMP_REDIRECT:d})
            THEN (SELECT visit_type FROM moz_historyvisits WHERE id = newest.from_visit) END,
       CASE WHEN {{onward}} {VisitType.PERM_REDIRECT:d}) THEN {Onward.PERMANENTLY:d}
            WHEN {{onward}} {VisitType.TEMP_REDIRECT:d}) THEN {Onward.TEMPORARILY:d} ELSE {Onward.NO:d} END
FROM (
    SELECT id, place_id, from_visit, visit_date, visit_type,
           row_number() OVER (PARTITION BY place_id ORDER BY visit_date DESC, id DESC) - 1 AS place
    FROM moz_historyvisits
) AS newest
WHERE place < {MAX_SAMPLED}
""".replace("{onward}", "EXISTS (SELECT 1 FROM moz_historyvisits WHERE from_visit = newest.id AND visit_type =")

_WORD = re.compile(r"\w{2,}")
_NO_WORDS = {"http", "https", "www"}


@dataclass(frozen=True)
class History:
    """P pages of a person, as numbers only.

    Attributes:
        table: the pages; :meth:`pages` fills in the ages of their visits.
        times: times of the newest visits, newest first, microseconds since 1970, shape (P, 10).
        sharing: for each word in the addresses or titles of at least two pages, the rows of those pages.
    """

    table: PageTable
    times: NDArray[np.int64]
    sharing: tuple[NDArray[np.int64], ...]

    def __len__(self) -> int:
        return len(self.table)

    def pages(self, now: int) -> PageTable:
        """Return the pages with their visits' ages as of ``now`` (microseconds since 1970)."""
        return replace(self.table, age_days=ages_in_days(self.times, now))


def read_history(places: Path) -> History:
    """Read a ``places.sqlite``, even while its browser is running; nothing in the profile is changed.

    Raises:
        PlacesError: it cannot be read, is not a Places database, or has fewer than two pages to choose between.
    """
    with copied(places) as connection:
        rows = connection.execute(_PAGES).fetchall()
        if len(rows) < 2:
            raise PlacesError(
                f"the history {places} has {len(rows)} visited or bookmarked pages, and a search needs at least two; "
                "browse a little, or give another profile"
            )
        return _history(rows, connection.execute(_NEWEST_VISITS))


def _history(rows: list[tuple[int, int, int, int, int, str, str | None]], visits: sqlite3.Cursor) -> History:
    numbers = np.array([row[:5] for row in rows], np.int64)
    table = table_without_visits(
        visit_count=np.maximum(numbers[:, 1], 0),
        typed=numbers[:, 2] > 0,
        bookmarked=numbers[:, 4] > 0,
        is_query=numbers[:, 3] > 0,
    )
    times = np.zeros((len(rows), MAX_SAMPLED), np.int64)
    row_of = {page: row for row, page in enumerate(numbers[:, 0].tolist())}
    for page, place, time, kind, origin, onward in visits:
        if page in row_of:
            cell = row_of[page], place
            times[cell] = time or 0
            write_visit(table, cell, Visit(time or 0, kind or VisitType.UNKNOWN, origin, Onward(onward)))
    return History(table, times, tuple(_sharing(f"{row[5]} {row[6] or ''}" for row in rows)))


def _sharing(texts: Iterator[str]) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of the texts that share a word, for each word; the words aren't kept."""
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        for word in set(_WORD.findall(unquote(text).lower())) - _NO_WORDS:
            rows.setdefault(word, []).append(row)
    for _, sharing in sorted(rows.items()):
        if len(sharing) > 1:
            yield np.array(sharing, np.int64)


class OwnHistory(Population):
    """A population whose clients all search the same history, each with its own searches.

    The candidates of a search are pages that share a word of their address or title, or random pages if no two pages
    share one. The numbers of searches and candidates and the choice follow the settings, as for synthetic users.

    Args:
        history: the history to search.
        model: ranking model with the true weights of choices.
        settings: the distributions; distributions of visits and pages are unused.
        seed: at least 0.
        now: returns the time from which ages are measured, in microseconds since 1970; called at every iteration.

    Raises:
        InvalidSettings: the number of true weights differs from the model's, or is 0 for a model without reference
            weights.
    """

    def __init__(
        self, history: History, model: RankingModel, settings: PopulationSettings, seed: int, now: Callable[[], int]
    ) -> None:
        super().__init__(model, settings, seed)
        self._history = history
        self._now = now

    def candidates(self, keys: Keys, settings: PopulationSettings) -> tuple[PageTable, NDArray[np.int64]]:
        """See :meth:`Population.candidates`."""
        seeds, counts = child_keys(keys, PAGES), candidate_counts(keys, settings)
        rows = [self._some_pages(int(seed), int(count)) for seed, count in zip(seeds, counts, strict=True)]
        candidates = searches_from(rows, [0] * len(rows)).candidates.astype(np.int64)
        return self._history.pages(self._now()), candidates

    def _some_pages(self, seed: int, count: int) -> list[int]:
        random = np.random.default_rng(seed)
        words = self._history.sharing
        matching = words[random.integers(len(words))] if words else np.arange(len(self._history))
        pages: list[int] = random.choice(matching, min(count, len(matching)), replace=False).tolist()
        return pages
