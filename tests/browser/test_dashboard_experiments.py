"""Experiments in a real browser: described in the form, watched to the end, stopped, resumed, and never lost."""

import json
import re
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from playwright.sync_api import Page, expect

from tests.browser.dashboards import CUT_OFF, Dashboard, dashboard_over, drawn, rows_of
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages
from tests.support.processes import marked, wait_until

pytestmark = pytest.mark.browser

KEPT = ("FedGD", "FedGD+")

LONG = 100_000
"""Timeout for a run's end, in milliseconds; runs have low priority on busy cores."""


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with dashboard_over(tmp_path_factory.mktemp("experiments")) as dashboard:
        yield dashboard


def describe(page: Page, title: str, *, rounds: int, variants: tuple[str, ...] = KEPT) -> None:
    """Begin with a shipped experiment and change its title, rounds, seeds and variants."""
    page.get_by_label("A shipped experiment").select_option("breast_cancer")
    page.get_by_role("button", name="Begin with it").click()
    page.get_by_label("Title").fill(title)
    page.get_by_role("textbox", name="Rounds", exact=True).fill(str(rounds))
    page.get_by_role("textbox", name="Seeds", exact=True).fill("2")
    arms = page.locator("#arms > fieldset")
    for place in reversed(range(arms.count())):
        if arms.nth(place).get_by_label("Name").input_value() not in variants:
            arms.nth(place).get_by_role("button", name="Remove the variant").click()
    expect(arms).to_have_count(len(variants))


def started(page: Page) -> str:
    """Start the described experiment; return the run's id."""
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url(re.compile(r"/runs/[^/]+/$"))
    return page.url.split("/")[-2]


def rounds_done(page: Page) -> int:
    return int(page.locator("#rounds").inner_text().partition(" of ")[0].replace(",", ""))


def wait_for_rounds(page: Page, more_than: int) -> None:
    script = """least => Number(
        document.getElementById("rounds").textContent.split(" of ")[0].replaceAll(/\\D/g, "")) > least"""
    page.wait_for_function(script, arg=more_than, timeout=LONG)


def test_an_experiment_is_described_started_and_watched_to_its_end(dashboard: Dashboard, chromium: Pages) -> None:
    page = chromium.new_page(f"{dashboard.url}/runs/new", height=2000)
    describe(page, "Two ways to learn", rounds=-1)
    expect(page.locator("#rounds-wrong")).to_be_visible()
    expect(page.get_by_role("textbox", name="Rounds", exact=True)).to_have_attribute("aria-invalid", "true")
    assert axe_violations(page) == []
    page.get_by_role("textbox", name="Rounds", exact=True).fill("12")
    expect(page.locator("#rounds-wrong")).to_have_count(0)
    expect(page.locator("#file")).to_contain_text("rounds = 12")
    file = tomllib.loads(page.locator("#file").inner_text())
    assert [variant["name"] for variant in file["variants"]] == list(KEPT)

    run = started(page)
    expect(page.locator("#state")).to_have_text("finished", timeout=LONG)
    assert axe_violations(page) == []
    drawn(page)
    summary = requests.get(f"{dashboard.url}/runs/{run}/summary.json", timeout=240).json()
    results = page.locator("#results")
    metric, split = summary["metric"], summary["split"]
    for name in KEPT:
        found = summary["variants"][name]["metrics"][split][metric]["mean"]
        expect(results.get_by_role("row", name=re.compile(rf"^([★☆≈] )?{re.escape(name)} "))).to_contain_text(
            f"{found:.4f}"
        )
    expect(page.locator("#runs")).to_have_text(re.compile(r"^(\d+) of \1$"))
    curve = rows_of(page, "#curves")
    assert curve
    expect(page.locator("#curves .drawing")).to_have_attribute("aria-label", re.compile("Curves.*FedGD"))

    page.get_by_role("link", name="Compare", exact=True).last.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("2 side by side")
    drawn(page)
    means = {name: summary["variants"][name]["metrics"][split][metric]["mean"] for name in KEPT}
    page.goto(f"{page.url}&split={split}&metric={metric}")
    (row,) = rows_of(drawn(page), "#differences")
    assert float(row[1].replace("−", "-")) == pytest.approx(means["FedGD+"] - means["FedGD"], rel=1e-2, abs=1e-6)


