"""Runs the installed Chromium, without a window, through Playwright (whose own browsers are never downloaded)."""

import contextlib
import json
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Playwright

from tests.browser.harness.available import needed
from tests.browser.harness.screen import Screen
from tests.browser.harness.waiting import wait_for
from tests.support.ingest_server import descendants, is_alive

PATIENCE = 120_000
"""Timeout of conditions that tests wait for, in milliseconds; machines may be busy."""

_ARGUMENTS = ("--disable-gpu", "--disable-quic", "--force-color-profile=srgb")


def launching(home: Path, *more: str, elsewhere: str = "", screen: Screen | None = None) -> dict[str, Any]:
    """Return Playwright's options to launch Chromium; no host name leads out of this machine.

    Args:
        home: a folder that replaces the user's home, so that nothing is written there.
        more: more arguments of Chromium.
        screen: the screen on which to open a window; None opens none.
        elsewhere: an address (`127.0.0.1:8000`) to which all other host names lead; by default to none.
    """
    rules = f"MAP * {elsewhere or '~NOTFOUND'}, EXCLUDE 127.0.0.1, EXCLUDE localhost"
    return {
        "executable_path": needed("chromium"),
        "headless": screen is None,
        "env": {**os.environ, "HOME": str(home), **(screen.environment if screen else {})},
        "chromium_sandbox": os.getuid() != 0,  # as root, Chromium doesn't run with its sandbox
        "args": [*_ARGUMENTS, f"--host-resolver-rules={rules}", *(["--ozone-platform=x11"] if screen else []), *more],
    }


@dataclass
class Pages:
    """Pages of one window without a history, and their complaints: errors and failed requests."""

    context: BrowserContext
    complaints: list[str] = field(default_factory=list)
    forgiven: list[str] = field(default_factory=list)
    """Patterns of complaints that a test provokes; never listed, because a browser may report them at any time."""

    def forgive(self, pattern: str) -> None:
        """Ignore complaints that match a pattern, earlier and later ones."""
        self.forgiven.append(pattern)
        self.complaints[:] = [one for one in self.complaints if not re.search(pattern, one)]

    def new_page(self, url: str = "", *, dark: bool = False, width: int = 1280, height: int = 800) -> Page:
        """Open a page in a colour scheme and size; pages of one test share storage and cookies."""
        page = self.context.new_page()
        page.emulate_media(color_scheme="dark" if dark else "light", reduced_motion="reduce")
        page.set_viewport_size({"width": width, "height": height})
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"{page.url}: {error}"))
        if url:
            page.goto(url)
        return page

    def _heard(self, message: ConsoleMessage) -> None:
        where = message.location.get("url", "")
        if message.type == "error" and not where.endswith("/favicon.ico"):  # Chromium requests it by itself
            complaint = f"{where}: {message.text}"
            if not any(re.search(pattern, complaint) for pattern in self.forgiven):
                self.complaints.append(complaint)


@contextlib.contextmanager
def running_chromium(playwright: Playwright) -> Iterator[Browser]:
    """Run Chromium for pages that need no profile; see :func:`pages_of`."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        contextlib.closing(playwright.chromium.launch(**launching(Path(home)))) as browser,
    ):
        yield browser


@contextlib.contextmanager
def pages_of(browser: Browser, **options: Any) -> Iterator[Pages]:
    """Give a separate window with empty storage, closed at the end; options as in Playwright's `new_context`."""
    with contextlib.closing(browser.new_context(**options)) as context:
        context.set_default_timeout(PATIENCE)
        yield Pages(context)


@dataclass(frozen=True)
class Profile:
    """A Chromium running on a persistent profile, with an extension."""

    context: BrowserContext
    folder: Path
    extension: str
    """The address of the extension, ending in a slash."""
    screen: Screen | None = None

    def open(self, path: str) -> Page:
        """Open an address, or a path of the extension."""
        page = self.context.new_page()
        page.goto(path if ":" in path else self.extension + path)
        return page

    def kill(self) -> None:
        """End the browser like a crash, so that it writes nothing more. Its profile is free when this returns."""
        pid = int((self.folder / "SingletonLock").readlink().name.rpartition("-")[2])
        pids = [pid, *descendants(pid)]  # some of them hold files of the profile
        for each in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, pids)), "the end of a browser that was killed")


def new_profile(playwright: Playwright, folder: Path) -> None:
    """Let Chromium create a profile in which `chrome://omnibox` can be opened."""
    folder.mkdir(parents=True)
    (folder / "Local State").write_text(json.dumps({"internal_only_uis_enabled": True}))
    playwright.chromium.launch_persistent_context(folder, **launching(folder.parent)).close()


@contextlib.contextmanager
def chromium_profile(
    playwright: Playwright, folder: Path, extension: Path, *, elsewhere: str = "", screen: Screen | None = None
) -> Iterator[Profile]:
    """Run Chromium on a profile (:func:`new_profile`) with an unpacked extension; end it when the context exits."""
    given = (f"--disable-extensions-except={extension}", f"--load-extension={extension}")
    options = launching(folder.parent, *given, elsewhere=elsewhere, screen=screen)
    options |= {"ignore_default_args": ["--disable-extensions"], "no_viewport": screen is not None}
    context = playwright.chromium.launch_persistent_context(folder, **options)
    try:
        context.set_default_timeout(PATIENCE)
        started = context.service_workers or [context.wait_for_event("serviceworker")]
        yield Profile(context, folder, "/".join(started[0].url.split("/")[:3]) + "/", screen)
    finally:
        with contextlib.suppress(Error):  # it was killed
            context.close()
