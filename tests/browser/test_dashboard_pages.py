"""Every page of the dashboard in a real browser: accessible at every width; and the results of a study."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow.dataset as ds
import pytest
import requests
from marionette_driver import By
from playwright.sync_api import Browser, Page, expect

from tests.browser.dashboards import (
    FINISHED,
    PATIENCE,
    RUN,
    RUN_TITLE,
    VARIANTS,
    WALK,
    Dashboard,
    compared,
    dashboard_over,
    drawn,
    full,
    rows_of,
    scrolls_sideways,
    widened,
)
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages, pages_of
from tests.browser.harness.firefox import Firefox
from tests.browser.harness.waiting import wait_for

pytestmark = pytest.mark.browser

EVALUATED = datetime(2018, 6, 20, 2, 30, tzinfo=UTC)
"""Start of the evaluated pings: all five rounds are over, and the final model is published."""

HIGH = 6000
"""Window height in pixels at which all figures are visible, and so drawn."""

PAGES = {
    "all lines": "/live/",
    "a line": f"/live/{FINISHED}/main/",
    "all studies": "/results/",
    "a question": f"/results/{FINISHED}/",
    "all runs": "/runs/",
    "chosen runs": "/runs/?group=kind&where=title+~+o&column=test+accuracy&column=settings.rounds",
    "drawn runs": "/runs/drawing?axis=settings.rounds&axis=test+accuracy",
    "a form": "/runs/new?from=breast_cancer",
    "a form as text": "/runs/text",
    "a run": f"/runs/{RUN}/",
    "a run and another": f"/runs/{RUN}/?than=shipped:breast_cancer",
    "a run to delete": f"/runs/{RUN}/delete",
    "nothing to compare yet": "/compare/",
    "changes": "/changes/",
    "compared": compared(),
    "an error": "/live/nowhere/main/",
}


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("dashboard")
    full(folder)
    with dashboard_over(folder) as dashboard:
        yield dashboard


@pytest.fixture(scope="module")
def counted(dashboard: Dashboard, chromium_browser: Browser) -> str:
    """Ask a question on the results page, wait for its count, and return the address of the answer."""
    with pages_of(chromium_browser) as pages:
        page = pages.new_page(f"{dashboard.url}/results/{FINISHED}/")
        pairs = page.locator("input[name=pairs][type=checkbox]")
        for place in range(pairs.count()):
            pairs.nth(place).set_checked(pairs.nth(place).get_attribute("value") == "treatment:control")
        page.get_by_label("selected rank is a guardrail").check()
        page.get_by_label("Since (UTC)").fill(f"{EVALUATED:%Y-%m-%dT%H:%M:%S}")
        page.get_by_role("button", name="Count", exact=True).click()
        expect(page.locator(".busy progress")).to_be_visible()
        assert axe_violations(page) == []
        expect(page.locator("#verdict")).to_be_visible(timeout=3 * PATIENCE)
        assert pages.complaints == []
        return page.url


def is_fit_for_all(page: Page) -> None:
    """Check that a page, light and wide or dark and narrow, is accessible and fits the window's width."""
    opened = "for (const one of document.querySelectorAll('details')) one.open = true"
    for dark, width in ((False, 1280), (True, 390)):
        page.emulate_media(color_scheme="dark" if dark else "light")
        drawn(widened(page, width, HIGH)).evaluate(opened)
        assert axe_violations(page) == [], f"dark: {dark}, {width} pixels wide"
        assert not scrolls_sideways(page), f"the page is wider than {width} pixels"


def test_a_simulated_study_tells_its_own_time(dashboard: Dashboard, chromium: Pages) -> None:
    numbers = chromium.new_page(f"{dashboard.url}/live/{FINISHED}/main/").locator("#health")
    expect(numbers).to_contain_text("simulated time")
    assert " ago" not in numbers.inner_text()
    assert "overdue" not in numbers.inner_text()


def test_the_reasons_why_pings_were_left_out_are_words(dashboard: Dashboard, chromium: Pages) -> None:
    page = drawn(chromium.new_page(f"{dashboard.url}/live/{FINISHED}/main/", height=HIGH))
    expect(page.locator("#left-out button.key").first).to_have_text("no example")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_fit_for_all(dashboard: Dashboard, chromium: Pages, name: str) -> None:
    page = chromium.new_page(dashboard.url + PAGES[name], height=HIGH)
    if name == "a line":
        expect(page.locator("#version-is")).to_contain_text("Digest")
    is_fit_for_all(page)
    if name == "an error":
        chromium.forgive("status of 404")


@pytest.mark.parametrize("width", [390, 660])
def test_the_names_of_the_pages_are_in_one_row(dashboard: Dashboard, chromium: Pages, width: int) -> None:
    page = chromium.new_page(f"{dashboard.url}/runs/", width=width)
    top = "(all) => all.map((one) => Math.round(one.getBoundingClientRect().top))"
    tops = page.locator(".bar nav a").evaluate_all(top)
    assert len(tops) > 1
    assert len(set(tops)) == 1
    assert not scrolls_sideways(page)


def test_results_are_fit_for_all(chromium: Pages, counted: str) -> None:
    page = chromium.new_page(counted, height=HIGH)
    is_fit_for_all(page)
    found = page.get_by_role("group", name="Tests and effects by client").locator(".tag").first
    edges = found.evaluate("(tag) => [tag.getBoundingClientRect().right, document.documentElement.clientWidth]")
    assert edges[0] < edges[1], "on a telephone one sees what was found without moving the table"


