"""The exchange of many clients with the server: fetches of models, and posts of pings until they are settled.

:mod:`fedping.client_sim.client` defines a client's transitions; this module makes the requests, waits and counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeAlias, TypeVar

import numpy as np
from msgspec import UNSET

from fedping.client_sim.client import (
    Backoff,
    OutgoingPing,
    Sending,
    SendState,
    SetAside,
    Settled,
    after_attempt,
    gets_staged,
    version_after,
)
from fedping.client_sim.fleet.roster import Roster
from fedping.client_sim.fleet.summary import Counts, FetchCounts, count_reason
from fedping.client_sim.transport import Fetched, NotModified, Outcome, Transport, Unavailable
from fedping.protocol.draws import FloatArray
from fedping.protocol.model import ModelDocument
from fedping.protocol.ping import NO_VERSION
from fedping.protocol.spec import ModelSpec, published_array
from fedping.protocol.study import PublicStudy

Sleep: TypeAlias = Callable[[float], Awaitable[Any]]
"""Function that waits for a number of seconds: ``asyncio.sleep``, or a test's replacement."""

Request: TypeAlias = Coroutine[Any, Any, Any]

Job: TypeAlias = Callable[[asyncio.Semaphore], Request]
"""A client's requests, which start with a place of the semaphore, release it, and may acquire one again."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The connection of a study's clients to its server.

    Attributes:
        transport: carries requests and answers.
        study: name of the study.
        at_once: maximum number of concurrent requests.
        random: draws the moments of requests, and the jitter of waits.
        sleep: waits.
    """

    transport: Transport
    study: str
    random: Random
    at_once: int = 1
    sleep: Sleep = asyncio.sleep

    async def run_each(
        self, request: Callable[[T, asyncio.Semaphore], Request], items: Sequence[T], within: float
    ) -> None:
        """Make the request of each item, at a random moment within ``within`` seconds."""
        moments = sorted(within * self.random.random() for _ in items)
        jobs = ((moment, partial(request, item)) for moment, item in zip(moments, items, strict=True))
        await run_at(jobs, self.at_once, self.sleep)


async def run_at(jobs: Iterable[tuple[float, Job]], at_once: int, sleep: Sleep) -> None:
    """Run all jobs, at most ``at_once`` of them holding a place at any time.

    Tasks are created as places become free, so that a million jobs need no more memory than those that are running.

    Args:
        jobs: pairs of a start, in seconds from now and ascending, and a job. A job starts later if all places are
            taken.
        at_once: number of places.
        sleep: waits.
    """
    places = asyncio.Semaphore(at_once)
    clock = asyncio.get_running_loop().time
    began = clock()
    async with asyncio.TaskGroup() as group:
        for moment, job in jobs:
            # Measured by the clock, not from job to job: time spent waiting for a place counts for the next jobs, too.
            if (wait := began + moment - clock()) > 0:
                await sleep(wait)
            await places.acquire()
            group.create_task(job(places))


class VersionCache:
    """The model versions that any client holds, by line and number; equal versions are kept once."""

    def __init__(self, study: PublicStudy) -> None:
        self.specs: dict[str, ModelSpec] = {line.name: line.spec for line in study.lines}
        self._versions: dict[tuple[str, int], tuple[FloatArray, str | None]] = {}
        for line, spec in self.specs.items():
            self._versions[line, NO_VERSION] = (published_array(spec, spec.start_array), None)

    def weights(self, line: str, version: int) -> FloatArray:
        """Return a cached version's weights, version 0's for -1, shape (m,)."""
        return self._versions[line, version][0]

    def etag(self, line: str, version: int) -> str | None:
        """Return the entity tag for requests of anything newer than a version."""
        return self._versions[line, version][1]

    def has(self, line: str, version: int) -> bool:
        """Return whether a version is cached."""
        return (line, version) in self._versions

    def put(self, line: str, document: ModelDocument, etag: str | None) -> str | None:
        """Cache a version. Return None, or the reason why the document isn't a version of the line's model."""
        spec = self.specs[line]
        if (cached := self._versions.get((line, document.iteration))) is not None:
            if document.staged is UNSET:  # else clients with this tag would not learn which version is staged
                self._versions[line, document.iteration] = (cached[0], etag)
            return None
        if document.names != spec.document_names or len(document.model) != spec.m:
            return f"version {document.iteration} of line '{line}' does not have the weights of the study's model"
        self._versions[line, document.iteration] = (np.array(document.model, dtype=np.float64), etag)
        return None

    def keep_only(self, held: Iterable[tuple[str, int]]) -> None:
        """Remove the versions that no client holds."""
        kept = {*held, *((line, NO_VERSION) for line in self.specs)}
        self._versions = {key: version for key, version in self._versions.items() if key in kept}


