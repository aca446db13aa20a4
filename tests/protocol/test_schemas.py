"""What is published in docs/schema is what the code validates."""

from pathlib import Path

import pytest

from protocol.json_schema import DOCUMENTS, arrow_schema_text, json_schema

PUBLISHED = Path(__file__).parents[2] / "docs" / "schema"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_published_json_schema_follows_the_code(document: str) -> None:
    assert (PUBLISHED / f"{document}.json").read_text() == json_schema(document), "run 'make schemas'"


def test_the_published_arrow_schema_follows_the_code() -> None:
    assert (PUBLISHED / "landed.txt").read_text() == arrow_schema_text(), "run 'make schemas'"
