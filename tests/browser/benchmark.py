"""Measures ranking and a ping inside a real browser: `python -m tests.browser.benchmark chromium` (or firefox).

Firefox rounds its clock to a millisecond. `node browser/benchmarks/run.js` measures the same in Node.
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.harness.available import path_of
from tests.browser.harness.chromium import pages_of, running_chromium
from tests.browser.harness.firefox import running_firefox
from tests.browser.pages import serving

BROWSERS = ("chromium", "firefox")


def measure(browser: str) -> dict[str, dict[str, float]]:
    """Return milliseconds by measurement and run."""
    with serving() as web, opened(browser, f"{web.address}/tests/page.html"):
        for step in ("parity", "digest"):
            web.hears(step)
        figures: dict[str, dict[str, float]] = web.hears("benchmark")
        return figures


def main(browser: str) -> None:
    """Print the figures of a browser."""
    if browser not in BROWSERS or path_of(browser) is None:
        sys.exit(f"there is no {browser} on this machine; install it, or name another of {', '.join(BROWSERS)}")
    for name, figures in measure(browser).items():
        print(name.ljust(20), "   ".join(f"{which} {figure:7.2f} ms" for which, figure in figures.items()))


@contextlib.contextmanager
def opened(browser: str, url: str) -> Iterator[None]:
    """Open a page in a browser, which has ended when the context exits."""
    if browser == "chromium":
        with sync_playwright() as playwright, running_chromium(playwright) as chromium, pages_of(chromium) as pages:
            pages.new_page(url)
            yield
    else:
        with tempfile.TemporaryDirectory() as folder, running_firefox(Path(folder, "profile"), Path(folder)) as firefox:
            firefox.page.navigate(url)
            yield


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "chromium")
