"""An older fedping from this repository's history, to run next to the current one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class Older:
    """The program of a commit, in a separate folder; it runs with the installed packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *words: object) -> str:
        """Run a command of the older program, which must succeed, and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "fedping", *map(str, words)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def older_program(commit: str, folder: Path) -> Older:
    """Extract the program of a commit into a folder and return it; skip the test if the history lacks the commit."""
    archive = _git("archive", "--format=tar", commit)
    if archive is None:
        pytest.skip(f"the history of this repository does not have {commit}: it is a copy without it, or a shallow one")
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    found = subprocess.run(
        [sys.executable, "-c", "import fedping; print(fedping.__file__)"],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
    ).stdout
    assert found.startswith(str(folder)), f"it is the present one that would run: {found}"
    return Older(folder)


def _git(*words: str) -> bytes | None:
    try:
        done: subprocess.CompletedProcess[Any] = subprocess.run(["git", *words], cwd=ROOT, capture_output=True)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
