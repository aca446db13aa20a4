"""A virtual screen (Xvfb) with a keyboard (xdotool), for the browser's own interface around its pages."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tests.browser.harness.available import needed
from tests.browser.harness.waiting import LONGEST, wait_for


@dataclass(frozen=True)
class Screen:
    """A running X server; programs with ``environment`` use it."""

    environment: dict[str, str]

    def focus(self, window_class: str, *, windows: int = 1) -> None:
        """Give the keyboard to the newest window of a program, as soon as it has exactly this number of windows."""

        def found() -> list[str]:
            there = self._told("search", "--onlyvisible", "--class", window_class).split()
            return there if len(there) == windows else []

        self._told("windowfocus", "--sync", max(wait_for(found, f"{windows} windows of {window_class}"), key=int))

    def type(self, text: str) -> None:
        """Type on the keyboard."""
        self._told("type", "--delay", "15", text)

    def press(self, *keys: str) -> None:
        """Press keys by their X names, such as `ctrl+l` and `Return`, one after the other."""
        self._told("key", "--delay", "15", *keys)

    def _told(self, *arguments: str) -> str:
        environment = {**os.environ, **self.environment}
        run = subprocess.run(
            [needed("xdotool"), *arguments], env=environment, capture_output=True, text=True, timeout=LONGEST
        )
        return run.stdout.strip()


@contextlib.contextmanager
def running_screen() -> Iterator[Screen]:
    """Run an X server on a free display; end it when the context exits."""
    reading, writing = os.pipe()
    path = needed("Xvfb")
    needed("xdotool")
    process = subprocess.Popen(
        [path, "-displayfd", str(writing), "-screen", "0", "1280x800x24", "-nolisten", "tcp", "-noreset"],
        pass_fds=[writing],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as told:
            display = told.readline().strip()
        assert display, "Xvfb ended at its start"
        yield Screen({"DISPLAY": f":{display}"})
    finally:
        process.kill()
        process.wait(LONGEST)
