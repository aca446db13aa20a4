"""What ranking and a ping cost inside a real browser: `python -m tests.browser.benchmark chromium` (or firefox).

Firefox rounds its clock to a millisecond. `node browser/benchmarks/run.js` measures the same in node.
"""

import sys
import tempfile
from pathlib import Path

from tests.browser.pages import BROWSERS, opened, serving


def main(browser: str) -> None:
    """Print the figures of a browser."""
    if BROWSERS.get(browser) is None:
        sys.exit(f"there is no {browser} on this machine; install it, or name another of {', '.join(BROWSERS)}")
    with (
        serving() as web,
        tempfile.TemporaryDirectory() as folder,
        opened(browser, f"{web.address}/tests/page.html", Path(folder)),
    ):
        for step in ("parity", "digest"):
            web.hears(step)
        for name, figures in web.hears("benchmark").items():
            print(name.ljust(20), "   ".join(f"{which} {figure:7.2f} ms" for which, figure in figures.items()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "chromium")
