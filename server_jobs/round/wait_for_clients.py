"""Waiting for clients before a round is made: until so many have sent an update, or for so long.

A round of a few institutions is made when all of them have sent, rather than at a time. What is waited for is only
looked at: the round that follows decides by the line's own settings what counts, and whether that is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from fedping.model_store.store import ModelStore
from fedping.protocol.arrow import UPDATE_ENCODING
from fedping.protocol.enrolment import hash_assignment, is_selected
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landed_file import check_columns
from fedping.protocol.landing import open_landing
from fedping.protocol.location import Place
from fedping.protocol.study import Study

LOOK_EVERY = 2.0
"""Seconds between two looks at what has landed."""


class Wait(NamedTuple):
    """For how many clients to wait, for ``min_clients`` of each line if None; and at most for how many seconds."""

    clients: int | None
    seconds: float


class Arrivals(NamedTuple):
    """How many clients of a line have sent an update to its newest version, and how many are waited for."""

    line: str
    clients: int
    wanted: int

    @property
    def in_words(self) -> str:
        """It as a phrase."""
        return f"line '{self.line}' has {self.clients:,} of {self.wanted:,} clients"


def check_wait(study: Study, lines: Sequence[str]) -> None:
    """Raise :class:`InvalidSettings` if a line is private: when its round is made may not depend on who has sent."""
    for name in lines:
        if study.line(name).privacy is not None:
            raise InvalidSettings(
                f"line '{name}' of study '{study.name}' is private, and when its rounds are made may not depend on who "
                "has sent; leave --wait-for and --wait-at-most out"
            )


def wait_for_clients(
    store: ModelStore,
    landing: Place,
    study: str,
    lines: Sequence[str],
    wait: Wait,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    tell: Callable[[tuple[Arrivals, ...]], None] = lambda came: None,
) -> tuple[Arrivals, ...]:
    """Wait until enough clients of every line have sent, or time is over; return how many then had.

    Args:
        store: where the versions are.
        landing: the landing folder.
        study: the study's name.
        lines: which lines.
        wait: for what.
        clock: returns seconds that only ever grow.
        sleep: waits for so many seconds.
        tell: told each time that the numbers have changed.
    """
    of = store.study(study)
    looks = [_Looking(landing, of, name, wait.clients) for name in lines]
    until, before = clock() + wait.seconds, None
    while True:
        came = tuple(look.came(store.lines.newest(study, look.line)) for look in looks)
        if came != before:
            tell(came)
        if all(each.clients >= each.wanted for each in came) or clock() >= until:
            return came
        before = came
        sleep(min(LOOK_EVERY, max(0.0, until - clock())))


class _Looking:
    """Counts the clients that have sent updates to a version; a landed file is read once."""

    def __init__(self, landing: Place, study: Study, line: str, wanted: int | None) -> None:
        self.line = line
        self._landing, self._study = open_landing(landing), study
        self._wanted = study.line(line).pipeline.min_clients if wanted is None else wanted
        self._submits = {arm.name for arm in study.arms if arm.line == line and arm.submits}
        self._dealt, self._share = hash_assignment(study), study.line(line).participation
        self._version = -1
        self._of: dict[Place, frozenset[bytes]] = {}

    def came(self, version: int) -> Arrivals:
        """Return how many have; more than are waited for are not counted."""
        if version != self._version:
            self._version, self._of = version, {}
        found: set[bytes] = set()
        for file in self._landing.files(self._study.name, self.line, version):
            if file not in self._of:
                self._of[file] = self._clients_in(file)
            found |= self._of[file]
            if len(found) >= self._wanted:
                break
        return Arrivals(self.line, min(len(found), self._wanted), self._wanted)

    def _clients_in(self, file: Place) -> frozenset[bytes]:
        found: set[bytes] = set()
        try:
            landed = self._landing.open(file)
        except FileNotFoundError:  # compacted or pruned since it was listed
            return frozenset()
        columns = ("client_id", "study_variation", UPDATE_ENCODING)
        check_columns(landed, self._study.document, columns)
        for batch in landed.batches(columns):
            for client, arm, encoding in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                if arm not in self._submits or encoding is None or client in found:
                    continue
                if self._counts(UUID(bytes=client), arm):
                    found.add(client)
        return frozenset(found)

    def _counts(self, client: UUID, arm: str) -> bool:
        if self._dealt is not None and self._dealt.arm_of(client) != arm:
            return False
        return self._share >= 1 or is_selected(self._study.name, self.line, self._version, self._share, str(client))
