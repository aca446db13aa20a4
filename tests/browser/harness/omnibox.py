"""The address bar of Chromium: typed into with real keys, and read through `chrome://omnibox`, which observes it."""

import contextlib
import json
from dataclasses import dataclass

from playwright.sync_api import Page

from tests.browser.harness.chromium import Profile
from tests.browser.harness.waiting import wait_for

_LAST_ANSWER = """
    () => {
      const groups = document.querySelector("omnibox-output").shadowRoot.querySelectorAll("output-results-group");
      const group = groups[groups.length - 1]?.shadowRoot;
      if (!group) return null;
      const text = (row, which) => row.querySelector(which)?.textContent.trim() ?? "";
      const details = group.querySelector("output-results-details")?.shadowRoot?.textContent ?? group.textContent;
      const rows = [...group.querySelector("tbody").querySelectorAll("tr")].map((row) => [
        text(row, ".cell-provider-and-type .pair-item"),
        text(row, ".cell-contents-and-description .contents"),
        text(row, ".cell-fill-and-inline .pair-item"),
      ]);
      return [details.replace(/\\s+/g, " "), rows];
    }
"""


_FORGET = """() => document.querySelector("omnibox-output").shadowRoot.querySelector("#contents").replaceChildren()"""


@dataclass(frozen=True)
class Row:
    """A row below the address bar: its provider, its text, and the bar's content while it is selected."""

    provider: str
    title: str
    content: str


class Omnibox:
    """The address bar of a profile's window on a screen."""

    def __init__(self, profile: Profile) -> None:
        assert profile.screen is not None
        self._screen = profile.screen
        self._listening = profile.open("chrome://omnibox")
        self._listening.locator("#connect-window-omnibox").check()
        self._screen.focus("chromium")

    def typed(self, page: Page, text: str, provider: str) -> list[Row]:
        """Type into the address bar above a page, and return its rows once all providers have answered.

        Repeated if the first row is not from ``provider``: just after a browser's start a keyword is not registered
        yet, and a tab that comes to the front takes the keyboard focus.
        """

        def rows() -> list[Row]:
            self._type(page, text)
            with contextlib.suppress(AssertionError):
                found = wait_for(lambda: self._rows(text), "the rows", seconds=5)
                return found if found[0].provider == provider else []
            return []

        return wait_for(rows, f"rows of {provider} for {json.dumps(text)}")

    def press(self, *keys: str) -> None:
        """Press keys in the address bar, by their X names."""
        self._screen.press(*keys)

    def _type(self, page: Page, text: str) -> None:
        self._listening.evaluate(_FORGET)  # an earlier answer to the same text doesn't count
        page.bring_to_front()
        self._screen.press("ctrl+l", "Escape", "Escape", "ctrl+l")  # leaves earlier input
        self._screen.type(text)

    def _rows(self, text: str) -> list[Row]:
        told = self._listening.evaluate(_LAST_ANSWER)
        done = told and f"cursor position = {len(text)} " in told[0] and "all providers done = true" in told[0]
        return [Row(*row) for row in told[1]] if done else []
