"""Rounds, ingest and commands over a store in a bucket: as in a folder, also with faults and kills."""

import json
import os
import random
import re
import shlex
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
import requests

from fedping.dashboard.live.decisions import Choice, Decision, decide
from fedping.dashboard.live.history import LineHistory, seen_as
from fedping.main import main
from fedping.model_store import ModelStore, open_store
from fedping.model_store.copying import copy_study
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import open_landing, partition, write_landed
from fedping.protocol.location import place_of
from fedping.protocol.object_store import PATIENCE_VARIABLE, connection
from fedping.protocol.study import Arm, Study
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import Engine, NumpyEngine
from tests.support import forked
from tests.support.dashboard import dashboard_client
from tests.support.effort import few_or_all
from tests.support.ingest_app import PATH, STUDY, make_store
from tests.support.ingest_server import running_ingest
from tests.support.landed import landed_table
from tests.support.object_server import SCHEMES, Bucket, bucket_of
from tests.support.pings import ping_json
from tests.support.processes import wait_until
from tests.support.rounds import WHEN, crowd, land, line_of, store_with
from tests.support.versions import after

ROOT = Path(__file__).parents[2]
CLIENTS, ROUNDS = 20, 3
ODD_NAMES = ("study/", "study//x", "../study", "a//b", "study/../study", ".", "..")


@pytest.fixture(params=["s3"])
def bucket(request: pytest.FixtureRequest, object_servers: Callable[[str], str]) -> Iterator[Bucket]:
    """Make an S3 bucket, or one of each service in tests of all (:data:`of_each_service`)."""
    with bucket_of(object_servers(request.param), request.param) as made:
        yield made


of_each_service = pytest.mark.parametrize("bucket", SCHEMES, indirect=True)
of_s3_and_others_at_length = pytest.mark.parametrize(
    "bucket", ["s3", *(pytest.param(scheme, marks=pytest.mark.long) for scheme in SCHEMES[1:])], indirect=True
)


def small_study() -> Study:
    return Study(
        name="study",
        arms=(Arm(name="treatment", share=1.0, line="main", submits=True),),
        lines=(line_of(2, min_clients=1),),
    )


def landed(folder: Path) -> Path:
    """Land pings for three rounds."""
    for version in range(ROUNDS):
        pings = crowd(CLIENTS, seed=version, version=version, first_document=CLIENTS * version)
        land(folder, pings, iteration=version)
    return folder


def rounds(store: ModelStore, landing: Path, engine: Engine, many: int = ROUNDS) -> None:
    for _ in range(many):
        run_round(store, landing, "study", "main", engine, RoundOptions(clock=lambda: WHEN, code_version="test"))


def digests(store: ModelStore) -> list[str]:
    return [store.version("study", "main", n).digest for n in store.iterations("study", "main")]


def in_a_folder(tmp_path: Path, landing: Path) -> list[str]:
    """Return the digests of the same rounds' versions in a folder."""
    store = store_with(tmp_path / "folder", small_study())
    rounds(store, landing, NumpyEngine())
    assert len(digests(store)) == ROUNDS + 1
    return digests(store)


@of_each_service
def test_a_bucket_gets_the_versions_of_a_folder_and_serves_them(tmp_path: Path, bucket: Bucket) -> None:
    landing = landed(tmp_path / "landing")
    store = store_with(place_of(f"{bucket.url}/models"), small_study())
    rounds(store, landing, NumpyEngine())
    assert digests(store) == in_a_folder(tmp_path, landing)
    newest, numbered = (bucket.get(f"models/study/main/public/{name}.json") for name in ("latest", "2"))
    assert newest.json()["iteration"] == ROUNDS
    assert newest.headers["Cache-Control"] == "no-cache"
    assert newest.headers["Content-Type"] == "application/json"
    assert numbered.json()["iteration"] == 2
    assert "immutable" in numbered.headers["Cache-Control"]


@of_each_service
@pytest.mark.spark
@pytest.mark.long
def test_spark_makes_the_same_versions_in_a_bucket(tmp_path: Path, bucket: Bucket, spark: Any) -> None:
    from fedping.server_jobs.round.spark_engine import SparkEngine

    landing = landed(tmp_path / "landing")
    store = store_with(place_of(bucket.url), small_study())
    rounds(store, landing, SparkEngine(lambda: nullcontext(spark)))
    assert digests(store) == in_a_folder(tmp_path, landing)


