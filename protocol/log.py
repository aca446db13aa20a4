"""What a command tells whoever runs it while it works: a line of text on stderr, or a JSON object for a machine.

All that is told goes through :func:`tell` and :func:`say`. With ``--log-format json`` whatever else is written to
``sys.stderr``, by Python or a library, becomes objects too, a traceback a single one; so every line is one. Processes
that are forked go on in the format of their parent.

Whoever tells something leaves out secrets, tickets, and what clients sent or are called.
"""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from fedping.protocol.notation import utc_now

Level = Literal["info", "warning", "error"]

FORMATS = ("text", "json")
OPTION = "--log-format"
VARIABLE = "FEDPING_LOG_FORMAT"

LONGEST = 4096
"""Bytes of a line of JSON: as many as processes that share a pipe can write without tearing one another's lines."""

_STDERR = 2
_LEVEL = re.compile(r"\b(ERROR|CRITICAL|FATAL|INFO)\b")
_TRACE = "Traceback (most recent call last):"

_lines: _Lines | None = None


def choose(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Have this process and its forks log as its command line or environment asks, to be called first thing.

    What another program shows while it waits stays text. A format that there is none of is refused by the command.
    """
    asked = [environment.get(VARIABLE, "")]
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word == "--":
            break
        if word == OPTION:
            asked.append(following)
        elif word.startswith(f"{OPTION}="):
            asked.append(word.partition("=")[2])
    if asked[-1] == "json" and environment.get("FEDPING_PROGRESS") != "lines":
        use_json()


def use_json() -> None:
    """Log in JSON from now on."""
    global _lines
    if _lines is None:
        _lines = _Lines()
        sys.stderr = _lines


def is_json() -> bool:
    """Return whether this process logs in JSON."""
    return _lines is not None


def tell(message: str, level: Level = "error", *, before: str = "fedping: ", trace: str = "", **about: Any) -> None:
    """Log something.

    Args:
        message: a sentence.
        level: how bad it is.
        before: what stands before it in text.
        trace: where it happened, lines that are not for people.
        about: what it is about, where that is known: study, line, version, outcome. Only in JSON: a sentence says it.
    """
    if _lines is None:
        print(f"{before}{shown(message)}", *([trace] if trace else []), sep="\n", file=sys.stderr, flush=True)
    else:
        _write(_line(message, level, trace=trace, **about))


def say(message: str, level: Level = "info", **about: Any) -> None:
    """Answer a person on stdout, or log it: where a machine reads the log, nobody reads the terminal."""
    if _lines is None:
        print(message, flush=True)
    else:
        tell(message, level, **about)


def tell_defect(before: str) -> None:
    """Log where the exception at hand happened, without values: its message may quote what somebody sent."""
    kind, _, where = sys.exc_info()
    tell(kind.__name__ if kind else "error", before=before, trace="".join(traceback.format_tb(where)))


def tell_past_streams(message: str, level: Level = "error") -> None:
    """Log something from a signal handler, or where a thread that hangs may hold the lock of a stream."""
    _write(f"fedping: {message}\n".encode() if _lines is None else _line(message, level))


def shown(text: str, kept: str = "\n\t") -> str:
    """Return text that does nothing to a terminal: what another machine answered may be quoted in it."""
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


def _line(message: str, level: Level, **about: Any) -> bytes:
    """Return a line of JSON, shortened if it would be longer than :data:`LONGEST`."""
    import json

    entry = {"time": utc_now(), "level": level, "message": message.removeprefix("warning: ")}
    entry |= {name: value for name, value in about.items() if value not in (None, "")}
    while len(data := json.dumps(entry, ensure_ascii=False).encode(errors="replace") + b"\n") > LONGEST:
        longest = max((name for name in entry if isinstance(entry[name], str)), key=lambda name: len(entry[name]))
        text = entry[longest]
        # A character takes six bytes at most. Of a trace the end says what happened, of a sentence the beginning.
        kept = min(LONGEST, len(text) - 2 - (len(data) - LONGEST) // 6)
        entry[longest] = f"…{text[len(text) - kept :]}" if longest == "trace" else f"{text[:kept]}…"
    return data


def _write(data: bytes) -> None:
    """Write to stderr at once. A log that cannot be written stops nothing."""
    with suppress(OSError):
        while data:
            data = data[os.write(_STDERR, data) :]


class _Lines(io.TextIOBase):
    """Stands in for stderr: lines of text become objects, those of a traceback one object together."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return _STDERR

    def write(self, text: str) -> int:
        *lines, self._of_thread.rest = (getattr(self._of_thread, "rest", "") + text).split("\n")
        for line in lines:
            self._take(line)
        return len(text)

    def flush(self) -> None:
        """Log what is not a whole line or traceback yet; whoever flushes may be about to end."""
        rest, self._of_thread.rest = getattr(self._of_thread, "rest", ""), ""
        if rest:
            self._take(rest)

    def _take(self, line: str) -> None:
        trace: list[str] | None = getattr(self._of_thread, "trace", None)
        if trace is None and line == _TRACE:
            self._of_thread.trace = []
        elif trace is not None and line.startswith(" "):
            trace.append(line)
        elif trace is not None:
            self._of_thread.trace = None
            _write(_line(line, "error", trace="\n".join(trace)))
        elif line.strip():
            found = _LEVEL.search(line[:80])
            level: Level = "warning" if found is None else "info" if found[1] == "INFO" else "error"
            _write(_line(line, level))
