"""Charts in a real browser: pointer and keyboard show the same values."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from fedping.model_store.decisions import rollback
from fedping.protocol.guard import Guard
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import NumpyEngine, RoundOptions, run_round
from tests.browser.dashboards import RUN, Dashboard, compared, dashboard_over, drawn, rows_of, walked
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages
from tests.support.rounds import FIRST_MS, Ping, crowd, land
from tests.support.versions import small_study
from tests.support.walks import created_at
from tests.support.watched import finished_run

pytestmark = pytest.mark.browser

LINE = "/live/walk/main/"
BACK_AT = 9
"""Number of the version that the rollback published."""


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Give a dashboard with a rolled-back line and a finished run."""
    folder = tmp_path_factory.mktemp("charts")
    study = walked(folder, BACK_AT - 1)
    finished_run(folder / "runs", RUN, "two variants")
    with dashboard_over(folder) as dashboard:
        rollback(dashboard.store, "walk", "main", 3, created=created_at(BACK_AT), code_version="test")
        dashboard.publish(study, 6)
        _rounds(dashboard)
        yield dashboard


def _rounds(dashboard: Dashboard) -> None:
    """Add a study with a guard and real rounds, whose charts show the influence of clients."""
    study = small_study("moved")
    lines = (msgspec.structs.replace(study.lines[0], guard=Guard()),)
    study = msgspec.structs.replace(study, lines=lines)
    store, landing = dashboard.store, dashboard.folder / "landing"
    store.create_study(study, first_versions(study, created=created_at(0), code_version="test"))
    for n in range(3):
        pings = [*crowd(20 + n, seed=n, version=n), Ping(900, 900, (1e6, 1e6), version=n)]
        land(landing, pings, study="moved", iteration=n, at_ms=FIRST_MS + n)
        when = partial(created_at, n + 1)
        run_round(store, landing, "moved", "main", NumpyEngine(), RoundOptions(clock=when, code_version="test"))


@pytest.fixture
def page(dashboard: Dashboard, chromium: Pages) -> Page:
    return drawn(chromium.new_page(dashboard.url + LINE, height=4000))


def reopened(page: Page, address: str) -> None:
    page.goto(address)
    drawn(page)


def point_at(figure: Locator, x: float, y: float = 0.5) -> None:
    """Move the pointer to a position in a drawing, as fractions of its area."""
    box = figure.locator(".over").bounding_box()
    assert box is not None
    figure.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])


def test_the_crosshair_names_the_value_of_every_line_to_pointer_and_keyboard(page: Page) -> None:
    figure, numbers = page.locator("#loss"), {row[0]: row[1:] for row in rows_of(page, "#loss")}
    point_at(figure, 0.01)
    tip = figure.locator(".tip")
    expect(tip.locator(".where")).to_have_text("iteration 0, 2026-01-01 00:30 UTC")
    shown = {name: float(value.split(" ")[0]) for name, value in _rows(tip).items()}
    assert shown == pytest.approx(dict(zip(("treatment", "control"), map(float, numbers["0"]), strict=True)), rel=1e-4)

    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()
    figure.locator(".over").focus()
    page.keyboard.press("End")
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    expect(tip.locator(".where")).to_contain_text(f"iteration {BACK_AT - 2},")
    expect(figure.get_by_role("status")).to_contain_text(re.compile(r"iteration 7, .*; control [\d.]+.*; treatment"))
    page.keyboard.press("ArrowRight")
    expect(figure.get_by_role("status")).to_contain_text(f"iteration {BACK_AT},")
    expect(figure.get_by_role("status")).to_contain_text("rolled back to 3")
    assert axe_violations(page) == []
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_the_legend_hides_lines_and_shows_them_again_without_losing_the_focus(page: Page) -> None:
    figure = page.locator("#loss")
    control = figure.get_by_role("button", name="control")
    control.focus()
    page.keyboard.press("Enter")
    expect(control).to_have_attribute("aria-pressed", "false")
    expect(control).to_be_focused()
    point_at(figure, 0.3)
    assert list(_rows(figure.locator(".tip"))) == ["treatment"]
    assert axe_violations(page) == []
    page.keyboard.press("Enter")
    expect(control).to_have_attribute("aria-pressed", "true")
    point_at(figure, 0.4)
    assert set(_rows(figure.locator(".tip"))) == {"treatment", "control"}


