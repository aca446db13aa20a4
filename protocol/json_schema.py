"""Schemas published in `docs/schema/`, derived from the classes that validate messages.

    python -m fedping.protocol.json_schema docs/schema

writes all of them; a test compares the published files with the code.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import msgspec

from fedping.protocol.model import ModelDocument
from fedping.protocol.notes import Notes
from fedping.protocol.ping import FRECENCY_UPDATE, LIST_UPDATE, MODEL_UPDATE, OUTCOME, PRIVATE_UPDATE, DocumentType
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Study

DOCUMENTS: dict[str, type[msgspec.Struct]] = {
    "ping": FRECENCY_UPDATE.ping,
    "batched-ping": FRECENCY_UPDATE.batched,
    "model-ping": MODEL_UPDATE.ping,
    "batched-model-ping": MODEL_UPDATE.batched,
    "private-ping": PRIVATE_UPDATE.ping,
    "batched-private-ping": PRIVATE_UPDATE.batched,
    "list-ping": LIST_UPDATE.ping,
    "batched-list-ping": LIST_UPDATE.batched,
    "outcome-ping": OUTCOME.ping,
    "batched-outcome-ping": OUTCOME.batched,
    "model": ModelDocument,
    "spec": ModelSpec,
    "study": Study,
    "notes": Notes,
}
"""Types of documents, by the name under which their JSON Schema is published."""

LANDED: dict[str, DocumentType] = {
    "landed": FRECENCY_UPDATE,
    "landed-model": MODEL_UPDATE,
    "landed-private": PRIVATE_UPDATE,
    "landed-list": LIST_UPDATE,
    "landed-outcome": OUTCOME,
}
"""Types of pings, by the name under which the Arrow schema of their landed files is published."""

PUBLISHED_NAMES = {"fedping.protocol.encodings.signs.Signs": "fedping.protocol.links.Signs"}
"""Published names of definitions by the class's present place, for classes whose names alone are ambiguous."""

END_OF_PATTERN = r'\\Z"'
"""End of patterns in Python, as JSON. Schemas have ECMAScript patterns, in which $ matches only the end of the text."""


def json_schema(document: str) -> str:
    """Return the JSON Schema (draft 2020-12) of one of :data:`DOCUMENTS`, as indented text."""
    described = _without_indentation(msgspec.json.schema(DOCUMENTS[document]))
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **described}
    text = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"
    for place, published in PUBLISHED_NAMES.items():
        text = text.replace(place, published)
    return text.replace(END_OF_PATTERN, '$"')


def _without_indentation(schema: Any) -> Any:
    """Return a schema whose descriptions, which are docstrings, have no indentation of the source.

    Python's compiler strips it from 3.13 on, and keeps it before; the published schemas are the same for all versions.
    """
    if isinstance(schema, list):
        return [_without_indentation(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        # A property may be named `description`, too; its value is a schema, not a text.
        name: inspect.cleandoc(value)
        if name == "description" and isinstance(value, str)
        else _without_indentation(value)
        for name, value in schema.items()
    }


def schema_text(name: str) -> str:
    """Return the schema published under a name of :data:`DOCUMENTS` or :data:`LANDED`."""
    return arrow_schema_text(LANDED[name]) if name in LANDED else json_schema(name)


def arrow_schema_text(document: DocumentType) -> str:
    """Return the Arrow schema of a landed file, one column per line: name, type, and whether it may be null."""
    from fedping.protocol.arrow import landed_schema

    schema = landed_schema(document)
    rows = (f"{f.name:<48} {f.type!s:<58} {'nullable' if f.nullable else 'required'}" for f in schema)
    return "\n".join(rows) + "\n"


def write_schemas(folder: Path) -> None:
    """Write every schema into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOCUMENTS:
        (folder / f"{name}.json").write_text(json_schema(name))
    for name in LANDED:
        (folder / f"{name}.txt").write_text(arrow_schema_text(LANDED[name]))


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
