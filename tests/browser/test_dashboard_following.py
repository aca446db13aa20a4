"""The Live page in a real browser: it follows a line through restarts, without a stream, and behind a token."""

import re
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from fedping.model_store.version import GuardState
from fedping.protocol.study import Study
from tests.browser.dashboards import (
    CUT_OFF,
    WALK,
    Dashboard,
    dashboard_over,
    drawn,
    rows_of,
    walked,
)
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages
from tests.support.walks import following

pytestmark = pytest.mark.browser

TOKEN = "a-token-for-tests-only"


@pytest.fixture(scope="module")
def study_and_dashboards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Study, Dashboard, Dashboard]]:
    """Give a study, a dashboard without a token, and one with a token and without streams."""
    folder = tmp_path_factory.mktemp("followed")
    (folder / "token").write_text(TOKEN)
    study = walked(folder, 6)
    strict = ("--viewers", "0", "--token-file", str(folder / "token"))
    with dashboard_over(folder) as dashboard, dashboard_over(folder, *strict) as door:
        yield study, dashboard, door


@pytest.fixture
def study(study_and_dashboards: tuple[Study, Dashboard, Dashboard]) -> Study:
    return study_and_dashboards[0]


@pytest.fixture
def dashboard(study_and_dashboards: tuple[Study, Dashboard, Dashboard]) -> Dashboard:
    return study_and_dashboards[1]


@pytest.fixture
def door(study_and_dashboards: tuple[Study, Dashboard, Dashboard]) -> Dashboard:
    return study_and_dashboards[2]


def shows(page: Page, version: int) -> None:
    """Wait until the page shows a version as the newest."""
    script = "version => document.querySelector('#health dd')?.firstChild.textContent === version"
    page.wait_for_function(script, arg=str(version))


def iterations(page: Page) -> list[int]:
    """Return the iterations in the table of the clients' figure."""
    return [int(row[0]) for row in rows_of(page, "#clients")]


def test_a_version_that_is_published_is_shown_and_a_restart_misses_and_repeats_nothing(
    chromium: Pages, dashboard: Dashboard, study: Study
) -> None:
    page = chromium.new_page(dashboard.url + WALK, height=4000)
    head = dashboard.store.head("walk", "main")
    shows(page, head.iteration)
    page.evaluate("window.loadedOnce = true")
    head = dashboard.publish(study)
    shows(page, head.iteration)
    expect(page.locator("#connection")).to_have_text("live")
    told = page.locator("#loss .drawing").get_attribute("aria-label")

    dashboard.server.process.send_signal(signal.SIGKILL)
    dashboard.server.process.wait(30)
    expect(page.locator("#connection")).to_contain_text("connecting again …")
    head = dashboard.publish(study, 3)
    with page.expect_request(re.compile(r"/changes\?since=|/changes$")) as again:
        dashboard.start()
    assert again.value.headers["accept"] == "text/event-stream"
    shows(page, head.iteration)
    assert page.evaluate("window.loadedOnce"), "the page was loaded anew"
    assert iterations(page) == list(range(head.iteration))
    assert page.locator("#loss .drawing").get_attribute("aria-label") != told
    chromium.forgive(CUT_OFF)


def test_a_version_that_could_not_be_fetched_is_asked_for_again(
    chromium: Pages, dashboard: Dashboard, study: Study
) -> None:
    page = chromium.new_page(dashboard.url + WALK, height=4000)
    shows(page, dashboard.store.head("walk", "main").iteration)
    page.route("**/versions/2.json", lambda route: route.abort(), times=1)
    page.locator("#version-number").fill("2")
    expect(page.locator("#version-is .alarm")).to_be_visible()
    dashboard.publish(study)
    expect(page.locator("#version-is")).to_contain_text("Digest")
    expect(page.locator("#version-number")).to_have_value("2")
    chromium.forgive("ERR_FAILED")


def test_the_door_lets_in_whoever_has_the_token_and_leads_to_where_they_wanted(
    chromium: Pages, door: Dashboard, study: Study
) -> None:
    wanted = f"{door.url}{WALK}?from=a%20link"
    page = chromium.new_page(wanted, width=390)
    expect(page).to_have_title("Enter · fedping")
    assert axe_violations(page) == []
    page.get_by_label("Token").fill("not the token of this dashboard")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("This is not the token")
    assert axe_violations(page) == []
    page.goto(wanted)
    expect(page).not_to_have_url(wanted)
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page).to_have_url(wanted)
    cookies = [cookie for cookie in chromium.context.cookies() if "dashboard" in str(cookie.get("name"))]
    assert [(cookie.get("httpOnly"), cookie.get("sameSite")) for cookie in cookies] == [(True, "Strict")]
    assert TOKEN not in page.content()

    # No stream is free here, so the page polls, and still gets the changes.
    expect(page.locator("#connection")).to_have_text("asking every 3 s")
    head = door.publish(study)
    shows(page, head.iteration)
    chromium.forgive(r"status of (403|503)")


