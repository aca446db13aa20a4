"""Finds Node, or skips the test; reads landed pings."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from tests.browser.harness.available import needed

BROWSER = Path(__file__).parents[2] / "browser"


def node() -> str:
    """Return the path of Node; skip the test if none is new enough."""
    return needed("node")


def landed_rows(landing: Path) -> dict[str, dict[str, Any]]:
    """Return the landed pings by their document ids."""
    files = list(landing.glob("study=*/line=*/iteration=*/*.parquet"))
    table = pa.concat_tables(pq.ParquetFile(file).read() for file in files)
    return {str(UUID(bytes=row["document_id"])): row for row in table.to_pylist()}
