"""The demo page in a real browser: a search and a choice, followed through ingest and a round to the next version."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from marionette_driver import By
from marionette_driver.keys import Keys
from playwright.sync_api import Page, expect

from fedping.experiments.demo import PERSONALIZED, PLAYGROUND, STUDY, playground
from fedping.model_store import ModelStore, open_store
from fedping.protocol.study import study_from_toml
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, engine_named, run_round
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import PATIENCE, Pages
from tests.browser.harness.firefox import Firefox
from tests.browser.harness.waiting import wait_for
from tests.browser.tools import landed_rows
from tests.support.ingest_server import IngestServer
from tests.support.model_updates import model_study
from tests.support.versions import WHEN

pytestmark = pytest.mark.browser

expect.set_options(timeout=PATIENCE)


def new_store(folder: Path) -> ModelStore:
    store = open_store(folder / "store", create=True)
    for study in (playground(study_from_toml(STUDY)), model_study()):
        store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    return store


@contextlib.contextmanager
def demo_page(folder: Path) -> Iterator[IngestServer]:
    server = IngestServer(folder / "store", folder / "landing", "--demo-page", "--workers", "1")
    server.start()
    try:
        yield server
    finally:
        server.stop()


# Tests request the server before the browser, so that the browser closes first; otherwise its pages complain.
@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return new_store(tmp_path)


@pytest.fixture
def server(store: ModelStore, tmp_path: Path) -> Iterator[IngestServer]:
    with demo_page(tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestServer]:
    """Give a server shared by tests whose results don't depend on other pings."""
    folder = tmp_path_factory.mktemp("shared")
    new_store(folder)
    with demo_page(folder) as server:
        yield server


def opened(chromium: Pages, server: IngestServer, **options: object) -> Page:
    page = chromium.new_page(f"{server.url}/demo/?study={PLAYGROUND}&every=20", **options)  # type: ignore[arg-type]
    expect(page.locator("#demo")).to_be_visible()
    return page


def choose(page: Page, typed: str = "weather", down: int = 3) -> None:
    """Type a word and choose the suggestion that is ``down`` places below the first."""
    page.locator("#query").click()
    page.keyboard.press("Control+A")
    page.keyboard.type(typed)
    for _ in range(down):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")


def is_clean(page: Page) -> None:
    assert axe_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"


def test_a_choice_is_followed_to_the_version_that_comes_back(
    store: ModelStore, server: IngestServer, chromium: Pages
) -> None:
    page = opened(chromium, server)
    expect(page.locator("#version")).to_have_text("version 0")
    choose(page)
    expect(page.locator("#answer")).to_contain_text('200 {"accepted":1,"rejected":[]}')
    groups = page.locator("#ping .groups")
    expect(groups).to_contain_text("the 4th of 8 pages")
    expect(groups).to_contain_text("7 characters, 12 keys, Enter")
    expect(page.locator("#ping pre")).to_be_hidden()  # its technical names are one click away
    page.locator("#ping summary").click()
    told = page.locator("#ping pre").inner_text()
    document, ping = re.search(r"/1/([0-9a-f-]{36})", told), json.loads(told[told.index("{") :])
    assert document is not None
    server.flush()
    (row,) = landed_rows(server.landing).values()
    assert list(landed_rows(server.landing)) == [document[1]]
    assert row["rank_selected"] == ping["payload"]["rank_selected"] == 3
    assert row["num_chars_typed"] == 7
    assert row["frecency_scores"] == ping["payload"]["frecency_scores"]
    assert np.frombuffer(row["update"], "<f4").tolist() == np.float32(ping["payload"]["update"]).tolist()
    assert str(row["loss"]).removesuffix(".0") in page.locator("#computed .sum").inner_text().replace(",", "")
    expect(page.locator("#computed .bars tbody tr").first).to_be_visible()
    page.get_by_role("button", name="Make 50 choices for me").click()
    expect(page.locator("#made")).to_contain_text("50 choices of made-up people were accepted")
    server.flush()
    expect(page.locator("#waiting")).to_contain_text("51 pings of version 0 have landed")
    with engine_named("numpy") as engine:
        result = run_round(
            store, server.landing, PLAYGROUND, "main", engine, RoundOptions(clock=lambda: WHEN, code_version="test")
        )
    assert (result.status, sum(result.counts.values())) == ("published", 51)
    expect(page.locator("#version")).to_have_text("version 1")
    expect(page.locator("#said")).to_have_text("Version 1 of the model has arrived.")
    head = store.head(PLAYGROUND, "main")
    changed = sum(a != b for a, b in zip(head.model, store.version(PLAYGROUND, "main", 0).model, strict=True))
    expect(page.locator("#arrived")).to_contain_text(
        f"Version 1 follows version 0: {changed} of 22 weights have changed."
    )
    assert page.locator("#arrived .order tbody tr").count() == 8
    is_clean(page)
    page.set_viewport_size({"width": 390, "height": 800})
    is_clean(page)
    choose(page, down=0)
    expect(page.locator("#ping pre")).to_contain_text('"model_version": 1')


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 390)])
def test_it_is_accessible_and_fits(shared: IngestServer, chromium: Pages, dark: bool, width: int) -> None:
    page = opened(chromium, shared, dark=dark, width=width)
    is_clean(page)
    page.locator("#query").click()
    page.keyboard.type("weather")
    expect(page.get_by_role("option")).to_have_count(8)
    is_clean(page)
    page.get_by_role("option").nth(4).click()
    expect(page.get_by_role("listbox")).to_be_hidden()
    expect(page.locator("#answer")).to_contain_text("200")
    is_clean(page)


