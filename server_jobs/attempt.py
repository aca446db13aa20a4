"""What is known of the rounds that a line has had: the last one, and how many ended in which way.

A version's lineage tells only of rounds that made one. This note, beside the pings, is for those who watch the others,
and nothing is decided by it: a round that was killed leaves none, of two at once one may not count, and where the
landing folder can only be read, rounds leave none at all.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from fedping.protocol.clock import milliseconds_of
from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import with_format, without_format
from fedping.protocol.landing import note_attempt, noted_attempt
from fedping.protocol.place import Place

FAILURES = ("failed", "temporary", "out_of_time", "ended", "crashed")
"""How a round ends without a result: by a mistake or damage that somebody has to mend; by what may be otherwise in a
minute; by its time limit; by a signal; by an error that nobody foresaw."""


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last round of a line, and the numbers of all.

    Attributes:
        ended: when it ended, ISO 8601 in UTC; empty if there was none.
        outcome: the status of its result, or one of :data:`FAILURES`.
        seconds: how long it took.
        update_bytes: the size of the updates that it used as encoded; 0 where it used none, and of private lines.
        succeeded: when the last round ended that had a result, whichever; empty if none had.
        ended_as: how many rounds had each outcome.
    """

    ended: str = ""
    outcome: str = ""
    seconds: float = 0.0
    update_bytes: int = 0
    succeeded: str = ""
    ended_as: dict[str, int] = {}

    def followed_by(self, outcome: str, ended: str, seconds: float, update_bytes: int = 0) -> Attempt:
        """Return the note after one more round."""
        return Attempt(
            ended=ended,
            outcome=outcome,
            seconds=seconds,
            update_bytes=update_bytes,
            succeeded=self.succeeded if outcome in FAILURES else ended,
            ended_as=self.ended_as | {outcome: self.ended_as.get(outcome, 0) + 1},
        )


def last_attempt(landing: Place, store: str, study: str, line: str) -> Attempt:
    """Return what is noted of a line of a store; an empty note if nothing is, or it cannot be read."""
    data = noted_attempt(landing, store, study, line)
    try:
        if data is None:
            return Attempt()
        found = msgspec.json.decode(without_format(data, "the note of a round"), type=Attempt)
        for time in filter(None, (found.ended, found.succeeded)):
            milliseconds_of(time)
        return found
    except (FedpingError, msgspec.MsgspecError, ValueError):
        return Attempt()


def keep_attempt(landing: Place, store: str, study: str, line: str, attempt: Attempt) -> None:
    """Note how the last round of a line ended."""
    note_attempt(landing, store, study, line, with_format(msgspec.json.encode(attempt)))
