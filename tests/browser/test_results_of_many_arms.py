"""The results of many arms in a browser: the most relevant few, a search, and a view that its address reopens."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from fedping.dashboard.results.effects import AT_ONCE, FEW
from fedping.model_store import open_store
from tests.browser.dashboards import Dashboard, dashboard_over, drawn, rows_of, scrolls_sideways
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages
from tests.support.kept_counts import keep_count
from tests.support.many_arms import against_control, many_arms, verdict_against_control
from tests.support.versions import version_0

pytestmark = pytest.mark.browser

ARMS = 200
MOST_PIXELS = 8000
TYPED = "[data-metric=num_chars_typed]"


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Give a study of 200 arms, counted against the control."""
    folder = tmp_path_factory.mktemp("many")
    study = many_arms(ARMS)
    open_store(folder / "store", create=True).create_study(study, (version_0(study),))
    (folder / "landing").mkdir()
    keep_count(folder / "runs", verdict_against_control(study), against_control(study))
    with dashboard_over(folder) as dashboard:
        yield dashboard


def arms_of(page: Page) -> list[str]:
    return [row[0] for row in rows_of(page, f"{TYPED} .effect")]


def test_the_few_that_matter_come_first_and_others_are_found(dashboard: Dashboard, chromium: Pages) -> None:
    page = drawn(chromium.new_page(f"{dashboard.url}/results/many/"))
    assert page.evaluate("document.documentElement.scrollHeight") < MOST_PIXELS
    assert axe_violations(page) == []
    assert set(arms_of(page)[:2]) == {"v-20", "v-39"}
    assert len(arms_of(page)) == FEW
    card = page.locator(TYPED)
    card.get_by_role("button", name="Show more").click()
    expect(card.locator(".more")).to_contain_text(f"{FEW + AT_ONCE} of {ARMS - 1}")
    assert len(set(arms_of(page))) == FEW + AT_ONCE
    page.get_by_label("Find an arm").first.fill("v-17")
    expect(card.locator(".findings li")).to_have_count(11)
    assert set(arms_of(page)) == {"v-17", *(f"v-17{i}" for i in range(10))}
    page.get_by_text("Test of ranks", exact=True).click()
    expect(card.locator(".findings li").first).to_contain_text("of all pairs, p =")
    page.reload()
    expect(page.get_by_label("Find an arm").first).to_have_value("v-17")
    expect(page.get_by_role("radio", name="Test of ranks")).to_be_checked()
    assert len(arms_of(page)) == 11
    page.get_by_label("Find an arm").first.fill("nothing")
    expect(card.locator(".none")).to_have_text("No arm's name has “nothing” in it.")


def test_figures_and_tables_are_saved_as_they_are_shown(dashboard: Dashboard, chromium: Pages) -> None:
    page = drawn(chromium.new_page(f"{dashboard.url}/results/many/", height=6000))
    page.locator(f"{TYPED} .drawing svg").wait_for()

    def saved(name: str) -> bytes:
        with page.expect_download() as started:
            page.get_by_role("button", name=name, exact=True).click()
        return Path(started.value.path()).read_bytes()

    drawing = saved("Characters typed: save as SVG").decode()
    ElementTree.fromstring(drawing)
    assert all(words in drawing for words in ("Characters typed", "v-20", "lift over control, %", "A dot is filled"))
    assert "var(" not in drawing, "a file has no style sheet"
    with Image.open(io.BytesIO(saved("Exposed clients so far: save as PNG"))) as picture:
        assert picture.width > 800
        assert len(picture.convert("RGB").getcolors(2**20) or ()) > 20, "it is no empty picture"
    rows = list(csv.reader(io.StringIO(saved("Characters typed: save as CSV").decode())))
    assert rows[0][:3] == ["first", "second", "lift, %"]
    assert {rows[1][0], rows[2][0]} == {"v-20", "v-39"}
    assert all(float(row[3]) < float(row[2]) < float(row[4]) for row in rows[1:])
    sizes = list(csv.reader(io.StringIO(saved("Sizes of the arms: save as CSV").decode())))
    assert len(sizes) == 1 + ARMS


def test_many_arms_fit_a_telephone(dashboard: Dashboard, chromium: Pages) -> None:
    page = drawn(chromium.new_page(f"{dashboard.url}/results/many/", width=390, dark=True))
    assert not scrolls_sideways(page)
    assert axe_violations(page) == []
    page.get_by_text("Ask something else").click()
    expect(page.get_by_role("radio", name="Every arm against")).to_be_checked()
    assert page.locator("input[name=pairs][type=checkbox]").count() == ARMS - 1
    page.locator("#find-pair").fill("v-39")
    expect(page.locator("#pairs label:visible")).to_have_count(1)
    page.locator("#pairs label:visible input").uncheck()
    expect(page.get_by_role("radio", name="These only")).to_be_checked()
    page.locator("#find-pair").fill("")
    page.get_by_role("button", name="Tick none").click()
    page.locator("#find-pair").fill("v-4")
    page.get_by_role("button", name="Tick all").click()
    ticked = page.locator("input[name=pairs]:checked").evaluate_all("boxes => boxes.map((box) => box.value)")
    assert ticked == [f"v-{i}:control" for i in range(40, 50)]
    assert not scrolls_sideways(page)
