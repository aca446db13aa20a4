"""The one family of errors that a person can cause and a person can mend.

Whatever is raised from here is shown as its sentence alone, without a traceback, so the sentence has to say what is
wrong, where, and what to do. Everything else that is raised is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb


class FedpingError(Exception):
    """A mistake in what a person gave us, told in one sentence; the command ends with :attr:`exit_code`."""

    exit_code = 1


class InvalidSettings(FedpingError):
    """A study, model spec or option that cannot be meant; nothing was started. Exit code 2, as for a wrong option."""

    exit_code = 2


class VersionHeld(FedpingError):
    """A version is held back until somebody decides, and what was asked for cannot go on without it. Exit code 4."""

    exit_code = 4


class TemporaryFailure(FedpingError):
    """A failure that may pass: a bucket that does not answer, a cluster without workers, a lost JVM, no time left.

    Nothing was published, and the same command may succeed later. Exit code 75, EX_TEMPFAIL of sysexits.h.
    """

    exit_code = 75


class UnfitTable(InvalidSettings, ValueError):
    """Settings of one table that do not go together. As a ``ValueError`` it keeps, when decoded, where the table is."""


def as_sentence(text: str) -> str:
    """Return words with a capital letter in front and a stop at the end; errors have neither.

    A path, file or setting in front stays as it is, for with a capital letter it is another.
    """
    first = text.partition(" ")[0].rstrip(".,:;!?")
    begun = text if any(mark in first for mark in "/._") else text[:1].upper() + text[1:]
    return f"{begun}{'' if text[-1:] in '.!?' else '.'}"


def as_raised(error: BaseException) -> str:
    """Return what somebody's code has raised and where, on one line: "ValueError: no such thing (mine.py, line 4)"."""
    at, said = extract_tb(error.__traceback__)[-1], " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if said else ''}{said} ({Path(at.filename).name}, line {at.lineno})"
