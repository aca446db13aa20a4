"""The extension's pages in Chromium: accessible in every theme, and the search page works by keyboard alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Playwright, expect

from fedping.protocol.personalization import FineTune
from tests.browser.garden import SEEDS, garden_store
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import PATIENCE, Profile, chromium_profile, new_profile
from tests.browser.harness.little_web import running_web
from tests.browser.harness.seeds import seed_chromium
from tests.browser.harness.waiting import wait_for
from tests.browser.pages import serving
from tests.browser.tools import landed_rows
from tests.browser.users import packed
from tests.support.ingest_server import running_ingest

pytestmark = pytest.mark.browser

expect.set_options(timeout=PATIENCE)


@pytest.fixture
def profile(playwright: Playwright, tmp_path: Path) -> Iterator[Profile]:
    """Give a Chromium without a window, with the garden history and the extension."""
    folder = tmp_path / "user" / "profile"
    new_profile(playwright, folder)
    seed_chromium(folder, SEEDS)
    with running_web({seed.url: seed.title for seed in SEEDS}) as web:
        extension, _ = packed(folder.parent)
        with chromium_profile(playwright, folder, extension, elsewhere=f"127.0.0.1:{web}") as profile:
            yield profile


def test_pages_are_accessible_in_every_look(profile: Profile) -> None:
    wrong: list[str] = []
    for path in ("welcome/welcome.html", "options/options.html", "search/search.html"):
        page = profile.open(path)
        if path.startswith("search"):
            page.locator("#query").press_sequentially("garden")
            expect(page.locator("#results [role=option]")).to_have_count(5)
        else:
            expect(page.locator("#would-send-json")).not_to_be_empty()
            page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        for dark in (False, True):
            page.emulate_media(color_scheme="dark" if dark else "light")
            for width in (390, 1280):
                page.set_viewport_size({"width": width, "height": 800})
                wrong += [f"{path}, dark {dark}, width {width}: {line}" for line in axe_violations(page)]
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
    assert wrong == []


def taking_part(profile: Profile, address: str) -> Page:
    """Agree to the garden study, and return the settings page."""
    settings = profile.open("options/options.html")
    expect(settings.locator("#version")).not_to_be_empty()  # by then the page shows the current settings
    settings.locator("#ingest").fill(address)
    settings.locator("#study").fill("garden")
    settings.locator("#save").click()
    expect(settings.locator("#message")).to_contain_text("Saved")
    settings.locator("#consent").check()
    expect(settings.locator("#arm")).to_have_text("treatment")
    return settings


def test_a_page_is_found_chosen_and_reported_by_the_keyboard_alone(profile: Profile, tmp_path: Path) -> None:
    garden_store(tmp_path)
    with running_ingest(tmp_path / "store", tmp_path / "landing") as server, serving(server.url) as web:
        taking_part(profile, web.relay)
        search = profile.open("search/search.html")
        expect(search.locator("#query")).to_be_focused()
        search.keyboard.type("garden")
        expect(search.locator("#results [role=option]")).to_have_count(5)
        shown = search.locator("#results [role=option]").evaluate_all("(rows) => rows.map((row) => row.dataset.url)")
        search.keyboard.press("ArrowDown")
        expect(search.locator("#results [aria-selected=true]")).to_have_attribute("data-url", shown[1])
        search.keyboard.press("Enter")
        search.wait_for_url(shown[1])
        wait_for(lambda: len(web.posts()) == 1, "the ping of the choice")
        server.flush()
    (row,) = landed_rows(tmp_path / "landing").values()
    assert row["rank_selected"] == 1
    assert row["num_chars_typed"] == len("garden")
    assert row["num_key_down_events"] == len("garden") + 1
    assert row["enter_was_pressed"] == 1
    assert len(row["frecency_scores"]) == 5


def test_open_pages_follow_what_is_saved_and_chosen_without_a_reload(profile: Profile, tmp_path: Path) -> None:
    garden_store(tmp_path)
    with running_ingest(tmp_path / "store", tmp_path / "landing") as server, serving(server.url) as web:
        welcome, search = profile.open("welcome/welcome.html"), profile.open("search/search.html")
        expect(welcome.locator("#which-study")).to_contain_text("No study is set yet")
        expect(welcome.locator("#agree")).to_be_hidden()
        search.locator("#query").press_sequentially("garden")
        expect(search.locator("#results [role=option]")).to_have_count(5)

        settings = profile.open("options/options.html")
        expect(settings.locator("#saved")).to_have_text("no study")
        settings.locator("#ingest").fill(web.relay)
        settings.locator("#study").fill("garden")
        expect(settings.locator("#saved")).to_have_text("no study")
        settings.locator("#save").click()
        expect(settings.locator("#saved")).to_have_text(f"study “garden” at {web.relay}")
        expect(welcome.locator("#which-study")).to_contain_text("“garden”")
        search.bring_to_front()
        search.locator("#query").focus()
        search.keyboard.press("Control+Enter")
        why = "was not sent: you have not agreed to the study"
        expect(search.locator("#newest")).to_contain_text(why)
        expect(settings.locator("#newest")).to_contain_text(why)

        welcome.bring_to_front()
        welcome.locator("#agree").click()
        expect(settings.locator("#consent")).to_be_checked()
        expect(search.locator("#ranking")).to_contain_text("as the study asks of this browser")
        search.bring_to_front()
        search.locator("#query").focus()
        search.keyboard.press("Control+Enter")  # the list opened before now belongs to the study
        expect(settings.locator("#sent details")).to_have_count(1)
        expect(settings.locator("#sent summary")).to_contain_text("accepted")
        expect(settings.locator("#newest")).to_contain_text("it was sent.")
        expect(settings.locator("#would-send")).to_contain_text("from your last message")
        settings.bring_to_front()
        settings.locator("#sent summary").click()
        search.bring_to_front()
        search.keyboard.press("Control+Enter")
        expect(settings.locator("#sent details")).to_have_count(2)
        expect(settings.locator("#sent details[open]")).to_have_count(1)  # what is open stays open
        assert len(web.posts()) == 2


def test_what_stays_on_the_device_is_shown_and_can_be_forgotten(profile: Profile, tmp_path: Path) -> None:
    garden_store(tmp_path, FineTune(rate=0.5, steps=2))
    with running_ingest(tmp_path / "store", tmp_path / "landing") as server, serving(server.url) as web:
        settings = taking_part(profile, web.relay)
        words = settings.locator("#stays-words")
        expect(words).to_contain_text("Until you choose a page, it is the one that everyone gets.")
        expect(settings.locator("#forget-personal")).to_be_hidden()
        search = profile.open("search/search.html")
        search.locator("#query").press_sequentially("garden")
        rows = search.locator("#results [role=option]")
        expect(rows).to_have_count(5)
        last = rows.nth(4).get_attribute("data-url")
        rows.nth(4).click()
        search.wait_for_url(str(last))
        expect(words).to_contain_text("It has done so once.")
        expect(settings.locator("#stays-weights tr").first).to_be_visible()
        assert axe_violations(settings) == []
        assert settings.evaluate("document.documentElement.scrollWidth <= innerWidth")
        settings.locator("#forget-personal").click()
        expect(words).to_contain_text("Until you choose a page")
        expect(settings.locator("#message")).to_contain_text("Forgotten.")
        expect(settings.locator("#arm")).to_have_text("treatment")