def test_results_are_those_of_the_landed_pings(dashboard: Dashboard, chromium: Pages, counted: str) -> None:
    page = chromium.new_page(counted, height=HIGH)
    document = json.loads(page.evaluate("fetch(document.querySelector('a[href*=document]').href).then(a => a.text())"))
    expect(page.locator("#verdict")).to_have_text(document["verdict"])
    landing = dashboard.folder / "landing" / f"study={FINISHED}"
    pings = ds.dataset(landing).to_table(["client_id", "study_variation", "received_at"]).to_pylist()
    judged = [ping for ping in pings if ping["received_at"] >= EVALUATED]
    arms = page.locator("h3:has-text('Sizes of the arms') + div tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert {row[0]: (int(row[1]), int(row[4])) for row in arms} == {
        arm: (len({ping["client_id"] for ping in judged if ping["study_variation"] == arm}), n)
        for arm, n in Counter(ping["study_variation"] for ping in judged).items()
    }
    drawn(page)
    scales = {
        "Lift": lambda one: (100, one["means"]["lift"]),
        "Difference": lambda one: (1, one["means"]["difference"]),
        "Test of ranks": lambda one: (100, one["decides"]),
    }
    for name, told in scales.items():
        page.get_by_role("group", name="Show").get_by_text(name, exact=True).click()
        for metric in document["metrics"]:
            (row,) = rows_of(page, f"[data-metric={metric}] .effect")
            (found,) = [one for one in document["comparisons"] if one["metric"] == metric]
            times, estimate = told(found)
            assert row[:2] == ["treatment", "control"]
            assert [float(cell.replace("−", "-")) for cell in row[2:5]] == pytest.approx(
                [times * estimate[bound] for bound in ("value", "low", "high")], rel=1e-3
            )
    assert page.get_by_role("heading", name="Guardrails").is_visible()


def test_variants_are_compared_by_their_summary(dashboard: Dashboard, chromium: Pages) -> None:
    page = chromium.new_page(f"{dashboard.url}/compare/", height=2000)
    run = page.get_by_role("group", name=RUN_TITLE)
    for name in VARIANTS:
        run.get_by_label(name, exact=True).check()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("2 side by side")
    drawn(page)
    expect(page.locator("#metric")).not_to_have_value("")
    summary = requests.get(f"{dashboard.url}/runs/{RUN}/summary.json", timeout=240).json()
    metric, split = page.locator("#metric").input_value(), page.locator("#split").input_value()
    told = {row[0]: float(row[1]) for row in rows_of(page, "#finals")}
    assert told == pytest.approx(
        {name: summary["variants"][name]["metrics"][split][metric]["mean"] for name in VARIANTS}, rel=1e-3
    )
    before = page.locator("#curves .drawing").get_attribute("aria-label")
    page.locator("#metric").select_option("loss")
    expect(page.locator("#curves .drawing")).not_to_have_attribute("aria-label", before or "")
    shared = chromium.new_page(page.url, height=2000)
    expect(shared.locator("#metric")).to_have_value("loss")


def test_the_button_changes_the_theme_and_the_browser_remembers_it(dashboard: Dashboard, chromium: Pages) -> None:
    page = drawn(chromium.new_page(dashboard.url + WALK, height=3000))

    def colours() -> tuple[str, str]:
        """Return the page's colour and a heat map's middle colour, once all versions have arrived in parts."""
        page.wait_for_function(
            "document.querySelector('#weights canvas').width > "
            "Number(document.querySelector('#health dd').firstChild.textContent)"
        )
        return (
            page.evaluate("getComputedStyle(document.body).backgroundColor"),
            page.evaluate("document.querySelector('#weights canvas').toDataURL()"),
        )

    button, light = page.locator("#theme"), colours()
    expect(button).to_have_text("Theme: system")
    button.click()
    expect(button).to_have_text("Theme: light")
    assert colours() == light
    button.click()
    expect(button).to_have_text("Theme: dark")
    page.wait_for_function("was => document.querySelector('#weights canvas').toDataURL() !== was", arg=light[1])
    dark = colours()
    assert dark[0] != light[0]
    assert axe_violations(page) == []
    page.reload()
    expect(button).to_have_text("Theme: dark")
    drawn(page)
    assert colours() == dark
    button.click()
    expect(button).to_have_text("Theme: system")
    page.wait_for_function("was => document.querySelector('#weights canvas').toDataURL() === was", arg=light[1])


def test_firefox_follows_a_line(dashboard: Dashboard, firefox: Firefox) -> None:
    page = firefox.page
    page.navigate(dashboard.url + WALK)

    def drawings() -> int:
        return len(page.find_elements(By.CSS_SELECTOR, "#loss .drawing svg, #weights .drawing canvas"))

    wait_for(lambda: drawings() >= 2, "the drawings in Firefox")
    wait_for(lambda: page.find_element(By.ID, "connection").text == "live", "a stream in Firefox")
    head = dashboard.publish(dashboard.store.study("walk"))
    tile = "return document.querySelector('#health dd').firstChild.textContent"
    wait_for(lambda: page.execute_script(tile) == str(head.iteration), "the new version in Firefox")