def test_the_box_is_used_by_keyboard_as_address_bars_are(shared: IngestServer, chromium: Pages) -> None:
    page = opened(chromium, shared)
    box, options = page.get_by_role("combobox"), page.get_by_role("option")

    def active() -> str | None:
        return box.get_attribute("aria-activedescendant")

    box.focus()
    expect(box).to_have_attribute("aria-expanded", "true")
    assert active() is None
    page.keyboard.press("ArrowDown")
    assert active() == "suggestion-0"
    page.keyboard.press("ArrowUp")
    assert active() == "suggestion-7"
    expect(options.nth(7)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    expect(box).to_have_attribute("aria-expanded", "false")
    page.keyboard.type("zzz")
    expect(box).to_have_attribute("aria-expanded", "false")
    expect(page.locator("#said")).to_have_text("No page of this history fits.")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="bicycle").click()
    expect(options.first).to_be_visible()
    assert active() == "suggestion-0"
    assert page.locator("#ping pre").count() == 0, "nothing was chosen so far"
    page.keyboard.press("Enter")
    expect(page.locator("#ping pre")).to_contain_text('"enter_was_pressed": 1')


def test_a_control_arm_sends_no_update_and_says_so(shared: IngestServer, chromium: Pages) -> None:
    page = opened(chromium, shared)
    page.get_by_label("control", exact=True).check()
    expect(page.locator("#model")).to_contain_text("still rank with version 0")
    choose(page)
    expect(page.locator("#computed")).to_contain_text("The arm “control” is there to compare with")
    expect(page.locator("#ping pre")).to_contain_text('"update": null')
    expect(page.locator("#answer")).to_contain_text("200")


def test_it_says_when_the_server_is_away_and_goes_on_when_it_is_back(server: IngestServer, chromium: Pages) -> None:
    page = opened(chromium, server)
    server.stop()
    expect(page.locator("#notice")).to_contain_text("The server does not answer.")
    choose(page)
    expect(page.locator("#answer")).to_contain_text("The client keeps 1 ping")
    is_clean(page)
    server.start()
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#answer")).to_contain_text("200 means", timeout=4 * PATIENCE)  # waits grow while it is away
    server.flush()
    assert len(landed_rows(server.landing)) == 1
    chromium.forgive("ERR_CONNECTION_REFUSED")


