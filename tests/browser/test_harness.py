"""The browser harness: pages with a size and colour scheme, collected complaints, axe, and a profile."""

import pytest

from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages

pytestmark = pytest.mark.browser

PAGE = "data:text/html,<!doctype html><html lang=en><title>A page</title><main><h1>A page</h1>"


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 390)])
def test_a_page_has_the_scheme_and_the_width_asked_for(chromium: Pages, dark: bool, width: int) -> None:
    page = chromium.new_page(PAGE, dark=dark, width=width)
    assert page.evaluate("[matchMedia('(prefers-color-scheme: dark)').matches, innerWidth]") == [dark, width]


def test_axe_finds_what_is_wrong_and_nothing_else(chromium: Pages) -> None:
    assert axe_violations(chromium.new_page(PAGE)) == []
    poor = chromium.new_page(PAGE + "<p style='color:%23bbb'>pale</p><img src='data:,'>")
    assert {line.partition(" ")[0] for line in axe_violations(poor)} == {"color-contrast", "image-alt"}
    assert {line.partition(" ")[0] for line in axe_violations(poor, "p")} == {"color-contrast"}


def test_complaints_of_a_page_are_heard(chromium: Pages) -> None:
    page = chromium.new_page(PAGE + "<script>console.error('one'); throw new Error('two')</script>")
    page.evaluate("fetch('http://elsewhere.example/').catch(() => {})")
    heard = " ".join(chromium.complaints)
    assert "one" in heard
    assert "two" in heard
    assert "ERR_NAME_NOT_RESOLVED" in heard
    chromium.complaints.clear()
