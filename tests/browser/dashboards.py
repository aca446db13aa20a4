"""A dashboard over a store with two studies, landed pings and a finished run, and helpers for its pages."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
from playwright.sync_api import Page, expect

from fedping.model_store import ModelStore, Version, open_store
from fedping.protocol.study import Study
from tests.support.dashboard_server import DashboardServer, start_dashboard
from tests.support.processes import left_over
from tests.support.small_experiment import experiment_file
from tests.support.versions import small_study
from tests.support.walks import following, walked_store
from tests.support.watched import finished_run

PATIENCE = 120_000
"""Timeout of page conditions, in milliseconds; some need new processes, on a machine that may be busy."""

expect.set_options(timeout=PATIENCE)

WALK = "/live/walk/main/"
RUN, RUN_TITLE = "20260102-030405-two-variants", "One gradient or three epochs"
VARIANTS = ("gradient", "local, three")
FINISHED = "small"
"""The study that was simulated to its end."""


@dataclass
class Dashboard:
    """A dashboard over a folder, which can be killed and restarted on the same port."""

    folder: Path
    options: Sequence[str] = ()

    def start(self) -> None:
        """Start it, or start it again on the same port."""
        places = [f"--{name}={self.folder / name}" for name in ("store", "landing", "runs")]
        port = int(self.url.rpartition(":")[2]) if self._servers else None
        self._servers.append(start_dashboard(self.folder / "dashboard.log", *places, *self.options, port=port))

    def __post_init__(self) -> None:
        self._servers: list[DashboardServer] = []

    @property
    def server(self) -> DashboardServer:
        """The current server process, or the last one."""
        return self._servers[-1]

    @property
    def url(self) -> str:
        """The dashboard's address."""
        return self.server.url

    @property
    def marks(self) -> list[dict[str, str]]:
        """The marks that identify the processes of every start, including runs."""
        return [server.mark for server in self._servers]

    @property
    def store(self) -> ModelStore:
        """The store that the dashboard shows."""
        return open_store(self.folder / "store")

    def publish(self, study: Study, versions: int = 1) -> Version:
        """Publish versions as rounds would; return the newest."""
        head = self.store.head(study.name, "main")
        for _ in range(versions):
            head = following(study, head, np.random.default_rng(head.iteration))
            self.store.publish(head)
        return head


@contextlib.contextmanager
def dashboard_over(folder: Path, *options: str) -> Iterator[Dashboard]:
    """Serve a folder; check that no process is left at the end."""
    dashboard = Dashboard(folder, options)
    dashboard.start()
    try:
        yield dashboard
    finally:
        if dashboard.server.process.poll() is None:
            dashboard.server.stop()
        left = [command for mark in dashboard.marks for command in left_over(mark)]
    assert not left, left


def walked(folder: Path, versions: int) -> Study:
    """Make a store with a study whose line has ``versions`` versions after version 0; return the study."""
    study = small_study("walk", m=3)
    walked_store(folder / "store", study, versions)
    return study


def simulated(folder: Path) -> None:
    """Simulate a small study to its end, into the folder's store and landing folder."""
    from fedping.experiments.simulate import experiment_from_toml, simulate

    simulate(*experiment_from_toml(experiment_file(folder / "simulated")), folder / "out", threads=1)
    for place in ("store", "landing"):
        shutil.move(folder / "out" / place, folder / place)


def full(folder: Path) -> None:
    """Fill a folder with everything that pages can show, except a count."""
    simulated(folder)
    walked(folder, 30)
    finished_run(folder / "runs", RUN, RUN_TITLE)


CUT_OFF = (
    r"ERR_(CONNECTION_REFUSED|CONNECTION_RESET|EMPTY_RESPONSE|INCOMPLETE_CHUNKED_ENCODING|CONTENT_LENGTH_MISMATCH)"
)
"""Pattern of the errors that pages report when a server is killed during an answer."""


def compared(run: str = RUN, variants: Sequence[str] = VARIANTS) -> str:
    """Return the address that compares variants of a run."""
    return "/compare/?" + urlencode([("of", f"{run}:{name}") for name in variants])


def drawn(page: Page) -> Page:
    """Wait until every figure near the visible part of a page is drawn; return the page."""
    page.wait_for_function("""() => [...document.querySelectorAll("figure .drawing")].every((drawing) => {
        const box = drawing.getBoundingClientRect();
        return drawing.childNodes.length > 0 || box.top > innerHeight || box.width === 0;
    })""")
    return page


def rows_of(page: Page, figure: str) -> list[list[str]]:
    """Open the table of a figure, and return its cells as a reader sees them."""
    table = page.locator(f"{figure} details")
    if table.get_attribute("open") is None:
        table.locator("summary").click()
    script = "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    rows = table.locator("tbody tr")
    rows.first.wait_for()
    return [list(row) for row in rows.evaluate_all(script)]


def widened(page: Page, width: int, height: int) -> Page:
    """Resize a page's window, and wait until the page has adapted; return the page.

    From then on, :func:`scrolls_sideways` also covers the moment of resizing, when figures still have the old width.
    """
    page.evaluate(
        """width => {
        window.wasWider = false;
        window.noticed = innerWidth === width;
        addEventListener("resize", () => {
            window.wasWider = document.documentElement.scrollWidth > innerWidth;
            window.noticed = true;
        }, { once: true });
    }""",
        width,
    )
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_function("() => window.noticed")
    return page


def scrolls_sideways(page: Page) -> bool:
    """Return whether a page is wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth || Boolean(window.wasWider)"))
