"""Saying on a terminal what a command is doing, and nothing where nobody watches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def status(first: str) -> Iterator[Callable[[str], None]]:
    """Show a line beside a spinner on a terminal's stderr; yield a function that replaces the line.

    With ``FEDPING_PROGRESS=lines`` each is a line of its own on stderr instead, for a program that shows them.
    """
    from rich.console import Console

    if os.environ.get("FEDPING_PROGRESS") == "lines":
        click.echo(first, err=True)
        yield lambda text: click.echo(text, err=True)
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(first) as shown:
        yield lambda text: shown.update(text)


@contextmanager
def bars(before: str, behind: str | None = None) -> Iterator[Progress]:
    """Show bars on a terminal's stderr, and nothing elsewhere, where what is printed in the end tells enough.

    Args:
        before: what stands before a bar; fields of its task in braces.
        behind: what stands behind it, after how many of how many; the percentage alone if None.
    """
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if behind is None:
        amount: tuple[progress.ProgressColumn, ...] = (progress.TaskProgressColumn(),)
    else:
        amount = (progress.MofNCompleteColumn(), progress.TextColumn(behind))
    times = (progress.TimeElapsedColumn(), progress.TextColumn("left:"), progress.TimeRemainingColumn())
    columns = (progress.TextColumn(before), progress.BarColumn(), *amount, *times)
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        yield shown
