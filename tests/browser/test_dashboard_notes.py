"""Notes and roles in a real browser: notes are written, drawn on charts, printed and saved; roles have buttons."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from fedping.model_store import open_store
from fedping.protocol.notes import Note
from tests.browser.dashboards import WALK, Dashboard, dashboard_over, drawn, rows_of, scrolls_sideways, walked, widened
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages
from tests.support.kept_counts import keep_count
from tests.support.many_arms import against_control, many_arms, verdict_against_control
from tests.support.teams import of_three
from tests.support.verdicts import HOUR
from tests.support.versions import version_0
from tests.support.walks import created_at

pytestmark = pytest.mark.browser

AFTER_70_MINUTES = datetime.fromtimestamp(3600 * HOUR + 4200, UTC)
AFTER_A_YEAR = AFTER_70_MINUTES + timedelta(days=365)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notes")


@pytest.fixture(scope="module")
def tokens(folder: Path) -> dict[str, str]:
    return of_three(folder / "team.json")


@pytest.fixture(scope="module")
def dashboard(folder: Path, tokens: dict[str, str]) -> Iterator[Dashboard]:
    walked(folder, 12)
    with dashboard_over(folder, "--team", str(folder / "team.json")) as dashboard:
        yield dashboard


@pytest.fixture
def empty(dashboard: Dashboard) -> Dashboard:
    store = dashboard.store
    for note in store.notes.of("walk").notes:
        store.notes.remove(store.study("walk"), note)
    return dashboard


def entered(chromium: Pages, dashboard: Dashboard, token: str, path: str = WALK) -> Page:
    page = chromium.new_page(f"{dashboard.url}{path}?token={token}", height=3000)
    expect(page).to_have_url(f"{dashboard.url}{path}")
    return drawn(page) if path == WALK else page


def written(page: Page, text: str, **chosen: str) -> None:
    page.get_by_label("Note", exact=True).fill(text)
    for name, value in chosen.items():
        field = page.locator(f"#note-{name}")
        field.select_option(value) if name in ("pin", "line", "arm") else field.fill(value)
    page.locator("#note-save").click()
    expect(page.get_by_label("Note", exact=True)).to_have_value("")


def marks(page: Page) -> Locator:
    return page.locator("#clients svg text", has_text=re.compile("^✎"))


def test_a_note_is_written_shown_on_charts_edited_and_removed(
    chromium: Pages, empty: Dashboard, tokens: dict[str, str]
) -> None:
    page = entered(chromium, empty, tokens["analyst"])
    expect(page.locator("#notes-none")).to_be_visible()
    assert axe_violations(page) == []
    written(page, "The crawler was wrong here, and pings came twice.", version="4")
    (item,) = page.locator("#notes-list li").all()
    expect(item).to_contain_text("Version 4")
    expect(item).to_contain_text("ann, ")
    expect(marks(page)).to_have_text("✎ The crawler was wrong…")
    assert axe_violations(page) == []
    column = {row[0]: row[-1] for row in rows_of(page, "#clients")}
    assert column["4"] == "The crawler was wrong here, and pings came twice."
    assert set(column.values()) == {"", column["4"]}
    item.get_by_role("button", name="Edit note 1").click()
    expect(page.locator("#note-version")).to_have_value("4")
    written(page, "Mended")
    expect(item).to_contain_text("edited by ann")
    expect(marks(page)).to_have_text("✎ Mended")
    item.get_by_role("button", name="Remove note 1").click()
    item.get_by_role("button", name="Really remove note 1?").click()
    expect(page.locator("#notes-none")).to_be_visible()
    expect(marks(page)).to_have_count(0)


def test_a_date_lies_between_the_versions_of_its_time_and_others_see_it_without_reloading(
    chromium: Pages, empty: Dashboard, tokens: dict[str, str]
) -> None:
    reader = entered(chromium, empty, tokens["reader"])
    expect(reader.locator("#notes-none")).to_be_visible()
    moments = [datetime.fromisoformat(created_at(n)) for n in (5, 6)]
    between = moments[0] + (moments[1] - moments[0]) / 2
    store = empty.store
    note = Note(id=1, text="Half way", date=between.astimezone(UTC).isoformat(), by="ann", written=created_at(9))
    store.notes.add(store.study("walk"), note)
    expect(reader.locator("#notes-list")).to_contain_text("Half way")
    expect(marks(reader)).to_have_text("✎ Half way")
    expect(reader.locator("#clients svg g[stroke-dasharray='1.5 3'] line")).to_have_count(1)
    assert {row[0]: row[-1] for row in rows_of(reader, "#clients")}["5"] == "Half way"


def test_the_results_page_has_the_same_notes(chromium: Pages, empty: Dashboard, tokens: dict[str, str]) -> None:
    page = entered(chromium, empty, tokens["analyst"], "/results/walk/")
    expect(page.locator("#notes-none")).to_be_visible()
    written(page, "A release", date="2026-01-01T02:10")
    expect(page.locator("#notes-list li")).to_contain_text("2026-01-01 02:10 UTC")
    assert axe_violations(page) == []


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Give a study with counted results, a note 70 minutes after its first ping, and another a year later."""
    folder = tmp_path_factory.mktemp("counted")
    study = many_arms(3)
    store = open_store(folder / "store", create=True)
    store.create_study(study, (version_0(study),))
    (folder / "landing").mkdir()
    keep_count(folder / "runs", verdict_against_control(study), against_control(study))
    for moment, text in ((AFTER_70_MINUTES, f"{HOSTILE}, released"), (AFTER_A_YEAR, "Too late")):
        note = Note(id=1, text=text, date=moment.isoformat(), by="ann", written=moment.isoformat())
        store.notes.add(study, note)
    with dashboard_over(folder) as dashboard:
        yield dashboard