class Fetcher:
    """Fetches models for clients: the version of each is in the roster, the weights are in the cache.

    Args:
        connection: to the server.
        roster: the clients.
        cache: the versions that they hold.
        together: whether one request stands for all clients of a line, as if they shared an HTTP cache.
    """

    def __init__(self, connection: Connection, roster: Roster, cache: VersionCache, *, together: bool) -> None:
        self.counts = FetchCounts()
        self._connection = connection
        self._roster = roster
        self._cache = cache
        self._together = together

    async def fetch(self, clients: Iterable[int], within: float = 0.0) -> None:
        """Request the newest version for each client, at a random moment within a number of seconds.

        The system of 2018 had no such jitter: all of its clients asked in the same minute.
        """
        groups = self._by_line(clients) if self._together else [[client] for client in clients]
        self._connection.random.shuffle(groups)
        await self._connection.run_each(self._fetch, groups, within)
        self._cache.keep_only(self._held())

    async def _fetch(self, clients: list[int], places: asyncio.Semaphore) -> None:
        """Send one request for clients of one line: the request of the first of these clients."""
        line, versions = self._line(clients[0]), self._roster.version
        etag = self._cache.etag(line, int(versions[clients].min()))
        try:
            answer = await self._connection.transport.fetch_model(self._connection.study, line, None, etag)
            self._count_bytes(answer)
            if isinstance(answer, Fetched) and (problem := self._cache.put(line, answer.document, answer.etag)):
                answer = Unavailable(problem)
            first = await self._fetch_staged(line, clients, answer) if isinstance(answer, Fetched) else []
        finally:
            places.release()
        match answer:
            case Fetched(document):
                versions[clients] = version_after(NO_VERSION, answer)
                if document.staged is not UNSET:
                    versions[first] = document.staged.iteration
                self.counts.fetched += len(clients)
            case NotModified():
                self.counts.not_modified += len(clients)
            case Unavailable(reason):
                self.counts.unavailable[reason] += len(clients)

    async def _fetch_staged(self, line: str, clients: list[int], newest: Fetched) -> list[int]:
        """Return the clients that get the staged version that a document names, once it is in the cache.

        The staged version gets the newest document's tag, so that clients notice the end of the stage. If the staged
        version is not available, these clients take the newest version, like all others.
        """
        staged = newest.document.staged
        if staged is UNSET:
            return []
        roster, study = self._roster, self._connection.study
        first = [one for one in clients if gets_staged(study, roster.arm_of(one), newest, roster.ids[one])]
        if not first or self._cache.has(line, staged.iteration):
            return first
        answer = await self._connection.transport.fetch_staged(study, line, staged.iteration)
        self._count_bytes(answer)
        if isinstance(answer, Unavailable) or answer.document.iteration != staged.iteration:
            return []
        return first if self._cache.put(line, answer.document, newest.etag) is None else []

    def _count_bytes(self, answer: Fetched | NotModified | Unavailable) -> None:
        if isinstance(answer, Fetched):
            self.counts.fetched_bytes += answer.fetched_bytes

    def _by_line(self, clients: Iterable[int]) -> list[list[int]]:
        groups: dict[str, list[int]] = {}
        for client in clients:
            groups.setdefault(self._line(client), []).append(client)
        return list(groups.values())

    def _held(self) -> set[tuple[str, int]]:
        roster = self._roster
        pairs = np.unique(np.stack([roster.arm, roster.version]), axis=1).T.tolist()
        return {(line, version) for arm, version in pairs if arm >= 0 and (line := roster.arms[arm].line) is not None}

    def _line(self, client: int) -> str:
        line = self._roster.arm_of(client).line
        assert line is not None, "only clients whose arm follows a line fetch"
        return line


