"""Users' pages at a moment: later, a page is the same page with older visits and some new ones.

A page lives for a fixed time and is then found anew, without its past. In its life it is visited at the beginning and
then once in each gap of a constant length, at a random moment of the gap. So the time of visit number j follows from
the page's key, its life and j alone, and the newest ten visits at any moment are found without remembering anything.
The number of visits in a life is gamma distributed with shape 2. At a uniformly random moment of the life, the number
of visits so far is then exponential, as the thesis states (7.3), and so it is at any time of a study.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.models import MAX_SAMPLED, ORIGIN_NOT_KNOWN, Onward, PageTable, VisitType
from fedping.client_sim.population.behaviour.settings import UserSettings
from fedping.protocol.draws import FloatArray, Keys, child_keys, uniforms

_PAGE, _VISITS = range(2)
_FEWEST = 1e-3
"""The least number of visits in a page's life, so that a gap is finite."""
_KINDS = np.array([VisitType.LINK, VisitType.TYPED, VisitType.BOOKMARK], np.uint8)
_OTHERS = np.array(
    [
        VisitType.EMBED,
        VisitType.PERM_REDIRECT,
        VisitType.TEMP_REDIRECT,
        VisitType.DOWNLOAD,
        VisitType.FRAMED_LINK,
        VisitType.RELOAD,
    ],
    np.uint8,
)
_NOT_COUNTED = np.isin(np.arange(len(VisitType)), [VisitType.EMBED, *_OTHERS[3:].tolist()])
_NOT_COUNTED_OF_OTHERS = 4 / 6
_IS_TARGET = np.isin(np.arange(len(VisitType)), [VisitType.PERM_REDIRECT, VisitType.TEMP_REDIRECT])

# A visit takes a single number of 64 random bits, which is cut into five parts:
_MOMENT_BITS, _TYPE_BITS, _HABIT_BITS, _ONWARD_BITS, _ORIGIN_BITS = 20, 16, 12, 10, 6


@dataclass(frozen=True)
class VisitTables:
    """Tables from the parts of a visit's random bits to their meanings, made once from the settings."""

    type: NDArray[np.uint8]
    onward: NDArray[np.uint8]
    origin: NDArray[np.int8]

    @classmethod
    def of(cls, settings: UserSettings) -> VisitTables:
        """Return the tables; in ``type``, 0 stands for one of the common kinds, where the page's habit may decide."""
        at, redirects = _levels(_TYPE_BITS), settings.redirect_sources
        other = _OTHERS[(at / max(settings.other_visits, 1e-300) * len(_OTHERS)).clip(0, len(_OTHERS) - 1).astype(int)]
        common = _kinds((at - settings.other_visits) / max(1 - settings.other_visits, 1e-300), settings)
        onward = _levels(_ONWARD_BITS)
        return cls(
            type=np.where(at < settings.other_visits, other, common),
            onward=np.select(
                [onward < redirects / 2, onward < redirects], [Onward.PERMANENTLY, Onward.TEMPORARILY], Onward.NO
            ).astype(np.uint8),
            origin=_kinds(_levels(_ORIGIN_BITS), settings).astype(np.int8),
        )


def pages_at(keys: Keys, day: FloatArray, settings: UserSettings, tables: VisitTables) -> PageTable:
    """Return one page for each key.

    Args:
        keys: keys of the pages, shape (P,).
        day: the moment of each page, in days since the study began, shape (P,).
        settings: the distributions.
        tables: the tables of the settings.
    """
    rate, other_rate, phase, never, bookmark, kind = uniforms(child_keys(keys, _PAGE), 6).T
    unvisited = never < settings.unvisited
    in_life = settings.mean_visits * -(np.log1p(-rate) + np.log1p(-other_rate))
    gap = settings.days / np.maximum(in_life, _FEWEST)
    lives = phase + day / settings.days
    life = np.floor(lives)
    clock = (lives - life) * settings.days / gap
    visits, newest = _newest_visits(child_keys(child_keys(keys, _VISITS), life.astype(np.int64)), clock)
    count = np.where(unvisited, 0, newest.astype(np.int64) + 1)
    sampled = np.minimum(count, MAX_SAMPLED)
    present = np.arange(MAX_SAMPLED) < sampled[:, None]
    types = np.where(present, _types(visits, _kinds(kind, settings), settings, tables), VisitType.UNKNOWN)
    number = newest[:, None] - np.arange(MAX_SAMPLED, dtype=np.float64)
    ages = (clock[:, None] - _places(visits, number)) * gap[:, None]
    return PageTable(
        age_days=np.where(present, np.maximum(ages, 0.0), 0).astype(np.int32),
        visit_type=types,
        origin_type=_origins(visits, types, tables),
        onward=np.where(present, tables.onward[_part(visits, 48, _ONWARD_BITS)], Onward.NO).astype(np.uint8),
        sampled=sampled.astype(np.int8),
        visit_count=_counter(types, count, settings),
        typed=np.where(unvisited, kind < settings.kinds[1], (types == VisitType.TYPED).any(axis=1)),
        bookmarked=unvisited | (bookmark < settings.bookmarked),
        is_query=np.zeros(len(keys), np.bool_),
    )


