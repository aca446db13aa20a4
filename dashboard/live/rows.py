"""A version as a row of the page and of its CSV: figures of its round, links, signs of the update, weights.

A link defines its own display (:class:`fedping.server_jobs.optimize.Display`); this module knows no particular links.
The certainty of the signs of a round's mean update follows from the moments in its version (thesis 7.5). For a small
model all weights are shown, for a large one those that changed most.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import fields
from numpy.typing import NDArray

from fedping.model_store.version import Aggregate, ArmSummary, Influence, PrivacyEvent, Version, Winsorised
from fedping.protocol.privacy import METRICS
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Line
from fedping.server_jobs.optimize import Arrays, Display, Vector, by_link, first_state, links_for

DIGITS = 6
"""Significant digits of the drawn values; a version's document has all digits."""


class Released(Struct, frozen=True, kw_only=True):
    """The release of a private line's round.

    Attributes:
        releases: number of the line's releases so far, including this one.
        epsilon: privacy budget spent by all these releases; None if only clients add noise.
        stepped: whether the weights moved.
    """

    releases: int
    epsilon: float | None
    stepped: bool


class Row(Struct, frozen=True, kw_only=True):
    """A version as a row of the page.

    ``arms``, ``counts`` and ``clients`` describe the round that made the version, whose pings were ranked with the
    version before it: a loss belongs to iteration ``version - 1``.

    Attributes:
        version: its number.
        created: when it was published, ISO 8601 in UTC.
        origin: ``created`` with the study, made by a ``round`` or by a ``rollback`` (including that of a staged
            version), or ``continued`` from a backup.
        restored: the version that a rollback repeated, or that the line was continued from.
        settings: beginning of the digest of the line's settings at that time.
        code: the version of fedping that made it.
        clients: the number of clients with a usable update; approximate for a private line; None if no round made it.
        counts: the numbers of the round's pings by their outcome.
        arms: the results of each arm, by name.
        change: change of the shown weights, as published, from version 0.
        links: the displayed values of the chain's links in this step, by name, such as the ``rate`` of each shown
            weight, or the common one.
        away: distance of each shown weight's mean update from 0, in standard errors; for a private line, distance of
            the sum in standard deviations of its noise; None without a round, and if only clients add noise.
        stable: the share of all weights with a stable sign; None if ``away`` is None.
        influence: the clients' influence on the model; None without a round, or if it is not published.
    """

    version: int
    created: str
    origin: str
    restored: int | None
    settings: str
    code: str
    clients: int | None
    counts: dict[str, int]
    arms: dict[str, ArmSummary]
    change: tuple[float, ...]
    links: dict[str, tuple[float | None, ...]]
    away: tuple[float | None, ...] | None
    stable: float | None
    influence: Influence | None
    privacy: Released | None = None


def row_of(version: Version, shown: Shown, links: ShownLinks, training: Sequence[str] = ()) -> Row:
    """Return the row of a version; ``training`` are the arms that submit."""
    lineage = version.lineage
    aggregate, event = lineage.aggregate, lineage.privacy
    away, stable = (None, None) if aggregate is None else _signs(standard_errors(aggregate), aggregate.weight, shown)
    if event is not None and event.sigma and training:
        away, stable = _signs(above_noise(event, training), math.inf, shown)
    clients = None if aggregate is None else aggregate.clients
    if event is not None:
        clients = sum(lineage.arms[name].pings for name in training)
    return Row(
        version=version.iteration,
        created=version.created,
        origin="rollback" if lineage.guard is not None and lineage.guard.gives_up else lineage.origin,
        restored=lineage.restored,
        settings=lineage.config_digest[:12],
        code=lineage.code_version,
        clients=clients,
        counts=lineage.counts,
        arms=lineage.arms,
        change=tuple(_short(v) for v in shown.pick(version.model) - np.array(shown.start)),
        links={name: _known(values.tolist()) for name, values in links.of(version, shown.positions).items()},
        away=away,
        stable=stable,
        influence=None if aggregate is None else aggregate.influence,
        privacy=None
        if event is None
        else Released(releases=event.releases, epsilon=event.epsilon, stepped=event.stepped),
    )


def _signs(away: NDArray[np.float64], weight: float, shown: Shown) -> tuple[tuple[float | None, ...], float]:
    return _known(away[list(shown.positions)].tolist(), 3), stable_share(away, weight)


def _known(values: Iterable[float], digits: int = DIGITS) -> tuple[float | None, ...]:
    return tuple(_short(value, digits) if math.isfinite(value) else None for value in values)


