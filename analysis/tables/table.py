"""A table as text, the same on the terminal, on a page and in Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: what stands above it.
        heads: the columns' heads.
        rows: the cells, as many a row as there are heads.
        words: how many of the first columns are words; the others are numbers and stand to the right.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1

    def __post_init__(self) -> None:
        if any(len(row) != len(self.heads) for row in self.rows):
            raise ValueError(f"a row of the table '{self.title}' has another number of cells than there are heads")


def to_terminal(table: Table) -> RichTable:
    """Return a table for `rich`; intervals stand below their estimates and long heads in two lines, to be narrow."""
    from rich.markup import escape as plain
    from rich.table import Table as Rich

    made = Rich(title=plain(table.title), title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for i, head in enumerate(table.heads):
        made.add_column(
            plain(head.replace(", ", ",\n")), justify="left" if i < table.words else "right", vertical="top"
        )
    for row in table.rows:
        made.add_row(*(plain(cell.replace(" [", "\n[")) for cell in row))
    return made


def to_html(table: Table) -> str:
    """Return a table as a ``<table>`` element; the cells of numbers have the class ``number``."""
    heads = "".join(f'<th scope="col"{_number(table, i)}>{escape(head)}</th>' for i, head in enumerate(table.heads))
    rows = "\n".join(f"<tr>{_cells(table, row)}</tr>" for row in table.rows)
    return (
        f"<table>\n<caption>{escape(table.title)}</caption>\n<thead><tr>{heads}</tr></thead>\n"
        f"<tbody>\n{rows}\n</tbody>\n</table>"
    )


def to_markdown(table: Table) -> str:
    """Return a table in Markdown, its title as a line above; a cell's ``|`` is escaped."""
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
