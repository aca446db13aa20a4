"""The schemas published in docs/schema match the code's validation."""

from pathlib import Path

import pytest

from fedping.protocol.json_schema import DOCUMENTS, LANDED, json_schema, schema_text

PUBLISHED = Path(__file__).parents[2] / "docs" / "schema"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_published_json_schema_follows_the_code(document: str) -> None:
    assert (PUBLISHED / f"{document}.json").read_text() == json_schema(document), "run 'make schemas'"


@pytest.mark.parametrize("document", LANDED)
def test_a_published_arrow_schema_follows_the_code(document: str) -> None:
    assert (PUBLISHED / f"{document}.txt").read_text() == schema_text(document), "run 'make schemas'"