def test_the_commands_take_a_bucket(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPING_STORE", f"{bucket.url}/models")
    monkeypatch.setenv("FEDPING_LANDING", str(landed(tmp_path / "landing")))
    assert main(["study", "list"]) == 1
    assert f"there is no model store at {bucket.url}/models; give the store" in capsys.readouterr().err
    store_with(place_of(f"{bucket.url}/models"), small_study())
    for _ in range(ROUNDS):
        assert main(["round", "study", "--engine", "numpy"]) == 0
    for version in range(ROUNDS + 1):
        assert main(["store", "recompute", "study", "main", str(version)]) == 0
    assert main(["store", "rollback", "study", "main", "--to", "1"]) == 0
    assert main(["study", "pause", "study"]) == 0
    assert main(["study", "health", "study"]) in (0, 1)
    capsys.readouterr()
    assert main(["store", "history", "study", "main", "--json"]) == 0
    assert [row["iteration"] for row in json.loads(capsys.readouterr().out)] == list(range(ROUNDS + 2))


@of_each_service
def test_a_study_moves_into_a_bucket_and_back(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    landing = landed(tmp_path / "landing")
    home, away, back = str(tmp_path / "folder"), f"{bucket.url}/away", str(tmp_path / "back")
    made = in_a_folder(tmp_path, landing)
    assert main(["study", "pause", "study", "--store", home]) == 0
    bucket.faults("slow_down", share=0.2, seed=1)
    assert main(["store", "copy", "study", "--store", home, "--to", away]) == 0
    bucket.well()
    assert f"study 'study' is in {away}" in capsys.readouterr().out
    assert main(["store", "copy", "study", "--store", home, "--to", away]) == 0
    assert " 0 of them new" in capsys.readouterr().out
    assert main(["store", "copy", "study", "--store", away, "--to", back]) == 0
    files = sorted(path.relative_to(home) for path in Path(home).rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(back) for path in Path(back).rglob("*") if path.is_file())
    assert all((Path(home) / file).read_bytes() == (Path(back) / file).read_bytes() for file in files)
    for store in (away, back):
        assert open_store(place_of(store)).studies.declared("study").state == "paused"
        assert digests(open_store(place_of(store))) == made
        for version in range(1, ROUNDS + 1):
            again = ["store", "recompute", "study", "main", str(version), "--store", store, "--landing", str(landing)]
            assert main(again) == 0


@pytest.mark.parametrize("is_near", [True, False])
@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_that_no_study_can_have_is_told_in_one_sentence(
    tmp_path: Path, bucket: Bucket, name: str, is_near: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    store, landing = (f"{tmp_path if is_near else bucket.url}/{each}" for each in ("store", "pings"))
    store_with(place_of(store), small_study())
    land(place_of(landing), crowd(CLIENTS))
    stored, both = ["--store", store], ["--store", store, "--landing", landing]
    for command in (
        ["store", "history", name, "main", *stored],
        ["store", "diff", name, "main", "0", *stored],
        ["store", "recompute", name, "main", "1", *both],
        ["store", "rollback", name, "main", "--to", "0", *both],
        ["store", "continue", name, "main", "--from", "9", *both],
        ["store", "copy", name, "--to", str(tmp_path / "copy"), *stored],
        ["landing", "copy", name, "--to", str(tmp_path / "copy"), *both],
        ["round", name, "--engine", "numpy", *both],
        ["study", "show", name, *stored],
        ["study", "history", name, *stored],
        ["study", "pause", name, *stored],
        ["study", "resume", name, *stored],
        ["study", "health", name, *both],
    ):
        assert main(command) == 1, command
        (said,) = capsys.readouterr().err.strip().splitlines()
        assert f"has no study '{name}'; it has study" in said, command


def test_a_copy_that_would_lose_versions_is_refused(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    landing, home = landed(tmp_path / "landing"), str(tmp_path / "folder")
    in_a_folder(tmp_path, landing)
    store_with(place_of(f"{bucket.url}/older"), small_study())
    assert main(["store", "copy", "study", "--store", f"{bucket.url}/older", "--to", home]) == 1
    assert "is at version 3 in" in capsys.readouterr().err
    other = store_with(tmp_path / "other", small_study())
    other.publish(after(other.head("study", "main")))
    assert main(["store", "copy", "study", "--store", str(tmp_path / "other"), "--to", f"{bucket.url}/older"]) == 0
    assert main(["store", "copy", "study", "--store", home, "--to", f"{bucket.url}/older"]) == 1
    assert "differs from" in capsys.readouterr().err


def test_a_copy_that_is_brought_up_to_date_carries_nothing_twice(tmp_path: Path, bucket: Bucket) -> None:
    home, away = store_with(tmp_path / "home", small_study()), open_store(place_of(f"{bucket.url}/a"), create=True)
    (tmp_path / "home" / "study" / "main" / "README").mkdir()  # a user's own folder
    for _ in range(5):
        home.publish(after(home.head("study", "main")))
    copy_study(home, away, "study")
    puts = bucket.seen()["PUT"]
    assert copy_study(home, away, "study").new == 0
    assert bucket.seen()["PUT"] - puts <= 3, "those of the check for conditional writes"


def test_a_history_costs_two_requests_a_version(tmp_path: Path, bucket: Bucket) -> None:
    store = store_with(place_of(bucket.url), small_study())
    for _ in range(8):
        store.publish(after(store.head("study", "main")))
    before = bucket.seen()
    history = LineHistory(place_of(bucket.url), "study", "main")
    assert len(history.look(lambda known: known.page(-1, lambda: False)).rows) == 9
    assert sum(bucket.seen()[each] - before[each] for each in ("GET", "HEAD")) <= 2 * 9 + 10


def test_where_create_would_replace_nothing_is_made_or_copied(tmp_path: Path, bucket: Bucket) -> None:
    home, away = store_with(tmp_path / "home", small_study()), store_with(place_of(bucket.url), small_study())
    bucket.faults("deaf")
    with pytest.raises(FedpingError, match="has no conditional writes"):
        copy_study(home, away, "study")
    with pytest.raises(FedpingError, match="has no conditional writes"):
        store_with(place_of(bucket.url), small_study())
    assert (away.documents.folders(), away.documents.names("")) == (["study"], [])


KILLED = """
import sys
from pathlib import Path
from fedping.model_store import open_store
from fedping.protocol.location import place_of
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.killed_puts import die_at_put

store = open_store(place_of(sys.argv[1]))
die_at_put(int(sys.argv[3]), sys.argv[4])
options = RoundOptions(clock=lambda: "%s", code_version="test")
run_round(store, Path(sys.argv[2]), "study", "main", NumpyEngine(), options)
"""


@pytest.mark.long
@of_s3_and_others_at_length
@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_kills_and_faults_at_once_lose_no_version_and_make_none_twice(tmp_path: Path, bucket: Bucket) -> None:
    """Each round is killed at some of its writes, while one request in ten fails, and then repeated."""
    landing, draws = landed(tmp_path / "landing"), random.Random(18)
    made = in_a_folder(tmp_path, landing)
    kills = 0
    for attempt in range(few_or_all(1, 67)):
        url = f"{bucket.url}/{attempt}"
        store = store_with(place_of(url), small_study())
        for number in range(1, ROUNDS + 1):
            bucket.faults(draws.choice(["slow_down", "lost", "cut", "throttled"]), share=0.1, seed=attempt)
            call = [url, str(landing), str(draws.randrange(1, 4)), draws.choice(["before", "after"])]
            killed = forked.run([sys.executable, "-c", KILLED % WHEN, *call], cwd=ROOT)
            assert killed.returncode in (-signal.SIGKILL, 0)
            kills += killed.returncode != 0
            if store.lines.newest("study", "main") < number:
                rounds(store, landing, NumpyEngine(), 1)
            bucket.well()
            store.public.refresh("study", "main")
            assert bucket.get(f"{attempt}/study/main/public/latest.json").json()["iteration"] == number
        assert digests(store) == made
    assert kills > 0


def post(url: str, version: int = 0) -> int:
    address = f"{url}{PATH}/{uuid.uuid4()}"
    return requests.post(address, json=ping_json(model_version=version), timeout=60).status_code


@pytest.mark.long
def test_ingest_serves_a_bucket_and_takes_pings_while_it_is_away(tmp_path: Path, bucket: Bucket) -> None:
    place = place_of(f"{bucket.url}/models")
    store = make_store(place)
    with running_ingest(place, tmp_path / "landing", "--workers", "1") as ingest:  # type: ignore[arg-type]
        address = f"{ingest.url}/models/{STUDY}/main/latest.json"

        def counted(name: str) -> float:
            page = requests.get(f"http://127.0.0.1:{ingest.operations_port}/metrics", timeout=60).text
            [line] = [each for each in page.splitlines() if each.startswith(f"fedping_ingest_{name} ")]
            return float(line.split()[1])

        assert requests.get(address, timeout=60).json()["iteration"] == 0
        assert post(ingest.url) == 200
        store.publish(after(store.head(STUDY, "main")))
        assert post(ingest.url, version=1) == 200, "a version can be named as soon as it is published"
        assert wait_until(lambda: requests.get(address, timeout=60).json()["iteration"] == 1)
        bucket.faults("error")
        assert [post(ingest.url, version=1) for _ in range(5)] == [200] * 5
        assert requests.get(address, timeout=120).json()["iteration"] == 1, "what was seen is served on"
        assert wait_until(lambda: not ingest.is_well())
        assert counted("pings_accepted_total") == 7, "no study is private, and so none is treated as if it were"
        bucket.well()
        assert wait_until(ingest.is_well)
        assert ingest.flush()["landed"] == 7
        assert counted("pings_landed_total") == 7


@pytest.mark.long
@pytest.mark.parametrize("kind", ["error", "hangs"])
def test_nobody_waits_for_a_bucket_that_is_away(
    kind: str, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients get the last known documents, load balancers get answers, pings land, and the heartbeat fails.

    Requests to the bucket itself are retried for longer than any client here waits.
    """
    monkeypatch.setenv(PATIENCE_VARIABLE, "300")
    place = place_of(bucket.url)
    make_store(place)
    with (
        ThreadPoolExecutor(48) as clients,
        running_ingest(place, tmp_path / "landing", "--workers", "1") as ingest,  # type: ignore[arg-type]
    ):
        newest = f"{ingest.url}/models/{STUDY}/main/latest.json"
        assert requests.get(newest, timeout=60).status_code == 200
        bucket.faults(kind)
        fetched = clients.map(lambda _: requests.get(newest, timeout=60).status_code, range(40))
        unknown = [clients.submit(post, ingest.url, version=7) for _ in range(4)]
        assert requests.get(f"{ingest.url}/__lbheartbeat__", timeout=60).status_code == 200
        assert list(fetched) == [200] * 40
        assert post(ingest.url) == 200
        assert ingest.flush()["landed"] == 1
        assert [one.result() for one in unknown] == [503] * 4
        assert not ingest.is_well()
        assert "fedping_" in requests.get(f"http://127.0.0.1:{ingest.operations_port}/metrics", timeout=60).text
        bucket.well()
        assert wait_until(ingest.is_well)


def test_ingest_over_a_bucket_that_is_not_there_ends_with_a_sentence(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, PATIENCE_VARIABLE: "0.2"}
    for store, sentence in (
        ("s3://no-such-bucket/x", "'no-such-bucket' does not exist. Create it, or correct the address"),
        (f"{bucket.url}/empty", "there is no model store at"),
        ("s3://key:secret@bucket/x", "has a name, a password or a token in it"),
    ):
        command = [sys.executable, "-m", "fedping", "ingest", "--store", store, "--landing", str(tmp_path / "landing")]
        ended = forked.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert ended.returncode != 0
        assert sentence in ended.stderr
        assert "Traceback" not in ended.stderr
        assert "secret" not in ended.stderr


@pytest.mark.parametrize(
    ("bucket", "kind", "sentence"),
    [
        ("s3", "deaf", "has no conditional writes"),
        ("gs", "deaf", "has no conditional writes"),
        ("gs", "kept", "(RetentionPolicyNotMet: "),
        ("az", "kept", "(BlobImmutableDueToPolicy: "),
        *((scheme, "denied", "give credentials that may, and have not expired") for scheme in SCHEMES),
        *((scheme, "expired", "give credentials that may, and have not expired") for scheme in SCHEMES),
        ("s3", "skewed", "this machine's clock is wrong"),
        ("az", "skewed", "this machine's clock is wrong"),
    ],
    indirect=["bucket"],
)
def test_a_round_where_nothing_can_be_published_is_refused(
    kind: str,
    sentence: str,
    tmp_path: Path,
    bucket: Bucket,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.3")
    landing = landed(tmp_path / "landing")
    store = store_with(place_of(bucket.url), small_study())
    bucket.faults(kind, method="PUT")
    asked = ["round", "study", "--engine", "numpy", "--store", bucket.url, "--landing", str(landing)]
    assert main(asked) == 1
    told = capsys.readouterr().err
    assert sentence in told
    assert "Traceback" not in told
    bucket.well()
    assert store.iterations("study", "main") == [0]
    assert main(asked) == 0


@pytest.mark.parametrize("kind", ["error", "hangs"])
@pytest.mark.parametrize("away", ["store", "landing"])
@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_what_may_succeed_later_ends_with_75_when_a_bucket_does_not_answer(
    kind: str,
    away: str,
    tmp_path: Path,
    bucket: Bucket,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = {"store": str(tmp_path / "store"), "landing": str(tmp_path / "landing")} | {away: bucket.url}
    store_with(place_of(places["store"]), small_study())
    landed(place_of(places["landing"]))
    given = [word for name, place in places.items() for word in (f"--{name}", place)]
    asked = {
        "store": ["store", "history", "study", "main", *given[:2]],
        "landing": ["landing", "forget", "0" * 32, "--dry-run", *given],
    }
    round_ = ["round", "study", "--engine", "numpy", *given]
    connection.cache_clear()
    with monkeypatch.context() as impatient:
        impatient.setenv(PATIENCE_VARIABLE, "0.3")
        impatient.setattr("fedping.protocol.object_store.ANSWERS_WITHIN", 1.0)
        bucket.faults(kind)
        for command in (asked[away], round_):
            assert main(command) == 75, command
            told = capsys.readouterr().err
            assert "in the object store" in told
            assert "Traceback" not in told
        bucket.well()
    connection.cache_clear()
    assert main(round_) == 0


def test_nothing_is_rolled_back_where_conditional_writes_are_not_obeyed(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    landing = landed(tmp_path / "landing")
    store = store_with(place_of(bucket.url), small_study())
    rounds(store, landing, NumpyEngine())
    bucket.faults("deaf", method="PUT")
    for asked in (["rollback", "study", "main", "--to", "1"], ["continue", "study", "main", "--from", "9"]):
        assert main(["store", *asked, "--store", bucket.url, "--landing", str(landing)]) == 1
        assert "has no conditional writes" in capsys.readouterr().err
    bucket.well()
    assert store.lines.newest("study", "main") == ROUNDS


@pytest.mark.parametrize("choice", ["release", "discard"])
def test_nothing_is_decided_where_conditional_writes_are_not_obeyed(
    choice: Choice, tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_with(place_of(bucket.url), small_study())
    held = after(store.head("study", "main"))
    store.hold(held)
    bucket.faults("deaf", method="PUT")
    asked = ["round", "study", "main", f"--{choice}", "--store", bucket.url, "--landing", str(tmp_path)]
    assert main(asked) == 1
    assert "has no conditional writes" in capsys.readouterr().err
    with pytest.raises(FedpingError, match="has no conditional writes"):
        decide(store, "study", "main", Decision(choice, seen_as(held)), created=WHEN, code_version="t")
    bucket.well()
    assert store.lines.newest("study", "main") == 0
    assert main(asked) == 0
    assert store.lines.newest("study", "main") == 1


def test_a_page_says_that_the_bucket_is_away(tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0.2")
    store_with(place_of(bucket.url), small_study())
    client = dashboard_client(tmp_path, store=place_of(bucket.url))
    page = "/live/study/main/"
    assert client.get(page).status_code == 200
    bucket.faults("error")
    answer = client.get(page)
    assert answer.status_code == 503
    assert "in the object store (InternalError" in answer.get_data(as_text=True)


def test_the_guide_can_be_typed(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs all commands of docs/object-stores.md in order, in a folder with the shipped experiments."""
    guide = (ROOT / "docs" / "object-stores.md").read_text()
    typed = [line for block in re.findall(r"^```sh\n(.*?)^```$", guide, re.M | re.S) for line in block.splitlines()]
    write_landed(partition(tmp_path / "landing", "demo", "main", 0), landed_table(5, 1), 1)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    ran: list[str] = []
    with ExitStack() as stack:
        for line in typed:
            words = shlex.split(line.replace("s3://fedping-models", bucket.url))
            if words[0] == "export":
                monkeypatch.setenv(*words[1].split("=", 1))  # type: ignore[arg-type]
                continue
            assert words.pop(0) == "fedping"
            if words[0] == "ingest":
                options = ["--journal", str(tmp_path / "journal"), "--workers", "1"]
                places = (os.environ["FEDPING_STORE"], os.environ["FEDPING_LANDING"])
                ingest = stack.enter_context(running_ingest(*places, *options))  # type: ignore[arg-type]
            elif words[0] == "fleet":
                assert main([*words[:1], ingest.url, *words[2:]]) == 0
                assert ingest.flush()["landed"] > 200
            else:
                if "--store" in words and "FEDPING_STORE" in os.environ:
                    monkeypatch.delenv("FEDPING_STORE")
                    assert main(["study", "create", "experiments/demo.toml"]) == 0
                assert main(words) == 0, line
            ran.append(" ".join(words[:2]))
    moved, saved = ["store copy"] * 2 + ["landing copy"] * 2, ["store copy", "landing copy"] * 2
    assert [each for each in ran if each.endswith(" copy")] == moved + saved
    assert len(ran) == 17
    assert open_store(place_of(f"{bucket.url}/restored")).lines.newest("demo", "main") == 1000
    assert open_store(tmp_path / "backup").iterations("demo", "main")[0] == 0
    [kept] = open_landing(tmp_path / "backup-pings").all_files()
    assert kept.read_bytes() == open_landing(tmp_path / "landing").all_files()[0].read_bytes()
