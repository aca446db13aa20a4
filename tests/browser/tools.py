"""Node and the browsers that may be on this machine, or a loud line that they are not; and what has landed."""

import re
import shutil
import subprocess
import warnings
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

BROWSER = Path(__file__).parents[2] / "browser"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LEAST_NODE = 20


@cache
def found_node() -> str | None:
    """Return the path of a node that is new enough."""
    path = shutil.which("node")
    if path is None:
        return None
    told = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    number = re.match(r"v(\d+)\.", told)
    return path if number and int(number[1]) >= LEAST_NODE else None


def node() -> str:
    """Return the path of node; skips the test, loudly, where there is none."""
    path = found_node()
    if path is None:
        skip_loudly(f"no node {LEAST_NODE} or newer on this machine: the JavaScript of browser/ is not tested")
    assert path is not None
    return path


def skip_loudly(reason: str) -> None:
    """Skip the test with a line that is seen without asking for it."""
    warnings.warn(f"SKIPPED: {reason}", stacklevel=2)
    pytest.skip(reason)


def landed_rows(landing: Path) -> dict[str, dict[str, Any]]:
    """Return the landed pings by their document ids."""
    files = list(landing.glob("study=*/line=*/iteration=*/*.parquet"))
    table = pa.concat_tables(pq.ParquetFile(file).read() for file in files)
    return {str(UUID(bytes=row["document_id"])): row for row in table.to_pylist()}
