"""Reads browsers' storage: the module's next page finds its client, sends waiting pings, and continues learning."""

import json
import subprocess
from pathlib import Path
from typing import Any

import fedping
from tests.browser.tools import node

SCRIPT = Path(__file__).parents[1] / "browser.js"
MODULE = Path(fedping.__file__).parent / "browser" / "fedping.js"
CLIENTS = ("telling", "personal", "private")


def page(folder: Path, step: str) -> str:
    """Run a page over a folder's storage, and return its output."""
    command = [node(), str(SCRIPT), str(MODULE.resolve()), str(folder), step]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(folder: Path) -> dict[str, Any]:
    found = {name: json.loads(page(folder / name, "go-on")) for name in CLIENTS}
    # pings of a private line have noise, and an id that changes with every version
    found["private"]["posts"] = len(found["private"]["posts"])
    return found