def _newest_visits(keys: Keys, clock: FloatArray) -> tuple[NDArray[np.uint64], FloatArray]:
    """Return the random bits of the 10 newest visits, newest first, and the newest one's number.

    The clock counts gaps. If the visit of the present gap is still to come, the one before is the newest.
    """
    gap_now: FloatArray = np.floor(clock)
    numbers: FloatArray = gap_now[:, None] - np.arange(MAX_SAMPLED + 1)
    drawn = child_keys(keys[:, None], numbers.astype(np.int64))
    to_come = _places(drawn[:, :1], numbers[:, :1])[:, 0] > clock
    visits = np.where(to_come[:, None], drawn[:, 1:], drawn[:, :-1])
    return visits, gap_now - to_come


def _places(visits: NDArray[np.uint64], numbers: FloatArray) -> FloatArray:
    """Return the times of visits by the page's clock: at random in their gaps, the very first at the start."""
    return numbers + np.where(numbers > 0, _moment(visits), 0.0)


def _types(
    visits: NDArray[np.uint64], own: NDArray[np.uint8], settings: UserSettings, tables: VisitTables
) -> NDArray[np.uint8]:
    drawn = tables.type[_part(visits, 20, _TYPE_BITS)]
    habitual = _part(visits, 36, _HABIT_BITS) < settings.habit * 2**_HABIT_BITS
    return np.where(habitual & (drawn <= VisitType.BOOKMARK), own[:, None], drawn)


def _origins(visits: NDArray[np.uint64], types: NDArray[np.uint8], tables: VisitTables) -> NDArray[np.int8]:
    origin = tables.origin[_part(visits, 58, _ORIGIN_BITS)]
    return np.where(_IS_TARGET[types], origin, np.int8(ORIGIN_NOT_KNOWN))


def _counter(types: NDArray[np.uint8], count: NDArray[np.int64], settings: UserSettings) -> NDArray[np.int64]:
    """Return the stored counter, which omits some types: exactly in the sample, by their share beyond it."""
    beyond = np.maximum(count - MAX_SAMPLED, 0) * settings.other_visits * _NOT_COUNTED_OF_OTHERS
    counted = count - _NOT_COUNTED[types].sum(axis=1) - np.rint(beyond).astype(np.int64)
    return np.where(count > 0, np.maximum(counted, 1), 0)


def _kinds(uniform: FloatArray, settings: UserSettings) -> NDArray[np.uint8]:
    link, typed, _ = settings.kinds
    return _KINDS[(uniform >= link).astype(np.intp) + (uniform >= link + typed)]


def _levels(width: int) -> FloatArray:
    levels: FloatArray = (np.arange(2**width) + 0.5) / 2**width
    return levels


def _part(drawn: NDArray[np.uint64], start: int, width: int) -> NDArray[np.intp]:
    return ((drawn >> np.uint64(start)) & np.uint64(2**width - 1)).astype(np.intp)


def _moment(drawn: NDArray[np.uint64]) -> FloatArray:
    """Return the position of a visit in its gap, in [0, 1)."""
    return _part(drawn, 0, _MOMENT_BITS).astype(np.float64) * 2.0**-_MOMENT_BITS
