"""Landed pings in a bucket: every operation does the same with S3, Google Cloud Storage and Azure."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from fedping.protocol import object_storage
from fedping.protocol.location import child, place_of
from fedping.protocol.object_storage import BUCKETS
from tests.support.object_server import SCHEMES, Bucket, bucket_of


@pytest.fixture(params=SCHEMES)
def bucket(request: pytest.FixtureRequest, object_servers: Callable[[str], str]) -> Iterator[Bucket]:
    with bucket_of(object_servers(request.param), request.param) as made:
        yield made


def test_what_is_written_is_read_written_again_listed_and_removed(bucket: Bucket) -> None:
    folder = place_of(f"{bucket.url}/landing")
    file = child(folder, "study=a/1.parquet")
    assert not BUCKETS.exists(file)
    BUCKETS.write(file, [b"0123", b"456789"])
    assert BUCKETS.exists(file)
    assert BUCKETS.exists(folder)
    assert BUCKETS.size(file) == 10
    with BUCKETS.opened(file) as opened:
        assert bytes(opened.read(2, 3)) == b"234"
    found, size = BUCKETS.tail(file, 4)
    assert (bytes(found), size) == (b"6789", 10)
    BUCKETS.write_again(file, [b"abc"])
    found, size = BUCKETS.tail(file, 64)
    assert (bytes(found), size) == (b"abc", 3)
    assert dict(BUCKETS.tree(folder)) == {"study=a": ["1.parquet"]}
    assert BUCKETS.folders(folder) == ["study=a"]
    BUCKETS.write_note(child(folder, "_note"), b"1")
    assert BUCKETS.read_note(child(folder, "_note"), 1) == b"1"
    assert BUCKETS.read_note(child(folder, "_note"), 0) is None
    BUCKETS.remove(file)
    BUCKETS.remove(file)
    assert not BUCKETS.exists(file)
    with pytest.raises(FileNotFoundError):
        BUCKETS.write_again(file, [b"abc"])


PART = 5 * 2**20
"""The smallest part that the services take."""


@pytest.mark.parametrize("kind", ["", "error", "slow_down", "reset", "lost", "cut"])
def test_a_large_file_is_written_in_parts_and_is_there_whole_or_not_at_all(
    kind: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_storage, "PART_BYTES", PART)
    data = np.random.default_rng(1).bytes(2 * PART + 12_345)
    file = place_of(f"{bucket.url}/landing/1.parquet")
    before = bucket.seen()
    if kind:
        bucket.faults(kind, share=0.4, seed=3, most=6)
    BUCKETS.write(file, [data[:PART], data[PART:]])
    assert not kind or bucket.seen()["failed"]
    bucket.well()
    with BUCKETS.opened(file) as opened:
        assert bytes(opened.read(0, len(data))) == data
    assert bucket.seen()["PUT"] - before["PUT"] >= 3
