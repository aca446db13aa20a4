"""The Live page at its limits: 200 arms, names of 60 letters and in other scripts, a phone, and print."""

from collections.abc import Iterator

import msgspec
import pytest
from playwright.sync_api import Page, expect

from fedping.protocol.spec import Weight
from fedping.protocol.study import Arm
from tests.browser.dashboards import Dashboard, dashboard_over, drawn, scrolls_sideways
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages
from tests.support.versions import STEP, small_study
from tests.support.walks import walked_store

pytestmark = pytest.mark.browser

ARMS = 200
LONG = "treatment-with-the-new-model-and-local-training-of-nine-epoch"
NAMES = (
    "frecency_weight_of_a_link_that_was_visited_within_four_days",
    "وزن الزيارات المكتوبة خلال أربعة أيام",
    "最近四天内输入的访问权重" * 3,
    "ж" * 60,
)


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("limits")
    study = small_study("many")
    names = [f"v-{i:03d}" for i in range(ARMS - 1)]
    arms = [Arm(name=name, share=1 / ARMS, line="main", applies=True, submits=name == names[0]) for name in names]
    control = Arm(name="control", share=1 / ARMS, line="main")
    walked_store(folder / "store", msgspec.structs.replace(study, arms=(*arms, control)), 8)
    named, line = small_study("named"), small_study("named").lines[0]
    spec = msgspec.structs.replace(line.spec, weights=tuple(Weight(name=name, start=10.0, step=STEP) for name in NAMES))
    arms = [msgspec.structs.replace(arm, name=f"{LONG}-{i}"[:60]) for i, arm in enumerate(named.arms[:1])] + [
        named.arms[1]
    ]
    walked_store(
        folder / "store",
        msgspec.structs.replace(named, arms=tuple(arms), lines=(msgspec.structs.replace(line, spec=spec),)),
        8,
    )
    with dashboard_over(folder) as dashboard:
        yield dashboard


def test_of_many_arms_a_few_are_drawn_and_others_are_found(dashboard: Dashboard, chromium: Pages) -> None:
    page = drawn(chromium.new_page(f"{dashboard.url}/live/many/main/", height=4000))
    figure = page.locator("#loss")
    pressed = figure.locator("button.key[aria-pressed=true]")
    expect(pressed).to_have_count(9)
    assert "control" in pressed.all_inner_texts()
    expect(figure.locator("button.key").first).to_have_attribute("aria-pressed", "true")
    figure.get_by_role("searchbox").fill("V-117")
    expect(figure.locator("button.key:visible")).to_have_text(["v-117"])
    figure.locator("button.key:visible").click()
    expect(pressed).to_have_count(10)
    looks = figure.locator("button.key svg").evaluate_all("all => all.map((one) => one.innerHTML)")
    assert len(set(looks)) == ARMS, "no two look alike"
    assert axe_violations(page) == []
    figure.get_by_role("searchbox").fill("")
    figure.get_by_role("button", name="Show all").click()
    figure.locator(".over").focus()
    page.keyboard.press("End")
    expect(figure.locator(".tip")).to_contain_text(f"{ARMS - 24} more between them")


OUTSIDE = """() => [...document.querySelectorAll('svg.plot text, .map text')].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width > 0 && (box.left < 0 || box.right > innerWidth + 1);
}).map((text) => text.textContent)"""

OVERPRINTED = """() => [...document.querySelectorAll('svg.plot, .map svg')].flatMap((drawing) => {
    const texts = [...drawing.querySelectorAll('text')].filter((text) => text.textContent.trim());
    const boxes = texts.map((text) => text.getBoundingClientRect());
    const shared = (a, b, from, to) => Math.min(a[to], b[to]) - Math.max(a[from], b[from]);
    const over = (a, b) => shared(a, b, "left", "right") > 2 && shared(a, b, "top", "bottom") > 4;
    return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => over(a, b)).map((_, k) => texts[i].textContent));
})"""


def named(dashboard: Dashboard, chromium: Pages, width: int) -> Page:
    page = chromium.new_page(f"{dashboard.url}/live/named/main/", width=width, height=7000)
    expect(page.locator("#version-is")).to_contain_text("What it changed")
    return drawn(page)


@pytest.mark.parametrize("width", [390, 1024])
def test_long_names_and_other_scripts_are_neither_cut_nor_overprinted(
    dashboard: Dashboard, chromium: Pages, width: int
) -> None:
    page = named(dashboard, chromium, width)
    for box in page.get_by_label("by the clock").all():
        box.check()
    expect(page.locator("#clients svg.plot")).to_contain_text("time (UTC)")
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate(OVERPRINTED) == []
    assert not scrolls_sideways(page)
    table = page.locator("#version-is details:has-text('What it changed') .wide")
    assert table.evaluate("wide => wide.scrollWidth <= wide.clientWidth"), "the numbers are out of sight"
    shortened = page.locator("#weights .map text:has(title)").first
    assert "…" in (shortened.text_content() or "")
    assert axe_violations(page) == []


def test_on_paper_every_figure_is_drawn_and_as_wide_as_the_sheet(dashboard: Dashboard, chromium: Pages) -> None:
    page = chromium.new_page(f"{dashboard.url}/live/named/main/", dark=True, height=500)
    expect(page.locator("#version-is")).to_contain_text("What it changed")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    widths = page.locator("svg.plot:visible").evaluate_all("all => all.map((one) => one.getBoundingClientRect().right)")
    assert len(widths) >= 4
    assert max(widths) <= 700
    assert page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor") == "rgb(255, 255, 255)"
    expect(page.locator(".choose")).to_be_hidden()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    expect(page.locator(".choose")).to_be_visible()
