"""Copies the program into a separate folder, where tests change and run it."""

import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROOMS = ("protocol", "model_store", "server_jobs", "client_sim", "analysis", "experiments", "dashboard", "fedping")


def copied_program(folder: Path, *, tests: bool = False) -> Path:
    """Copy the program, and on request the tests' support code; return the folder."""
    for room in (*ROOMS, "browser"):
        ignored = shutil.ignore_patterns("__pycache__", "node_modules")
        shutil.copytree(ROOT / room, folder / room, symlinks=True, ignore=ignored)
    if tests:
        shutil.copytree(ROOT / "tests" / "support", folder / "tests" / "support")
    return folder


def outside(copy: Path) -> dict[str, Any]:
    """Return the working folder and environment with which a process imports a copy, and nothing of this checkout."""
    return {"cwd": copy.parent, "env": {"PYTHONPATH": str(copy), "PATH": "/usr/bin:/bin"}}