def _short(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")


class Described(Struct, frozen=True, kw_only=True):
    """A displayed value: name, description, and whether each weight has its own value or all weights share one."""

    name: str
    words: str
    by_weight: bool


class _Shown(NamedTuple):
    link: str
    display: Display
    described: Described


class ShownLinks:
    """The displays of one line's links."""

    def __init__(self, line: Line) -> None:
        self._first = first_state(line)
        self._m = line.spec.m
        self._shown: list[_Shown] = []
        for link, made in links_for(line.spec, line.pipeline).items():
            for name, display in (made.displays or _bare(link, self._first[link])).items():
                self._add(link, name, display)

    def _add(self, link: str, name: str, display: Display) -> None:
        free = name if all(name != each.described.name for each in self._shown) else f"{link}: {name}"
        values, error = _tried(display, self._first[link])
        words = display.words if error is None else f"The link '{link}' cannot show its '{name}': {error}"
        if len(values) in (1, self._m):
            by_weight = len(values) == self._m
            self._shown.append(_Shown(link, display, Described(name=free, words=words, by_weight=by_weight)))

    @property
    def described(self) -> tuple[Described, ...]:
        """The displayed values, in the order of the chain."""
        return tuple(each.described for each in self._shown)

    def of(self, version: Version, positions: Sequence[int]) -> dict[str, NDArray[np.float64]]:
        """Return a version's displayed values by name: for each of the weights at ``positions``, or the common one.

        NaN if the version's state does not contain it, as before the first step.
        """
        named = by_link(version.state, self._first)
        found = {}
        for link, display, described in self._shown:
            state = {name: np.array(vector, dtype=np.float64) for name, vector in named.get(link, {}).items()}
            values, _ = _tried(display, state)
            if described.by_weight:
                values = values[list(positions)] if len(values) == self._m else np.full(len(positions), np.nan)
            found[described.name] = values if described.by_weight else values[:1]
        return found


def _bare(link: str, state: Arrays) -> Mapping[str, Display]:
    """Return the display of a link that defines none: the vectors of its state."""
    return {name: Display(f"'{name}' in the state of the link '{link}'", _vector(name)) for name in state}


def _vector(name: str) -> Callable[[Arrays], Vector]:
    return lambda state: state[name]


def _tried(display: Display, state: Arrays) -> tuple[NDArray[np.float64], str | None]:
    """Return a display's values for a state, or NaN and the reason if it fails: a link may be a user's code."""
    try:
        with np.errstate(all="ignore"):
            values = np.atleast_1d(np.asarray(display.values(state), dtype=np.float64))
    except Exception as error:
        return np.array([np.nan]), f"{type(error).__name__}: {error}"
    return (values, None) if values.ndim == 1 else (np.array([np.nan]), "it is not a vector")


STANDARD_ERRORS = 2.0
"""Number of standard errors from which a sign counts as stable, the same as for the end of iterations."""

FARTHEST = 99.0
"""Limit on the reported distance from 0 in standard errors: for equal updates it is infinite."""


def standard_errors(aggregate: Aggregate) -> NDArray[np.float64]:
    """Return the distance of each weight's mean update from 0, in standard errors and with its sign, shape (m,).

    The standard error is that of a mean of as many independent votes as the aggregate's weight. NaN where all updates
    are 0, and everywhere if there is only one vote, which gives no standard error.
    """
    mean, m2 = np.array(aggregate.mean), np.array(aggregate.m2)
    if aggregate.weight <= 1:
        return np.full(len(mean), np.nan)
    error = np.sqrt(m2 / (aggregate.weight - 1) / aggregate.weight)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.clip(mean / error, -FARTHEST, FARTHEST))


def above_noise(event: PrivacyEvent, training: Sequence[str]) -> NDArray[np.float64]:
    """Return the distance of each weight's noisy sum from 0, in standard deviations of its noise, shape (m,).

    NaN for weights that no client can move, since nothing is released of them.
    """
    sums = np.sum([event.released[name][: -len(METRICS)] for name in training], axis=0, dtype=np.float64)
    away = np.where(sums == 0, np.nan, sums / (event.sigma * np.sqrt(len(training))))
    return np.asarray(np.clip(away, -FARTHEST, FARTHEST))


def stable_share(away: NDArray[np.float64], weight: float) -> float:
    """Return the share of weights whose sign is stable, or whose updates are all 0.

    Args:
        away: :func:`standard_errors`.
        weight: the aggregate's weight; up to 1 nothing is stable.
    """
    if weight <= 1:
        return 0.0
    return float(np.mean((np.abs(away) >= STANDARD_ERRORS) | np.isnan(away)))


MOST_SHOWN = 60
"""Maximum number of weights on the page; a heat map with more rows would be unreadable."""


