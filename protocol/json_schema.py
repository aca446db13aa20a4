"""The JSON Schemas that are published in `docs/schema/`, derived from the same classes that validate.

    python -m protocol.json_schema docs/schema

writes them all; a test holds that what is published is what the code says.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from protocol.model import ModelDocument
from protocol.ping import BatchedPing, Ping
from protocol.spec import ModelSpec
from protocol.study import Study

DOCUMENTS: dict[str, type[msgspec.Struct]] = {
    "ping": Ping,
    "batched-ping": BatchedPing,
    "model": ModelDocument,
    "spec": ModelSpec,
    "study": Study,
}


def json_schema(document: str) -> str:
    """Return the JSON Schema (draft 2020-12) of one of :data:`DOCUMENTS`, as indented text."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(DOCUMENTS[document])}
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"


def arrow_schema_text() -> str:
    """Return the Arrow schema of a landed file, one column a line: name, type, and whether it may be null."""
    from protocol.arrow import landed_schema

    rows = (f"{f.name:<48} {f.type!s:<58} {'nullable' if f.nullable else 'required'}" for f in landed_schema())
    return "\n".join(rows) + "\n"


def write_schemas(folder: Path) -> None:
    """Write every schema into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOCUMENTS:
        (folder / f"{name}.json").write_text(json_schema(name))
    (folder / "landed.txt").write_text(arrow_schema_text())


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
