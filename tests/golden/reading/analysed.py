"""Reads a finished study: its verdict, tests and tables, as JSON."""

from pathlib import Path
from typing import Any

from tests.golden.reading.commands import told


def read(folder: Path) -> dict[str, Any]:
    where = ["--store", folder / "store", "--landing", folder / "landing"]
    return {
        "whole": told("analyze", "small", "--metrics", "num_chars_typed,rank_selected,loss", *where),
        "interim": told("analyze", "small", "--interim", "--planned-clients", 400, *where),
    }
