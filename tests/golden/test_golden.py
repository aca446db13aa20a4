"""Documents written by earlier programs are read, continued and recomputed as by those programs."""

import json
from pathlib import Path

import pytest

from tests.golden.frozen import (
    CLOSE,
    CLOSELY,
    EXCEPTIONS,
    FROZEN,
    GOLDEN,
    ON_SPARK,
    differences,
    reader,
    unexcepted,
    unpack,
)


@pytest.mark.parametrize("name", [name for name in GOLDEN if name not in ON_SPARK])
def test_a_golden_document_is_read_and_goes_on_as_it_did(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.spark
@pytest.mark.usefixtures("warm_commands")
@pytest.mark.parametrize("name", sorted(ON_SPARK))
def test_a_golden_document_is_read_with_spark_as_it_was(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


def check(name: str, tmp_path: Path) -> None:
    documents, expected = unpack(name, tmp_path)
    found = json.loads(json.dumps(reader(name)(documents)))
    close = CLOSE if name in CLOSELY else 0.0
    told = unexcepted(name, differences(expected, found, close=close))
    assert not told, "\n".join(f"{place} {words}" for place, words in told.items())


def test_every_golden_document_is_in_the_table() -> None:
    assert {path.name.removesuffix(".tar.gz") for path in FROZEN.iterdir()} == set(GOLDEN)
    assert {name for name, _ in EXCEPTIONS} <= set(GOLDEN)
    assert all(EXCEPTIONS.values())