class Shown(Struct, frozen=True, kw_only=True):
    """The shown weights, in wire order.

    Attributes:
        positions: their positions in the model, from 0.
        names: their names in the spec.
        start: their values in version 0, as published.
        of: the number of weights in the model.
        chosen_at: the version whose changes from version 0 determined the choice; None if all weights are shown.
    """

    positions: tuple[int, ...]
    names: tuple[str, ...]
    start: tuple[float, ...]
    of: int
    chosen_at: int | None

    def pick(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return the shown weights' values from one value per weight, shape (shown,)."""
        return np.array([values[i] for i in self.positions], dtype=np.float64)


def chosen_at(m: int, newest: int) -> int | None:
    """Return the version whose changes select the shown weights, the last power of two up to ``newest``.

    None if all of the model's ``m`` weights are shown. The selection depends only on the number of versions, and
    changes only when that number doubles. Each time, the whole history must be read again, which doubles the total
    amount of reading.
    """
    if m <= MOST_SHOWN:
        return None
    return 1 << (newest.bit_length() - 1) if newest > 0 else 0


def choose(spec: ModelSpec, start: Sequence[float], by: Sequence[float] | None, version: int | None) -> Shown:
    """Return the weights to show.

    Args:
        spec: the line's spec; a weight's change is measured in its first step sizes, because weights have different
            units.
        start: version 0 as published, shape (m,).
        by: the version to choose by, as published, shape (m,); None to show all.
        version: the number of that version.
    """
    positions: Sequence[int] = range(spec.m)
    if by is not None:
        change = np.abs(np.array(by) - np.array(start)) / spec.steps.start
        positions = sorted(np.argsort(-change, kind="stable")[:MOST_SHOWN].tolist())
    names = spec.names
    return Shown(
        positions=tuple(positions),
        names=tuple(names[i] for i in positions),
        start=tuple(start[i] for i in positions),
        of=spec.m,
        chosen_at=version if by is not None else None,
    )


OF_AN_ARM = ("pings", "examples", "loss", "rank_selected")
OF_ITS_CLIENTS = tuple(field.name for field in fields(Winsorised))
OF_INFLUENCE = tuple(field.name for field in fields(Influence))


def rows_as_csv(rows: Sequence[Row], shown: Shown, arms: Sequence[str], links: Sequence[Described]) -> str:
    """Return versions as CSV (RFC 4180), with a header and a line per version; missing values are empty.

    Columns: the version, when and how it was made, clients, the share of stable signs; ``pings.<reason>``; for every
    arm ``<arm>.loss`` and so on, and ``<arm>.winsorised.loss`` and so on, which a few clients cannot move; for every
    shown weight ``change.<name>`` (from version 0) and ``away.<name>`` (the distance of its mean update from 0, in
    standard errors); the optimizer's displayed values, such as ``rate.<name>``, or ``rate`` if all weights share it;
    ``influence.<figure>`` for the clients' influence on the model.
    """
    reasons = list(dict.fromkeys(reason for row in rows for reason in row.counts))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(
        [
            *("version", "created", "origin", "restored", "clients", "stable"),
            *(f"pings.{reason}" for reason in reasons),
            *(column for arm in arms for column in _columns_of_an_arm(arm)),
            *(f"change.{name}" for name in shown.names),
            *(f"away.{name}" for name in shown.names),
            *(column for each in links for column in _columns(each, shown)),
            *(f"influence.{figure}" for figure in OF_INFLUENCE),
        ]
    )
    writer.writerows(list(_cells(row, reasons, arms, len(shown.names))) for row in rows)
    return text.getvalue()


def _cells(row: Row, reasons: Iterable[str], arms: Iterable[str], shown: int) -> Iterator[object]:
    yield from (row.version, row.created, row.origin, row.restored, row.clients, row.stable)
    yield from (row.counts.get(reason) for reason in reasons)
    for arm in arms:
        summary = row.arms.get(arm)
        yield from (None if summary is None else getattr(summary, what) for what in OF_AN_ARM)
        firm = None if summary is None else summary.winsorised
        yield from (None if firm is None else getattr(firm, what) for what in OF_ITS_CLIENTS)
    yield from row.change
    yield from row.away or [None] * shown
    for values in row.links.values():
        yield from values
    yield from (None if row.influence is None else getattr(row.influence, figure) for figure in OF_INFLUENCE)


def _columns_of_an_arm(arm: str) -> list[str]:
    return [f"{arm}.{what}" for what in (*OF_AN_ARM, *(f"winsorised.{what}" for what in OF_ITS_CLIENTS))]


def _columns(link: Described, shown: Shown) -> list[str]:
    return [f"{link.name}.{name}" for name in shown.names] if link.by_weight else [link.name]
