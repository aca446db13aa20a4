"""Saying on a terminal what a command is doing, and nothing where nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def status(first: str) -> Iterator[Callable[[str], None]]:
    """Show a line beside a spinner on a terminal's stderr; yield a function that replaces the line."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(first) as shown:
        yield lambda text: shown.update(text)