def test_a_study_of_another_kind_is_told_in_a_sentence(shared: IngestServer, chromium: Pages) -> None:
    page = chromium.new_page(f"{shared.url}/demo/")  # the store's first study, which is of model updates
    expect(page.locator("#notice")).to_contain_text("The study 'models' cannot be tried here")
    is_clean(page)
    page.get_by_role("link", name=PLAYGROUND).click()
    expect(page.locator("#demo")).to_be_visible()
    page.goto(f"{shared.url}/demo/?study=nobody")
    expect(page.locator("#notice")).to_contain_text("Unknown study 'nobody'")
    chromium.forgive("status of 404")


def test_a_seed_makes_the_same_history_in_the_browser_as_in_node(shared: IngestServer, chromium: Pages) -> None:
    page = opened(chromium, shared)
    test = (Path(__file__).parents[2] / "browser" / "tests" / "demo.test.js").read_text()
    digest = int(re.search(r"DIGEST = ([\d_]+);", test)[1].replace("_", ""))  # type: ignore[index]
    script = """async () => {
        const { madeHistory } = await import("/demo/demo/history.js");
        const { seedOf } = await import("/demo/demo/random.js");
        return seedOf(JSON.stringify(madeHistory("1", 1_800_000_000_000)));
    }"""
    assert page.evaluate(script) == digest
    wait_for(lambda: "249" in page.locator("#about").inner_text(), "the number of pages")


def test_it_works_in_firefox_too(shared: IngestServer, firefox: Firefox) -> None:
    page = firefox.page
    page.navigate(f"{shared.url}/demo/?study={PLAYGROUND}")
    box = wait_for(lambda: next((box for box in page.find_elements(By.ID, "query") if box.is_displayed()), None), "box")
    box.send_keys("weather" + Keys.ARROW_DOWN + Keys.ENTER)
    wait_for(lambda: "200 {" in page.find_element(By.ID, "answer").text, "the answer")
    assert "the 2nd of 8 pages" in page.find_element(By.CSS_SELECTOR, "#ping .groups").text
    page.find_element(By.CSS_SELECTOR, "#ping summary").click()
    assert '"rank_selected": 1' in page.find_element(By.CSS_SELECTOR, "#ping pre").text


def test_a_personal_model_ranks_after_a_reload_is_in_no_ping_and_can_be_forgotten(
    server: IngestServer, chromium: Pages
) -> None:
    page = opened(chromium, server)
    expect(page.locator("#own")).to_be_hidden()
    page.get_by_label(PERSONALIZED, exact=True).check()
    expect(page.locator("#stays")).to_contain_text("Until you choose a page, it is the one that everyone gets.")
    choose(page, down=5)
    expect(page.locator("#stays")).to_contain_text("Your own model was trained once.")
    expect(page.locator("#stays .order .up").first).to_be_visible()
    assert page.locator("#stays .order tbody tr").count() == 8
    expect(page.locator("#answer")).to_contain_text("200 means")
    is_clean(page)
    kept = page.evaluate(KEPT)
    assert kept is not None

    def listed() -> list[str]:
        page.locator("#query").fill("weather")
        expect(page.get_by_role("option")).to_have_count(8)
        return page.locator("#suggestions .title").all_inner_texts()

    own = listed()
    page.reload()
    page.get_by_label(PERSONALIZED, exact=True).check()
    expect(page.locator("#stays")).to_contain_text("Your own model was trained once.")
    assert listed() == own
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 390, "height": 800})
    is_clean(page)
    page.get_by_role("button", name="Forget it").click()
    expect(page.locator("#stays")).to_contain_text("Until you choose a page, it is the one that everyone gets.")
    assert page.evaluate(KEPT) is None
    assert listed() != own
    server.flush()
    (row,) = landed_rows(server.landing).values()
    assert row["study_variation"] == PERSONALIZED
    numbers = {number for number in json.loads(kept)["kept"]["numbers"] if number}
    start = {weight.start for weight in study_from_toml(STUDY).lines[0].spec.weights}
    assert numbers - start, "it has learned"
    assert not (numbers - start) & {*row["frecency_scores"], row["loss"]}
    assert len(np.frombuffer(row["update"], "<f4")) == 22


KEPT = "sessionStorage.getItem('arm/personalized/fedping/playground/own/main')"
"""Expression for the stored personal model of the page's client."""