def test_the_token_in_the_address_lets_in_and_leaves_it(chromium: Pages, door: Dashboard) -> None:
    page = chromium.new_page(f"{door.url}/runs/?token={TOKEN}")
    expect(page).to_have_url(f"{door.url}/runs/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Experiments")
    chromium.forgive("status of 503")


def test_a_line_is_rolled_back_with_the_keyboard_alone(chromium: Pages, dashboard: Dashboard, study: Study) -> None:
    before = dashboard.store.head("walk", "main")
    page = drawn(chromium.new_page(dashboard.url + WALK))
    shows(page, before.iteration)
    back = page.locator("#version-back")
    _tab_to(page, "version-slider")
    for _ in range(before.iteration - 2):
        page.keyboard.press("ArrowLeft")
    expect(back).to_have_text("Roll back to version 2 …")
    _tab_to(page, "version-back")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Roll back to version 2")
    expect(dialog).to_be_visible()
    assert axe_violations(page) == []
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert _focused(page) == "version-back", "the focus is lost"

    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    expect(page.locator("#rollback-typed")).to_be_focused()
    page.keyboard.type("3")
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    assert dashboard.store.head("walk", "main") == before, "published without the number"
    page.keyboard.press("Backspace")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.locator("#rollback-done")).to_contain_text(
        f"Version {before.iteration + 1} is published; it repeats version 2."
    )
    shows(page, before.iteration + 1)
    head = dashboard.store.head("walk", "main")
    assert head.lineage.origin == "rollback"
    assert head.weights == dashboard.store.version("walk", "main", 2).weights
    assert axe_violations(page) == []


def test_a_rollback_that_another_version_was_ahead_of_is_not_made(
    chromium: Pages, dashboard: Dashboard, study: Study
) -> None:
    page = drawn(chromium.new_page(dashboard.url + WALK))
    page.locator("#version-number").fill("1")
    page.locator("#version-back").click()
    page.locator("#rollback-typed").fill("1")
    expect(page.locator("#rollback-go")).to_be_enabled()
    head = dashboard.publish(study)
    page.locator("#rollback-go").click()
    expect(page.locator("#rollback-wrong")).to_contain_text(str(head.iteration))
    assert dashboard.store.head("walk", "main") == head
    chromium.forgive("status of 409")


def test_a_held_version_is_told_on_top_and_left_behind_by_hand(
    chromium: Pages, dashboard: Dashboard, study: Study
) -> None:
    head = dashboard.store.head("walk", "main")
    held = following(study, head, np.random.default_rng(1))
    seen = GuardState(alarms=("the updates together are 3.45e+18 long; the largest of the last 48 rounds was 0.881",))
    held = replace(held, lineage=replace(held.lineage, guard=seen))
    dashboard.store.hold(held)
    page = drawn(chromium.new_page(dashboard.url + WALK))
    expect(page.locator("#findings")).to_contain_text(f"Version {held.iteration} is held: the updates together are")
    expect(page.get_by_role("button", name="Publish it …")).to_be_visible()
    page.get_by_role("button", name="Discard it …").click()
    dialog = page.get_by_role("dialog", name=f"Discard version {held.iteration}")
    expect(dialog).to_contain_text("The pings of the held version are discarded")
    expect(dialog).to_contain_text("No published weight differs.")
    assert axe_violations(page) == []
    page.locator("#rollback-typed").fill(str(held.iteration))
    page.locator("#rollback-go").click()
    expect(page.locator("#held-done")).to_have_text(f"Version {held.iteration} is published.")
    shows(page, held.iteration)
    expect(page.locator("#held")).to_be_hidden()
    made = dashboard.store.head("walk", "main")
    assert made.weights == head.weights
    assert made.lineage.guard is not None
    assert made.lineage.guard.decision == "discarded"
    assert axe_violations(page) == []


def _tab_to(page: Page, element: str) -> None:
    """Press the Tab key until an element has the focus."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if _focused(page) == element:
            return
    pytest.fail(f"the keyboard does not reach #{element}")


def _focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id"))