def test_a_brush_draws_a_part_larger_and_there_is_a_way_back(page: Page) -> None:
    figure = page.locator("#clients")
    back = figure.get_by_role("button", name="Show all iterations")
    expect(back).to_be_hidden()
    whole = _ticks(figure)
    point_at(figure, 0.2)
    page.mouse.down()
    point_at(figure, 0.45)
    expect(figure.locator(".brush")).to_be_visible()
    page.mouse.up()
    expect(back).to_be_visible()
    assert max(_ticks(figure)) < max(whole)
    point_at(figure, 0.99)
    expect(figure.locator(".tip .where")).to_contain_text(re.compile(r"iteration [56],"))
    back.click()
    expect(back).to_be_hidden()
    expect(figure.locator(".over")).to_be_focused()
    assert _ticks(figure) == whole
    page.keyboard.press("+")
    expect(back).to_be_visible()
    page.keyboard.press("0")
    expect(back).to_be_hidden()


def test_the_address_keeps_the_part_that_is_drawn_larger(page: Page) -> None:
    figure, weights = page.locator("#clients"), page.locator("#weights")
    back = figure.get_by_role("button", name="Show all iterations")
    versions = weights.get_by_role("button", name="Show all versions")
    whole = _ticks(figure)
    point_at(figure, 0.2)
    page.mouse.down()
    point_at(figure, 0.45)
    page.mouse.up()
    expect(back).to_be_visible()
    weights.locator(".over").focus()
    for key in ("Home", "ArrowRight", "+"):
        page.keyboard.press(key)
    expect(versions).to_be_visible()
    assert re.search(r"[?&]zoom-clients=\d+(\.\d+)?\.\.\d+(\.\d+)?(&|$)", page.url)
    assert re.search(r"[?&]zoom-weights=\d+\.\.\d+(&|$)", page.url)
    part, address = _ticks(figure), page.url
    reopened(page, address)
    expect(back).to_be_visible()
    expect(versions).to_be_visible()
    assert _ticks(figure) == part
    figure.get_by_label("by the clock").check()
    expect(back).to_be_hidden()
    figure.locator(".over").focus()
    page.keyboard.press("+")
    expect(back).to_be_visible()
    assert re.search(r"[?&]zoom-clients=\d{13}(\.\d+)?\.\.\d{13}(\.\d+)?t(&|$)", page.url)
    reopened(page, page.url)
    expect(back).to_be_visible()
    expect(figure.get_by_label("by the clock")).to_be_checked()
    for nonsense in ("9..3", "x", "1..2..3", "1e9..2e9", "NaN..2", ""):
        reopened(page, re.sub(r"zoom-clients=[^&]*", f"zoom-clients={nonsense}", address))
        expect(back).to_be_hidden()
        assert _ticks(figure) == whole
        assert "zoom-clients" not in page.url
    versions.click()
    expect(versions).to_be_hidden()
    assert "zoom-" not in page.url


def test_lines_over_the_clock_and_smoothed_as_one_likes(page: Page) -> None:
    figure = page.locator("#loss")
    point_at(figure, 0.5)
    expect(figure.locator(".tip")).to_contain_text("mean of 5")
    figure.get_by_label("Lines").select_option("1")
    point_at(figure, 0.51)
    expect(figure.locator(".tip")).not_to_contain_text("mean of")
    figure.get_by_label("by the clock").check()
    expect(figure.locator("svg.plot")).to_contain_text("time (UTC)")
    expect(figure.locator("svg.plot")).to_contain_text(re.compile(r"0\d:\d\d"))
    point_at(figure, 0.99)
    expect(figure.locator(".tip .where")).to_have_text("iteration 14, 2026-01-01 07:30 UTC")


def test_the_heat_map_tells_its_cells_at_the_pointer_and_to_the_keyboard(page: Page) -> None:
    figure = page.locator("#weights")
    point_at(figure, 0.99, 0.02)
    expect(figure.locator(".tip .where")).to_have_text("w0, version 15")
    change = {row[0]: row[1:] for row in rows_of(page, "#weights")}["15"]
    told = figure.locator(".tip .value").first.inner_text()
    assert float(told.split(" ")[0]) == pytest.approx(float(change[0]), rel=1e-3)
    figure.locator(".over").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(figure.get_by_role("status")).to_contain_text("w1, version 15")
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    expect(figure.get_by_role("status")).to_contain_text(f"w1, version {BACK_AT}; ")
    expect(figure.get_by_role("status")).to_contain_text("rolled back to 3")
    page.keyboard.press("Enter")
    expect(page.locator("#version-number")).to_have_value(str(BACK_AT))


