"""A page of the docs, followed by a reader: its files and commands in order, in one terminal, with their outputs.

In a block ``console``, commands after ``$ `` are typed; those after ``# ``, which need root, are not. The lines after
a command are its expected output, compared line by line: ``…`` stands for any text or, alone in a line, for any
number of lines; numbers with a decimal point may differ. Other blocks are files, if they begin with ``# file: NAME``.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.ingest_server import free_port

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"# file: (\S+)\n")
COMMAND = re.compile(r"^([$#]) (.*<<'(\w+)'.*\n(?:.*\n)*?\3|(?:.*\\\n)*.*(?:\n> .*)*)\n", re.MULTILINE)
DECIMAL = re.compile(r"(?:\\-|\u2212)?[\d,]*\d\\\.\d+")
ANY_DECIMAL = r"[-\u2212]?[\d,]*\d\.\d+"
END = "\x1e"

INSTALL = """\
$ python3 -m venv env
$ env/bin/pip install {wheel}
…
$ export PATH=$PWD/env/bin:$PATH
$ fedping --version
fedping, version …
"""
"""The first block of each page of a first hour."""


@dataclass(frozen=True)
class File:
    """A file that a page tells the reader to write."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command of a page with its shown output; a command after ``# `` is for root."""

    text: str
    shows: str
    root: bool = False


def steps(page: str) -> Iterator[File | Command]:
    """Yield the files and commands of a page in order."""
    for language, text in BLOCK.findall(page):
        if language == "console":
            _, *parts = COMMAND.split(text)
            for prompt, command, _, shows in zip(*(parts[at::4] for at in range(4)), strict=True):
                yield Command(command.replace("\n> ", "\n"), shows, root=prompt == "#")
        elif head := HEAD.match(text):
            yield File(head[1], text[head.end() :] if language == "json" else text)


def shown_by(expected: str, said: str) -> bool:
    """Return whether an output matches a page's."""
    lines = [line.strip() for line in expected.strip().splitlines()]
    parts = []
    for line in lines:
        if line == "…":
            parts.append(r"(?:.*\n)*?")
            continue
        pattern = DECIMAL.sub(lambda _: ANY_DECIMAL, re.escape(line)).replace("…", ".*")
        parts.append(re.sub(r"(\\ )+", r"\\s+", pattern) + r"\s*\n")
    text = "".join(f"{line.strip()}\n" for line in said.strip().splitlines())
    return re.fullmatch("".join(parts), text) is not None


class Terminal:
    """One shell for a whole page, in an empty folder, without access to the checkout.

    Args:
        folder: the folder.
        ports: the ports that the page names; each is replaced by a free one.
        environment: more environment variables.
    """

    def __init__(self, folder: Path, ports: tuple[str, ...] = (), **environment: str) -> None:
        self.folder = folder
        self._ports = {port: str(free_port()) for port in ports}
        kept = {name: os.environ[name] for name in ("LANG", "JAVA_HOME", "TMPDIR") if name in os.environ}
        programs = folder.with_name("programs")
        programs.mkdir()
        python = programs / "python3"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        path = f"{programs}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        home = {"HOME": str(folder.parent), "PATH": path, "PYTHONUTF8": "1", "TERM": "dumb", "COLUMNS": "200"}
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={**kept, **home, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            start_new_session=True,
        )

    def here(self, text: str) -> str:
        """Return a text with the page's ports replaced by this terminal's."""
        for port, free in self._ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        return text

    def type(self, command: str) -> str:
        """Run a command, which must exit with 0, and return its output."""
        assert self._shell.stdin
        assert self._shell.stdout
        script = self.folder.with_name("typed.sh")
        script.write_text(f"{self.here(command)}\n", "utf-8")
        self._shell.stdin.write(f". '{script}' < /dev/null\nprintf '{END}%d\\n' $?\n")
        self._shell.stdin.flush()
        said = []
        for line in self._shell.stdout:
            text, ended, code = line.partition(END)
            said.append(text)
            if ended:
                assert int(code) == 0, f"$ {command}\n{''.join(said)}"
                return "".join(said)
        raise AssertionError(f"the shell ended at: $ {command}\n{''.join(said)}")

    def close(self) -> None:
        """End all processes started from this terminal."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._shell.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._shell.wait(5)


def follow(page: str, terminal: Terminal) -> Iterator[tuple[Command, str]]:
    """Write the files of a page and type its commands; yield each with its output, which matches the page."""
    for step in steps(page):
        if isinstance(step, File):
            (terminal.folder / step.name).write_text(terminal.here(step.text), "utf-8")
        elif step.root:
            yield step, ""
        else:
            said = terminal.type(step.text)
            shows = terminal.here(step.shows)
            assert not shows.strip() or shown_by(shows, said), f"$ {step.text}\n{said}\n--- instead of\n{shows}"
            yield step, said
