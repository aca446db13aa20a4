"""Storages where another process, a policy or an odd path is in the way."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import obstore
import pytest
from obstore.exceptions import PreconditionError

from fedping.protocol.local_files import make_folder
from fedping.protocol.location import Bucket, key_in
from fedping.protocol.object_store import StorageAway
from fedping.protocol.storage import BucketStorage, FolderStorage, bucket, folder


@pytest.mark.parametrize(
    ("above", "place", "key"),
    [
        ("/srv/pings", "/srv/pings/study=a/1.parquet", "study=a/1.parquet"),
        ("pings", "pings/1.parquet", "1.parquet"),
        (".", "study=a/1.parquet", "study=a/1.parquet"),
        ("/", "/1.parquet", "1.parquet"),
        ("/srv/pings/", "/srv//pings/./1.parquet", "1.parquet"),
    ],
)
def test_a_key_is_the_path_from_the_folder(above: str, place: str, key: str) -> None:
    assert key_in(Path(above), Path(place)) == key


def test_a_place_outside_a_folder_has_no_key() -> None:
    with pytest.raises(ValueError, match="subpath"):
        key_in(Path("/srv/pings"), Path("/srv/pings-of-others/1.parquet"))


@pytest.mark.parametrize(
    "request_of",
    [
        lambda there: there.write("a.json", [b"{}"]),
        lambda there: there.read("a.json"),
        lambda there: there.stamp("a.json"),
        lambda there: there.files(""),
        lambda there: there.remove("a.json"),
    ],
)
@pytest.mark.parametrize("served", [True, False])
def test_a_policy_that_refuses_by_a_412_is_reported(
    monkeypatch: pytest.MonkeyPatch, request_of: Callable[[BucketStorage], object], served: bool
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise PreconditionError("Server returned non-2xx status code: 412: orgpolicy conditionNotMet")

    for name in ("put", "get", "head", "delete", "list_with_delimiter"):
        monkeypatch.setattr(obstore, name, refuse)
    monkeypatch.setattr(bucket, "connection", lambda place: None)
    there = BucketStorage(Bucket("gs", "pings"), (lambda key: {}) if served else None)
    with pytest.raises(StorageAway, match="conditionNotMet"):
        request_of(there)


@pytest.mark.parametrize("served", [True, False])
def test_a_folder_that_another_process_removes_as_empty_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: bool
) -> None:
    made: list[Path] = []

    def make_and_lose(path: Path, mode: int) -> None:
        make_folder(path, mode)
        made.append(path)
        if len(made) % 3:  # another process removes the last file of the folder
            path.rmdir()

    monkeypatch.setattr(folder, "make_folder", make_and_lose)
    here = FolderStorage(tmp_path, served=served)
    assert here.create("asked/0.msgpack", b"1")
    here.write("held/1.json", [b"2"])
    assert (here.files("asked"), here.files("held")) == (["0.msgpack"], ["1.json"])
    assert len(made) == 6
