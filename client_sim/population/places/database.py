"""Where Firefox keeps its profiles, and a copy of a places.sqlite made while the browser runs.

The browser holds an exclusive lock on its database, so nobody else can open it. Its files can be copied, though: the
database and its write-ahead log, repeatedly until neither has changed during the copy. Nothing in the profile is ever
written or locked.
"""

from __future__ import annotations

import configparser
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

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
        environment: where to look up ``APPDATA`` and ``XDG_CONFIG_HOME``; the process' environment if None.

    Raises:
        PlacesError: there is no such file, or no default profile.
    """
    if profile == DEFAULT:
        return _default_places(home or Path.home(), os.environ if environment is None else environment)
    path = local_path(profile).expanduser()
    places = path / PLACES if path.is_dir() else path
    if not places.is_file():
        raise PlacesError(
            f"there is no Firefox history at {places}; give a profile's folder (about:profiles shows it), or 'default'"
        )
    return places


def profile_roots(home: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return the folders that may hold a ``profiles.ini``, on any system."""
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
    """Return the history of the first default profile that has one.

    An installation's own default takes precedence over the profile marked as default; among several Firefoxes, the most
    recently written history wins.
    """
    roots = profile_roots(home, environment)
    for defaults in (_installation_defaults, _marked_defaults):
        found = [p / PLACES for root in roots for p in defaults(root) if (p / PLACES).is_file()]
        if found:
            return max(found, key=lambda places: places.stat().st_mtime)
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
"""``user_version`` of Firefox 153, the newest tried. Newer ones are read as long as that is possible."""

_BESIDE = ("", "-wal", "-journal")
_ATTEMPTS = 20

_NEEDED = {
    "moz_places": {"id", "url", "title", "visit_count", "typed"},
    "moz_historyvisits": {"id", "from_visit", "place_id", "visit_date", "visit_type"},
    "moz_bookmarks": {"type", "fk"},
}


class PlacesError(FedpingError):
    """There is no Firefox history at the expected place, or it cannot be read."""


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
    """Copy a database and the files beside it, all as of the same moment."""
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
    """Raise :class:`PlacesError` unless all tables and columns that are read exist."""
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
