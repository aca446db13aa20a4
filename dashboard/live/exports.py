"""The rows as CSV, one line per version."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import fields

from fedping.dashboard.live.links import Described
from fedping.dashboard.live.rows import Row
from fedping.dashboard.live.weight_selection import Shown
from fedping.model_store.version import Influence, Winsorised

OF_AN_ARM = ("pings", "examples", "loss", "rank_selected")
OF_ITS_CLIENTS = tuple(field.name for field in fields(Winsorised))
OF_INFLUENCE = tuple(field.name for field in fields(Influence))


def rows_as_csv(rows: Sequence[Row], shown: Shown, arms: Sequence[str], links: Sequence[Described]) -> str:
    """Return a heading and a line per version (RFC 4180); what a version does not have is empty.

    Columns: the version, when and how it was made, clients, the share of stable signs; ``pings.<reason>``; for every
    arm ``<arm>.loss`` and so on, and what a few clients cannot move, ``<arm>.winsorised.loss`` and so on; for every
    shown weight ``change.<name>`` (from version 0) and ``away.<name>`` (the distance of its mean update from 0, in
    standard errors); what the optimizer shows, such as ``rate.<name>``, or ``rate`` if all weights share it;
    ``influence.<figure>``, who moved the model.
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
