"""The log of commands: lines of text on stderr for people, or JSON objects for machines.

All logging uses :func:`tell` and :func:`say`. With ``--log-format json``, all other output to ``sys.stderr``, by Python
or a library, becomes JSON objects too, so that every line is an object. A traceback becomes a single object. Forked
processes keep their parent's format.

Messages never contain secrets, tickets, client ids, or what clients sent.
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
"""Maximum bytes of a line of JSON: the most that can be written atomically to a pipe shared by processes."""

_STDERR = 2
_LEVEL = re.compile(r"\b(ERROR|CRITICAL|FATAL|INFO)\b")
_TRACE = "Traceback (most recent call last):"

_lines: _Lines | None = None


def choose(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Set the log format of this process and its forks from the command line or the environment; call this first.

    Progress output for another program stays text. The command itself rejects unknown formats.
    """
    formats = [environment.get(VARIABLE, "")]
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word == "--":
            break
        if word == OPTION:
            formats.append(following)
        elif word.startswith(f"{OPTION}="):
            formats.append(word.partition("=")[2])
    if formats[-1] == "json" and environment.get("FEDPING_PROGRESS") != "lines":
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
    """Log a message.

    Args:
        message: a sentence.
        level: severity.
        before: prefix in text.
        trace: traceback.
        about: study, line, version or outcome, if known; only in JSON, because the sentence contains them.
    """
    if _lines is None:
        print(f"{before}{shown(message)}", *([trace] if trace else []), sep="\n", file=sys.stderr, flush=True)
    else:
        _write(_line(message, level, trace=trace, **about))


def say(message: str, level: Level = "info", **about: Any) -> None:
    """Print a message on stdout; if the log is JSON, which no person reads, log it instead."""
    if _lines is None:
        print(message, flush=True)
    else:
        tell(message, level, **about)


def tell_defect(before: str) -> None:
    """Log the traceback of the current exception without its message, which may quote what a client sent."""
    kind, _, where = sys.exc_info()
    tell(kind.__name__ if kind else "error", before=before, trace="".join(traceback.format_tb(where)))


def tell_past_streams(message: str, level: Level = "error") -> None:
    """Log without stream objects, for a signal handler, or while a hanging thread may hold a stream's lock."""
    _write(f"fedping: {message}\n".encode() if _lines is None else _line(message, level))


def shown(text: str, kept: str = "\n\t") -> str:
    """Return text with control characters escaped, because the text may quote another machine's answer."""
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


def _line(message: str, level: Level, **about: Any) -> bytes:
    """Return a line of JSON, shortened if it would be longer than :data:`LONGEST`."""
    import json

    entry = {"time": utc_now(), "level": level, "message": message.removeprefix("warning: ")}
    entry |= {name: value for name, value in about.items() if value not in (None, "")}
    while len(data := json.dumps(entry, ensure_ascii=False).encode(errors="replace") + b"\n") > LONGEST:
        longest = max((name for name in entry if isinstance(entry[name], str)), key=lambda name: len(entry[name]))
        text = entry[longest]
        # A character has six bytes at most. A trace keeps its end, a sentence its beginning.
        kept = min(LONGEST, len(text) - 2 - (len(data) - LONGEST) // 6)
        entry[longest] = f"…{text[len(text) - kept :]}" if longest == "trace" else f"{text[:kept]}…"
    return data


def _write(data: bytes) -> None:
    """Write to stderr at once; errors are ignored."""
    with suppress(OSError):
        while data:
            data = data[os.write(_STDERR, data) :]


class _Lines(io.TextIOBase):
    """A replacement of stderr that turns each line of text, and each whole traceback, into a JSON object."""

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
        """Log an incomplete line or traceback, because the process may end after a flush."""
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
            match = _LEVEL.search(line[:80])
            level: Level = "warning" if match is None else "info" if match[1] == "INFO" else "error"
            _write(_line(line, level))