@pytest.mark.parametrize("figure", ["#exposure", "#traffic"])
def test_charts_of_counted_results_have_the_notes_of_their_time(
    chromium: Pages, counted: Dashboard, figure: str
) -> None:
    page = drawn(chromium.new_page(f"{counted.url}/results/many/", height=6000))
    expect(page.locator("#notes-list li")).to_have_count(2)
    expect(page.locator(f"{figure} svg text", has_text=re.compile("^✎"))).to_have_text("✎ <img src=x onerror=al…")
    told = {row[0]: row[-1] for row in rows_of(page, figure)}
    assert told["2018-06-26 09:00"] == f"{HOSTILE}, released"
    assert "Too late" not in told.values()
    assert page.locator("img[src=x]").count() == 0
    assert axe_violations(page) == []
    assert chromium.complaints == []


def test_hostile_words_are_words(chromium: Pages, empty: Dashboard, tokens: dict[str, str]) -> None:
    page = entered(chromium, empty, tokens["analyst"])
    written(page, HOSTILE, version="3")
    expect(page.locator("#notes-list .text")).to_have_text(HOSTILE)
    expect(marks(page)).to_have_count(1)
    changes = chromium.new_page(f"{empty.url}/changes/")
    expect(changes.get_by_role("table")).to_contain_text(HOSTILE)
    assert axe_violations(changes) == []
    names = changes.locator(".changes td:nth-child(4) bdi").evaluate_all(
        "all => all.map((one) => one.getClientRects().length)"
    )
    assert set(names) == {1}, "the name of a study is in one row"
    for each in (page, changes):
        assert each.locator("img[src=x]").count() == 0
    assert chromium.complaints == []


def test_what_the_server_refuses_is_said_and_the_words_stay(
    chromium: Pages, empty: Dashboard, tokens: dict[str, str]
) -> None:
    page = entered(chromium, empty, tokens["analyst"])
    page.get_by_label("Note", exact=True).fill("Too early")
    page.locator("#note-version").fill("400")
    page.locator("#note-save").click()
    expect(page.locator("#notes-trouble")).to_contain_text("has no version 400; pin the note to a version up to 12")
    expect(page.get_by_label("Note", exact=True)).to_have_value("Too early")
    chromium.forgive("status of 400")


def test_each_role_sees_its_buttons_and_why_others_are_missing(
    chromium: Pages, empty: Dashboard, tokens: dict[str, str]
) -> None:
    store = empty.store
    store.notes.add(
        store.study("walk"), Note(id=1, text="Look", version=2, line="main", by="ann", written=created_at(3))
    )
    page = entered(chromium, empty, tokens["reader"])
    expect(page.locator(".person")).to_contain_text("rita, reader")
    expect(page.locator("#notes-list")).to_contain_text("Look")
    assert page.get_by_role("button", name="Edit note 1").count() == 0
    expect(page.locator("#notes")).to_contain_text("To write a note, you need the role analyst.")
    page.locator("#version-number").fill("3")
    expect(page.locator("#version-back")).to_be_disabled()
    expect(page.locator("#lineage")).to_contain_text("To roll back a line, you need the role operator.")
    for dark, width in ((False, 1440), (True, 390)):
        page.emulate_media(color_scheme="dark" if dark else "light")
        assert axe_violations(drawn(widened(page, width, 3000))) == []
        assert not scrolls_sideways(page)
    page.get_by_role("button", name="Leave").click()
    expect(page).to_have_title("Enter · fedping")
    page = entered(chromium, empty, tokens["operator"])
    page.locator("#version-number").fill("3")
    expect(page.locator("#version-back")).to_be_enabled()


def test_notes_are_printed_and_saved_in_a_chart(chromium: Pages, empty: Dashboard, tokens: dict[str, str]) -> None:
    store = empty.store
    for n in range(25):
        note = Note(
            id=1, text=f"Note of version {n % 12}", version=n % 12, line="main", by="ann", written=created_at(9)
        )
        store.notes.add(store.study("walk"), note)
    page = entered(chromium, empty, tokens["analyst"])
    expect(page.locator("#notes-list li")).to_have_count(20)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Clients whose updates made a version: save as CSV").click()
    rows = saved.value.path().read_text().splitlines()
    assert rows[0].endswith("notes")
    assert "Note of version 7; Note of version 7" in rows[8]
    with page.expect_download() as saved:
        page.get_by_role("button", name="Clients whose updates made a version: save as SVG").click()
    assert "✎ Note of version" in saved.value.path().read_text()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    expect(page.locator("#notes-list li")).to_have_count(25)
    expect(page.locator("#notes-form")).to_be_hidden()
