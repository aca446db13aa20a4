"""The events of a run in simulated time: clients are invited, answer or are lost, and rounds end.

A synchronous round invites all its clients at its beginning. It ends with the last of the awaited answers, or when all
other answers are lost, or at its deadline (Bonawitz et al. 2019). Late answers are dropped, or arrive in a later round.

An asynchronous run (FedBuff, Nguyen et al. 2022) has a fixed number of clients at work, and publishes a version for
each full buffer of answers, which counts as a round. A client that ends is replaced by one drawn evenly from the
available clients without work; the client whose answer fills the buffer is replaced after the step.

A client is lost if it drops out, after a random share of its time, or if it becomes unavailable before it has answered.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.seeds import generator
from fedping.client_sim.learning.batch import Clients, FloatArray
from fedping.experiments.laboratory.clock.availability import HOUR, Windows
from fedping.experiments.laboratory.settings.clock import Clock as Settings
from fedping.protocol.draws import Keys, child_keys, uniforms
from fedping.protocol.errors import InvalidSettings

FRUITLESS = 10_000
"""An asynchronous run ends after this many consecutive lost or too old answers, plus ten for each client."""


@dataclass(frozen=True)
class People:
    """The clients' durations, availability and keys.

    Attributes:
        seconds: each client's time for an answer, in seconds, shape (clients,).
        windows: when each client is available.
        keys: a random key for each client's answers, shape (clients,).
        may_be_invited: whether an asynchronous run may invite each client, shape (clients,).
    """

    seconds: FloatArray
    windows: Windows
    keys: Keys
    may_be_invited: NDArray[np.bool_]


class Work(NamedTuple):
    """A client's work after an invitation. Instances sort by their end.

    Attributes:
        ends: when the answer arrives or the client is lost, in seconds.
        number: number of the invitation in the run.
        client: position among all clients.
        round: number of the round of the invitation.
        version: number of the fetched version.
        attempt: number of earlier invitations of the client in the same round.
        began: the time of the invitation, in seconds.
        answers: whether the client answers; otherwise it is lost.
    """

    ends: float
    number: int
    client: int
    round: int
    version: int
    attempt: int
    began: float
    answers: bool


@dataclass(frozen=True)
class Answers:
    """The k answers that a round merges, by client, then in the order of arrival.

    Attributes:
        clients: positions among all clients, shape (k,).
        rounds: numbers of the rounds of their invitations, shape (k,).
        ages: age of the fetched version, in versions, shape (k,).
        attempts: numbers of earlier invitations of the client in the same round, shape (k,).
        began: when they were invited, in seconds since the run began, shape (k,).
        seconds: seconds from invitation to answer, shape (k,).
        others: number of clients since the last round whose answers were lost, late or too old.
    """

    clients: Clients
    rounds: NDArray[np.int64]
    ages: NDArray[np.int64]
    attempts: NDArray[np.int64]
    began: FloatArray
    seconds: FloatArray
    others: int


class Clock:
    """The simulated time of a run and the clients at work; saved in its checkpoints.

    Args:
        settings: the rules for the end of rounds and for dropouts.
        people: the clients' durations, availability and keys.
        seed: the run's seed.
        oldest: maximum age in versions of merged answers.
    """

    def __init__(self, settings: Settings, people: People, seed: int, oldest: int) -> None:
        self._settings, self._people, self._seed, self._oldest = settings, people, seed, oldest
        self.now = 0.0
        """Seconds since the run began."""
        self.version = 0
        """Number of the newest version."""
        clients = len(people.seconds)
        self._working: list[Work] = []  # a heap
        self._times = np.zeros(clients, np.int64)  # number of each client's invitations
        self._last_round = np.full(clients, -1)  # round of each client's last invitation
        self._attempt = np.zeros(clients, np.int64)  # earlier invitations in that round
        self._invited = self._draws = self._before = 0
        self._late, self._age = settings.counts_late, np.nan

    @property
    def hours(self) -> float:
        """Simulated hours since the run began."""
        return self.now / HOUR

    @property
    def over(self) -> bool:
        """Whether the run's simulated hours have passed."""
        return self._settings.hours is not None and self.hours >= self._settings.hours

    @property
    def asynchronous(self) -> bool:
        """Whether the run is asynchronous: no round waits for clients."""
        return self._settings.asynchronous is not None

    def published(self) -> None:
        """Count a new version."""
        self.version += 1

    def measured(self) -> dict[str, float]:
        """Return the metrics of the round that has just ended."""
        invited, self._before = self._invited - self._before, self._invited
        return {"simulated_hours": self.hours, "invited": invited} | ({"age": self._age} if self._late else {})

    def free(self, learners: Clients) -> Clients:
        """Return the ``learners`` that are available and have no work, after advancing time until there is one."""
        while True:
            free = self._free()[learners]
            if free.any() or not len(learners):
                return learners[free]
            self.now = self._next(learners)

    def round(self, number: int, drawn: Clients) -> Answers:
        """Invite the drawn clients of a round, ascending, and return the answers that it merges at its end."""
        began, settings = self.now, self._settings
        invited = self._invite(number, drawn)
        coming = sorted(work for work in invited if work.answers)
        end = max((work.ends for work in invited), default=began + (settings.deadline or 0.0))
        if settings.answers is not None and len(coming) >= settings.answers:
            coming = coming[: settings.answers]
            end = coming[-1].ends
        if settings.deadline is not None and end > began + settings.deadline:
            end = began + settings.deadline
            coming = [work for work in coming if work.ends <= end]
        merged, lost = self._arrived(end)
        if settings.late == "counted":
            in_time = set(coming)
            for work in invited:
                if work not in in_time and (work.answers or work.ends > end):
                    heapq.heappush(self._working, work)
        self.now = end
        return self._answers([*merged, *coming], lost + len(invited) - len(coming))

    def buffer(self, number: int) -> Answers:
        """Return the answers that fill an asynchronous run's next buffer, which counts as a round."""
        asynchronous = self._settings.asynchronous
        assert asynchronous is not None
        merged: list[Work] = []
        others = fruitless = 0
        while len(merged) < asynchronous.buffer:
            self._fill(number, asynchronous.concurrency)
            ends = self._working[0].ends if self._working else np.inf
            if len(self._working) < asynchronous.concurrency:
                begin = self._next_begin(np.flatnonzero(self._people.may_be_invited))
                if begin < ends:
                    self.now = begin
                    continue
            work = heapq.heappop(self._working)
            self.now = work.ends
            if work.answers and self.version - work.version <= self._oldest:
                merged.append(work)
                fruitless = 0
                continue
            others, fruitless = others + 1, fruitless + 1
            if fruitless > FRUITLESS + 10 * len(self._times):
                raise InvalidSettings(
                    f"[clock] makes no progress: of {fruitless:,} invitations in a row none was answered in time. "
                    "Lower 'drop_out' or the seconds of clients, or raise the hours of 'available' or 'most' of "
                    "'staleness'"
                )
        return self._answers(merged, others)

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        """Return the time and the clients at work, as arrays by name; windows follow from the time."""
        counts = [self.version, self._invited, self._draws, self._before]
        working = sorted(self._working)
        return {
            "now": np.array(self.now),
            "counts": np.array(counts, np.int64),
            "times": self._times.copy(),
            "last_round": self._last_round.copy(),
            "attempt": self._attempt.copy(),
            "ends": np.array([work.ends for work in working]),
            "began": np.array([work.began for work in working]),
            "working": np.array([(*work[1:6], work.answers) for work in working], np.int64).reshape(-1, 6),
        }

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the state that :meth:`snapshot` returned."""
        self.now = float(saved["now"])
        self.version, self._invited, self._draws, self._before = saved["counts"].tolist()
        self._times, self._last_round = saved["times"].copy(), saved["last_round"].copy()
        self._attempt = saved["attempt"].copy()
        rows = zip(saved["ends"].tolist(), saved["working"].tolist(), saved["began"].tolist(), strict=True)
        self._working = [Work._make((ends, *row[:5], began, bool(row[5]))) for ends, row, began in rows]

    def _free(self) -> NDArray[np.bool_]:
        """Return whether each client is available and has no work, shape (clients,)."""
        free = self._people.windows.read(self.now).copy()
        free[self._busy()] = False
        return free

    def _busy(self) -> list[int]:
        """Return the working clients: until their answer arrives or, in an asynchronous run, until it is used."""
        return [work.client for work in self._working if work.ends > self.now or self.asynchronous]

    def _next(self, learners: Clients) -> float:
        """Return the time at which the next of ``learners`` becomes available or the next work ends."""
        ends = (work.ends for work in self._working if work.ends > self.now)
        return min(self._next_begin(learners), min(ends, default=np.inf))

    def _next_begin(self, clients: Clients) -> float:
        """Return the time at which the first of these clients without work becomes available; infinity if none does."""
        self._people.windows.read(self.now)
        begins = self._people.windows.begins.copy()
        begins[self._busy()] = np.inf
        begins = begins[clients]
        return float(begins[begins > self.now].min(initial=np.inf))

    def _arrived(self, end: float) -> tuple[list[Work], int]:
        """Return the arrived answers of earlier rounds that are recent enough, and the number of other answers."""
        merged: list[Work] = []
        others = 0
        while self._working and self._working[0].ends <= end:
            work = heapq.heappop(self._working)
            young = self.version - work.version <= self._oldest
            if work.answers and young:
                merged.append(work)
            else:
                others += work.answers  # lost clients were counted in their own round
        return merged, others

    def _answers(self, merged: Sequence[Work], others: int) -> Answers:
        works = sorted(merged, key=lambda work: (work.client, work.ends, work.number))
        columns = np.array([(work.client, work.round, work.version, work.attempt) for work in works], np.int64)
        clients, rounds, versions, attempts = columns.reshape(-1, 4).T
        ages = self.version - versions
        self._age = float(ages.mean()) if len(ages) else np.nan
        ends, began = np.array([(work.ends, work.began) for work in works]).reshape(-1, 2).T
        return Answers(clients.astype(np.intp), rounds, ages, attempts, began, ends - began, others)

    def _fill(self, number: int, concurrency: int) -> None:
        """Invite free clients of an asynchronous run until the required number is at work."""
        wanted = concurrency - len(self._working)
        if wanted <= 0:
            return
        free = np.flatnonzero(self._free() & self._people.may_be_invited)
        if not len(free):
            return
        random = generator(self._seed, "invitations", self._draws)
        self._draws += 1
        for work in self._invite(number, random.choice(free, min(wanted, len(free)), replace=False)):
            heapq.heappush(self._working, work)

    def _invite(self, number: int, clients: Clients) -> list[Work]:
        """Invite clients now, and return their work; a client that occurs repeatedly works for each occurrence."""
        people, settings = self._people, self._settings
        times, attempts = np.zeros(len(clients), np.int64), np.zeros(len(clients), np.int64)
        for at, client in enumerate(clients.tolist()):
            self._attempt[client] = self._attempt[client] + 1 if self._last_round[client] == number else 0
            self._last_round[client] = number
            times[at], attempts[at] = self._times[client], self._attempt[client]
            self._times[client] += 1
        drawn = uniforms(child_keys(people.keys[clients], times), 2)
        people.windows.read(self.now)
        seconds = people.seconds[clients]
        dropped = np.where(drawn[:, 0] < settings.drop_out, self.now + drawn[:, 1] * seconds, np.inf)
        gone = np.minimum(dropped, people.windows.ends[clients])
        answers = self.now + seconds <= gone
        ends = np.minimum(self.now + seconds, gone)
        first, self._invited = self._invited, self._invited + len(clients)
        return [
            Work(*row, number, self.version, attempt, self.now, answer)
            for row, attempt, answer in zip(
                zip(ends.tolist(), range(first, self._invited), clients.tolist(), strict=True),
                attempts.tolist(),
                answers.tolist(),
                strict=True,
            )
        ]
