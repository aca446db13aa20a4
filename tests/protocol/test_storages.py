"""Storages where another process, a policy or an odd path is in the way."""

from pathlib import Path

import pytest

from fedping.protocol.location import key_in


@pytest.mark.parametrize(
    ("folder", "place", "key"),
    [
        ("/srv/pings", "/srv/pings/study=a/1.parquet", "study=a/1.parquet"),
        ("pings", "pings/1.parquet", "1.parquet"),
        (".", "study=a/1.parquet", "study=a/1.parquet"),
        ("/", "/1.parquet", "1.parquet"),
        ("/srv/pings/", "/srv//pings/./1.parquet", "1.parquet"),
    ],
)
def test_a_key_is_the_path_from_the_folder(folder: str, place: str, key: str) -> None:
    assert key_in(Path(folder), Path(place)) == key


def test_a_place_outside_a_folder_has_no_key() -> None:
    with pytest.raises(ValueError, match="subpath"):
        key_in(Path("/srv/pings"), Path("/srv/pings-of-others/1.parquet"))
