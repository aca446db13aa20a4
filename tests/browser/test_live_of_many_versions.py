"""The Live page of a line of many versions: a sample at first, all of a zoomed range, no memory growth by polls."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from fedping.dashboard.live.history import MOST_ROWS, NEWEST
from fedping.model_store import open_store
from fedping.model_store.decisions import rollback
from tests.browser.dashboards import WALK, Dashboard, dashboard_over, drawn, rows_of, walked
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages
from tests.support.effort import few_or_all
from tests.support.walks import created_at, walk_on

pytestmark = pytest.mark.browser

VERSIONS = MOST_ROWS + 200
BACK_AT = 101
"""Number of the version that a rollback published; by its number alone, the sample would omit it."""


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("many")
    study = walked(folder, 0)
    walk_on(folder / "store", study, BACK_AT - 1)
    rollback(open_store(folder / "store"), "walk", "main", 50, created=created_at(BACK_AT), code_version="test")
    walk_on(folder / "store", study, VERSIONS - BACK_AT, seed=2)
    with dashboard_over(folder) as dashboard:
        yield dashboard


@pytest.fixture
def page(dashboard: Dashboard, chromium: Pages) -> Page:
    page = drawn(chromium.new_page(dashboard.url + WALK, height=5000))
    expect(page.locator("#thinned")).to_contain_text(re.compile(r"^\d+ of [\d,]+ versions are drawn"))
    return page


def shown(page: Page) -> int:
    return int(page.locator("#thinned").inner_text().split(" ")[0])


def test_some_hundreds_of_many_versions_are_sent_the_newest_and_every_event_among_them(page: Page) -> None:
    expect(page.locator("#weights svg.over-map .happened")).to_have_count(1)  # once the server has read all of them
    assert shown(page) < MOST_ROWS + NEWEST + MOST_ROWS // 2
    iterations = [int(row[0]) for row in rows_of(page, "#clients")]
    assert iterations[-NEWEST:] == list(range(VERSIONS - NEWEST, VERSIONS))
    line = page.locator("#clients svg.plot path").first.get_attribute("d") or ""
    assert line.count("M") <= 3, "a line joins versions between which others were left out"
    expect(page.locator("#clients details")).to_contain_text("Of the versions that are shown; CSV has all of them.")
    assert axe_violations(page) == []


def test_a_part_that_is_enlarged_gets_every_version(page: Page) -> None:
    before = shown(page)
    over = page.locator("#clients .over")
    box = over.bounding_box()
    assert box is not None
    with page.expect_response(re.compile(r"part\.json")) as answer:
        page.mouse.move(box["x"] + 0.30 * box["width"], box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.40 * box["width"], box["y"] + 20)
        page.mouse.up()
    assert len(answer.value.json()["rows"]) <= MOST_ROWS
    page.wait_for_function("n => Number(document.querySelector('#thinned').textContent.split(' ')[0]) > n", arg=before)
    iterations = {int(row[0]) for row in rows_of(page, "#clients")}
    part = range(int(0.31 * VERSIONS), int(0.39 * VERSIONS))
    assert iterations >= set(part), "all of them"


def test_a_version_that_is_chosen_is_drawn(page: Page) -> None:
    with page.expect_response(re.compile(r"part\.json")):
        page.locator("#version-number").fill("333")
    expect(page.locator("#weights .scale")).to_contain_text("the bars: version 333")


def test_the_heat_map_enlarges_a_part_with_the_keyboard_and_comes_back(page: Page) -> None:
    over = page.locator("#weights .over")
    over.focus()
    for key in ("Home", "ArrowRight", "+", "+", "+", "+"):
        page.keyboard.press(key)
    back = page.locator("#weights").get_by_role("button", name="Show all versions")
    expect(back).to_be_visible()
    assert axe_violations(page, "#weights") == []
    page.keyboard.press("0")
    expect(back).to_be_hidden()


def test_a_file_has_every_version(page: Page) -> None:
    with page.expect_download() as started:
        page.get_by_role("button", name="Clients whose updates made a version: save as CSV").click()
    rows = list(csv.reader(Path(started.value.path()).read_text().splitlines()))
    assert [int(row[0]) for row in rows[1:]] == [n for n in range(VERSIONS) if n != BACK_AT - 1]


@pytest.mark.thorough
def test_an_hour_of_polls_keeps_no_memory(dashboard: Dashboard, chromium: Pages) -> None:
    page = chromium.new_page()
    page.clock.install()
    page.route(
        "**/changes*",
        lambda route: (
            route.fulfill(status=503) if "event-stream" in route.request.headers["accept"] else route.continue_()
        ),
    )
    polls: list[str] = []
    page.on("response", lambda answer: polls.append(answer.url) if "/changes" in answer.url else None)
    page.goto(dashboard.url + WALK)
    while not page.locator("#loss svg.plot").count():
        page.clock.run_for(100)  # frames are driven too
    session = page.context.new_cdp_session(page)

    def held() -> float:
        session.send("HeapProfiler.collectGarbage")
        return float(session.send("Runtime.getHeapUsage")["usedSize"])

    def polled(times: int) -> None:
        before = len(polls)
        while len(polls) < before + times:
            page.clock.run_for(3_000)

    polled(20)
    before, nodes = held(), page.evaluate("document.querySelectorAll('*').length")
    polled(few_or_all(100, 1200))
    grown = held() - before
    assert grown < 500_000, f"{grown:,} bytes in an hour"
    assert page.evaluate("document.querySelectorAll('*').length") <= nodes
    chromium.forgive("status of 503")
