"""Load times of the list of runs and of the page of comparisons, by the number of runs.

    python -m benchmarks.runs_list [--runs 10000] [--loads 9] [--json]

Generates runs of one variant, like those of `fedping simulate`, and serves them with a separate `fedping dashboard`.
Reports the time of the first page during the build of the index, and of the build; of the first page of a new server
that finds the index (cold); of pages of a server that has answered before (warm): the default one, sorted by a metric,
filtered, without groups, the last one, and the page of comparisons; and, with Chromium installed, of the first paint.
The same is measured with a tenth of the runs, so that ratios can be read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import requests

from tests.browser.harness.available import path_of
from tests.support.dashboard_server import DashboardServer, start_dashboard
from tests.support.many_runs import many_runs

HTML = {"Accept": "text/html"}

PAGES = {
    "the usual page": "/runs/",
    "sorted by a metric": "/runs/?sort=test+accuracy&backwards=1",
    "filtered by a setting": "/runs/?where=settings.server.optimizer.rate+%3C+0.5",
    "no groups": "/runs/?group=none",
    "searched": "/runs/?q=point+77",
    "the page that compares": "/compare/",
}


@dataclass(frozen=True)
class Measured:
    """Seconds of pages, and bytes of the default page and of the index.

    Attributes:
        runs: the number of runs.
        while_indexing: slowest load of the first page during the build of the index.
        indexing: duration of the build of the index.
        cold: load of the first page of a server that finds the index.
        warm: median load of each page.
        paint: first contentful paint in Chromium, cold and warm; None without Chromium.
        page_bytes: bytes of the default page.
        index_bytes: bytes of the index file.
    """

    runs: int
    while_indexing: float
    indexing: float
    cold: float
    warm: dict[str, float]
    paint: tuple[float, float] | None
    page_bytes: int
    index_bytes: int


@contextmanager
def dashboard(folder: Path) -> Iterator[DashboardServer]:
    """Serve a folder with a dashboard."""
    places = [f"--{place}={folder / place}" for place in ("store", "landing", "runs")]
    server = start_dashboard(folder / "said", *places)
    try:
        yield server
    finally:
        server.stop()


def seconds(server: DashboardServer, page: str) -> float:
    """Return the seconds until a page is received completely."""
    began = time.perf_counter()
    answer = requests.get(server.url + page, headers=HTML, timeout=600)
    took = time.perf_counter() - began
    if answer.status_code != 200:
        raise RuntimeError(f"{page} was answered {answer.status_code}")
    return took


def is_indexed(server: DashboardServer) -> bool:
    """Return whether the index is complete."""
    answer = requests.get(f"{server.url}/runs/feed", timeout=600).json()
    return answer["data"]["progress"] is None


def measured(folder: Path, runs: int, loads: int) -> Measured:
    """Measure with a number of runs."""
    many_runs(folder / "runs", runs)
    slowest, began = 0.0, time.perf_counter()
    with dashboard(folder) as server:
        while True:
            slowest = max(slowest, seconds(server, "/runs/"))
            if is_indexed(server):
                break
            time.sleep(0.2)
        indexing = time.perf_counter() - began
    with dashboard(folder) as server:
        cold = seconds(server, "/runs/")
        paint = paints(server) if path_of("chromium") else None
        time.sleep(1)
        warm = {name: median(seconds(server, page) for _ in range(loads)) for name, page in PAGES.items()}
        size = len(requests.get(f"{server.url}/runs/", headers=HTML, timeout=600).content)
    if path_of("chromium"):
        with dashboard(folder) as server:
            first, _ = paints(server)
            paint = (first, paint[1] if paint else first)
    index = (folder / "runs" / ".index" / "runs.sqlite").stat().st_size
    return Measured(runs, slowest, indexing, cold, warm, paint, size, index)


def paints(server: DashboardServer) -> tuple[float, float]:
    """Return the seconds to the first contentful paint of the list, at the first and at the second load."""
    from playwright.sync_api import sync_playwright

    from tests.browser.harness.chromium import pages_of, running_chromium

    script = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
    with sync_playwright() as playwright, running_chromium(playwright) as browser, pages_of(browser) as pages:
        found = []
        for _ in range(2):
            page = pages.new_page(f"{server.url}/static/icon.svg")  # for which Chromium starts a process
            page.goto(f"{server.url}/runs/")
            page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
            found.append(float(page.evaluate(script)))
            page.close()
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--loads", type=int, default=9)
    options = parser.parse_args()
    found = []
    for runs in (max(1, options.runs // 10), options.runs):
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
            found.append(measured(Path(name), runs, options.loads))
    if options.json:
        json.dump([asdict(one) for one in found], sys.stdout, indent=1)
        return
    few, many = found
    print(f"{'seconds':<32} {few.runs:>9,} {many.runs:>9,}  ratio")
    rows = [
        ("a page while indexing, slowest", few.while_indexing, many.while_indexing),
        ("indexing", few.indexing, many.indexing),
        ("the usual page, cold", few.cold, many.cold),
        *((f"{name}, warm", few.warm[name], many.warm[name]) for name in PAGES),
    ]
    if few.paint and many.paint:
        rows += [(f"first paint, {when}", few.paint[k], many.paint[k]) for k, when in enumerate(("cold", "warm"))]
    for words, one, other in rows:
        print(f"{words:<32} {one:>9.3f} {other:>9.3f}  {other / one:.1f}")
    print(f"the usual page has {many.page_bytes / 1000:.0f} kB; the index {many.index_bytes / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
