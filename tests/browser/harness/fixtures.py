"""Fixtures for tests in real browsers, for all packages; `tests/conftest.py` imports them.

    def test_the_page_is_readable_at_night(chromium):
        page = chromium.new_page("http://127.0.0.1:8000/", dark=True, width=390)
        page.get_by_role("button", name="Start").click()
        assert axe_violations(page) == []

The drivers of browsers are imported only when a test uses one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.harness.available import needed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

    from tests.browser.harness.chromium import Pages
    from tests.browser.harness.firefox import Firefox
    from tests.browser.harness.screen import Screen


# Not for the whole session: while Playwright runs, this thread has an asyncio loop, and asyncio.run fails in it.
@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """Give Playwright, for :func:`tests.browser.harness.chromium.chromium_profile`."""
    needed("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def screen() -> Iterator[Screen]:
    """Give a virtual screen."""
    from tests.browser.harness.screen import running_screen

    with running_screen() as running:
        yield running


@pytest.fixture(scope="module")
def chromium_browser(playwright: Playwright) -> Iterator[Browser]:
    """Give a Chromium shared by the tests of a module."""
    from tests.browser.harness.chromium import running_chromium

    with running_chromium(playwright) as browser:
        yield browser


@pytest.fixture
def chromium(chromium_browser: Browser) -> Iterator[Pages]:
    """Give new pages in a Chromium with empty storage; a test whose pages log an error fails.

    A test that provokes errors on purpose ignores them with :meth:`Pages.forgive`.
    """
    from tests.browser.harness.chromium import pages_of

    with pages_of(chromium_browser) as pages:
        yield pages
    if pages.complaints:
        pytest.fail("the pages complained: " + "; ".join(pages.complaints))


@pytest.fixture(scope="module")
def firefox_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    """Give a Firefox shared by the tests of a module."""
    needed("firefox")
    from tests.browser.harness.firefox import running_firefox

    folder = tmp_path_factory.mktemp("firefox")
    with running_firefox(folder / "profile", folder) as browser:
        yield browser


@pytest.fixture
def firefox(firefox_browser: Firefox) -> Iterator[Firefox]:
    """Give a new tab in a Firefox; see :class:`tests.browser.harness.firefox.Firefox`."""
    with firefox_browser.new_tab():
        yield firefox_browser
