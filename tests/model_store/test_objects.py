"""A store in a bucket keeps all guarantees of a store in a folder, under all network faults."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fedping.model_store.documents import Documents
from fedping.model_store.store import open_store, store_at
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.location import Bucket as Place
from fedping.protocol.location import place_of
from fedping.protocol.object_store import LONGEST_PATIENCE, PATIENCE_VARIABLE, StorageAway, _reason, connection
from tests.support import azurite, forked
from tests.support.effort import few_or_all
from tests.support.object_server import SCHEMES, Bucket, bucket_of, environment


@pytest.fixture(params=SCHEMES)
def service(request: pytest.FixtureRequest, object_servers: Callable[[str], str]) -> tuple[str, str]:
    """Give the address and the scheme of a server of S3, Google Cloud Storage or Azure."""
    return object_servers(request.param), request.param


def only(*schemes: str) -> pytest.MarkDecorator:
    """Run a test only with these services, if the service makes no difference or others can't do it."""
    return pytest.mark.parametrize("service", schemes, indirect=True)


@pytest.fixture
def bucket(service: tuple[str, str]) -> Iterator[Bucket]:
    with bucket_of(*service) as made:
        yield made


def blobs_in(bucket: Bucket, folder: str = "some/folder") -> Documents:
    place = place_of(f"{bucket.url}/{folder}")
    assert isinstance(place, Place)
    return store_at(place).documents


def test_blobs_in_a_bucket_do_what_files_do(bucket: Bucket, tmp_path: Path) -> None:
    check_what_blobs_do(store_at(tmp_path).documents)
    check_what_blobs_do(blobs_in(bucket))
    check_what_blobs_do(blobs_in(bucket, "größer & kleiner/a b+c=d"))


def check_what_blobs_do(blobs: Documents) -> None:
    assert blobs.read("a/b/1.json") is None
    assert blobs.stamp("a/b/1.json") is None
    assert blobs.names("a") == []
    blobs.delete("a/b/1.json")
    assert blobs.create("a/b/1.json", b"one")
    assert not blobs.create("a/b/1.json", b"two")
    assert blobs.read("a/b/1.json") == b"one"
    first = blobs.stamp("a/b/1.json")
    assert first is not None
    assert first[-1] == 3
    assert blobs.stamp("a/b/1.json") == first
    blobs.replace("a/b/1.json", b"six")
    assert blobs.stamp("a/b/1.json") != first
    blobs.replace("a/c.json", b"")
    assert blobs.read("a/c.json") == b""
    assert blobs.create("a/.hidden", b"x")
    assert [*blobs.folders("a"), *(name for name in blobs.names("a") if "." in name)] == ["b", "c.json"]
    assert blobs.names("a/b") == ["1.json"]
    assert blobs.folders() == ["a"]
    blobs.check_writing()
    assert blobs.folders() == ["a"]
    blobs.delete("a/b/1.json")
    blobs.delete("a/b/1.json")
    assert blobs.names("a/b") == []


def test_stores_in_one_bucket_do_not_see_each_other(bucket: Bucket) -> None:
    one, other = blobs_in(bucket, "one"), blobs_in(bucket, "one/more")
    one.replace("k", b"1")
    assert other.read("k") is None
    assert other.names("") == []


def test_the_mark_of_a_folder_is_no_name_in_it(bucket: Bucket) -> None:
    """Web consoles create such an object, which would be reported as a stray file that can't be found."""
    blobs = blobs_in(bucket, "some")
    blobs.replace("a/b/1.json", b"1")
    for folder in ("some", "some/a", "some/a/b"):
        bucket.put(f"{folder}/")
    assert (blobs.folders(), blobs.folders("a"), blobs.names("a/b")) == (["a"], ["b"], ["1.json"])
    assert blobs.names("") == blobs.names("a") == []


def test_of_64_writers_at_once_one_wins(bucket: Bucket) -> None:
    blobs = blobs_in(bucket)
    ready = threading.Barrier(64)

    def write(number: int) -> int | None:
        ready.wait()
        return number if blobs.create("versions/1.json", str(number).encode()) else None

    with ThreadPoolExecutor(64) as writers:
        winners = [number for number in writers.map(write, range(64)) if number is not None]
    assert len(winners) == 1
    assert blobs.read("versions/1.json") == str(winners[0]).encode()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["slow_down", "error", "throttled", "reset", "lost", "cut"])
