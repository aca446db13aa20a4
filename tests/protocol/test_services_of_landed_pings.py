"""Landed pings in a bucket: every operation does the same with S3, Google Cloud Storage and Azure."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from fedping.protocol.location import place_of
from fedping.protocol.storage import TooLarge, open_storage
from fedping.protocol.storage import bucket as bucket_storage
from tests.support.object_server import SCHEMES, Bucket, bucket_of


@pytest.fixture(params=SCHEMES)
def bucket(request: pytest.FixtureRequest, object_servers: Callable[[str], str]) -> Iterator[Bucket]:
    with bucket_of(object_servers(request.param), request.param) as made:
        yield made


def test_what_is_written_is_read_written_again_listed_and_removed(bucket: Bucket) -> None:
    landing, file = open_storage(place_of(f"{bucket.url}/landing")), "study=a/1.parquet"
    assert not landing.exists(file)
    landing.write(file, [b"0123", b"456789"])
    assert landing.exists(file)
    assert landing.exists("")
    assert (landing.stamp(file) or ())[-1] == 10
    with landing.opened(file) as opened:
        assert bytes(opened.read(2, 3)) == b"234"
    found, size = landing.tail(file, 4)
    assert (bytes(found), size) == (b"6789", 10)
    landing.rewrite(file, [b"abc"])
    found, size = landing.tail(file, 64)
    assert (bytes(found), size) == (b"abc", 3)
    assert dict(landing.tree("")) == {"study=a": ["1.parquet"]}
    assert landing.folders("") == ["study=a"]
    landing.write("_note", [b"1"], durable=False)
    assert landing.read("_note", 1) == b"1"
    with pytest.raises(TooLarge):
        landing.read("_note", 0)
    landing.remove(file)
    landing.remove(file)
    assert not landing.exists(file)
    with pytest.raises(FileNotFoundError):
        landing.rewrite(file, [b"abc"])


PART = 5 * 2**20
"""The minimum part size of the services, in bytes."""


@pytest.mark.parametrize("kind", ["", "error", "slow_down", "reset", "lost", "cut"])
def test_a_large_file_is_written_in_parts_and_is_there_whole_or_not_at_all(
    kind: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_storage, "PART_BYTES", PART)
    data = np.random.default_rng(1).bytes(2 * PART + 12_345)
    landing, file = open_storage(place_of(f"{bucket.url}/landing")), "1.parquet"
    before = bucket.seen()
    if kind:
        bucket.faults(kind, share=0.4, seed=3, most=6)
    landing.write(file, [data[:PART], data[PART:]])
    assert not kind or bucket.seen()["failed"]
    bucket.well()
    with landing.opened(file) as opened:
        assert bytes(opened.read(0, len(data))) == data
    assert bucket.seen()["PUT"] - before["PUT"] >= 3
