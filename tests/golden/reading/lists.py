"""Reads a shop's store and landing folder: versions, the next round, the served model, and columns of outcomes."""

from pathlib import Path
from typing import Any

import pyarrow as pa

import fedping
from tests.golden.reading import stores
from tests.golden.reading.common import digest


def read(folder: Path) -> dict[str, Any]:
    return {"stores": stores.read(folder), "landed": {
        "lists": _rows(fedping.read_pings(folder / "landing", "shop", line="main")),
        "outcomes": _rows(fedping.read_outcomes(folder / "landing", "shop")),
    }}  # fmt: skip


def _rows(batches: Any) -> dict[str, Any]:
    """Return the columns except the time, with types and digests of values, ordered by document."""
    table = pa.Table.from_batches(list(batches)).sort_by("document_id")
    names = [name for name in table.column_names if name != "received_at"]
    return {
        "rows": table.num_rows,
        **{
            name: [str(table.schema.field(name).type), digest(repr(table[name].to_pylist()).encode())] for name in names
        },
    }
