"""Speed of the Live page: the time to draw all its figures, and the delay at five new versions per second.

    python -m benchmarks.drawing [--json] [--versions 500] [--loads 9] [--seconds 10]

A line of 22 weights behind a real dashboard, in a Chromium without a graphics card, whose window is so high that all
figures are drawn every time. The page measures itself (`fedping:draw`): from the arrival of a change to the layout of
the frame. There is no comparison: the goals are 200 ms for a drawing, and no backlog at five versions per second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from fedping.experiments.demo import STUDY
from fedping.model_store import ModelStore, Version, open_store
from fedping.protocol.study import Study, study_from_toml
from tests.browser.harness.available import path_of
from tests.support.dashboard_server import start_dashboard
from tests.support.walks import following, walked_store

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

A_SECOND = 5
"""Number of versions published per second, which is the maximum rate of changes of a page."""

WATCH = """
window.drawn = [];
window.long = [];
const heard = (type, then) => new PerformanceObserver((list) => list.getEntries().forEach(then)).observe({ type });
heard("measure", ({ startTime, duration }) => {
  const tile = document.querySelector("#health dd");
  const newest = tile ? Number(tile.firstChild.textContent.replaceAll(/\\D/g, "")) : -1;
  const end = (performance.timeOrigin + startTime + duration) / 1000;
  window.drawn.push({ newest, end, ms: duration, since: startTime + duration });
});
heard("longtask", ({ duration }) => window.long.push(duration));
"""


@dataclass(frozen=True)
class Loaded:
    """Milliseconds of a load of the page: for the longest drawing, and from the click until everything is drawn."""

    drawing: float
    whole: float


@dataclass(frozen=True)
class Followed:
    """The page's delay after new versions.

    Attributes:
        published: number of versions.
        seconds: time in which they were published.
        drawn: number of drawings that showed a new version; a drawing shows all versions of a change.
        drawing: median milliseconds of a drawing.
        slowest: milliseconds of the slowest drawing.
        behind: median milliseconds from publishing a version until it was drawn.
        furthest: milliseconds until the version that waited longest was drawn.
        versions_behind: maximum number of versions that the page lacked after a drawing.
        busy: share of the main thread's time with work.
        long: number of tasks of more than 50 ms.
        longest: milliseconds of the longest task.
    """

    published: int
    seconds: float
    drawn: int
    drawing: float
    slowest: float
    behind: float
    furthest: float
    versions_behind: int
    busy: float
    long: int
    longest: float


@contextlib.contextmanager
def opened(browser: Browser, url: str) -> Iterator[Page]:
    """Open a page with every panel, and wait until it is drawn."""
    from tests.browser.harness.chromium import pages_of

    with pages_of(browser) as pages:
        page = pages.new_page(height=4000)
        page.add_init_script(WATCH)
        page.goto(url)
        yield page


def shown(page: Page, version: int) -> list[dict[str, float]]:
    """Wait until a version is drawn; return the drawings until then."""
    page.wait_for_function("version => window.drawn.some(({ newest }) => newest >= version)", arg=version)
    drawings: list[dict[str, float]] = page.evaluate("window.drawn")
    return drawings


def load(browser: Browser, url: str, newest: int) -> Loaded:
    with opened(browser, url) as page:
        drawings = shown(page, newest)
    return Loaded(drawing=max(one["ms"] for one in drawings), whole=drawings[-1]["since"])


def publish(store: ModelStore, versions: list[Version], every: float, times: dict[int, float]) -> None:
    """Publish versions at even intervals, and record the time of each."""
    began = time.monotonic()
    for place, version in enumerate(versions):
        time.sleep(max(0.0, began + place * every - time.monotonic()))
        store.publish(version)
        times[version.iteration] = time.time()


def follow(browser: Browser, url: str, store: ModelStore, study: Study, seconds: float) -> Followed:
    head = store.head(study.name, study.lines[0].name)
    versions = ahead(study, head, round(seconds * A_SECOND))
    times: dict[int, float] = {}
    with opened(browser, url) as page:
        shown(page, head.iteration)
        metrics = page.context.new_cdp_session(page)
        metrics.send("Performance.enable")
        page.evaluate("window.drawn.length = window.long.length = 0")
        before, began = _busy(metrics), time.time()
        publisher = threading.Thread(target=publish, args=(store, versions, 1 / A_SECOND, times))
        publisher.start()
        drawings = shown(page, versions[-1].iteration)
        took = time.time() - began
        busy, long = _busy(metrics) - before, page.evaluate("window.long")
        publisher.join()
    return judged(drawings, times, took, busy, long)


def judged(
    drawings: list[dict[str, float]], times: dict[int, float], took: float, busy: float, long: list[float]
) -> Followed:
    """Return the delays of drawings; ``times`` are the versions' times of publication."""
    news = [one for k, one in enumerate(drawings) if k == 0 or one["newest"] > drawings[k - 1]["newest"]]
    waits = [1000 * (next(d["end"] for d in news if d["newest"] >= n) - at) for n, at in times.items()]
    lacking = [sum(at <= one["end"] for at in times.values()) - (one["newest"] - min(times) + 1) for one in news]
    drawing = [one["ms"] for one in news]
    return Followed(
        published=len(times),
        seconds=took,
        drawn=len(news),
        drawing=median(drawing),
        slowest=max(drawing),
        behind=median(waits),
        furthest=max(waits),
        versions_behind=max(0, *map(int, lacking)),
        busy=busy / took,
        long=len(long),
        longest=max(long, default=0.0),
    )


