"""A Live page whose store, dashboard or study is unavailable says which and since when, and recovers by itself."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from fedping.model_store import open_store
from tests.browser.dashboards import CUT_OFF, WALK, Dashboard, dashboard_over, drawn, scrolls_sideways, walked
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages
from tests.support.ingest_server import descendants
from tests.support.versions import small_study, version_0

pytestmark = pytest.mark.browser

AWAY = "This page can't read its store"
MOMENT = re.compile(r"Since \d{1,2} \w+ \d{4}, \d\d:\d\d:\d\d")


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("outages")
    walked(folder, 6)
    other = small_study("another")
    open_store(folder / "store").create_study(other, (version_0(other),))
    with dashboard_over(folder) as dashboard:
        yield dashboard


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Dashboard]:
    """Give a dashboard without streams, so that its pages poll."""
    walked(tmp_path, 6)
    with dashboard_over(tmp_path, "--viewers", "0") as dashboard:
        yield dashboard


def colour(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.querySelector('.status')).borderLeftColor"))


def loses_and_finds_its_store(page: Page, dashboard: Dashboard) -> None:
    """Check that a line's page reports a missing store, and shows new versions once the store is back."""
    status, store = page.locator("#status"), dashboard.folder / "store"
    expect(page.locator("#loss svg.plot")).to_be_visible()
    store.rename(store.with_name("gone"))
    try:
        expect(status).to_have_attribute("data-verdict", "problem")
        expect(page.locator("#verdict")).to_have_text(f"{AWAY}.")
        finding = page.locator("#findings li")
        expect(finding).to_contain_text(f"There is no model store at {store}")
        expect(finding).to_contain_text(MOMENT)
        expect(page.locator("#connection")).to_have_attribute("data-state", "broken")
        expect(page.locator("#loss svg.plot")).to_be_visible()
        assert axe_violations(page) == []
    finally:
        store.with_name("gone").rename(store)
    head = dashboard.publish(dashboard.store.study("walk"))
    expect(page.locator("#health dd").first).to_contain_text(str(head.iteration))
    expect(page.locator("#verdict")).not_to_have_text(f"{AWAY}.")
    expect(page.locator("#connection")).not_to_have_attribute("data-state", "broken")


def test_a_line_whose_store_goes_says_so_and_goes_on_once_it_is_back(dashboard: Dashboard, chromium: Pages) -> None:
    page = drawn(chromium.new_page(dashboard.url + WALK))
    expect(page.locator("#connection")).to_have_text("live")
    loses_and_finds_its_store(page, dashboard)
    expect(page.locator("#connection")).to_have_text("live")


def test_a_page_that_asks_tells_the_same(asking: Dashboard, chromium: Pages) -> None:
    loses_and_finds_its_store(drawn(chromium.new_page(asking.url + WALK)), asking)
    chromium.forgive("status of 503")


def test_the_studies_are_not_shown_as_well_while_their_store_is_gone(dashboard: Dashboard, chromium: Pages) -> None:
    page = chromium.new_page(f"{dashboard.url}/live/")
    expect(page.get_by_role("heading", name="walk")).to_be_visible()
    store = dashboard.folder / "store"
    store.rename(store.with_name("gone"))
    try:
        expect(page.get_by_role("heading", name=AWAY)).to_be_visible()
        expect(page.locator("#outage")).to_contain_text(MOMENT)
        expect(page.get_by_role("heading", name="walk")).to_be_hidden()
        assert axe_violations(page) == []
    finally:
        store.with_name("gone").rename(store)
    expect(page.get_by_role("heading", name="walk")).to_be_visible()
    expect(page.locator("#outage")).to_be_hidden()


def test_a_damaged_study_is_told_where_it_is_opened_and_shown_once_it_is_restored(
    dashboard: Dashboard, chromium: Pages
) -> None:
    file = dashboard.folder / "store" / "walk" / "study.json"
    good = file.read_bytes()
    file.write_bytes(b"{")
    try:
        page = chromium.new_page(dashboard.url + WALK, width=390)
        expect(page.get_by_role("heading", level=1)).to_have_text("This page can't be read now")
        expect(page.locator("#sentence")).to_contain_text(f"{file} cannot be read")
        expect(page.locator("#retrying")).to_contain_text(MOMENT)
        assert not scrolls_sideways(page)
        assert axe_violations(page) == []
    finally:
        file.write_bytes(good)
    expect(page.locator("#loss svg.plot")).to_be_visible()
    chromium.forgive("status of 503")


def test_without_the_dashboard_no_verdict_keeps_its_colour(dashboard: Dashboard, chromium: Pages) -> None:
    page = drawn(chromium.new_page(dashboard.url + WALK))
    expect(page.locator("#connection")).to_have_text("live")
    before = colour(page)
    dashboard.server.process.send_signal(signal.SIGKILL)
    dashboard.server.process.wait(30)
    expect(page.locator("#connection")).to_have_text(re.compile(r"connecting again … \(since \d\d:\d\d:\d\d\)"))
    assert colour(page) != before
    dashboard.start()
    expect(page.locator("#connection")).to_have_text("live")
    assert colour(page) == before
    chromium.forgive(CUT_OFF)


def test_a_dashboard_that_hangs_is_noticed(dashboard: Dashboard, chromium: Pages) -> None:
    page = chromium.new_page()
    page.clock.install()
    page.goto(dashboard.url + WALK)
    expect(page.locator("#connection")).to_have_text("live")
    first = dashboard.server.process.pid
    processes = [first, *descendants(first)]
    for each in processes:
        os.kill(each, signal.SIGSTOP)
    try:
        page.clock.fast_forward(20_000)
        expect(page.locator("#connection")).to_contain_text("no word from the dashboard (since ")
    finally:
        for each in processes:
            os.kill(each, signal.SIGCONT)
    page.clock.resume()
    expect(page.locator("#connection")).to_have_text("live")
