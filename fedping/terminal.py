"""Terminal functions of commands: the console for output, progress, and the signals that stop a command."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from fedping.server_jobs.schedule import WallClock


class Plain(TypedDict):
    """See :data:`AS_IT_IS`."""

    markup: bool
    emoji: bool


WIDTH_OF_A_FILE = 120
"""Width of output that does not go to a terminal, in columns."""

AS_IT_IS: Plain = {"markup": False, "emoji": False}
"""Options of a console that prints texts unchanged: "[iid]" in a name is not markup, ":star:" not an emoji."""


def console() -> Console:
    """Return the console of the terminal, or one of fixed width if the output goes to a file."""
    from rich.console import Console

    terminal = Console(**AS_IT_IS)
    return terminal if terminal.is_terminal else Console(width=WIDTH_OF_A_FILE, **AS_IT_IS)


@contextmanager
def status(first: str) -> Iterator[Callable[[str], None]]:
    """Show a line with a spinner on a terminal's stderr; yield a function that replaces the line.

    With ``FEDPING_PROGRESS=lines`` each text is a separate line on stderr instead, for a program that shows them.
    """
    from rich.console import Console
    from rich.text import Text

    if os.environ.get("FEDPING_PROGRESS") == "lines":
        click.echo(first, err=True)
        yield lambda text: click.echo(text, err=True)
        return
    console = Console(stderr=True, **AS_IT_IS)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(Text(first)) as shown:
        yield lambda text: shown.update(Text(text))


@contextmanager
def bars(before: str, behind: str | None = None) -> Iterator[Progress]:
    """Show bars on a terminal's stderr; without a terminal, show no progress.

    Args:
        before: the text before a bar; fields of its task in braces.
        behind: the text after a bar, after the completed and total numbers; None for only the percentage.
    """
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True, **AS_IT_IS)
    if behind is None:
        amount: tuple[progress.ProgressColumn, ...] = (progress.TaskProgressColumn(),)
    else:
        amount = (progress.MofNCompleteColumn(), progress.TextColumn(behind, markup=False))
    times = (progress.TimeElapsedColumn(), progress.TextColumn("left:"), progress.TimeRemainingColumn())
    columns = (progress.TextColumn(before, markup=False), progress.BarColumn(), *amount, *times)
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        yield shown


@contextmanager
def stopped_by_signals(clock: WallClock) -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end the clock's waits in the block; a second Ctrl-C interrupts at once."""

    def stop(number: int, _: object) -> None:
        if clock.stopping and number == signal.SIGINT:
            raise KeyboardInterrupt
        clock.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
