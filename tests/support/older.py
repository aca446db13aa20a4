"""An older fedping, as the history of this repository has it, to run beside the present one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class Older:
    """The program of a commit, in a folder of its own; it runs with the packages that are installed here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *words: object) -> str:
        """Run a command of it that has to end well, and return what it prints."""
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
    """Return the program of a commit, put into a folder; skip the test where the history does not have it."""
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
