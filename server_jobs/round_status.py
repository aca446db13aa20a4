"""Status of a line's rounds: the latest attempt, and counts by outcome.

A lineage records only rounds that published a version. The status, a note next to the pings, covers the other rounds.
A study's health uses it to report failing rounds and their reasons; rounds never use it. A killed round leaves no
note, one of two concurrent rounds may not be counted, and in a read-only landing folder there is no note.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import with_format, without_format
from fedping.protocol.landing import Landing
from fedping.protocol.notation import milliseconds_of

FAILURES = ("failed", "temporary", "out_of_time", "ended", "crashed")
"""Outcomes of a round without a result: a mistake or damage that the operator has to fix; a temporary failure; the
time limit; a signal; an unexpected error."""


LONGEST_REASON = 1_000
"""Maximum characters of a failure's reason."""

FAILED_IN_A_ROW = 3
"""Number of consecutive failed rounds from which a temporary failure counts as a problem."""


class Failing(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The failures of a line's rounds since the last round with a result.

    Attributes:
        since: the end of the first failed round, ISO 8601 in UTC.
        last: the end of the last failed round.
        times: the number of consecutive failed rounds.
        outcome: outcome of the last round, one of :data:`FAILURES`.
        why: the reason, in a sentence; empty if recorded by an older program.
        part: ``store`` or ``landing`` if that is damaged or can't be written; else empty.
    """

    since: str
    last: str
    times: int = 1
    outcome: str = "failed"
    why: str = ""
    part: Literal["", "store", "landing"] = ""

    @property
    def is_problem(self) -> bool:
        """Whether the operator must act: the store or a landed file is at fault, or several rounds failed in a row."""
        return bool(self.part) or self.times >= FAILED_IN_A_ROW


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status of a line: its last round, and the numbers of rounds by outcome.

    Attributes:
        ended: the end of the last round, ISO 8601 in UTC; empty if there was none.
        outcome: the status of the last round's result, or one of :data:`FAILURES`.
        seconds: the duration of the last round.
        update_bytes: the encoded size of the updates that it used; 0 if it used none, and for private lines.
        succeeded: the end of the last round with any result; empty if there was none.
        ended_as: the number of rounds by outcome.
        failing: the failures since the last round with a result; None without any. A round ended by a signal doesn't
            count.
    """

    ended: str = ""
    outcome: str = ""
    seconds: float = 0.0
    update_bytes: int = 0
    succeeded: str = ""
    ended_as: dict[str, int] = {}
    failing: Failing | None = None

    def followed_by(
        self,
        outcome: str,
        ended: str,
        seconds: float,
        update_bytes: int = 0,
        why: str = "",
        part: Literal["", "store", "landing"] = "",
    ) -> Attempt:
        """Return the status after another round. ``why`` and ``part`` are explained in :class:`Failing`."""
        failing = self.failing if outcome == "ended" else None
        if outcome in FAILURES and outcome != "ended":
            before = self.failing
            failing = Failing(
                since=before.since if before else ended,
                last=ended,
                times=before.times + 1 if before else 1,
                outcome=outcome,
                why=why[:LONGEST_REASON],
                part=part,
            )
        return Attempt(
            ended=ended,
            outcome=outcome,
            seconds=seconds,
            update_bytes=update_bytes,
            succeeded=self.succeeded if outcome in FAILURES else ended,
            ended_as=self.ended_as | {outcome: self.ended_as.get(outcome, 0) + 1},
            failing=failing,
        )

    def failing_since(self, newest: str) -> Failing | None:
        """Return the failures, unless a version was published later; ``newest`` is the time of the last publication."""
        failing = self.failing
        if failing is None or (newest and milliseconds_of(newest) > milliseconds_of(failing.last)):
            return None
        return failing


def last_attempt(landing: Landing, store: str, study: str, line: str) -> Attempt:
    """Return the status of a line of a store; an empty one if it isn't recorded or can't be read."""
    data = landing.read_status(store, study, line)
    try:
        if data is None:
            return Attempt()
        attempt = msgspec.json.decode(without_format(data, "the note of a round"), type=Attempt)
        failing = (attempt.failing.since, attempt.failing.last) if attempt.failing else ()
        for time in filter(None, (attempt.ended, attempt.succeeded, *failing)):
            milliseconds_of(time)
        return attempt
    except (FedpingError, msgspec.MsgspecError, ValueError):
        return Attempt()


def keep_attempt(landing: Landing, store: str, study: str, line: str, attempt: Attempt) -> None:
    """Record the status of a line after its last round."""
    landing.record_status(store, study, line, with_format(msgspec.json.encode(attempt)))
