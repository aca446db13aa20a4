"""Who searches when, and with which model version: drawn for whole populations at once, without stored state.

Time advances in ticks of equal length. Every draw depends only on the user and the tick (or the day), so any tick can
be computed without the ticks before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.population.behaviour.settings import ActivitySettings
from fedping.protocol.draws import FloatArray, Keys, child_keys, root_key, uniforms
from fedping.protocol.ping import NO_VERSION

_ACTIVITY, _SEARCHES, _AWAY, _ENROLS, _FETCHES = range(5)
_AT_A_TIME = 2**16
"""How many users are processed at a time, to stay in the processor's cache."""


@dataclass(frozen=True)
class Searching:
    """The searches of one tick: the user of each, ascending, and its number among that user's, from 0; shape (S,)."""

    users: NDArray[np.int64]
    number: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.users)


class Activity:
    """The activity of ``users`` users over time.

    Args:
        users: the number of users, who are numbered from 0.
        settings: how they come and go.
        seed: the seed of all draws.
        tick_days: length of a tick, in days.
        start_hour: the time of day (UTC) at which tick 0 begins.
    """

    def __init__(self, users: int, settings: ActivitySettings, seed: int, tick_days: float, start_hour: float) -> None:
        self._users = users
        self._settings = settings
        self._root = child_keys(root_key(seed), 0x0AC7)
        self._tick_days = tick_days
        self._start_hour = start_hour

    def means(self, searches_per_day: float, shape: float, users: range | None = None) -> NDArray[np.float32]:
        """Return each user's mean number of searches on a day it is present, without the day's swing, shape (N,).

        It is gamma distributed with this shape, such that an average user makes ``searches_per_day``, including days
        away. A user keeps its rank among all users whatever the shape.

        Args:
            searches_per_day: the average user's.
            shape: the lower, the more unequal.
            users: of whom, N of them; all if None.
        """
        from scipy.special import gammaincinv

        users = range(self._users) if users is None else users
        means = np.empty(len(users), np.float32)
        for part in _parts(len(users)):
            place = uniforms(self._keys_of(np.arange(part.start, part.stop) + users.start, _ACTIVITY), 1)[:, 0]
            means[part] = gammaincinv(shape, place) / shape * (searches_per_day / (1 - self._settings.away))
        return means

    def swing(self, tick: int) -> float:
        """Return the activity at this tick, 1 on average over a day: a sine, highest at the peak hour."""
        height = (self._settings.swing - 1) / (self._settings.swing + 1)
        hour = self._start_hour + 24 * self._tick_days * (tick + 0.5)
        return float(1 + height * np.cos(2 * np.pi * (hour - self._settings.peak_hour) / 24))

    def searching(self, tick: int, means: NDArray[np.float32], first: int = 0) -> Searching:
        """Return the searches of a tick: a Poisson number for each user that is enrolled and present.

        Args:
            tick: its number.
            means: those of some users that follow each other (:meth:`means`).
            first: the first of these.
        """
        found = [self._searching(tick, means[part], first + part.start) for part in _parts(len(means))]
        users = np.concatenate([users for users, _ in found])
        counts = np.concatenate([counts for _, counts in found])
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return Searching(np.repeat(users, counts), number)

    def held_versions(self, users: NDArray[np.int64], tick: int, newest: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the version that each of these users, who are present, holds in a tick, shape (S,).

        Args:
            users: the users, shape (S,).
            tick: the tick.
            newest: the newest version at the beginning of every tick up to this one, shape (tick + 1,) or more.

        Returns:
            The version of the latest fetch, -1 before the first.
        """
        held = np.full(len(users), NO_VERSION, np.int64)
        open_ = np.arange(len(users))
        for past in range(tick, -1, -1):
            fetched = self._fetches(users[open_], past)
            held[open_[fetched]] = newest[past]
            open_ = open_[~fetched]
            if len(open_) == 0:
                break
        return held

    def search_keys(self, searching: Searching, tick: int) -> Keys:
        """Return the key of each search of a tick, shape (S,)."""
        in_tick = child_keys(child_keys(self._keys_of(searching.users, _SEARCHES), tick), 1)
        return child_keys(in_tick, searching.number)

    def _searching(
        self, tick: int, means: NDArray[np.float32], first: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        expected = means * (self._tick_days * self.swing(tick))
        drawn = uniforms(child_keys(self._keys_of(first + np.arange(len(means)), _SEARCHES), tick), 1)[:, 0]
        some = np.flatnonzero(drawn >= np.exp(-expected))
        users = first + some
        counts = _poisson(drawn[some], expected[some].astype(np.float64))
        there = self._enrolled(users, tick) & self._present(users, tick)
        return users[there], counts[there]

    def _fetches(self, users: NDArray[np.int64], tick: int) -> NDArray[np.bool_]:
        drawn = uniforms(child_keys(self._keys_of(users, _FETCHES), tick), 1)[:, 0]
        there = self._present(users, tick) & self._enrolled(users, tick)
        return (drawn >= self._settings.fetch_late) & there

    def _present(self, users: NDArray[np.int64], tick: int) -> NDArray[np.bool_]:
        day = int((self._start_hour / 24) + tick * self._tick_days)
        drawn = uniforms(child_keys(self._keys_of(users, _AWAY), day), 1)[:, 0]
        return drawn >= self._settings.away

    def _enrolled(self, users: NDArray[np.int64], tick: int) -> NDArray[np.bool_]:
        if self._settings.rollout_days == 0:
            return np.ones(len(users), np.bool_)
        since = uniforms(self._keys_of(users, _ENROLS), 1)[:, 0] * self._settings.rollout_days
        return since <= tick * self._tick_days

    def _keys_of(self, users: NDArray[np.int64], what: int) -> Keys:
        return child_keys(child_keys(self._root, what), users)


def _parts(users: int) -> list[slice]:
    return [slice(at, min(at + _AT_A_TIME, users)) for at in range(0, users, _AT_A_TIME)]


def _poisson(uniform: FloatArray, mean: FloatArray) -> NDArray[np.int64]:
    """Return Poisson numbers from uniform ones by inversion."""
    counts = np.zeros(len(mean), np.int64)
    term = np.exp(-mean)
    reached = term.copy()
    open_ = np.flatnonzero(uniform >= reached)
    while len(open_):
        counts[open_] += 1
        term[open_] *= mean[open_] / counts[open_]
        reached[open_] += term[open_]
        still = (uniform[open_] >= reached[open_]) & (term[open_] > 0)
        open_ = open_[still]
    return counts