class Outbox:
    """The generated pings that are neither accepted nor rejected.

    Args:
        connection: to the server.
        backoff: when to post again, and when to set a ping aside until the next :meth:`deliver`.
    """

    def __init__(self, connection: Connection, backoff: Backoff) -> None:
        self.counts = Counts()
        self._connection, self._backoff = connection, backoff
        self._states: dict[OutgoingPing, SendState] = {}  # in the order in which pings were added
        self._not_before: dict[OutgoingPing, float] = {}
        self._given_up = 0

    @property
    def undelivered(self) -> int:
        """Number of pings without a final answer."""
        return len(self._states) + self._given_up

    def add(self, pings: Sequence[OutgoingPing]) -> None:
        """Add new pings."""
        self.counts.generated += len(pings)
        self._states.update(dict.fromkeys(pings, Sending()))

    async def deliver(self, within: float = 0.0) -> None:
        """Post every ping, each at a random moment within a number of seconds, until it is settled.

        The call returns when each ping is accepted, rejected or set aside. Pings for which the server requested more
        time are not posted. If the call is cancelled, unanswered pings stay in the outbox.
        """
        now = _clock()
        due = [ping for ping in self._states if self._not_before.get(ping, now) <= now]
        await self._connection.run_each(self._deliver, due, within)

    async def post(self, ping: OutgoingPing) -> Settled | SetAside:
        """Add a ping if it's new, post it unless the server requested more time, and return its state."""
        if ping not in self._states:
            self.add([ping])
        state = self._states[ping]
        if isinstance(state, SetAside) and self._not_before.get(ping, 0.0) > _clock():
            return state
        places = asyncio.Semaphore(1)
        await places.acquire()
        return await self._deliver(ping, places)

    async def post_or_drop(self, ping: OutgoingPing, places: asyncio.Semaphore) -> None:
        """Add a ping and post it now, with an already acquired place; drop it if it gets no final answer.

        A dropped ping counts as undelivered. Pings are not kept, so that recordings larger than memory can be sent.
        """
        self.add([ping])
        if isinstance(await self._deliver(ping, places), SetAside):
            del self._states[ping]
            self._not_before.pop(ping, None)
            self._given_up += 1

    async def _deliver(self, ping: OutgoingPing, places: asyncio.Semaphore) -> Settled | SetAside:
        """Post a ping until it is settled or set aside; the count of failures starts at 0."""
        sending = Sending()
        while True:
            state = after_attempt(sending, await self._attempt(ping, places), self._backoff)
            match state:
                case Settled():
                    self._forget(ping, state)
                    if ping.twice and state.accepted:
                        await places.acquire()
                        await self._attempt(ping, places)
                        self.counts.duplicates += 1
                    return state
                case SetAside(closed_for=seconds):
                    self._states[ping] = state
                    if seconds:
                        self._not_before[ping] = _clock() + seconds
                    return state
                case Sending(failures, outcome):
                    assert outcome is not None, "an attempt failed"
                    wait = self._backoff.wait(failures, self._connection.random.random(), outcome.retry_after)
                    count_reason(self.counts.retries, outcome.reason)
                    await self._connection.sleep(wait)
                    await places.acquire()
                    sending = state

    async def _attempt(self, ping: OutgoingPing, places: asyncio.Semaphore) -> Outcome:
        try:
            submit, later = self._connection.transport.submit, {"later": True} if ping.later else {}
            outcome = await submit(self._connection.study, ping.document_id, ping.body, **later)
            self.counts.posted_bytes += outcome.posted_bytes
            return outcome
        finally:
            places.release()

    def _forget(self, ping: OutgoingPing, state: Settled) -> None:
        """Remove a settled ping, and count its answer."""
        del self._states[ping]
        self._not_before.pop(ping, None)
        if state.accepted:
            self.counts.accepted += 1
        else:
            count_reason(self.counts.rejected, state.outcome.reason)


def _clock() -> float:
    """Return the seconds of the running event loop, which never go back."""
    return asyncio.get_running_loop().time()
