"""A user of the extension in each browser, who uses the real address bar, clicks buttons and closes the browser."""

import contextlib
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlsplit

from marionette_driver import By
from marionette_driver.keys import Keys
from playwright.sync_api import Page as Tab
from playwright.sync_api import Playwright

from tests.browser.harness.chromium import Profile, chromium_profile, new_profile
from tests.browser.harness.firefox import Firefox, running_firefox
from tests.browser.harness.omnibox import Omnibox
from tests.browser.harness.screen import Screen
from tests.browser.harness.seeds import Seed, seed_chromium, seed_firefox
from tests.browser.harness.waiting import happens, wait_for
from tests.browser.tools import BROWSER

GECKO_ID = "fedping@fedping.example"
KEYWORD = "fp "


def packed(folder: Path) -> tuple[Path, Path]:
    """Pack the current extension; return the folder, and the file for Firefox next to it."""
    command = [sys.executable, str(BROWSER / "extension" / "pack.py"), str(folder / "extension")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "extension", next(folder.glob("*-firefox.zip"))


class User(ABC):
    """One user with one profile, which is kept from one :meth:`browsing` to the next."""

    @abstractmethod
    def browsing(self) -> contextlib.AbstractContextManager[None]:
        """Keep the browser open; the first time, fill its history and install the extension."""

    @abstractmethod
    def open(self, path: str) -> None:
        """Open a page of the extension, in the tab for such pages."""

    @abstractmethod
    def welcome(self) -> None:
        """Switch to the page that the extension has opened by itself."""

    @abstractmethod
    def click(self, selector: str, *, allowing: bool = False) -> None:
        """Click on the extension's page, and grant the permission that the browser may ask for."""

    @abstractmethod
    def fill(self, selector: str, text: str) -> None:
        """Put a text into a field of the extension's page."""

    @abstractmethod
    def text(self, selector: str) -> str:
        """Return the text of an element of the extension's page."""

    @abstractmethod
    def texts(self, selector: str) -> list[str]:
        """Return the texts of matching elements of the extension's page, in their order."""

    @abstractmethod
    def ask(self, message: dict[str, Any]) -> Any:
        """Ask the background script, as the extension's page does."""

    @abstractmethod
    def type(self, text: str) -> list[str]:
        """Type keyword and text into the address bar; return the addresses of the pages listed below the first line."""

    @abstractmethod
    def choose(self, place: int) -> None:
        """Choose a listed page, counted from 0, with the arrow keys and Enter."""

    @abstractmethod
    def search_privately(self, text: str, url: str) -> None:
        """Type keyword and text into the address bar of a private window, which lists no page; then open a page."""

    @abstractmethod
    def address(self) -> str:
        """Return the address of the page below the address bar."""

    @abstractmethod
    def kill(self) -> None:
        """End the browser like a crash."""

    def says(self, selector: str, text: str) -> None:
        """Wait until an element contains a text."""
        wait_for(lambda: text in self.text(selector), f"{text!r} in {selector}; it says {self.text(selector)!r}")


class FirefoxUser(User):
    """A user of Firefox."""

    def __init__(self, folder: Path, seeds: Sequence[Seed], web: int) -> None:
        self._folder, self._seeds, self._web = folder, seeds, web
        self._firefox: Firefox
        self._typing = self._reading = self._extension = ""

    @contextlib.contextmanager
    def browsing(self) -> Iterator[None]:
        leading = {"network__proxy__http_port": self._web, "dom__security__https_first": False}
        with running_firefox(self._folder / "profile", self._folder, **leading) as self._firefox:
            page = self._firefox.page
            self._typing = page.current_window_handle
            first = not self._extension
            if first:
                seed_firefox(self._firefox, self._seeds)
                self._extension = self._firefox.install(packed(self._folder)[1])
            else:
                self._firefox.address_of(GECKO_ID)
            if first:
                self.welcome()  # it comes to the front, even while the test types
            self._reading = page.open(type="tab")["handle"]
            yield

    def open(self, path: str) -> None:
        self._turn_to(self._reading)
        self._firefox.page.navigate(self._extension + path)

    def welcome(self) -> None:
        page = self._firefox.page

        def found() -> bool:
            for handle in page.window_handles:
                page.switch_to_window(handle, focus=False)
                if page.get_url().endswith("welcome/welcome.html"):
                    self._reading = handle
                    return True
            return False

        wait_for(found, "the page that welcomes")
        self._turn_to(self._reading)

    def click(self, selector: str, *, allowing: bool = False) -> None:
        self._turn_to(self._reading)
        self._firefox.page.find_element(By.CSS_SELECTOR, selector).click()
        if allowing:
            script = """
                const shown = document.querySelector("popupnotification");
                if (!PopupNotifications.isPanelOpen || !shown?.button) return false;
                shown.button.click();
                return true;
            """
            wait_for(lambda: self._firefox.run(script), "the browser's question")

    def fill(self, selector: str, text: str) -> None:
        self._turn_to(self._reading)
        field = self._firefox.page.find_element(By.CSS_SELECTOR, selector)
        field.clear()
        field.send_keys(text)

    def text(self, selector: str) -> str:
        self._turn_to(self._reading)
        return str(self._firefox.page.find_element(By.CSS_SELECTOR, selector).get_property("textContent"))

    def texts(self, selector: str) -> list[str]:
        self._turn_to(self._reading)
        found = self._firefox.page.find_elements(By.CSS_SELECTOR, selector)
        return [str(each.get_property("textContent")) for each in found]

    def ask(self, message: dict[str, Any]) -> Any:
        self._turn_to(self._reading)
        script = "const done = arguments[1]; browser.runtime.sendMessage(arguments[0]).then(done);"
        answer = self._firefox.page.execute_async_script(script, script_args=[message], sandbox=None)
        assert "problem" not in answer, answer
        return answer.get("value")

    def type(self, text: str) -> list[str]:
        self._turn_to(self._typing)

        def rows() -> list[str]:
            # Typed again if necessary, because a page that finishes loading clears the address bar.
            self._firefox.clear()
            self._firefox.type(KEYWORD + text)
            shown = [row.content for row in self._firefox.rows() if row.kind == "UrlbarProviderOmnibox"]
            return shown if self._firefox.bar() == KEYWORD + text else []

        _, *pages = wait_for(rows, f"{KEYWORD + text!r} in the address bar")
        return [content.removeprefix(KEYWORD) for content in pages]

    def choose(self, place: int) -> None:
        for _ in range(place + 1):
            self._firefox.key(Keys.ARROW_DOWN)
        self._firefox.key(Keys.ENTER)

    def search_privately(self, text: str, url: str) -> None:
        with self._firefox.new_tab(private=True):
            self._firefox.type(KEYWORD + text)
            rows = self._firefox.rows()
            # Firefox shows the keyword's own line there too, but does not ask the extension for pages.
            assert [row.content for row in rows if row.kind == "UrlbarProviderOmnibox"] == [KEYWORD + text]
            self._firefox.key(Keys.ENTER)
            self._firefox.page.navigate(url)

    def address(self) -> str:
        self._turn_to(self._typing)
        return str(self._firefox.page.get_url())

    def kill(self) -> None:
        self._firefox.kill()

    def _turn_to(self, tab: str) -> None:
        if self._firefox.page.current_window_handle != tab or not self._firefox.run("return document.hasFocus();"):
            self._firefox.page.switch_to_window(tab)


class ChromiumUser(User):
    """A user of Chromium, with a window on a virtual screen."""

    def __init__(self, playwright: Playwright, screen: Screen, folder: Path, seeds: Sequence[Seed], web: int) -> None:
        self._playwright, self._screen = playwright, screen
        self._folder, self._seeds, self._web = folder, seeds, web
        self._profile: Profile
        self._omnibox: Omnibox
        self._typing: Tab
        self._reading: Tab

    @contextlib.contextmanager
    def browsing(self) -> Iterator[None]:
        profile, extension = self._folder / "profile", self._folder / "extension"
        first = not profile.exists()
        if first:
            packed(self._folder)
            new_profile(self._playwright, profile)
            seed_chromium(profile, self._seeds)
        leading = f"127.0.0.1:{self._web}"
        with chromium_profile(
            self._playwright, profile, extension, elsewhere=leading, screen=self._screen
        ) as self._profile:
            self._typing = self._profile.context.pages[0]
            if first:
                self.welcome()  # it comes to the front, even while the test types
            self._reading = self._profile.open("options/options.html")
            if first:
                self._bookmark()
            self._omnibox = Omnibox(self._profile)
            yield

    def _bookmark(self) -> None:
        marked = [{"url": seed.url, "title": seed.title} for seed in self._seeds if seed.bookmarked]
        self._reading.evaluate("(marked) => Promise.all(marked.map((each) => chrome.bookmarks.create(each)))", marked)

    def open(self, path: str) -> None:
        self._reading.goto(self._profile.extension + path)

    def welcome(self) -> None:
        def found() -> list[Tab]:
            self._hear()
            return [page for page in self._profile.context.pages if page.url.endswith("welcome/welcome.html")]

        self._reading = wait_for(found, "the page that welcomes")[0]

    def click(self, selector: str, *, allowing: bool = False) -> None:
        self._reading.locator(selector).click()  # Chromium needs no permission request there

    def fill(self, selector: str, text: str) -> None:
        self._reading.locator(selector).fill(text)

    def text(self, selector: str) -> str:
        return self._reading.locator(selector).text_content() or ""

    def texts(self, selector: str) -> list[str]:
        return self._reading.locator(selector).all_text_contents()

    def ask(self, message: dict[str, Any]) -> Any:
        answer = self._reading.evaluate("(message) => chrome.runtime.sendMessage(message)", message)
        assert "problem" not in answer, answer
        return answer.get("value")

    def type(self, text: str) -> list[str]:
        rows = self._omnibox.typed(self._typing, KEYWORD + text, "Keyword")
        return [row.content.removeprefix(KEYWORD) for row in rows if row.provider == "Keyword"][1:]

    def choose(self, place: int) -> None:
        self._omnibox.press(*["Down"] * (place + 1), "Return")

    def search_privately(self, text: str, url: str) -> None:
        browser = self._profile.context.browser
        assert browser is not None
        devtools = browser.new_browser_cdp_session()

        def at(part: str) -> bool:
            return any(part in page["url"] for page in devtools.send("Target.getTargets")["targetInfos"])

        self._screen.press("ctrl+shift+n")
        self._screen.focus("chromium", windows=2)
        self._screen.type(KEYWORD + text)
        self._screen.press("Return")
        # An ordinary search, because the keyword isn't registered there.
        wait_for(lambda: at("q=" + quote_plus(KEYWORD + text)), "the search for what was typed")

        def there() -> bool:
            # Typed again if necessary, because a late answer to a search takes the focus from the address bar.
            self._screen.press("ctrl+l")
            self._screen.type(url)
            self._screen.press("Return")
            return happens(lambda: at(urlsplit(url).netloc), 5.0)  # by https, there

        wait_for(there, "the page in the private window")
        self._screen.press("ctrl+shift+w")
        self._screen.focus("chromium", windows=1)

    def address(self) -> str:
        self._hear()
        return self._typing.url

    def kill(self) -> None:
        self._profile.kill()

    def _hear(self) -> None:
        """Let Playwright process events, which it does only during a call."""
        self._typing.wait_for_timeout(20)
