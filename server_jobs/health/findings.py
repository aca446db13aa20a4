"""Findings and health as values, and the functions that turn them into text.

A sentence is stored as a :class:`Message`: a code and values. A function registered for that code by :func:`message`
turns it into text. The terminal, ``--json``, the webhook and the dashboard use :attr:`Finding.sentence`,
:attr:`Health.headline` or :func:`as_document`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeAlias

from msgspec import Struct

from fedping.model_store.decisions import describe_missing, describe_staged
from fedping.model_store.version import StageState
from fedping.protocol.errors import as_sentence
from fedping.protocol.guard import Stage
from fedping.protocol.notation import format_count

P = ParamSpec("P")

Severity: TypeAlias = Literal["warning", "problem"]
Verdict: TypeAlias = Literal["healthy", "warning", "problem", "paused", "ended"]
VERDICTS: tuple[Verdict, ...] = ("problem", "warning", "healthy", "paused", "ended")
"""All verdicts, worst first."""

RENDERERS: dict[str, Callable[..., str]] = {}
"""Functions that turn messages into text, by the messages' codes."""


@dataclass(frozen=True)
class Message:
    """A sentence as data.

    Attributes:
        code: name of the function that turns the message into text, without the leading underscore.
        values: keyword arguments of that function; hashable.
    """

    code: str
    values: tuple[tuple[str, object], ...]

    def __str__(self) -> str:
        return RENDERERS[self.code](**dict(self.values))


def message(words: Callable[P, str]) -> Callable[P, Message]:
    """Register a function that turns keyword arguments into text; return a function that creates messages.

    Raises:
        ValueError: another function has this name.
    """
    code = words.__name__.lstrip("_")
    if code in RENDERERS:
        raise ValueError(f"the message '{code}' has two wordings")
    RENDERERS[code] = words

    @wraps(words)
    def build(*_: P.args, **values: P.kwargs) -> Message:
        return Message(code, tuple(values.items()))

    return build


class Finding(Struct, frozen=True, kw_only=True):
    """A failed check. A ``warning`` should be investigated; a ``problem`` costs pings or versions.

    Attributes:
        name: code of the check (`fedping.server_jobs.health.checks.FINDINGS`).
        severity: severity of this finding.
        message: what is wrong, and what to do.
        line: the line concerned; empty for all lines of the study.
    """

    name: str
    severity: Severity
    message: Message
    line: str = ""

    @property
    def sentence(self) -> str:
        """The finding in words."""
        return f"{_of_line(self.line)}{self.message}"


class StagedLine(Struct, frozen=True, kw_only=True):
    """A line's staged version, which a share of the clients gets first.

    Attributes:
        line: name of the line.
        version: number of the staged version.
        stage: settings of the stage.
        state: state that the last round recorded.
        is_one_of_many: whether the study has several lines.
    """

    line: str
    version: int
    stage: Stage
    state: StageState
    is_one_of_many: bool = False

    @property
    def share(self) -> float:
        """The share of clients that gets the version."""
        return self.state.share

    @property
    def heard(self) -> int:
        """The number of clients with the staged version that had sent a ping by the last round."""
        return self.state.tried.clients if self.state.tried else 0

    @property
    def wanted(self) -> int:
        """The number of clients with the staged version that the stage requires."""
        return self.stage.clients

    @property
    def sentence(self) -> str:
        """The stage in words."""
        staged, missing = describe_staged(self.version, self.share), describe_missing(self.stage, self.state)
        text = as_sentence(f"{staged}; {missing}" if missing else staged)
        return f"{_of_line(self.line if self.is_one_of_many else '')}{text}"


class Health(Struct, frozen=True, kw_only=True):
    """Result of all checks of a study or of one of its lines.

    Attributes:
        verdict: verdict on the study or line.
        message: the verdict as a message.
        findings: reasons for the verdict, worst first.
        over: lines whose training was ended by early stopping. They get no further versions.
        staged: staged versions, which a share of the clients gets first.
    """

    verdict: Verdict
    message: Message
    findings: tuple[Finding, ...] = ()
    over: tuple[str, ...] = ()
    staged: tuple[StagedLine, ...] = ()

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        return str(self.message)


def as_document(health: Health) -> dict[str, Any]:
    """Return health as data for JSON, with its sentences (docs/reference.md explains the keys)."""
    return {
        "verdict": health.verdict,
        "headline": health.headline,
        "findings": [{"name": one.name, "severity": one.severity, "sentence": one.sentence} for one in health.findings],
        "over": list(health.over),
        "staged": [
            {
                "line": one.line,
                "version": one.version,
                "share": one.share,
                "heard": one.heard,
                "wanted": one.wanted,
                "sentence": one.sentence,
            }
            for one in health.staged
        ],
    }


def _of_line(line: str) -> str:
    return f"Line {line}: " if line else ""


def format_time(moment: str) -> str:
    """Return a time for people: 2026-01-31 10:00 UTC."""
    return f"{moment[:10]} {moment[11:16]} UTC"


def format_duration(seconds: float) -> str:
    """Return a duration in its largest unit, which seldom changes: 40 seconds, 12 minutes, 5 hours, 3 days."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size * (2 if size == 86400 else 1):
            return format_count(int(seconds // size), unit)
    return format_count(max(0, int(seconds)), "second")


def format_percent(part: float, whole: float) -> str:
    """Return a share in whole percent: 12 %, less than 1 %."""
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 1 or not share else "less than 1 %"
