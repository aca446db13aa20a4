"""Where answers are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_OF_A_FILE = 120
"""Columns, where the output goes to no terminal."""


def console() -> Console:
    """Return the terminal, or a page of fixed width where the output goes to a file."""
    from rich.console import Console

    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=WIDTH_OF_A_FILE)