def ahead(study: Study, head: Version, count: int) -> list[Version]:
    """Return the next versions of a line, computed beforehand so that publishing them takes no arithmetic."""
    made, rng = [head], np.random.default_rng(head.iteration)
    for _ in range(count):
        made.append(following(study, made[-1], rng))
    return made[1:]


def _busy(metrics: Any) -> float:
    """Return the seconds that the page's main thread has worked so far."""
    found = metrics.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in found if one["name"] == "TaskDuration"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--versions", type=int, default=500)
    parser.add_argument("--loads", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    if path_of("chromium") is None:
        sys.exit("there is no Chromium on this machine; `make test-browser` installs it, or says how")
    from playwright.sync_api import sync_playwright

    from tests.browser.harness.chromium import running_chromium

    study = study_from_toml(STUDY)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name)
        walked_store(folder / "store", study, options.versions)
        places = [f"--{place}={folder / place}" for place in ("store", "landing", "runs")]
        server = start_dashboard(folder / "said", *places)
        url = f"{server.url}/live/{study.name}/{study.lines[0].name}/"
        try:
            with sync_playwright() as playwright, running_chromium(playwright) as browser:
                load(browser, url, options.versions)  # during which the dashboard reads the versions
                loads = [load(browser, url, options.versions) for _ in range(options.loads)]
                followed = follow(browser, url, open_store(folder / "store"), study, options.seconds)
        finally:
            server.stop()
    if options.json:
        print(json.dumps({"loads": [asdict(one) for one in loads], "followed": asdict(followed)}, indent=1))
        return
    print(f"{options.versions} versions of {study.lines[0].spec.m} weights, {options.loads} loads, ms: median, worst")
    print(f"  a drawing of all   {median(one.drawing for one in loads):6.0f} {max(one.drawing for one in loads):6.0f}")
    print(f"  the page, whole    {median(one.whole for one in loads):6.0f} {max(one.whole for one in loads):6.0f}")
    print(f"{A_SECOND} versions a second")
    for what, figure in asdict(followed).items():
        print(f"  {what:<16} {figure:8.2f}" if isinstance(figure, float) else f"  {what:<16} {figure:5}")


if __name__ == "__main__":
    main()