def test_new_points_leave_what_was_chosen(page: Page, dashboard: Dashboard) -> None:
    figure = page.locator("#pings")
    figure.get_by_role("button", name="control").click()
    figure.get_by_label("by the clock").check()
    told = figure.locator(".drawing").get_attribute("aria-label")
    dashboard.publish(dashboard.store.study("walk"))
    expect(figure.locator(".drawing")).not_to_have_attribute("aria-label", told or "")
    expect(figure.get_by_role("button", name="control")).to_have_attribute("aria-pressed", "false")
    expect(figure.get_by_label("by the clock")).to_be_checked()


def test_the_loss_tile_is_what_was_measured_last(page: Page, dashboard: Dashboard) -> None:
    head = dashboard.store.head("walk", "main")
    arms = head.lineage.arms
    tile = page.locator("#health div", has_text="Loss of treatment")
    expect(tile).to_contain_text(f"measured at iteration {head.iteration - 1}")
    value = float(tile.locator("dd").evaluate("dd => dd.firstChild.textContent"))
    assert arms["treatment"].loss == pytest.approx(value, rel=1e-3)
    mean = np.mean([dashboard.store.version("walk", "main", n).lineage.arms["treatment"].loss for n in range(11, 16)])
    assert abs(value - mean) > 0.01, "the mean of five would be another"


def test_accuracy_of_two_seeds_is_drawn_between_0_and_1(dashboard: Dashboard, chromium: Pages) -> None:
    page = drawn(chromium.new_page(f"{dashboard.url}{compared()}&split=test&metric=accuracy", height=3000))
    expect(page.locator("#curves svg.plot")).to_be_visible()
    for figure in ("#curves", "#finals"):
        texts = page.locator(f"{figure} svg.plot text").evaluate_all("all => all.map((text) => text.textContent)")
        shares = [float(text.replace("−", "-")) for text in texts if re.fullmatch(r"[−\d]*(0?\.\d+|1)", text)]
        assert shares, figure
        assert (min(shares) >= 0, max(shares) <= 1) == (True, True), figure
    point_at(page.locator("#curves"), 0.9)
    assert set(_rows(page.locator("#curves .tip"))) == {"gradient", "local, three"}


def _rows(tip: Locator) -> dict[str, str]:
    """Return the values of a tip, by name."""
    names, values = (tip.locator(f".rows p:has(.name) .{part}").all_inner_texts() for part in ("name", "value"))
    return dict(zip(names, values, strict=True))


def _ticks(figure: Locator) -> list[float]:
    """Return the iterations at the ticks below a drawing."""
    script = "marks => marks.map((mark) => mark.textContent)"
    texts = figure.locator("svg.plot text").evaluate_all(script)
    return sorted(float(text) for text in texts if re.fullmatch(r"\d{1,2}", text))


def test_who_moves_the_model_is_drawn_where_rounds_tell_it_and_nowhere_else(
    page: Page, dashboard: Dashboard, chromium: Pages
) -> None:
    expect(page.locator("#influence")).to_be_hidden()
    other = drawn(chromium.new_page(dashboard.url + "/live/moved/main/", height=4000))
    expect(other.get_by_role("heading", name="Who moves the model")).to_be_visible()
    head = dashboard.store.head("moved", "main").lineage.aggregate
    assert head is not None
    assert head.influence is not None
    assert head.influence.half == 1, "one of them is a million times as long"
    sway = rows_of(other, "#sway")[-1]
    assert (sway[0], sway[-2:]) == ("2", ["1", "23"])
    assert [float(value) for value in rows_of(other, "#norms")[-1][1:4]] == pytest.approx(
        [head.influence.norm_median, head.influence.norm_high, head.influence.norm_most], rel=1e-4
    )
    across = other.locator("#norms svg.plot g[stroke-opacity='0.1'] line").count()
    assert 2 <= across <= 7, "of many decades, some of the powers of ten alone"
    told = [dashboard.store.version("moved", "main", n).lineage.aggregate for n in (2, 3)]
    new = [made.influence.new_clients for made in told if made is not None and made.influence is not None]
    assert rows_of(other, "#newcomers") == [[str(1 + i), str(number)] for i, number in enumerate(new)]
    assert set(new) <= {0, 1}, "there was one each time, and a sketch misses one in a hundred"
    assert axe_violations(other) == []


def test_a_heat_map_is_saved_with_its_cells(dashboard: Dashboard, chromium: Pages) -> None:
    page = drawn(chromium.new_page(dashboard.url + LINE, height=6000))
    button = page.get_by_role("button", name=re.compile("^Weights: .*: save as SVG$"))
    with page.expect_download() as started:
        button.click()
    saved = Path(started.value.path()).read_text()
    assert 'href="data:image/png' in saved
    assert "pixelated" in saved
    ElementTree.fromstring(saved)
