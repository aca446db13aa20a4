"""Puts pages into a browser's own history before a test begins."""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedping.client_sim.models import Page, Visit, VisitType
from tests.browser.harness.firefox import Firefox

_DAY = 86_400
_FROM_1601 = 11_644_473_600
_CHROMIUM_TYPES = {VisitType.LINK: 0, VisitType.TYPED: 1}
_WHOLE_CHAIN = 0x30000000
"""Chromium's bits of a visit without redirects: the first and the last of its chain."""


@dataclass(frozen=True)
class Seed:
    """A page with its visits, each with its age in days and a type that both browsers have."""

    url: str
    title: str
    visits: tuple[tuple[float, VisitType], ...] = ()
    bookmarked: bool = False

    def page(self) -> Page:
        """Return the page for the models, with visits at these ages before now."""
        now = time.time()
        return Page(
            visits=tuple(Visit(int((now - days * _DAY) * 1e6), kind) for days, kind in self.visits),
            visit_count=len(self.visits),
            typed=any(kind == VisitType.TYPED for _, kind in self.visits),
            bookmarked=self.bookmarked,
        )


def seed_firefox(firefox: Firefox, seeds: Sequence[Seed]) -> None:
    """Put pages into the history and the bookmarks of a running Firefox."""
    script = """
        const { PlacesUtils } = ChromeUtils.importESModule("resource://gre/modules/PlacesUtils.sys.mjs");
        const visited = arguments[0].filter(({ visits }) => visits.length > 0);
        await PlacesUtils.history.insertMany(visited.map(({ url, title, visits }) => (
            { url, title, visits: visits.map(([time, transition]) => ({ date: new Date(time), transition })) })));
        for (const { url, title } of arguments[0].filter(({ bookmarked }) => bookmarked))
            await PlacesUtils.bookmarks.insert({ parentGuid: PlacesUtils.bookmarks.unfiledGuid, url, title });
    """
    firefox.run(script, [_as_json(seed) for seed in seeds])


def seed_chromium(profile: Path, seeds: Sequence[Seed]) -> None:
    """Put pages into the history, not the bookmarks, of a Chromium that has run before and is not running now."""
    with closing(sqlite3.connect(profile / "Default" / "History")) as database, database:
        for seed in seeds:
            _insert(database, seed)


def _insert(database: sqlite3.Connection, seed: Seed) -> None:
    now = time.time() + _FROM_1601
    visits = [(int((now - days * _DAY) * 1e6), _CHROMIUM_TYPES[kind]) for days, kind in seed.visits]
    if not visits:
        return
    typed = sum(kind == VisitType.TYPED for _, kind in seed.visits)
    page = database.execute(
        "INSERT INTO urls (url, title, visit_count, typed_count, last_visit_time, hidden) VALUES (?, ?, ?, ?, ?, 0)",
        (seed.url, seed.title, len(visits), typed, max(at for at, _ in visits)),
    ).lastrowid
    database.executemany(
        "INSERT INTO visits (url, visit_time, from_visit, transition) VALUES (?, ?, 0, ?)",
        [(page, at, kind | _WHOLE_CHAIN) for at, kind in sorted(visits)],
    )


def _as_json(seed: Seed) -> dict[str, Any]:
    now = time.time()
    visits = [[(now - days * _DAY) * 1000, int(kind)] for days, kind in seed.visits]
    return {"url": seed.url, "title": seed.title, "visits": visits, "bookmarked": seed.bookmarked}
