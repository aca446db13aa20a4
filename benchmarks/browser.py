"""Time of the JavaScript client in Chromium: for ranking 1,000 pages, for a ping, and while typing in the extension.

    python -m benchmarks.browser [--json] [--pages 10000]

There is no comparison, since the times, in milliseconds, are of the user's own browser. `tests/browser/benchmark.py`
and `benchmark_typing.py` describe the measurements; the first also accepts `firefox`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.browser.harness.available import path_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pages", type=int, default=10_000, help="size of the searched history")
    options = parser.parse_args()
    if path_of("chromium") is None:
        sys.exit("there is no Chromium on this machine; `make test-browser` installs it, or says how")
    from tests.browser import benchmark, benchmark_typing

    with tempfile.TemporaryDirectory() as folder:
        typing = benchmark_typing.summary(benchmark_typing.measure(options.pages, Path(folder)))
    figures = {**benchmark.measure("chromium"), **typing}
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    for name, of in figures.items():
        print(name.ljust(24), "   ".join(f"{which} {figure:6.2f}" for which, figure in of.items()))


if __name__ == "__main__":
    main()
