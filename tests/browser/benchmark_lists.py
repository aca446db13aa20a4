"""Measures the list of a features study in Chromium: `python -m tests.browser.benchmark_lists`.

Updates a second for 30 features and 20 candidates, and milliseconds to rank 1,000 items, first with new texts, then
with cached hashes. `browser/benchmarks/lists.js` defines the features.
"""

import sys
from typing import Any

from playwright.sync_api import sync_playwright

from tests.browser.harness.available import path_of
from tests.browser.harness.chromium import pages_of, running_chromium
from tests.browser.pages import serving

PAGE = '<script type="module" src="measure_lists.js"></script>'
SCRIPT = """
import { measureLists } from "./benchmarks/lists.js";
await fetch("/told", { method: "POST", body: JSON.stringify({ step: "lists", value: measureLists(3) }) });
"""


def measure() -> dict[str, Any]:
    """Return the figures of Chromium."""
    with (
        serving() as web,
        sync_playwright() as playwright,
        running_chromium(playwright) as chromium,
        pages_of(chromium) as pages,
    ):
        web.more.update({"/lists.html": PAGE, "/measure_lists.js": SCRIPT})
        pages.new_page(f"{web.address}/lists.html")
        figures: dict[str, Any] = web.hears("lists")
        return figures


if __name__ == "__main__":
    if path_of("chromium") is None:
        sys.exit("there is no chromium on this machine; `make test-browser` installs it, or says how")
    found = measure()
    print(f"{found['updatesASecond']:,.0f} updates a second, of {found['features']} features and 20 candidates")
    print(f"1,000 items ranked in {found['firstRank']:.1f} ms at first, then {found['rank']['median']:.1f} ms (median)")
