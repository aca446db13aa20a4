"""A user's own Firefox history: read as numbers by frecency's rules, without changing the profile."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedping.client_sim.models import Onward, VisitType, frecency_start, model_for
from fedping.client_sim.population.places import OwnHistory, PlacesError, find_places, read_history
from fedping.client_sim.population.settings import PopulationSettings
from tests.browser.harness.firefox import running_firefox

SCHEMA = (Path(__file__).parent / "data" / "places_schema.sql").read_text()
DAY = 86_400_000_000
NOW = 1_790_000_000_000_000
Fill = Callable[[sqlite3.Connection], None]


def profile_with(folder: Path, fill: Fill) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(folder / "places.sqlite") as database:
        database.executescript(SCHEMA)
        fill(database)
    database.close()
    return folder / "places.sqlite"


def page(db: sqlite3.Connection, number: int, url: str, title: str = "", visits: int = 0, typed: int = 0) -> None:
    db.execute(
        "INSERT INTO moz_places (id, url, title, visit_count, typed) VALUES (?, ?, ?, ?, ?)",
        (number, url, title, visits, typed),
    )


def visit(db: sqlite3.Connection, number: int, place: int, kind: int, days: float, origin: int = 0) -> None:
    db.execute(
        "INSERT INTO moz_historyvisits (id, from_visit, place_id, visit_date, visit_type) VALUES (?, ?, ?, ?, ?)",
        (number, origin, place, NOW - int(days * DAY), kind),
    )


def bookmark(db: sqlite3.Connection, place: int) -> None:
    db.execute("INSERT INTO moz_bookmarks (type, fk) VALUES (1, ?)", (place,))


def scores_of(places: Path) -> list[float]:
    scores: np.ndarray = model_for("frecency-2018").scores(frecency_start(), read_history(places).pages(NOW))
    return scores.tolist()


def test_pages_score_by_the_full_rule(tmp_path: Path) -> None:
    def fill(db: sqlite3.Connection) -> None:
        page(db, 1, "https://a.example/news", visits=2)
        visit(db, 1, 1, VisitType.LINK, 1)
        visit(db, 2, 1, VisitType.TYPED, 20)
        page(db, 2, "https://b.example/", visits=1)
        visit(db, 3, 2, VisitType.TYPED, 1)
        bookmark(db, 2)
        page(db, 3, "https://c.example/", "never visited")
        bookmark(db, 3)
        page(db, 4, "https://d.example/", "typed bookmark", typed=1)
        bookmark(db, 4)
        page(db, 5, "https://e.example/file.zip", visits=1)
        visit(db, 4, 5, VisitType.DOWNLOAD, 1)
        page(db, 6, "https://f.example/never", "neither visited nor bookmarked")
        page(db, 7, "place:sort=8")
        bookmark(db, 7)

    # (100 * 1 + 50 * 20) * 2 / 2; 100 * (20 + 0.75); 140; 340; a download alone comes to nothing, -1
    assert scores_of(profile_with(tmp_path, fill)) == [1100, 2075, 140, 340, -1]


def test_redirects_take_their_origins_type_one_hop_and_sources_are_marked(tmp_path: Path) -> None:
    def fill(db: sqlite3.Connection) -> None:
        page(db, 1, "http://short.example/", visits=1)
        page(db, 2, "https://target.example/", visits=1)
        page(db, 3, "https://moved.example/", visits=1)
        visit(db, 1, 1, VisitType.TYPED, 1)
        visit(db, 2, 2, VisitType.PERM_REDIRECT, 1, origin=1)
        visit(db, 3, 3, VisitType.TEMP_REDIRECT, 1, origin=2)

    history = read_history(profile_with(tmp_path, fill))
    assert history.table.origin_type[1, 0] == VisitType.TYPED
    assert history.table.origin_type[2, 0] == VisitType.PERM_REDIRECT
    assert history.table.onward[:, 0].tolist() == [Onward.PERMANENTLY, Onward.TEMPORARILY, Onward.NO]


def test_only_the_ten_newest_visits_are_sampled_newest_first(tmp_path: Path) -> None:
    def fill(db: sqlite3.Connection) -> None:
        page(db, 1, "https://often.example/", visits=14)
        for i in range(14):
            visit(db, i + 1, 1, VisitType.LINK, days=14 - i)
        page(db, 2, "https://other.example/", visits=1)
        visit(db, 20, 2, VisitType.LINK, days=3)

    pages = read_history(profile_with(tmp_path, fill)).pages(NOW)
    assert pages.age_days[0].tolist() == list(range(1, 11))
    assert (pages.sampled.tolist(), pages.visit_count.tolist()) == ([10, 1], [14, 1])


def test_nothing_that_leaves_the_reader_holds_an_address_or_a_title(tmp_path: Path) -> None:
    def fill(db: sqlite3.Connection) -> None:
        for i in range(3):
            page(db, i + 1, f"https://secret{i}.example/shared", "Private words", visits=1)
            visit(db, i + 1, i + 1, VisitType.LINK, 1)

    history = read_history(profile_with(tmp_path, fill))
    assert vars(history).keys() == {"table", "times", "sharing"}
    for array in (history.times, *history.sharing, *vars(history.table).values()):
        assert isinstance(array, np.ndarray)
        assert array.dtype.kind in "biu"
    assert all(rows.tolist() == [0, 1, 2] for rows in history.sharing if len(rows) == 3)
    assert history.sharing


def test_searches_choose_among_pages_that_share_a_word_and_depend_on_the_client_alone(tmp_path: Path) -> None:
    def fill(db: sqlite3.Connection) -> None:
        for i in range(30):
            page(db, i + 1, f"https://site{i}.example/{'blue' if i < 15 else 'red'}", visits=1)
            visit(db, i + 1, i + 1, VisitType.LINK, i)

    history = read_history(profile_with(tmp_path, fill))
    users = OwnHistory(history, model_for("frecency-2018"), PopulationSettings(), 7, lambda: NOW)
    both, alone = users.sample(np.arange(50), 3), users.sample(np.array([31]), 3)
    rows = np.flatnonzero(both.client == 31)
    for ours, theirs in zip(alone.searches.candidates, both.searches.candidates[rows], strict=True):
        assert [c for c in ours if c >= 0] == [c for c in theirs if c >= 0]
    assert (both.searches.chosen < (both.searches.candidates >= 0).sum(axis=1)).all()


def test_the_profile_is_not_changed(tmp_path: Path) -> None:
    def fill(db: sqlite3.Connection) -> None:
        page(db, 1, "https://a.example/", visits=1)
        page(db, 2, "https://b.example/", visits=1)
        visit(db, 1, 1, VisitType.LINK, 1)
        visit(db, 2, 2, VisitType.LINK, 1)

    places = profile_with(tmp_path / "profile", fill)
    before = (sorted(p.name for p in places.parent.iterdir()), places.read_bytes(), places.stat().st_mtime_ns)
    places.chmod(0o400)
    places.parent.chmod(0o500)
    read_history(places)
    assert (sorted(p.name for p in places.parent.iterdir()), places.read_bytes(), places.stat().st_mtime_ns) == before
    places.parent.chmod(0o700)


def test_a_history_held_locked_by_its_browser_is_read_with_its_log(tmp_path: Path) -> None:
    """Firefox holds an exclusive lock, and the last pages are only in the write-ahead log."""
    places = profile_with(tmp_path, lambda db: None)
    browser = sqlite3.connect(places, isolation_level=None)
    browser.execute("PRAGMA locking_mode = EXCLUSIVE")
    browser.execute("PRAGMA journal_mode = WAL")
    browser.execute("BEGIN IMMEDIATE")
    for i in (1, 2):
        page(browser, i, f"https://{i}.example/", visits=1)
        visit(browser, i, i, VisitType.LINK, 1)
    browser.execute("COMMIT")
    try:
        assert len(read_history(places)) == 2
    finally:
        browser.close()


def _other_database(db: sqlite3.Connection) -> None:
    db.execute("DROP TABLE moz_places")


def _older_schema(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA user_version = 5")
    db.execute("ALTER TABLE moz_historyvisits RENAME COLUMN visit_type TO kind")


def _newer_schema(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA user_version = 900")
    db.execute("ALTER TABLE moz_historyvisits RENAME COLUMN visit_type TO kind")


@pytest.mark.parametrize(
    ("fill", "says"),
    [
        (lambda db: None, "has 0 visited or bookmarked pages"),
        (_other_database, "no table moz_places"),
        (_older_schema, "schema 5, older than or different"),
        (_newer_schema, "schema 900, newer than"),
    ],
)
def test_a_history_that_cannot_be_used_is_told(tmp_path: Path, fill: Fill, says: str) -> None:
    with pytest.raises(PlacesError, match=says):
        read_history(profile_with(tmp_path, fill))


def test_what_is_no_history_is_told(tmp_path: Path) -> None:
    with pytest.raises(PlacesError, match="no Firefox history exists at"):
        find_places(str(tmp_path))
    (tmp_path / "places.sqlite").write_bytes(b"not a database, but long enough to be taken for one" * 40)
    with pytest.raises(PlacesError, match="not a Firefox history"):
        read_history(find_places(str(tmp_path)))


@pytest.mark.parametrize(
    "root", [".mozilla/firefox", "snap/firefox/common/.mozilla/firefox", "Library/Application Support/Firefox"]
)
def test_the_default_profile_is_found_where_each_system_keeps_it(tmp_path: Path, root: str) -> None:
    folder = tmp_path / root
    for name in ("marked", "installed"):
        (folder / name).mkdir(parents=True)
        (folder / name / "places.sqlite").touch()
    marked = "[Profile0]\nName=a\nIsRelative=1\nPath=marked\nDefault=1\n"
    (folder / "profiles.ini").write_text(marked)
    assert find_places("default", tmp_path, {}) == folder / "marked" / "places.sqlite"
    (folder / "profiles.ini").write_text(f"[Install4F96D1932A9F858E]\nDefault=installed\nLocked=1\n\n{marked}")
    assert find_places("default", tmp_path, {}) == folder / "installed" / "places.sqlite"
    with pytest.raises(PlacesError, match="no default Firefox profile"):
        find_places("default", tmp_path / "nobody", {})


@pytest.mark.browser
def test_a_real_firefox_is_read_while_it_runs(tmp_path: Path) -> None:
    insert = """
        const { PlacesUtils } = ChromeUtils.importESModule("resource://gre/modules/PlacesUtils.sys.mjs");
        for (const [url, transition] of arguments[0])
            await PlacesUtils.history.insert({ url, title: "a page", visits: [{ date: new Date(), transition }] });
        await PlacesUtils.bookmarks.insert({ parentGuid: PlacesUtils.bookmarks.unfiledGuid, url: arguments[0][0][0] });
    """
    visits = [["https://one.example/", 1], ["https://two.example/", 2]]
    with running_firefox(tmp_path / "profile", tmp_path) as firefox:
        firefox.run(insert, visits)
        history = read_history(find_places(str(tmp_path / "profile")))
    assert sorted(history.table.visit_type[:, 0].tolist())[-2:] == [VisitType.LINK, VisitType.TYPED]
    assert history.table.bookmarked.any()
    with sqlite3.connect(tmp_path / "profile" / "places.sqlite") as database:
        real = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    made = sqlite3.connect(":memory:")
    made.executescript(SCHEMA)
    ours = {row[0] for row in made.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"moz_places", "moz_historyvisits", "moz_bookmarks"} <= real & ours