def test_what_fails_in_passing_is_tried_again(bucket: Bucket, kind: str) -> None:
    """While three in ten requests fail, each key is created once, by the reported writer, and read completely."""
    blobs, keys = blobs_in(bucket), few_or_all(2, 5)
    bucket.faults(kind, share=0.3, seed=18)
    before = bucket.seen()["failed"]
    for number in range(keys):
        assert blobs.create(f"k/{number}", b"mine" * 100)
        assert not blobs.create(f"k/{number}", b"theirs")
        assert blobs.read(f"k/{number}") == b"mine" * 100
        blobs.replace(f"r/{number}", b"x" * number)
        assert blobs.stamp(f"r/{number}") is not None
    assert len(blobs.names("k")) == keys
    assert bucket.seen()["failed"] > before
    bucket.well()
    assert [blobs.read(f"r/{number}") for number in range(keys)] == [b"x" * number for number in range(keys)]


def test_who_lost_the_answer_to_a_create_knows_that_it_won(bucket: Bucket) -> None:
    blobs = blobs_in(bucket)
    bucket.faults("lost", method="PUT", most=1)
    assert blobs.create("mine", b"1")
    assert blobs.create("theirs", b"2")
    bucket.faults("lost", method="PUT", most=1)
    assert not blobs.create("theirs", b"1")
    assert blobs.read("theirs") == b"2"


def test_a_create_that_came_to_nothing_is_repeated(bucket: Bucket) -> None:
    """The library doesn't repeat it, because it can't know who wrote the object that it finds on the second attempt."""
    blobs = blobs_in(bucket)
    for kind in ("reset", "conflict") if bucket.scheme == "s3" else ("reset",):
        before = bucket.seen()["failed"]
        bucket.faults(kind, method="PUT", most=3)
        assert blobs.create(kind, b"1")
        assert bucket.seen()["failed"] >= before + 3
        assert blobs.read(kind) == b"1"