def test_a_refused_start_puts_the_focus_on_a_summary_that_leads_to_the_fields(
    dashboard: Dashboard, chromium: Pages
) -> None:
    page = chromium.new_page(f"{dashboard.url}/runs/new")
    page.get_by_role("textbox", name="Rounds", exact=True).fill("many")
    page.locator("[name='sampling.sampling']").select_option("uniform")
    page.get_by_role("button", name="Start", exact=True).click()
    summary = page.locator("#errors")
    expect(summary).to_be_focused()
    expect(summary).to_be_in_viewport()
    expect(page).to_have_title(re.compile("^Error: "))
    assert axe_violations(page) == []
    summary.get_by_role("link", name="Rounds").click()
    rounds = page.get_by_role("textbox", name="Rounds", exact=True)
    expect(rounds).to_be_focused()
    expect(rounds).to_be_in_viewport()
    rounds.fill("3")
    expect(summary.get_by_role("link", name="Rounds")).to_have_count(0)
    for link in summary.get_by_role("link").all():
        link.click()
        expect(page.locator(":focus")).to_be_in_viewport()
        page.locator(":focus").fill("5")
    expect(summary).to_be_hidden()
    expect(page.locator("#size")).to_contain_text("variants")
    chromium.forgive("status of 400")


def test_a_run_is_stopped_gone_on_with_and_outlives_the_dashboard(dashboard: Dashboard, chromium: Pages) -> None:
    page = chromium.new_page(f"{dashboard.url}/runs/new", height=2000)
    describe(page, "A long one", rounds=100_000, variants=("FedGD",))
    run = started(page)
    folder = dashboard.folder / "runs" / run
    wait_for_rounds(page, 0)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#state")).to_have_text("stopped", timeout=LONG)
    assert wait_until(lambda: not _processes(dashboard, folder)), "it says so a moment before it ends"
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("#state")).to_have_text("running")
    wait_for_rounds(page, 0)

    page.evaluate("window.loadedOnce = true")
    dashboard.server.process.send_signal(signal.SIGKILL)
    dashboard.server.process.wait(30)
    expect(page.locator("#connection")).to_contain_text("connecting again …")
    reached = rounds_done(page)
    assert _processes(dashboard, folder), "the run ended with the dashboard"
    dashboard.start()
    wait_for_rounds(page, reached)
    assert page.evaluate("window.loadedOnce"), "the page was loaded anew"
    listed = chromium.new_page(f"{dashboard.url}/runs/")
    item = listed.locator(f"#run-{run}")
    expect(item).to_contain_text("A long one")
    item.get_by_role("button", name="Stop").click()
    expect(item).to_contain_text("stopped")
    expect(page.locator("#state")).to_have_text("stopped", timeout=LONG)
    page.close()  # its later requests would fail without the run
    note = json.loads((folder / "run.json").read_text())
    assert note["title"] == "A long one"
    item.get_by_role("link", name="Delete").click()
    listed.get_by_role("button", name="Delete").click()
    listed.wait_for_url(f"{dashboard.url}/runs/")
    expect(listed.locator(f"#run-{run}")).to_have_count(0)
    assert not folder.exists()
    chromium.forgive(CUT_OFF)


def _processes(dashboard: Dashboard, folder: Path) -> list[str]:
    """Return all processes of the dashboard, over all its starts, that work in a folder."""
    found = [command for mark in dashboard.marks for command in marked(mark).values()]
    return [command for command in found if str(folder) in command]
