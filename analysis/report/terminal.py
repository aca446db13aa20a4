"""A verdict on the terminal: the sentence first, then the numbers behind it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from analysis.report.rows import Rows, arm_rows, effect_rows, p_rows, ping_rows, table_notes
from analysis.verdict import Verdict


def print_verdict(verdict: Verdict, console: Console) -> None:
    """Print a verdict; a warning about the arms' sizes comes before everything else."""
    if verdict.ratio.mismatch:
        console.print(Text(verdict.ratio_sentence, style="bold red"))
        console.print()
    console.print(Text(verdict.headline, style="bold"))
    for said, one in zip(verdict.sentences, verdict.comparisons, strict=True):
        mark = Text(" - ", style="dim" if one.finding == "inconclusive" else "bold")
        console.print(mark + Text(said))
    for title, rows in (
        ("Arms (means over clients)", arm_rows(verdict)),
        ("One client, one value: the verdict", p_rows(verdict)),
        ("How large, by client", effect_rows(verdict)),
        ("One ping, one value: for comparison only", ping_rows(verdict)),
    ):
        console.print()
        console.print(_table(title, rows))
    console.print()
    for note in [*table_notes(verdict), *([] if verdict.ratio.mismatch else [verdict.ratio_sentence])]:
        console.print(Text(note, style="dim"))


def _table(title: str, rows: Rows) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for i, head in enumerate(rows.heads):
        table.add_column(head, justify="left" if i < rows.words else "right", vertical="top")
    for row in rows.cells:
        # An interval stands below its estimate, so that three of them fit side by side in 80 columns.
        table.add_row(*(escape(cell.replace(" [", "\n[")) for cell in row))
    return table