@only("s3")
def test_a_conflict_that_stays_is_told_as_one(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.3")
    bucket.faults("conflict", method="PUT")
    with pytest.raises(FedpingError, match=r"cannot write .*\(ConditionalRequestConflict: another writer may be"):
        blobs_in(bucket).create("k", b"1")


def test_a_large_object_is_written_in_one_request(bucket: Bucket) -> None:
    """After an upload in parts, the remains of a killed upload would be invisible and cost money."""
    blobs, data = blobs_in(bucket), os.urandom(12_000_000)
    before = bucket.seen()
    blobs.replace("large", data)
    assert blobs.create("larger", data)
    after = bucket.seen()
    assert (after["PUT"] - before.get("PUT", 0), after.get("POST", 0)) == (2, before.get("POST", 0))
    assert blobs.read("large") == blobs.read("larger") == data


@pytest.mark.thorough
def test_a_list_of_many_pages_is_whole(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 and Google return a thousand names in an answer, Azure five thousand."""
    monkeypatch.setenv(PATIENCE_VARIABLE, "300")  # for a service on a busy machine
    blobs = blobs_in(bucket)
    many = {"s3": few_or_all(11, 1001), "gs": 1001, "az": few_or_all(11, 5001)}[bucket.scheme]
    with ThreadPoolExecutor(16) as writers:
        list(writers.map(lambda number: blobs.replace(f"versions/{number}.json", b"1"), range(many)))
    before = bucket.seen()["GET"]
    assert sorted(blobs.names("versions")) == sorted(f"{number}.json" for number in range(many))
    assert bucket.seen()["GET"] - before == (2 if many > 1000 else 1)


@only("s3")
def test_tries_last_longer_than_the_longest_patience(bucket: Bucket) -> None:
    """Checks the settings passed to the library; :func:`test_only_time_ends_the_tries` waits for real."""
    given = connection(place_of(f"{bucket.url}/tries")).retry_config  # type: ignore[arg-type]
    assert given is not None
    shortest = given["backoff"]["init_backoff"]
    assert given["max_retries"] * shortest > timedelta(seconds=LONGEST_PATIENCE)


@pytest.mark.long
@only("s3")
def test_only_time_ends_the_tries(monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> None:
    """An earlier limit of 20 attempts ended after five seconds without a listener, for any timeout."""
    monkeypatch.setenv(PATIENCE_VARIABLE, "8")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(FedpingError, match="cannot list"):
        blobs_in(bucket, "patient").names("")
    assert time.monotonic() - began > 7


@only("s3")
def test_ctrl_c_ends_the_wait_for_a_dead_endpoint(bucket: Bucket) -> None:
    environment = {**os.environ, PATIENCE_VARIABLE: "300", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "fedping", "study", "list", "--store", bucket.url]
    with forked.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=240)
    assert process.returncode != 0
    assert "interrupted" in told
    assert "Traceback" not in told


MAY = r"give credentials that may, and have not expired, by the environment\Z"
CLOCK = r"this machine's clock is wrong: set it, by NTP, say\Z"
OTHERS = r"correct the endpoint, region or credentials in the environment if it stays so\Z"

STAYS_WRONG = [
    ("s3", "denied", "AccessDenied", MAY),
    ("gs", "denied", "AccessDenied", MAY),
    ("az", "denied", "AuthorizationPermissionMismatch", MAY),
    ("s3", "expired", "ExpiredToken", MAY),
    ("gs", "expired", "AuthenticationRequired", MAY),
    ("az", "expired", "AuthenticationFailed", MAY),
    ("s3", "skewed", "RequestTimeTooSkewed", CLOCK),
    ("az", "skewed", "AuthenticationFailed", CLOCK),
    ("s3", "slow_down", "SlowDown", OTHERS),
    pytest.param("gs", "throttled", "SlowDown", OTHERS, marks=pytest.mark.long),
    pytest.param("az", "slow_down", "ServerBusy", OTHERS, marks=pytest.mark.long),
    ("s3", "elsewhere", "", r"incorrectly configured region\); " + OTHERS),
]


@pytest.mark.parametrize(("service", "kind", "code", "remedy"), STAYS_WRONG, indirect=["service"])
def test_what_stays_wrong_is_one_sentence(
    bucket: Bucket, kind: str, code: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.3")
    blobs = blobs_in(bucket)
    bucket.faults(kind)
    attempts = (
        lambda: blobs.create("k", b"1"),
        lambda: blobs.replace("k", b"1"),
        lambda: blobs.read("k"),
        lambda: blobs.stamp("k"),
        lambda: blobs.names(""),
        blobs.check_writing,
    )
    for attempt in attempts:
        with pytest.raises(FedpingError) as told:
            attempt()
        assert "\n" not in str(told.value)
        assert "Debug" not in str(told.value)
        if attempt is not attempts[3]:  # the answer to HEAD has no body, and so no code
            told.match(rf"cannot .* in the object store \({code}")
            told.match(remedy)


def test_a_bucket_that_does_not_exist_is_told(bucket: Bucket) -> None:
    code = "ContainerNotFound" if bucket.scheme == "az" else "NoSuchBucket"
    blobs = store_at(Place(bucket.scheme, "no-such-bucket")).documents
    for attempt in (
        lambda: blobs.create("k", b"1"),
        lambda: blobs.replace("k", b"1"),
        lambda: blobs.read("k"),
        lambda: blobs.names(""),
    ):
        with pytest.raises(FedpingError, match=rf"{code}.*'no-such-bucket' does not exist"):
            attempt()


ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}


def test_nobody_at_the_endpoint_is_told(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.2")
    monkeypatch.setenv(ENDPOINT[bucket.scheme], "http://127.0.0.1:9")
    with pytest.raises(FedpingError, match=r"cannot list \w\w://test-.* in the object store \(.*" + OTHERS):
        blobs_in(bucket).names("")


@pytest.mark.parametrize(
    ("service", "scheme"), [("s3", "gs"), ("s3", "az"), ("gs", "s3"), ("gs", "az")], indirect=["service"]
)
def test_another_service_at_the_endpoint_is_told(bucket: Bucket, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.2")
    for name, value in environment(bucket.endpoint, scheme).items():
        monkeypatch.setenv(name, value)
    place = Place(scheme, bucket.name, uuid.uuid4().hex)
    for attempt in (lambda: store_at(place).documents.names(""), store_at(place).documents.check_writing):
        with pytest.raises(FedpingError, match=r"cannot \w+ \w\w://test-.* in the object store \(.*\); ") as told:
            attempt()
        assert "\n" not in str(told.value)


WRONG_KEYS = {
    "gs": {"GOOGLE_BEARER_TOKEN": "a-secret"},
    "az": {"AZURE_STORAGE_ACCOUNT_KEY": "YS1zZWNyZXQ="},
}


@only("gs", "az")
def test_a_wrong_key_is_told_and_not_repeated(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto doesn't check keys."""
    for name, value in WRONG_KEYS[bucket.scheme].items():
        monkeypatch.setenv(name, value)
    blobs = blobs_in(bucket, "of/others")
    for attempt in (lambda: blobs.create("k", b"1"), lambda: blobs.read("k"), lambda: blobs.names("")):
        with pytest.raises(FedpingError, match=MAY) as told:
            attempt()
        assert not any(value in str(told.value) for value in WRONG_KEYS[bucket.scheme].values())


@only("az")
def test_a_token_for_an_account_is_enough_until_it_has_expired(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", azurite.ALWAYS)
    blobs = blobs_in(bucket, "by/token")  # except deletions, which azurite can't do by a token, unlike Azure
    assert blobs.create("k", b"1")
    assert not blobs.create("k", b"2")
    blobs.replace("l", b"2")
    assert (blobs.read("k"), sorted(blobs.names(""))) == (b"1", ["k", "l"])
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", azurite.account_sas(datetime.now(UTC) - timedelta(minutes=1)))
    connection.cache_clear()
    expired = blobs_in(bucket, "expired")
    for attempt in (lambda: expired.create("k", b"1"), lambda: expired.read("k"), lambda: expired.names("")):
        with pytest.raises(FedpingError, match=MAY) as told:
            attempt()
        assert "sig" not in str(told.value)


@only("az")
def test_the_emulator_needs_no_keys(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment(bucket.endpoint, "az"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", bucket.endpoint)
    check_what_blobs_do(blobs_in(bucket, "emulated"))


@pytest.mark.parametrize(
    ("scheme", "variables"),
    [
        ("az", {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=a;AccountKey=a-secret"}),
        ("az", {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "a-secret!"}),
        ("gs", {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"private_key": "a-secret"'}),
        ("gs", {"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere/a-file.json"}),
    ],
)
def test_credentials_that_cannot_be_read_are_told_and_not_repeated(
    scheme: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSettings, match=r"cannot be opened .*the environment") as told:
        store_at(Place(scheme, "some-bucket", uuid.uuid4().hex)).documents.names("")
    assert "secret" not in str(told.value)
    assert "\n" not in str(told.value)


@only("s3", "gs")
def test_a_store_without_conditional_writes_is_refused(bucket: Bucket) -> None:
    bucket.faults("deaf")
    with pytest.raises(FedpingError, match=r"has no conditional writes .* Use one that has them"):
        blobs_in(bucket).check_writing()
    assert blobs_in(bucket, "").names("") == ["some"] or blobs_in(bucket).names("") == []


@pytest.mark.parametrize("said", ["-1", "x", "nan", "1e9"])
@only("s3")
def test_an_odd_patience_is_refused(said: str, monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, said)
    with pytest.raises(InvalidSettings, match="Set 0 to 300"):
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
        "s3://KEYID:secret/bucket",
        "az://account;AccountKey=secret/container",
        "s3://bucket/x%3Fsig=secret",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(said: str) -> None:
    with pytest.raises(InvalidSettings, match="has a name, a password or a token in it") as told:
        place_of(said)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("scheme", "name", "said"),
    [
        ("s3", "AWS_SESSION_TOKEN", "secret\n"),
        ("s3", "AWS_ACCESS_KEY_ID", " secret"),
        ("gs", "GOOGLE_BEARER_TOKEN", "secret\nsecret"),
        ("az", "AZURE_STORAGE_ACCOUNT_KEY", "secret\r\n"),
    ],
)
def test_a_variable_that_no_request_can_hold_is_named_and_not_repeated(
    scheme: str, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, said)
    with pytest.raises(InvalidSettings, match=f"{name} has a line break, or a space at an end") as told:
        open_store(place_of(f"{scheme}://bucket-of-{name.lower().replace('_', '-')}"))
    assert "secret" not in str(told.value)


def test_a_panic_of_the_library_is_an_error(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """The test's exception resembles the library's, which can't be imported."""

    def panics(*_: Any, **__: Any) -> None:
        raise PanicException

    monkeypatch.setattr("obstore.head", panics)
    with pytest.raises(StorageAway, match="its library can't build a request"):
        store_at(place_of(bucket.url)).documents.stamp("x")


@pytest.mark.parametrize(
    "said",
    [
        *("s3://", "s3:///x", "s3://b", "s3://-b-/x", "s3://bucket/a//b", "gs://bucket/../x"),
        *("s3://bucket/a%3Fb", "s3://bucket/a%23b", "s3://bucket/a%2520b", "s3://bucket/100%", "s3://bucket/a%20/b"),
        *("s3://bucket/%ff", "s3://bucket/a%0Ab"),
        *("az://Models", "az://a.b.c", "az://a_container", "az://two--hyphens", "az://ab", f"az://{'a' * 64}"),
    ],
)
def test_an_odd_address_is_refused(said: str) -> None:
    with pytest.raises(InvalidSettings, match=r"(?i)give (s3|gs|az)://"):
        place_of(said)


@pytest.mark.parametrize("said", ["http://user:secret@127.0.0.1:9", "https://host/?sig=secret", "secret", "http://a b"])
@pytest.mark.parametrize(
    ("scheme", "variable"), [*ENDPOINT.items(), ("az", "AZURITE_BLOB_STORAGE_URL"), ("s3", "AWS_ENDPOINT_URL_S3")]
)
def test_an_endpoint_with_a_secret_is_refused_and_not_repeated(
    said: str, scheme: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, said)
    with pytest.raises(InvalidSettings, match=f"{variable} is not an endpoint of an object store. Give") as told:
        store_at(Place(scheme, "some-bucket", uuid.uuid4().hex)).documents.names("")
    assert "secret" not in str(told.value)


def test_a_profile_that_does_not_exist_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(InvalidSettings, match=r"AWS_PROFILE=nobody .*correct its name"):
        store_at(Place("s3", "some-bucket", uuid.uuid4().hex)).documents.names("")


@only("s3")
def test_a_profile_whose_login_has_expired_is_told(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.2")
    login = "sso_start_url=https://login\nsso_region=us-east-1\nsso_account_id=1\nsso_role_name=r\n"
    (tmp_path / "config").write_text(f"[profile sso]\n{login}")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "sso")
    blobs = blobs_in(bucket, "with/login")
    for attempt in (blobs.check_writing, lambda: blobs.read("k"), lambda: blobs.names("")):
        with pytest.raises(FedpingError, match=rf"Token for https://login does not exist\); {MAY}"):
            attempt()


@only("s3")
def test_conditional_puts_that_are_switched_off_are_told(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(FedpingError, match="unset AWS_CONDITIONAL_PUT") as told:
        blobs_in(bucket, "unconditional").check_writing()
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("prolog", ["", '<?xml version="1.0"?>'])
def test_an_answer_is_told_without_what_was_signed(prolog: str) -> None:
    """If a signature doesn't match, S3's answer repeats the whole request, with the session's token."""
    said = f"403: {prolog}<Error><Code>SignatureDoesNotMatch</Code><CanonicalRequest>x-amz-security-token:secret"
    assert _reason(Exception(said)) == "SignatureDoesNotMatch: 403"


def test_an_answer_is_told_without_what_an_address_gives_away() -> None:
    said = "Error performing GET http://me:secret@host:1/b/k?sig=secret - 500"
    assert _reason(Exception(said)) == "Error performing GET http://host:1/b/k - 500"
