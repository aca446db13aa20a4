"""The tutorial works as written: its files are written, its commands run in order, and its outputs appear."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.effort import few_or_all

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/tutorials"
ROOMS = ("analysis", "client_sim", "experiments", "fedping", "model_store", "protocol", "server_jobs")

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"# (file|append to): (\S+)\n")
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
TIME = re.compile(r"[\d.]+ ms")


@dataclass(frozen=True)
class Place:
    """The reader's working place: a folder, and a checkout whose commands are on the path."""

    folder: Path
    checkout: Path

    def file(self, name: str) -> Path:
        return (self.checkout if name.partition("/")[0] in ROOMS else self.folder) / name

    def run(self, command: str) -> str:
        path = f"{self.checkout / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(self.checkout), "PYTHONUTF8": "1"}
        with contextlib.nullcontext() if "spark" in command else on_one_core():
            done = subprocess.run(
                command, shell=True, cwd=self.folder, env=environment, capture_output=True, encoding="utf-8"
            )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Run everything started here on one core, because starting parallel processes takes longer than these runs."""
    cores = os.sched_getaffinity(0)  # of this thread, which is what a process that it starts inherits
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Give a copy of fedping's packages for the tutorial to change; `fedping` doesn't import the working directory."""
    checkout = tmp_path / "checkout"
    skipped = shutil.ignore_patterns("__pycache__", "*.ipynb")
    for room in ROOMS:
        shutil.copytree(ROOT / room, checkout / room, symlinks=True, ignore=skipped)
    (checkout / "bin").mkdir()
    for name, options in (("fedping", "-P -m fedping"), ("python", "")):
        script = checkout / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {options} "$@"\n')
        script.chmod(0o755)
    (tmp_path / "rentals").mkdir()
    return Place(tmp_path / "rentals", checkout)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("page", "least"), [("your_own_model", 8), pytest.param("your_own_algorithm", 4, marks=pytest.mark.long)]
)
def test_the_tutorial_runs_and_shows_what_comes_out(place: Place, page: str, least: int) -> None:
    """`make test` follows the tutorial up to its second output; `make test-long` to its end."""
    shown = spark = 0
    for command, output in followed((PAGES / f"{page}.md").read_text(encoding="utf-8"), place):
        spark += "engine=spark" in command
        said = place.run(command)
        if output:
            assert_same(output, said)
            shown += 1
        if shown == few_or_all(2, 1000):
            return
    assert shown >= least
    assert spark == 1


def followed(page: str, place: Place) -> Iterator[tuple[str, str]]:
    """Yield every command of a page with its shown output, after executing everything before it."""
    for language, text in BLOCK.findall(page):
        head = HEAD.match(text)
        if language == "console":
            _, *parts = COMMAND.split(text)
            yield from zip(parts[::2], parts[1::2], strict=True)
        elif head and language == "diff":
            patch(place.file(head[2]), text[head.end() :])
        elif head:
            with open(place.file(head[2]), "a" if head[1] == "append to" else "w", encoding="utf-8") as file:
                file.write(text if head[1] == "file" else text[head.end() :])


def patch(file: Path, changes: str) -> None:
    """Apply the changes of a diff, whose parts are separated by lines that begin with '@@'."""
    text = file.read_text(encoding="utf-8")
    for part in re.split(r"^@@.*\n", changes, flags=re.MULTILINE):
        lines = part.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] != "+")
        assert text.count(old) == 1, f"{file.name} does not have once what the tutorial changes:\n{old}"
        text = text.replace(old, "".join(line[1:] for line in lines if line[0] != "-"))
    file.write_text(text, encoding="utf-8")


def assert_same(shown: str, said: str) -> None:
    """Compare words exactly, and numbers as rounded; ignore times."""
    shown, said = (TIME.sub("ms", text).replace("\N{MINUS SIGN}", "-") for text in (shown, said))
    assert NUMBER.sub("#", said).split() == NUMBER.sub("#", shown).split(), said
    numbers, again = ([float(number.replace(",", "")) for number in NUMBER.findall(text)] for text in (shown, said))
    assert again == pytest.approx(numbers, rel=2e-3, abs=2e-3)


def test_a_wrong_word_or_number_is_seen() -> None:
    assert_same("loss 0.8370 of 3, 12.5 ms", "loss  0.8371\nof 3, 7.0 ms")
    for other in ("loss 0.8470 of 3, 12.5 ms", "gain 0.8370 of 3, 12.5 ms"):
        with pytest.raises(AssertionError):
            assert_same(other, "loss 0.8370 of 3, 12.5 ms")


def test_a_change_of_what_is_not_there_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "registry.py"
    file.write_text("one,\ntwo,\n")
    patch(file, " one,\n+more,\n@@\n-two,\n+2,\n")
    assert file.read_text() == "one,\nmore,\n2,\n"
    with pytest.raises(AssertionError, match="does not have once"):
        patch(file, " three,\n+four,\n")
