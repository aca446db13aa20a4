"""Waits for a number of clients, or a timeout, before a round.

A round of a few institutions can start when all of them have sent updates, instead of at a fixed time. This module
only counts clients. The round afterwards decides by the line's settings which pings count, and whether they are
enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from fedping.model_store.store import ModelStore
from fedping.protocol.arrow import UPDATE_ENCODING
from fedping.protocol.enrolment import hash_assignment, is_selected
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landed_file import check_columns
from fedping.protocol.landing import Landing
from fedping.protocol.location import Place
from fedping.protocol.study import Study

LOOK_EVERY = 2.0
"""Seconds between two counts of landed pings."""


class Wait(NamedTuple):
    """The number of clients to wait for (None: each line's ``min_clients``), and the maximum wait in seconds."""

    clients: int | None
    seconds: float


class Timer(NamedTuple):
    """A monotonic clock and a sleep function, both in seconds."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


WALL_TIMER = Timer()


class Arrivals(NamedTuple):
    """A line's number of clients with an update to its newest version, and the number to wait for."""

    line: str
    clients: int
    wanted: int

    @property
    def in_words(self) -> str:
        """The numbers as a phrase."""
        return f"line '{self.line}' has {self.clients:,} of {self.wanted:,} clients"


def check_wait(study: Study, lines: Sequence[str]) -> None:
    """Raise :class:`InvalidSettings` if a line is private, because its rounds must not depend on the pings."""
    for name in lines:
        if study.line(name).privacy is not None:
            raise InvalidSettings(
                f"line '{name}' of study '{study.name}' is private, so the time of its rounds must not depend on the "
                "senders; remove --wait-for and --wait-at-most"
            )


def wait_for_clients(
    store: ModelStore,
    counters: Sequence[ArrivalCounter],
    seconds: float,
    timer: Timer = WALL_TIMER,
    on_change: Callable[[tuple[Arrivals, ...]], None] = lambda arrivals: None,
) -> tuple[Arrivals, ...]:
    """Wait until enough clients of every line have sent updates, or the time limit; return the final numbers.

    Args:
        store: the model store.
        counters: one counter for each line.
        seconds: the maximum wait.
        timer: the clock.
        on_change: called whenever the numbers have changed.
    """
    until, before = timer.clock() + seconds, None
    while True:
        arrivals = tuple(each.count(store.lines.newest(each.study.name, each.line)) for each in counters)
        if arrivals != before:
            on_change(arrivals)
        if all(each.clients >= each.wanted for each in arrivals) or timer.clock() >= until:
            return arrivals
        before = arrivals
        timer.sleep(min(LOOK_EVERY, max(0.0, until - timer.clock())))


class ArrivalCounter:
    """Counts the clients of a line that have sent updates to a version. Each landed file is read once.

    Args:
        landing: the landing folder.
        study: the study.
        line: the line's name.
        wanted: the number of clients to wait for; None for the line's ``min_clients``.
    """

    def __init__(self, landing: Landing, study: Study, line: str, wanted: int | None) -> None:
        self.line, self.study = line, study
        self._landing = landing
        self._wanted = study.line(line).pipeline.min_clients if wanted is None else wanted
        self._submits = {arm.name for arm in study.arms if arm.line == line and arm.submits}
        self._dealt, self._share = hash_assignment(study), study.line(line).participation
        self._version = -1
        self._of: dict[Place, frozenset[bytes]] = {}

    def count(self, version: int) -> Arrivals:
        """Return a version's number of clients, counted up to the number to wait for."""
        if version != self._version:
            self._version, self._of = version, {}
        clients: set[bytes] = set()
        for file in self._landing.files(self.study.name, self.line, version):
            if file not in self._of:
                self._of[file] = self._clients_in(file)
            clients |= self._of[file]
            if len(clients) >= self._wanted:
                break
        return Arrivals(self.line, min(len(clients), self._wanted), self._wanted)

    def _clients_in(self, file: Place) -> frozenset[bytes]:
        clients: set[bytes] = set()
        try:
            landed = self._landing.open(file)
        except FileNotFoundError:  # compacted or pruned since it was listed
            return frozenset()
        columns = ("client_id", "study_variation", UPDATE_ENCODING)
        check_columns(landed, self.study.document, columns)
        for batch in landed.batches(columns):
            for client, arm, encoding in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                if arm not in self._submits or encoding is None or client in clients:
                    continue
                if self._counts(UUID(bytes=client), arm):
                    clients.add(client)
        return frozenset(clients)

    def _counts(self, client: UUID, arm: str) -> bool:
        if self._dealt is not None and self._dealt.arm_of(client) != arm:
            return False
        return self._share >= 1 or is_selected(self.study.name, self.line, self._version, self._share, str(client))
