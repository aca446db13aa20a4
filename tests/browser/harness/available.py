"""Finds the programs that tests need: browsers, nginx. A test whose program is missing is skipped, and counted.

`tests/conftest.py` ends the report of a run with one line about these skipped tests (:func:`loud_line`).
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support import azurite

LEAST_NODE = 20
REMEDY = "`make test-browser` installs what is missing, or says how"
PACKAGES = {
    "chromium": "chromium",
    "firefox": "firefox-esr",
    "node": "nodejs",
    "Xvfb": "xvfb",
    "xdotool": "xdotool",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "npm": "npm",
}
"""The Debian package of each program. Xvfb is a virtual screen, and xdotool presses its keys."""

_COMMANDS = {
    "chromium": ("chromium", "chromium-browser"),  # Chrome accepts no extension on its command line
    "firefox": ("firefox-esr", "firefox"),
    "node": ("node", "nodejs"),
    "Xvfb": ("Xvfb",),
    "xdotool": ("xdotool",),
    "nginx": ("nginx", "/usr/sbin/nginx"),  # Debian's users have no /usr/sbin on their PATH
    "openssl": ("openssl",),
    "npm": ("npm",),
}
AZURITE = "azurite"
"""A program from npm, not from Debian."""

_NOT_THERE = "NOT ON THIS MACHINE: "


def path_of(name: str) -> str | None:
    """Return the path of a program of :data:`PACKAGES`, or of azurite; None if missing or too old.

    `FEDPING_WITHOUT=chromium,node` treats these programs as missing.
    """
    if name in os.environ.get("FEDPING_WITHOUT", "").split(","):
        return None
    if name == AZURITE:
        return str(azurite.program()) if azurite.program() and path_of("node") else None
    found = [path for path in map(shutil.which, _COMMANDS[name]) if path is not None]
    if name == "node":
        found = [path for path in [*found, *_node_of_playwright()] if _node_version(path) >= LEAST_NODE]
    return found[0] if found else None


def _node_of_playwright() -> list[str]:
    """Return the command of Playwright's bundled Node, for machines whose own is missing or too old."""
    package = importlib.util.find_spec("playwright")
    folders = package.submodule_search_locations if package else None
    return [str(path) for folder in folders or () if (path := Path(folder) / "driver" / "node").is_file()]


@cache
def _node_version(path: str) -> int:
    told = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    number = re.match(r"v(\d+)\.", told)
    return int(number[1]) if number else 0


def missing() -> list[str]:
    """Return the missing programs of :data:`PACKAGES`, and azurite if missing."""
    return [name for name in (*PACKAGES, AZURITE) if path_of(name) is None]


def needed(name: str) -> str:
    """Return the path of a program of :data:`PACKAGES`, or of azurite; skip the test if it is missing."""
    path = path_of(name)
    if path is None:
        skip_for_want_of(f"{name} {LEAST_NODE} or newer" if name == "node" else name)
    return path


def skip_for_want_of(what: str) -> NoReturn:
    """Skip the running test, because something is missing."""
    pytest.skip(_NOT_THERE + what)


def loud_line(reasons: Sequence[str]) -> str | None:
    """Return the line for a run with these reasons of skipped tests; None if none is a missing program."""
    lacking = [reason.partition(_NOT_THERE)[2] for reason in reasons if _NOT_THERE in reason]
    if not lacking:
        return None
    counted = [f"{lacking.count(name)} for want of {name}" for name in sorted(set(lacking))]
    return f"TESTS SKIPPED: {', '.join(counted)}; {REMEDY}."
