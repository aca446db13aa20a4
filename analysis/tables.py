"""A study's tables of means and p-values (thesis, tables 21 and 22), for the terminal, a page and Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from fedping.analysis.study import Metric, StudyTally
from fedping.analysis.verdict import Comparison
from fedping.analysis.verdict.words import p_text

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """A table with a title.

    Attributes:
        title: the title above the table.
        heads: the heads of the columns.
        rows: the cells, as many per row as there are heads.
        words: number of leading columns with words; the other columns are right-aligned numbers.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1

    def __post_init__(self) -> None:
        if any(len(row) != len(self.heads) for row in self.rows):
            raise ValueError(f"a row of the table '{self.title}' has another number of cells than there are heads")


def to_terminal(table: Table) -> RichTable:
    """Return a narrow table for `rich`: intervals are below their estimates, and long heads take two lines."""
    from rich.table import Table as Rich
    from rich.text import Text

    grid = Rich(title=Text(table.title), title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for i, head in enumerate(table.heads):
        grid.add_column(Text(head.replace(", ", ",\n")), justify="left" if i < table.words else "right", vertical="top")
    for row in table.rows:
        grid.add_row(*(Text(cell.replace(" [", "\n[")) for cell in row))
    return grid


def to_html(table: Table) -> str:
    """Return a table as a ``<table>`` element; numeric cells have the class ``number``."""
    heads = "".join(f'<th scope="col"{_number(table, i)}>{escape(head)}</th>' for i, head in enumerate(table.heads))
    rows = "\n".join(f"<tr>{_cells(table, row)}</tr>" for row in table.rows)
    return (
        f"<table>\n<caption>{escape(table.title)}</caption>\n<thead><tr>{heads}</tr></thead>\n"
        f"<tbody>\n{rows}\n</tbody>\n</table>"
    )


def to_markdown(table: Table) -> str:
    """Return a table in Markdown, with its title as a line above; ``|`` in cells is escaped."""
    marks = ["---" if i < table.words else "---:" for i in range(len(table.heads))]
    lines = [_line(table.heads), _line(marks), *(_line(row) for row in table.rows)]
    return f"**{table.title}**\n\n" + "\n".join(lines) + "\n"


def _number(table: Table, column: int) -> str:
    return "" if column < table.words else ' class="number"'


def _cells(table: Table, row: tuple[str, ...]) -> str:
    first = f'<th scope="row">{escape(row[0])}</th>'
    return first + "".join(f"<td{_number(table, i)}>{escape(cell)}</td>" for i, cell in enumerate(row) if i)


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


@dataclass(frozen=True)
class ArmMeans:
    """An arm's means over the interactions with a selection.

    Attributes:
        arm: the arm's name.
        pings: the number of interactions.
        clients: the number of clients with an interaction.
        by_ping: each metric's mean over interactions, as in the table of 2018; NaN without interactions.
        by_client: each metric's mean over clients of their means, winsorised if the study has ``tails``; NaN without
            clients.
        untrimmed: ``by_client`` without winsorising.
    """

    arm: str
    pings: int
    clients: int
    by_ping: tuple[float, ...]
    by_client: tuple[float, ...]
    untrimmed: tuple[float, ...]


def arm_means(tally: StudyTally, metrics: Sequence[Metric]) -> tuple[ArmMeans, ...]:
    """Return the means of every arm, in the study's order; the metrics must have been counted."""
    return tuple(
        ArmMeans(
            arm=name,
            pings=arm.selections,
            clients=arm.exposed,
            by_ping=tuple(arm.metrics[metric.name].pings.mean for metric in metrics),
            by_client=tuple(arm.metrics[metric.name].clients.mean for metric in metrics),
            untrimmed=tuple(
                (arm.metrics[metric.name].untrimmed or arm.metrics[metric.name]).clients.mean for metric in metrics
            ),
        )
        for name, arm in tally.arms.items()
    )


def means_table(tally: StudyTally, metrics: Sequence[Metric]) -> Table:
    """Return a table with the means of every arm: each metric by ping, then by client."""
    levels = ("ping", "client, winsorised", "client, untrimmed") if tally.tails else ("ping", "client")
    heads = [f"{metric.title}, by {level}" for metric in metrics for level in levels]
    rows = []
    for one in arm_means(tally, metrics):
        columns = (one.by_ping, one.by_client, one.untrimmed)[: len(levels)]
        means = [mean for each in zip(*columns, strict=True) for mean in each]
        rows.append((one.arm, *("-" if mean != mean else f"{mean:.5f}" for mean in means)))
    return Table("Means", ("arm", *heads), tuple(rows))


@dataclass(frozen=True)
class PairPValues:
    """The Mann-Whitney tests of two arms, uncorrected.

    Attributes:
        pair: the arms.
        metrics: the names of the metrics.
        by_ping: log10 p of each metric with one value per ping, as in the table of 2018, valid only if pings are
            independent; NaN for a later outcome, which has no pings.
        by_client: log10 p of each metric with one value per client.
    """

    pair: tuple[str, str]
    metrics: tuple[str, ...]
    by_ping: tuple[float, ...]
    by_client: tuple[float, ...]


def pair_p_values(comparisons: Sequence[Comparison]) -> tuple[PairPValues, ...]:
    """Return the p-values of each pair of arms, in the order of the comparisons."""
    by_pair: dict[tuple[str, str], list[Comparison]] = {}
    for one in comparisons:
        by_pair.setdefault(one.pair, []).append(one)
    return tuple(
        PairPValues(
            pair=pair,
            metrics=tuple(one.metric.name for one in group),
            by_ping=tuple(math.nan if one.pings is None else one.pings.test.log10_p for one in group),
            by_client=tuple(one.clients.test.log10_p for one in group),
        )
        for pair, group in by_pair.items()
    )


def p_value_table(comparisons: Sequence[Comparison]) -> Table:
    """Return a table of p-values with a row per pair of arms; all pairs are compared by the same metrics."""
    titles = dict.fromkeys(one.metric.title for one in comparisons)
    heads = [f"{title}, by {level}" for title in titles for level in ("ping", "client")]
    rows = []
    for one in pair_p_values(comparisons):
        logarithms = [log10_p for both in zip(one.by_ping, one.by_client, strict=True) for log10_p in both]
        rows.append((" vs. ".join(one.pair), *("-" if each != each else p_text(each) for each in logarithms)))
    return Table("p-values, not corrected", ("arms compared", *heads), tuple(rows))
