"""Pings on their way: sent, sent again with the same document id, and kept as long as nobody has taken them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from uuid import UUID

from fedping.client_sim.fleet.transport import Delivery, Outcome, Transport
from fedping.client_sim.fleet.waiting import Backoff, Sleep, each

MOST_REASONS = 100
"""That are counted apart: who sends or answers anything may have a new one for every ping."""

OTHER_REASONS = f"other reasons than the first {MOST_REASONS}"


def count_reason(reasons: Counter[str], reason: str) -> None:
    """Count a reason, or, where there are many already and this is a new one, that there are others."""
    reasons[reason if reason in reasons or len(reasons) < MOST_REASONS else OTHER_REASONS] += 1


@dataclass(frozen=True, slots=True, eq=False)
class Letter:
    """One ping as it is posted: its document id for good, its JSON, and whether it will be sent a second time.

    Two of one document, as a recording may have them, are two letters.
    """

    document_id: UUID
    body: bytes
    twice: bool = False


@dataclass
class Counts:
    """What became of pings. Nobody's is lost: accepted + rejected + undelivered = generated, at any moment.

    ``posted_bytes`` are those of the bodies of all attempts, as they travelled.
    """

    generated: int = 0
    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    posted_bytes: int = 0

    def copy(self) -> Counts:
        """Return the counts of this moment."""
        return replace(self, rejected=self.rejected.copy(), retries=self.retries.copy())


class Outbox:
    """Holds every ping that was generated and not yet accepted or rejected.

    Args:
        transport: where pings go.
        study: the study that they belong to.
        backoff: when to try again, and when to put a ping aside until the next :meth:`deliver`.
        at_once: how many pings may be on their way at one time.
        sleep: how to wait.
        random: for the jitter of the waits.
    """

    def __init__(
        self, transport: Transport, study: str, *, backoff: Backoff, at_once: int, sleep: Sleep, random: Random
    ) -> None:
        self.counts = Counts()
        self._pending: dict[Letter, None] = {}  # in the order in which they came
        self._given_up = 0
        self._not_before: dict[Letter, float] = {}
        self._transport = transport
        self._study = study
        self._backoff = backoff
        self._at_once = at_once
        self._sleep = sleep
        self._random = random

    @property
    def undelivered(self) -> int:
        """How many pings nobody has taken yet."""
        return len(self._pending) + self._given_up

    def add(self, letters: Sequence[Letter]) -> None:
        """Take charge of new pings."""
        self.counts.generated += len(letters)
        self._pending.update(dict.fromkeys(letters))

    async def deliver(self, within: float = 0.0) -> None:
        """Try to hand over what is here, each ping at a random moment within so many seconds.

        Returns when each was accepted, rejected, or put aside; those for which the server asked for more time than that
        are not touched. When cancelled, what was under way stays here.
        """
        now = _clock()
        letters = [letter for letter in self._pending if self._not_before.get(letter, now) <= now]
        moments = sorted(within * self._random.random() for _ in letters)
        jobs = ((moment, partial(self._deliver, letter)) for moment, letter in zip(moments, letters, strict=True))
        await each(jobs, self._at_once, self._sleep)

    async def hand_over(self, letter: Letter, places: asyncio.Semaphore) -> None:
        """Take charge of one ping and try to hand it over now; what nobody takes is counted, and not kept.

        A place is taken for it already. So whoever sends more than fits into memory keeps to so many pings.
        """
        self.add([letter])
        await self._deliver(letter, places)
        if letter in self._pending:
            del self._pending[letter]
            self._not_before.pop(letter, None)
            self._given_up += 1

    async def _deliver(self, letter: Letter, places: asyncio.Semaphore) -> None:
        failures = 0
        while not self._settle(letter, outcome := await self._attempt(letter, places)):
            failures += 1
            asked = outcome.retry_after or 0.0
            if failures >= self._backoff.attempts or asked > self._backoff.longest:
                if asked:
                    self._not_before[letter] = _clock() + asked
                return
            wait = self._backoff.wait(failures, self._random.random(), outcome.retry_after)
            count_reason(self.counts.retries, outcome.reason)
            await self._sleep(wait)
            await places.acquire()
        if letter.twice and outcome.delivery is Delivery.ACCEPTED:
            await places.acquire()
            await self._attempt(letter, places)
            self.counts.duplicates += 1

    async def _attempt(self, letter: Letter, places: asyncio.Semaphore) -> Outcome:
        try:
            outcome = await self._transport.submit(self._study, letter.document_id, letter.body)
            self.counts.posted_bytes += outcome.posted_bytes
            return outcome
        finally:
            places.release()

    def _settle(self, letter: Letter, outcome: Outcome) -> bool:
        """Count an answer; return whether it was the last word on this ping."""
        if outcome.delivery is Delivery.RETRY:
            return False
        del self._pending[letter]
        self._not_before.pop(letter, None)
        if outcome.delivery is Delivery.ACCEPTED:
            self.counts.accepted += 1
        else:
            count_reason(self.counts.rejected, outcome.reason)
        return True


def _clock() -> float:
    """Return the seconds of the running event loop, which only ever grow."""
    return asyncio.get_running_loop().time()
