"""A version as a row of the page: what its round saw, and how the weights changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedping.dashboard.live.links import ShownLinks
from fedping.dashboard.live.sign_confidence import above_noise, stable_share, standard_errors
from fedping.dashboard.live.weight_selection import Shown
from fedping.model_store.version import ArmSummary, Influence, Version

DIGITS = 6
"""Significant digits of the drawn values; a version's document has all of them."""


class Released(Struct, frozen=True, kw_only=True):
    """What a round of a private line has released.

    Attributes:
        releases: the line's so far, this one included.
        epsilon: what all of them have spent; None where clients alone add noise.
        stepped: whether the weights moved.
    """

    releases: int
    epsilon: float | None
    stepped: bool


class Row(Struct, frozen=True, kw_only=True):
    """One version.

    ``arms``, ``counts`` and ``clients`` belong to the round that made it, and so to the pings ranked with the version
    before it: a loss belongs to iteration ``version - 1``.

    Attributes:
        version: its number.
        created: when it was published, ISO 8601 in UTC.
        origin: ``created`` with the study, by a ``round``, by a ``rollback``, that of a staged version included, or
            ``continued`` from a backup.
        restored: the version that a rollback repeated, or that the line was continued from.
        settings: identifies the line's settings at that time: the beginning of their digest.
        code: the version of fedping that made it.
        clients: the number of clients with a usable update; of a private line about so many; None if no round made it.
        counts: the numbers of the round's pings by their outcome.
        arms: the results of each arm, by name.
        change: change of the shown weights, as published, from version 0.
        links: the display of the chain's links in this step, by name (`fedping.dashboard.live.links`), such as the
            ``rate`` of each shown weight, or the common one.
        away: distance of each shown weight's mean update from 0, in standard errors; of a private line that of the sum
            in standard deviations of its noise; None without a round, and where clients alone add noise.
        stable: the share of all weights with a stable sign; None where ``away`` is.
        influence: who moved the model; None without a round, or if it is not told.
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
    """Return the row of a version; pure. ``training`` are the arms that submit."""
    lineage = version.lineage
    made, event = lineage.aggregate, lineage.privacy
    away, stable = (None, None) if made is None else _signs(standard_errors(made), made.weight, shown)
    if event is not None and event.sigma and training:
        away, stable = _signs(above_noise(event, training), math.inf, shown)
    clients = None if made is None else made.clients
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
        influence=None if made is None else made.influence,
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
