"""A store in a bucket keeps every promise of one in a folder, whatever the network does."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from fedping.model_store.blobs import Blobs, LocalBlobs
from fedping.model_store.objects import ObjectBlobs
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.object_store import PATIENCE_VARIABLE, _reason
from fedping.protocol.place import Bucket as Place
from fedping.protocol.place import place_of
from tests.support.object_server import Bucket, bucket_of, object_server


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with object_server() as address:
        yield address


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with bucket_of(endpoint) as made:
        yield made


def blobs_in(bucket: Bucket, folder: str = "some/folder") -> ObjectBlobs:
    place = place_of(f"{bucket.url}/{folder}")
    assert isinstance(place, Place)
    return ObjectBlobs(place)


@pytest.fixture(params=["folder", "bucket"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "folder":
        return LocalBlobs(tmp_path)
    return blobs_in(request.getfixturevalue("bucket"))


def test_both_kinds_of_blobs_do_the_same(blobs: Blobs) -> None:
    assert blobs.read("a/b/1.json") is None
    assert blobs.sight("a/b/1.json") is None
    assert blobs.names("a") == []
    blobs.delete("a/b/1.json")
    assert blobs.create("a/b/1.json", b"one")
    assert not blobs.create("a/b/1.json", b"two")
    assert blobs.read("a/b/1.json") == b"one"
    first = blobs.sight("a/b/1.json")
    assert first is not None
    assert first[-1] == 3
    assert blobs.sight("a/b/1.json") == first
    blobs.replace("a/b/1.json", b"six")
    assert blobs.sight("a/b/1.json") != first
    blobs.replace("a/c.json", b"")
    assert blobs.read("a/c.json") == b""
    assert blobs.create("a/.hidden", b"x")
    assert sorted(blobs.names("a")) == ["b", "c.json"]
    assert blobs.names("a/b") == ["1.json"]
    assert blobs.names("") == ["a"]
    blobs.check_writing()
    assert blobs.names("") == ["a"]
    blobs.delete("a/b/1.json")
    blobs.delete("a/b/1.json")
    assert blobs.names("a/b") == []


def test_stores_in_one_bucket_do_not_see_each_other(bucket: Bucket) -> None:
    one, other = blobs_in(bucket, "one"), blobs_in(bucket, "one/more")
    one.replace("k", b"1")
    assert other.read("k") is None
    assert other.names("") == []


def test_the_mark_of_a_folder_is_no_name_in_it(bucket: Bucket) -> None:
    """Web consoles make such an object; it would be told as a stray file that nobody finds."""
    blobs = blobs_in(bucket, "some")
    blobs.replace("a/b/1.json", b"1")
    for folder in ("some", "some/a", "some/a/b"):
        requests.put(f"{bucket.endpoint}/{bucket.url.removeprefix('s3://')}/{folder}/", timeout=60).raise_for_status()
    assert (blobs.names(""), blobs.names("a"), blobs.names("a/b")) == (["a"], ["b"], ["1.json"])


@pytest.mark.parametrize("blobs", ["bucket"], indirect=True)
def test_of_64_writers_at_once_one_wins(blobs: Blobs) -> None:
    ready = threading.Barrier(64)

    def write(number: int) -> int | None:
        ready.wait()
        return number if blobs.create("versions/1.json", str(number).encode()) else None

    with ThreadPoolExecutor(64) as writers:
        winners = [number for number in writers.map(write, range(64)) if number is not None]
    assert len(winners) == 1
    assert blobs.read("versions/1.json") == str(winners[0]).encode()


@pytest.mark.parametrize("kind", ["slow_down", "error", "throttled", "reset", "lost", "cut"])
def test_what_fails_in_passing_is_tried_again(bucket: Bucket, kind: str) -> None:
    """Of 9 keys each is created once, by whom it says, and read whole, while three in ten requests fail."""
    blobs = blobs_in(bucket)
    bucket.faults(kind, share=0.3, seed=18)
    before = bucket.seen().get("failed", 0)
    for number in range(9):
        assert blobs.create(f"k/{number}", b"mine" * 100)
        assert not blobs.create(f"k/{number}", b"theirs")
        assert blobs.read(f"k/{number}") == b"mine" * 100
        blobs.replace(f"r/{number}", b"x" * number)
        assert blobs.sight(f"r/{number}") is not None
    assert len(blobs.names("k")) == 9
    assert bucket.seen()["failed"] > before
    bucket.well()
    assert [blobs.read(f"r/{number}") for number in range(9)] == [b"x" * number for number in range(9)]


def test_who_lost_the_answer_to_a_create_knows_that_it_won(bucket: Bucket) -> None:
    blobs = blobs_in(bucket)
    bucket.faults("lost", method="PUT", most=1)
    assert blobs.create("mine", b"1")
    assert blobs.create("theirs", b"2")
    bucket.faults("lost", method="PUT", most=1)
    assert not blobs.create("theirs", b"1")
    assert blobs.read("theirs") == b"2"


@pytest.mark.parametrize("kind", ["reset", "conflict"])
def test_a_create_that_came_to_nothing_is_repeated(bucket: Bucket, kind: str) -> None:
    """The library does not: it cannot know whose object it finds the second time."""
    blobs = blobs_in(bucket)
    bucket.faults(kind, method="PUT", most=3)
    assert blobs.create("k", b"1")
    assert bucket.seen()["failed"] >= 3
    assert blobs.read("k") == b"1"


def test_only_time_ends_the_tries(monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> None:
    """20 of them used to, after five seconds where nobody listens, whatever the patience."""
    monkeypatch.setenv(PATIENCE_VARIABLE, "8")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(FedpingError, match="cannot list"):
        blobs_in(bucket, "patient").names("")
    assert time.monotonic() - began > 7


def test_ctrl_c_ends_the_wait_for_a_dead_endpoint(bucket: Bucket) -> None:
    environment = {**os.environ, PATIENCE_VARIABLE: "60", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "fedping", "study", "list", "--store", bucket.url]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert time.monotonic() - began < 3
    assert process.returncode != 0
    assert "interrupted" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("denied", r"cannot .* in the object store \(AccessDenied.*\); give credentials that may, and"),
        ("expired", r"cannot .* in the object store \(ExpiredToken.*\); give credentials that may, and"),
        ("slow_down", r"cannot .* in the object store \(SlowDown.*\); correct the endpoint, region or credentials"),
    ],
)
def test_what_stays_wrong_is_one_sentence(
    bucket: Bucket, kind: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.3")
    blobs = blobs_in(bucket)
    bucket.faults(kind)
    attempts = (
        lambda: blobs.create("k", b"1"),
        lambda: blobs.replace("k", b"1"),
        lambda: blobs.read("k"),
        lambda: blobs.sight("k"),
        lambda: blobs.names(""),
        blobs.check_writing,
    )
    for attempt in attempts:
        with pytest.raises(FedpingError) as told:
            attempt()
        assert "\n" not in str(told.value)
        assert "Debug" not in str(told.value)
        if attempt is not attempts[3]:  # the answer to HEAD has no body, and so no code
            told.match(sentence)


def test_a_bucket_that_does_not_exist_is_told(endpoint: str) -> None:
    with bucket_of(endpoint):
        blobs = ObjectBlobs(Place("s3", "no-such-bucket"))
        for attempt in (lambda: blobs.create("k", b"1"), lambda: blobs.read("k"), lambda: blobs.names("")):
            with pytest.raises(FedpingError, match=r"NoSuchBucket.*there is no 'no-such-bucket': make it first"):
                attempt()


def test_nobody_at_the_endpoint_is_told(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.2")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(FedpingError, match=r"cannot list s3://test-.* in the object store \(.*correct the endpoint"):
        blobs_in(bucket).names("")


def test_a_store_without_conditional_writes_is_refused(bucket: Bucket) -> None:
    bucket.faults("deaf")
    with pytest.raises(FedpingError, match=r"has no conditional writes .* use one that has them"):
        blobs_in(bucket).check_writing()
    assert blobs_in(bucket, "").names("") == ["some"] or blobs_in(bucket).names("") == []


@pytest.mark.parametrize("said", ["-1", "x", "nan", "1e9"])
def test_an_odd_patience_is_refused(said: str, monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, said)
    with pytest.raises(InvalidSettings, match="give 0 to 300"):
        blobs_in(bucket).names("")


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("s3://bucket", Place("s3", "bucket")),
        ("S3://bucket/", Place("s3", "bucket")),
        (" s3://bucket/a\n", Place("s3", "bucket", "a")),
        ("gs://bucket/a/b/", Place("gs", "bucket", "a/b")),
        ("az://container/a%20b", Place("az", "container", "a b")),
        ("store", Path("store")),
        ("file:///srv/store", Path("/srv/store")),
    ],
)
def test_a_place_is_a_path_or_a_bucket(said: str, place: Path | Place) -> None:
    assert place_of(said) == place
    assert place_of(str(place)) == place


@pytest.mark.parametrize(
    "said",
    [
        "s3://key:secret@bucket/x",
        "s3://secret@bucket",
        "az://container/x?sv=1&sig=secret",
        "gs://bucket/x#secret",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(said: str) -> None:
    with pytest.raises(InvalidSettings, match="has a name, a password or a token in it") as told:
        place_of(said)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    "said",
    [
        *("s3://", "s3:///x", "s3://b", "s3://-b-/x", "s3://bucket/a//b", "gs://bucket/../x"),
        *("s3://bucket/a%3Fb", "s3://bucket/a%23b", "s3://bucket/a%2520b", "s3://bucket/100%", "s3://bucket/a%20/b"),
        *("s3://bucket/%ff", "s3://bucket/a%0Ab"),
    ],
)
def test_an_odd_address_is_refused(said: str) -> None:
    with pytest.raises(InvalidSettings, match=r"give (s3|gs)://"):
        place_of(said)


@pytest.mark.parametrize("said", ["http://user:secret@127.0.0.1:9", "https://host/?sig=secret", "secret", "http://a b"])
def test_an_endpoint_with_a_secret_is_refused_and_not_repeated(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", said)
    with pytest.raises(InvalidSettings, match="AWS_ENDPOINT_URL is no endpoint of an object store; give") as told:
        ObjectBlobs(Place("s3", "some-bucket", uuid.uuid4().hex)).names("")
    assert "secret" not in str(told.value)


def test_a_profile_that_does_not_exist_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(InvalidSettings, match=r"AWS_PROFILE=nobody .*correct its name"):
        ObjectBlobs(Place("s3", "some-bucket", uuid.uuid4().hex)).names("")


@pytest.mark.parametrize("prolog", ["", '<?xml version="1.0"?>'])
def test_an_answer_is_told_without_what_was_signed(prolog: str) -> None:
    """S3 repeats the whole request, with the session's token, where a signature does not match."""
    said = f"403: {prolog}<Error><Code>SignatureDoesNotMatch</Code><CanonicalRequest>x-amz-security-token:secret"
    assert _reason(Exception(said)) == "SignatureDoesNotMatch: 403"
