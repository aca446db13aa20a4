"""Errors that users can cause and correct.

The user sees an error's sentence without a traceback, so the sentence says what is wrong, where, and what to do. All
other exceptions are bugs in fedping and keep their traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from sysconfig import get_paths
from traceback import extract_tb


class FedpingError(Exception):
    """A user's mistake, described in one sentence; the command ends with :attr:`exit_code`."""

    exit_code = 1

    def locate(self, where: str) -> None:
        """Prefix the sentence with the place of the mistake, in code that knows the place."""
        self.args = (f"{where}: {self}", *self.args[1:])


class InvalidSettings(FedpingError):
    """An invalid study, model spec or option; nothing was started. Exit code 2, as for a wrong option."""

    exit_code = 2


class VersionHeld(FedpingError):
    """A version is held until the operator decides, and the command needs it. Exit code 4."""

    exit_code = 4


class TemporaryFailure(FedpingError):
    """A failure that may pass: a bucket that does not answer, a cluster without workers, a lost JVM, no time left.

    Nothing was published, and the same command may succeed later. Exit code 75, EX_TEMPFAIL of sysexits.h.
    """

    exit_code = 75


class UnfitTable(InvalidSettings, ValueError):
    """Settings of one table that exclude each other. Being a ``ValueError``, it gets the table's path on decoding."""


@contextmanager
def sentences_with(before: str = "", after: str = "", kind: type[FedpingError] = FedpingError) -> Iterator[None]:
    """Complete the sentence of an error that is raised within, and let the error pass.

    Args:
        before: the place, such as "variant 'FedAvg': ".
        after: further information, such as the log to read.
        kind: the class of errors to complete; the sentences of other errors stay unchanged.
    """
    try:
        yield
    except kind as error:
        error.args = (f"{before}{error}{after}",)
        raise


def as_sentence(text: str) -> str:
    """Return the text of an error as a sentence, with a capital letter and a full stop.

    A path, file or setting at the start stays unchanged, because case matters there.
    """
    first = text.partition(" ")[0].rstrip(".,:;!?")
    begun = text if any(mark in first for mark in "/._") else text[:1].upper() + text[1:]
    return f"{begun}{'' if text[-1:] in '.!?' else '.'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name that is closest to a misspelt one; empty if none is close."""
    close = get_close_matches(name[:80], list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def as_raised(error: BaseException) -> str:
    """Return an error of a user's code and its place on one line: "ValueError: unknown name (mine.py, line 4)".

    The place is the innermost line outside installed packages and the standard library, because an error inside NumPy
    comes from the line that calls it; if all are inside, it is the innermost.
    """
    frames, message = extract_tb(error.__traceback__), " ".join(str(error).split())
    at = next((frame for frame in reversed(frames) if not _is_installed(frame.filename)), frames[-1])
    return f"{type(error).__name__}{': ' if message else ''}{message} ({Path(at.filename).name}, line {at.lineno})"


_PACKAGES, _STDLIB = ("site-packages", "dist-packages"), get_paths()["stdlib"]
_OURS = Path(__file__).parents[1]


def _is_installed(file: str) -> bool:
    """Return whether a traceback's file belongs to fedping, another package or Python, rather than to a user."""
    path = Path(file)
    return (
        file.startswith("<frozen ")
        or any(folder in path.parts for folder in _PACKAGES)
        or path.is_relative_to(_STDLIB)
        or path.is_relative_to(_OURS)
    )
