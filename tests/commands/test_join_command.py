"""`fedping join` as typed by a data engineer: its output, stored state, rejections, waits, and exit codes."""

import asyncio
import hashlib
import io
import json
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fedping.client_sim import http
from fedping.client_sim.client import Progress
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.joining.folder import open_folder
from fedping.client_sim.joining.terms import check_work
from fedping.client_sim.learning.registry import learner_for, model_spec
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.limits import Limits
from fedping.protocol.links import Levels
from fedping.protocol.model import ModelDocument
from fedping.protocol.personalization import FineTune
from fedping.protocol.spec import ModelSpec, NonNegative
from fedping.protocol.study import Arm, Declared, Study, public_study
from fedping.protocol.training import LocalSteps, OneGradient, Training
from tests.support.faulty_server import LANDED, Answer, FaultyServer, faulty_server, refusal
from tests.support.fleets import document, fleet_study
from tests.support.ingest_server import running_ingest
from tests.support.institutions import LABEL, OPEN, STUDY, agreed, joining, tables, tumours, typed_join
from tests.support.processes import wait_until
from tests.support.rounds import store_with

LATEST = f"/models/{STUDY}/main/latest.json"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Give the options of a table that fits the study."""
    folder = tmp_path_factory.mktemp("tables")
    return ["--data", str(tables(folder)[0]), "--columns", str(agreed(folder / "columns.toml"))]


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server(tumours()) as running:
        yield running


class Typed:
    """The command as typed, with its own folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str], rows: list[str], state: Path) -> None:
        self.capsys, self.rows, self.state = capsys, rows, state

    def __call__(self, url: str, *options: str | Path, study: str = STUDY, code: int = 0) -> tuple[str, str]:
        self.capsys.readouterr()
        ended = main(["join", url, study, "--state", str(self.state), *self.rows, OPEN, *map(str, options)])
        said = self.capsys.readouterr()
        assert ended == code, said
        assert "Traceback" not in said.err
        return said.out, said.err

    def once(self, url: str, *options: str, code: int = 0) -> tuple[str, str]:
        return self(url, "--rounds", "1", "--yes", "--every", "0.1s", *options, code=code)


@pytest.fixture
def join(capsys: pytest.CaptureFixture[str], rows: list[str], tmp_path: Path) -> Typed:
    return Typed(capsys, rows, tmp_path / "state")


# --- what is shown is what is sent ---


def test_show_posts_nothing_and_prints_the_bytes_that_are_posted_later(server: FaultyServer, join: Typed) -> None:
    shown, said = join(server.url, "--show")
    assert server.attempts == []
    assert "an update of 31 numbers, norm" in said
    assert join(server.url, "--show")[0] == shown
    out, _ = join.once(server.url)
    (attempt,) = server.attempts
    assert attempt.body.decode() == shown.rstrip("\n")
    assert out.startswith("version 0: an update of 31 numbers")
    assert out.endswith(": accepted\n")
    out, said = join(server.url, "--show")
    assert (out, len(server.attempts)) == ("", 1)
    assert "no ping would be sent: the ping of version 0" in said


@pytest.mark.parametrize(("answers", "posted"), [("n\n", 0), ("\n", 0), ("what\ns\ny\n", 1), ("y\nn\n", 1), ("a\n", 2)])
def test_nothing_is_posted_without_a_yes(
    server: FaultyServer, join: Typed, monkeypatch: pytest.MonkeyPatch, answers: str, posted: int
) -> None:
    server.plan = lambda name, attempt: publishing(server, 1)
    monkeypatch.setattr("sys.stdin", io.StringIO(answers))
    many = "2" if posted == 2 or answers.startswith("y\nn") else "1"
    out, said = join(server.url, "--rounds", many, "--every", "0.1s")
    assert len(server.attempts) == posted
    assert "send it?" in said
    assert ("nothing was sent" in said) is ("n" in answers.split("\n") or answers == "\n")
    assert ('"clientId"' in out) is ("s" in answers.split("\n"))


def publishing(server: FaultyServer, version: int) -> Answer:
    server.publish(version)
    return LANDED


def test_who_cannot_be_asked_is_told_so(server: FaultyServer, join: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "--yes is missing" in join(server.url, code=2)[1]
    assert server.attempts == []


def test_it_is_said_that_weights_can_be_chosen_that_reveal_rows(server: FaultyServer, join: Typed) -> None:
    says = "can choose them so that your updates reveal rows of your table"
    assert says in join(server.url, "--show")[1]
    out, said = join.once(server.url, "--json")
    assert says in said
    assert says in json.loads(out)["warning"]


@pytest.mark.parametrize("training", [LocalSteps(epochs=1, batch=1, rate=0.1), OneGradient(batch=1)])
def test_batches_of_one_row_are_refused(join: Typed, training: Training) -> None:
    with faulty_server(tumours(training=training)) as server:
        assert "batches of 1 row" in join.once(server.url, code=2)[1]
        assert "batches of 1 row" in join(server.url, "--show", code=2)[1]
        assert server.attempts == []


def test_a_table_of_one_row_is_refused(server: FaultyServer, join: Typed, tmp_path: Path) -> None:
    one = tmp_path / "one.csv"
    one.write_text("".join(Path(join.rows[1]).read_text().splitlines(keepends=True)[:2]))
    join.rows = ["--data", str(one), *join.rows[2:]]
    assert "an update of 1 row would reveal that row" in join.once(server.url, code=2)[1]
    assert server.attempts == []


def few_rows(join: Typed, folder: Path, *, benign: int, malignant: int, class_weights: str = "") -> None:
    """Write a table with numbers of rows of each class, and a columns file with class weights."""
    everybodys = [path.read_text().splitlines(keepends=True) for path in tables(folder)]
    names, lines = everybodys[0][0], [line for table in everybodys for line in table[1:]]
    of = {name: [line for line in lines if line.endswith(f",{name}\n")] for name in ("benign", "malignant")}
    table, columns = folder / "few.csv", folder / "weighed.toml"
    table.write_text("".join([names, *of["benign"][:benign], *of["malignant"][:malignant]]))
    columns.write_text(class_weights + Path(join.rows[3]).read_text())
    join.rows = ["--data", str(table), "--columns", str(columns)]


@pytest.mark.parametrize(
    ("malignant", "weights", "says"),
    [
        (1, "class_weights = [1.0, 0.0]\n", "would reveal that row"),
        (1, "class_weights = [1.0, 1e-9]\n", "of the weight of all rows"),
        (0, "class_weights = [1.0, 0.0]\n", "would reveal that row"),
        (2, "class_weights = [1.0, 0.0]\n", None),
        (1, "class_weights = [4.5, 0.5625]\n", None),
    ],
)
def test_a_row_that_alone_counts_is_refused(
    join: Typed, tmp_path: Path, malignant: int, weights: str, says: str | None
) -> None:
    few_rows(join, tmp_path, benign=8, malignant=malignant, class_weights=weights)
    with faulty_server(tumours(training=OneGradient())) as server:
        said = join.once(server.url, code=0 if says is None else 2)[1]
        assert says is None or says in said
        assert len(server.attempts) == (says is None)


@pytest.mark.parametrize(
    ("training", "refused"),
    [
        (LocalSteps(epochs=1, batch=8, rate=0.1), True),
        (LocalSteps(steps=3, batch=8, rate=0.1), True),
        (LocalSteps(steps=2, batch=8, rate=0.1), False),
        (LocalSteps(epochs=1, batch=15, rate=0.1), False),
        (LocalSteps(epochs=1, batch=17, rate=0.1), False),
        (OneGradient(batch=8), False),
    ],
)
def test_a_last_batch_of_one_row_is_refused(join: Typed, tmp_path: Path, training: Training, refused: bool) -> None:
    few_rows(join, tmp_path, benign=13, malignant=4)
    with faulty_server(tumours(training=training)) as server:
        assert ("the last batch of an epoch has 1 row" in join.once(server.url, code=2 * refused)[1]) is refused
        assert len(server.attempts) == (not refused)


def test_a_training_that_divides_two_rows_is_refused(join: Typed, tmp_path: Path) -> None:
    """In a personal arm a client trains on the rows that it doesn't hold out: with two rows, on one."""
    arms = (Arm(name="hospitals", share=1.0, line="main", applies=True, submits=True, personal=True),)
    study = tumours(training=LocalSteps(epochs=1, rate=0.1, personal=FineTune(steps=1, rate=0.1)), arms=arms)
    for rows, refused in ((2, True), (3, False)):
        few_rows(join, tmp_path, benign=rows - 1, malignant=1)
        with faulty_server(study) as server:
            join.once(server.url, code=2 * refused)
            assert len(server.attempts) == (not refused)


@pytest.mark.parametrize("training", [LocalSteps(epochs=1, rate=1.0), OneGradient()])
@pytest.mark.parametrize(("apart", "code"), [("9,9", 1), ("1.1,1", 0)])
def test_clusters_of_one_row_are_refused(
    join: Typed, tmp_path: Path, training: Training, apart: str, code: int
) -> None:
    settings: dict[str, Any] = {"features": 2, "clusters": 2, "counts": False}
    spec = model_spec("k-means", settings, name=STUDY, start=[0.0, 0.0, 8.0, 8.0])
    table = tmp_path / "points.csv"
    table.write_text(f"a,b\n0,0\n1,0\n0,1\n{apart}\n")
    join.rows = ["--data", str(table)]
    with faulty_server(with_spec(spec, training)) as server:
        said = join.once(server.url, code=code)[1]
        assert ("cluster 2 of 2 has 1 row" in said) == bool(code)
        assert len(server.attempts) == (not code)


def with_spec(spec: ModelSpec, training: Training) -> Study:
    study = tumours(training=training)
    return replace(study, lines=(replace(study.lines[0], spec=spec),))


def test_rows_of_one_class_are_warned_of(server: FaultyServer, join: Typed, tmp_path: Path) -> None:
    says = f"warning: all rows have the same '{LABEL}', so a model can't learn to predict it; check that"
    assert says not in join(server.url, "--show")[1]
    lines = Path(join.rows[1]).read_text().splitlines(keepends=True)
    few = tmp_path / "few.csv"
    few.write_text("".join([lines[0], *(line for line in lines if line.endswith(",benign\n"))]))
    join.rows = ["--data", str(few), *join.rows[2:]]
    assert says in join(server.url, "--show")[1]


def test_json_is_one_object_a_ping(server: FaultyServer, join: Typed) -> None:
    row = json.loads(join.once(server.url, "--json")[0])
    (attempt,) = server.attempts
    ping = json.loads(attempt.body)
    assert row["document_id"] == str(attempt.document_id)
    assert row["client_id"] == ping["clientId"]
    assert (row["examples"], row["loss"]) == (ping["payload"]["examples"], ping["payload"]["loss"])
    assert (row["version"], row["outcome"], row["bytes"]) == (0, "accepted", len(attempt.body))


@pytest.mark.parametrize(
    ("study", "says"),
    [
        (tumours(upload=(Levels(bits=4),)), "an update encoded as 'levels-4'"),
        (
            tumours(
                arms=(
                    Arm(name="listeners", share=1 - 1e-12, line="main", applies=True),
                    Arm(name="few", share=1e-12, line="main", applies=True, submits=True),
                )
            ),
            "no update",
        ),
    ],
)
def test_upload_links_and_arms_are_followed(join: Typed, study: Study, says: str) -> None:
    with faulty_server(study) as server:
        shown, _ = join(server.url, "--show")
        assert f"version 0: {says}; loss 0.6931; 190 examples" in join.once(server.url)[0]
        (attempt,) = server.attempts
        assert attempt.body.decode() == shown.rstrip("\n")


# --- continuing ---


def test_the_same_client_goes_on_with_the_next_version(server: FaultyServer, join: Typed) -> None:
    join.once(server.url)
    join.once(server.url, "--for", "0.1s", code=75)  # the same version has had its ping
    assert len(server.attempts) == 1
    server.publish(1)
    assert "1 ping taken so far, up to version 0" in join.once(server.url)[1]
    pings = [json.loads(attempt.body) for attempt in server.attempts]
    assert [ping["payload"]["model_version"] for ping in pings] == [0, 1]
    assert pings[0]["clientId"] == pings[1]["clientId"]
    told = [line for line in logged_by(join) if line["outcome"] == "accepted"]
    assert [(line["version"], line["document_id"]) for line in told] == [
        (number, str(attempt.document_id)) for number, attempt in enumerate(server.attempts)
    ]


def test_a_ping_whose_answer_is_lost_is_posted_again_with_the_same_bytes(server: FaultyServer, join: Typed) -> None:
    server.plan = lambda name, attempt: refusal(503) if attempt == 0 else LANDED
    join.once(server.url)
    assert len(server.attempts) == 2
    assert len(server.bodies()) == 1


def logged_by(join: Typed) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (join.state / "sent.ndjson").read_text().splitlines()]


def test_a_ping_is_logged_before_the_server_can_read_it(server: FaultyServer, join: Typed) -> None:
    """A ping that is read and not answered, posted by several commands, has one line until it is answered."""
    before_each: list[list[str]] = []

    def reads(name: str, attempt: int) -> Answer:
        before_each.append([line["outcome"] for line in logged_by(join)])
        return refusal(503)

    server.plan = reads
    for _ in range(2):
        assert "run the same command to send it" in join.once(server.url, "--for", "3s", code=75)[1]
    assert len(before_each) >= 2
    assert all(outcomes == ["unanswered"] for outcomes in before_each)
    (line,) = logged_by(join)
    assert line["sha256"] == hashlib.sha256(server.attempts[0].body).hexdigest()
    server.plan = lambda name, attempt: LANDED
    join.once(server.url)
    assert [line["outcome"] for line in logged_by(join)] == ["unanswered", "accepted"]


@pytest.mark.long
def test_time_is_over_before_the_ping_is_taken_and_the_next_command_sends_it(server: FaultyServer, join: Typed) -> None:
    server.plan = lambda name, attempt: refusal(503)
    assert "before the ping was accepted; run the same command" in join.once(server.url, "--for", "8s", code=75)[1]
    shown, _ = join(server.url, "--show")
    server.plan = lambda name, attempt: LANDED
    join.once(server.url)
    assert set(server.bodies().values()) == {shown.rstrip("\n").encode()}
    assert server.landings.total() == 1


@pytest.mark.parametrize("path", [f"/models/{STUDY}/study.json", LATEST])
@pytest.mark.parametrize("trickles", [pytest.param(False, marks=pytest.mark.long), True])
def test_time_is_kept_while_an_answer_is_slow(
    server: FaultyServer, join: Typed, monkeypatch: pytest.MonkeyPatch, path: str, trickles: bool
) -> None:
    """Until the test ends, the answer arrives byte by byte or never; the command must end earlier."""
    over = threading.Event()
    got, read = HttpTransport._get, http._body

    @asynccontextmanager
    async def slow(self: HttpTransport, url: str, headers: Any = None) -> AsyncIterator[Any]:
        async with got(self, url, headers) as response:
            while url.endswith(path) and not trickles and not over.is_set():
                await asyncio.sleep(0.01)
            yield response

    async def trickling(response: Any, most: int) -> bytes:
        while response.url.path == path and trickles and not over.is_set():
            await asyncio.sleep(0.01)
        return await read(response, most)

    monkeypatch.setattr(HttpTransport, "_get", slow)
    monkeypatch.setattr(http, "_body", trickling)
    fallback = threading.Timer(60, over.set)
    fallback.start()
    try:
        assert "the time limit was reached" in join.once(server.url, "--for", "1s", code=75)[1]
        assert "the time limit was reached" in join(server.url, "--yes", "--for", "1s", code=75)[1]
        assert not over.is_set()
    finally:
        fallback.cancel()
    assert server.attempts == []


def test_without_rounds_time_that_is_over_before_a_ping_was_taken_is_told(join: Typed) -> None:
    with faulty_server(tumours(training=LocalSteps(epochs=100_000, batch=16, rate=0.1))) as server:
        assert "before a ping was accepted" in join(server.url, "--yes", "--for", "2s", code=75)[1]
        assert server.attempts == []


@pytest.mark.long
def test_without_rounds_a_service_whose_time_is_over_ends_well(server: FaultyServer, join: Typed) -> None:
    """Once a ping was accepted, it looks for a new version until its time is over."""
    join(server.url, "--yes", "--every", "0.1s", "--for", "6s")
    assert len(server.attempts) == 1
    assert "before a ping was accepted" in join(server.url, "--yes", "--every", "0.1s", "--for", "1s", code=75)[1]


@pytest.mark.long
def test_time_is_kept_while_a_training_is_long(join: Typed) -> None:
    """A training of 1,200,000 steps is aborted; nothing of it is stored or sent."""
    with faulty_server(tumours(training=LocalSteps(epochs=100_000, batch=16, rate=0.1))) as server:
        assert "the time limit was reached after 0 of 1 rounds" in join.once(server.url, "--for", "2s", code=75)[1]
        assert "the time limit was reached" in join(server.url, "--show", "--for", "2s", code=75)[1]
        assert server.attempts == []
    assert not (join.state / "waiting.json").exists()


def test_a_refused_ping_ends_the_command_and_its_version_is_trained_on_again(server: FaultyServer, join: Typed) -> None:
    server.plan = lambda name, attempt: refusal(400, "the loss is 1e6, and lies between 0 and 9; do not send the ping")
    said = join.once(server.url, code=1)[1]
    assert (
        "the server rejected the ping of version 0: 400 the loss is 1e6, and lies between 0 and "
        "9; correct the table (are its columns in the agreed units?) or ask the operator, and the same "
        "command trains on that version again"
    ) in said
    assert "do not send" not in said
    server.plan = lambda name, attempt: LANDED
    out, said = join.once(server.url)
    assert "so far" not in said  # no ping was accepted
    assert out.startswith("version 0: ")
    server.plan = lambda name, attempt: refusal(400, "the update is too long")
    server.publish(1)
    join.once(server.url, code=1)
    assert "; 1 ping taken so far, up to version 0\n" in join(server.url, "--show")[1]
    logged = logged_by(join)
    assert [(line["version"], line["outcome"]) for line in logged] == [
        (0, "unanswered"),
        (0, "rejected"),
        (0, "accepted"),
        (1, "unanswered"),
        (1, "rejected"),
    ]
    assert [line["reason"] for line in logged][2:] == ["", "", "400 the update is too long"]
    assert all(line["numbers"] == 31 and line["norm"] > 0 and line["loss"] > 0 for line in logged)


def test_every_ping_of_a_version_whose_weights_change_is_logged(server: FaultyServer, join: Typed) -> None:
    """A server that rejects pings, and changes the weights of a version, gets an update for each; all are logged."""
    server.plan = lambda name, attempt: refusal(400, "no")
    for start in (0.0, 1.0, 2.0):
        weights = [start] * 31
        server.files[LATEST] = msgspec.json.encode(replace(document(server.study, "main", 0), model=weights))
        join.once(server.url, code=1)
    logged = [line for line in logged_by(join) if line["outcome"] == "rejected"]
    assert [line["sha256"] for line in logged] == [
        hashlib.sha256(attempt.body).hexdigest() for attempt in server.attempts
    ]
    assert len({line["sha256"] for line in logged}) == 3


def test_a_log_of_an_earlier_version_goes_on(server: FaultyServer, join: Typed) -> None:
    join.once(server.url)
    log = join.state / "sent.ndjson"
    older = {"time", "version", "document_id", "examples", "loss", "bytes", "sha256"}
    line = {name: value for name, value in logged_by(join)[-1].items() if name in older}
    log.write_text(json.dumps(line) + "\n")
    server.publish(1)
    assert "1 ping taken so far" in join.once(server.url)[1]
    assert [line["version"] for line in logged_by(join)] == [0, 1, 1]


def test_a_corrected_table_takes_part_in_the_version_for_which_the_wrong_one_was_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A round needs three institutions; one has a column in another unit, so its loss is outside the limits."""
    store, landing = tmp_path / "store", tmp_path / "landing"
    store_with(store, replace(tumours(min_clients=3), limits=Limits(examples=1000, loss=(0.0, 100.0))))
    join = typed_join(tmp_path, capsys)
    round_ = ["round", STUDY, "--engine", "numpy", "--store", str(store), "--landing", str(landing)]
    table = tmp_path / "hospital-0.csv"
    correct = table.read_text()
    with running_ingest(store, landing, "--workers", "1") as server:
        for number in range(3):
            join(server.url, "--yes", "--rounds", "1", number=number)
        server.flush()
        assert main(round_) == 0
        for number in (1, 2):
            join(server.url, "--yes", "--rounds", "1", number=number)
        table.write_text(in_another_unit(correct))
        said = join(server.url, "--yes", "--rounds", "1", code=1)[1]
        assert "the server rejected the ping of version 1: 400 the loss is" in said
        table.write_text(correct)
        out, said = join(server.url, "--yes", "--rounds", "1")
        assert "1 ping taken so far, up to version 0" in said
        assert out.startswith("version 1: ")
        server.flush()
        assert main(round_) == 0
    lineage = open_store(store).version(STUDY, "main", 2).lineage
    assert lineage is not None
    assert lineage.counts["used"] == 3


def in_another_unit(table: str) -> str:
    """Return a table with its first column in thousandths of its unit."""
    names, *rows = table.splitlines()
    cells = [row.split(",") for row in rows]
    lines = [names, *(",".join([str(1000 * float(first)), *rest]) for first, *rest in cells)]
    return "\n".join(lines) + "\n"


def test_without_a_ticket_nothing_is_lost(server: FaultyServer, join: Typed, tmp_path: Path) -> None:
    server.plan = lambda name, attempt: refusal(403, "a ticket is missing")
    said = join.once(server.url, code=1)[1]
    client = json.loads(server.attempts[-1].body)["clientId"]
    assert f"ask the operator for a ticket for the client id {client}, and give its file with --ticket" in said
    (tmp_path / "ticket").write_text("key.1.mac\n")
    server.plan = lambda name, attempt: LANDED
    out, _ = join.once(server.url, "--ticket", str(tmp_path / "ticket"))
    assert out.startswith("version 0: ")
    assert json.loads(server.attempts[-1].body)["ticket"] == "key.1.mac"
    (tmp_path / "ticket").write_text("no ticket\n")
    assert "is not a ticket" in join.once(server.url, "--ticket", str(tmp_path / "ticket"), code=2)[1]


def test_who_has_a_wrong_ticket_is_told_one_person_to_ask(server: FaultyServer, join: Typed) -> None:
    server.plan = lambda name, attempt: refusal(
        403, "the ticket is not one for this client id; ask the product for a new one"
    )
    said = join.once(server.url, code=1)[1]
    assert "403 the ticket is not one for this client id; ask the operator for a ticket for the client id" in said
    assert "product" not in said


def test_new_versions_are_asked_for_by_their_tag(server: FaultyServer, join: Typed) -> None:
    def later(path: str) -> None:
        if path == LATEST and len([each for each, _ in server.fetches if each == LATEST]) == 4:
            server.publish(1)

    server.plan = lambda name, attempt: LANDED
    server.fetches = Heard(later)
    join(server.url, "--rounds", "2", "--yes", "--every", "0.1s")
    tags = [tag for path, tag in server.fetches if path == LATEST]
    assert tags[0] is None
    assert len(set(tags[1:])) == 1
    assert tags[1] is not None
    assert len(server.attempts) == 2


class Heard(list[Any]):
    """A list that notifies about appended items."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        self._heard = heard

    def append(self, each: Any) -> None:
        super().append(each)
        self._heard(each[0])


# --- state after training ---

PERSONAL = tumours(
    training=LocalSteps(epochs=1, batch=16, rate=0.1, personal=FineTune(rate=0.1)),
    arms=(Arm(name="hospitals", share=1.0, line="main", applies=True, submits=True, personal=True),),
)


def test_a_model_of_its_own_moves_once_a_version_and_not_by_being_shown(join: Typed) -> None:
    with faulty_server(PERSONAL) as server:
        shown = join(server.url, "--show")[0]
        assert join(server.url, "--show")[0] == shown
        join.once(server.url)
        assert server.attempts[0].body.decode() == shown.rstrip("\n")
        server.publish(1)
        after = join(server.url, "--show")[0]
        (join.state / "clients.sqlite").unlink()  # without its state it would send something else
        assert join(server.url, "--show")[0] != after


def test_who_was_killed_after_its_own_model_moved_goes_on_with_the_next_version(join: Typed) -> None:
    with faulty_server(PERSONAL) as server:
        join(server.url, "--show")
        with open_folder(join.state) as folder:
            folder.advance(Progress(moved=0))
        join.once(server.url, "--for", "0.1s", code=75)
        assert server.attempts == []
        server.publish(1)
        assert join.once(server.url)[0].startswith("version 1: ")


def test_a_refused_ping_by_which_its_own_model_moved_is_not_made_again(join: Typed) -> None:
    """A message says so; the next ping is for the next version."""
    with faulty_server(PERSONAL) as server:
        server.plan = lambda name, attempt: refusal(400, "the update is too long")
        said = join.once(server.url, code=1)[1]
        assert "and the same command continues with the next version" in said
        server.plan = lambda name, attempt: LANDED
        said = join(server.url, "--show")[1]
        assert "the ping of version 0 was rejected, and this line accepts no second one" in said
        assert "so far" not in said
        join.once(server.url, "--for", "0.1s", code=75)
        assert len(server.attempts) == 1
        server.publish(1)
        assert join.once(server.url)[0].startswith("version 1: ")


# --- checks of the server's documents ---


def changed(server: FaultyServer, **fields: Any) -> bytes:
    made = {"iteration": 3, **fields}
    return msgspec.json.encode(replace(document(server.study, "main", 3), **made))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        pytest.param(
            lambda server: changed(server, spec_digest="0" * 64),
            "it is of another model spec than the study's",
            marks=pytest.mark.long,
        ),
        pytest.param(
            lambda server: changed(server, study="another"),
            "it is of study 'another', line 'main'",
            marks=pytest.mark.long,
        ),
        (lambda server: changed(server, model=(0.0,) * 30), "it has 30 weights, and the spec has 31"),
        (lambda server: changed(server, model=(-1.0,) * 31), "would be -1, below zero, which the spec rules out"),
        (lambda server: changed(server).replace(b'"model":[0.0', b'"model":[NaN'), "not a model document"),
        pytest.param(
            lambda server: changed(server).replace(b'"model":[0.0', b'"model":[1e31'),
            "not a model document",
            marks=pytest.mark.long,
        ),
        pytest.param(lambda server: changed(server) + b" " * 10**6, "its answer has over", marks=pytest.mark.long),
        pytest.param(lambda server: b"<html>", "not a model document", marks=pytest.mark.long),
    ],
)
def test_a_model_that_is_none_is_refused(join: Typed, model: Callable[[FaultyServer], bytes], says: str) -> None:
    study = tumours()
    spec = replace(study.lines[0].spec, constraints=(NonNegative(),))
    with faulty_server(replace(study, lines=(replace(study.lines[0], spec=spec),))) as server:
        server.files[LATEST] = model(server)
        msgspec_fits = json.loads(server.files[LATEST]) if says.startswith("it has 30") else None
        assert msgspec_fits is None or msgspec.convert(msgspec_fits, ModelDocument)
        said = join.once(server.url, "--for", "2s", code=75)[1]
        assert said.count(says) == 1
        assert "the time limit was reached after 0 of 1 rounds" in said
        assert server.attempts == []
        server.publish(4)
        join.once(server.url)
        assert len(server.attempts) == 1


def test_what_a_server_answers_does_nothing_to_the_terminal(server: FaultyServer, join: Typed) -> None:
    server.plan = lambda name, attempt: refusal(400, "\x1b[2J\x1b]0;sent\x07\u202e")
    assert r"400 \x1b[2J\x1b]0;sent\x07\u202e;" in join.once(server.url, code=1)[1]
    server.model = refusal(500, "\x1b[2J")
    server.publish(1)
    assert r"waiting: 500 \x1b[2J" in join.once(server.url, "--for", "2s", code=75)[1]
    study = f"/models/{STUDY}/study.json"
    server.files[study] = server.files[study].replace(b'"rate"', b'"\\u001b[2J"')
    assert r"unknown field `\x1b[2J`" in join.once(server.url, code=1)[1]


def test_an_update_that_no_ping_can_say_is_not_sent(join: Typed) -> None:
    """Each step multiplies the weights by a thousand; after many steps they are not finite."""
    penalised = model_spec("logistic-regression", {"features": 30, "l2": 1.0}, name=STUDY)
    join.rows = [*join.rows[:2], "--label", LABEL]
    for steps, says in ((15, "is not a number within ±1e30"), (200, "has diverged")):
        with faulty_server(tumours(training=LocalSteps(steps=steps, rate=1e3), spec=penalised)) as server:
            assert says in join.once(server.url, "--agree", code=1)[1]
            assert server.attempts == []


def test_a_server_that_always_has_a_newer_version_gets_no_more_than_a_ping_each_look(
    server: FaultyServer, join: Typed
) -> None:
    server.plan = lambda name, attempt: publishing(server, len(server.attempts))
    join(server.url, "--yes", "--for", "1s", "--every", "10s")
    assert len(server.attempts) == 1
    join.once(server.url)
    assert len(server.attempts) == 2


def test_a_study_that_has_ended_is_left(server: FaultyServer, join: Typed) -> None:
    over = msgspec.json.encode(public_study(server.study, Declared(state="ended", since="2026-11-24")))

    def ended(name: Any, attempt: int) -> Answer:
        server.files[f"/models/{STUDY}/study.json"] = over
        return refusal(410, f"study '{STUDY}' has ended")

    server.plan = ended
    for _ in range(2):
        assert "has ended" in join.once(server.url)[1]
    assert len(server.attempts) == 1


def test_a_study_that_ends_while_it_waits_is_left(server: FaultyServer, join: Typed) -> None:
    over = msgspec.json.encode(public_study(server.study, Declared(state="ended", since="2026-11-24")))

    def ended(name: Any, attempt: int) -> Answer:
        server.files[f"/models/{STUDY}/study.json"] = over
        return LANDED

    server.plan = ended
    assert "has ended" in join(server.url, "--yes", "--every", "0.1s")[1]
    assert len(server.attempts) == 1


def test_a_study_that_changes_while_it_waits_is_not_followed(server: FaultyServer, join: Typed) -> None:
    other = tumours(training=LocalSteps(steps=2, rate=0.1))

    def replaced(name: Any, attempt: int) -> Answer:
        server.files[f"/models/{STUDY}/study.json"] = msgspec.json.encode(public_study(other))
        return LANDED

    server.plan = replaced
    said = join(server.url, "--yes", "--every", "0.1s", code=6)[1]
    assert "study 'tumours' has changed its terms since you joined (training.epochs: 3 -> nothing" in said


def moved(server: FaultyServer, location: str) -> None:
    server.model = Answer(302, b"", {"Location": location})


def test_a_model_is_fetched_from_where_the_same_server_says(server: FaultyServer, join: Typed) -> None:
    """`study.json` isn't a model, but it is the content of the redirect's target, so the redirect was followed."""
    moved(server, f"/models/{STUDY}/study.json")
    assert "not a model document" in join(server.url, "--show", code=1)[1]
    assert [path for path, _ in server.fetches][-1] == f"/models/{STUDY}/study.json"


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("http://127.0.0.1:9/model.json", "it redirects to another host without https, which is not followed"),
        ("http://internal/model.json", "it redirects to another host without https, which is not followed"),
        ("file:///etc/passwd", "it redirects to an invalid address"),
        (LATEST, "it redirects more than 5 times"),
    ],
)
def test_redirects_lead_nowhere_that_is_not_safe(server: FaultyServer, join: Typed, location: str, says: str) -> None:
    moved(server, location)
    assert says in join(server.url, "--show", code=1)[1]
    assert server.attempts == []


def test_what_a_study_asks_for_between_two_runs_has_to_be_agreed_to(server: FaultyServer, join: Typed) -> None:
    join.once(server.url)
    server.publish(1)
    other = tumours(training=LocalSteps(epochs=5, batch=16, rate=0.1))
    server.files[f"/models/{STUDY}/study.json"] = msgspec.json.encode(public_study(other))
    says = "has changed its terms since you joined (training.epochs: 3 -> 5). Read them with --show"
    assert says in join.once(server.url, code=6)[1]
    out, said = join(server.url, "--show")
    assert f"warning: study '{STUDY}' {says}" in said
    assert '"clientId"' in out
    assert says in join.once(server.url, code=6)[1]
    assert len(server.attempts) == 1
    join.once(server.url, "--agree")
    server.publish(2)
    join.once(server.url)
    assert len(server.attempts) == 3
    assert "--show or --agree" in join(server.url, "--show", "--agree", code=2)[1]


def test_what_may_change_for_those_who_take_part_ends_nothing(server: FaultyServer, join: Typed) -> None:
    two = (
        Arm(name="hospitals", share=1 - 1e-12, line="main", applies=True, submits=True),
        Arm(name="few", share=1e-12, line="main", applies=True),
    )
    join.once(server.url)
    server.publish(1)
    server.files[f"/models/{STUDY}/study.json"] = msgspec.json.encode(public_study(tumours(arms=two)))
    join.once(server.url)
    assert len(server.attempts) == 2


def test_of_a_study_that_changes_much_a_few_settings_are_named(server: FaultyServer, join: Typed) -> None:
    join.once(server.url)
    steps = LocalSteps(steps=2, rate=0.2, batch=3, sign=True)
    other = tumours(training=steps, upload=(Levels(bits=4),), arms=(replace(tumours().arms[0], decays=True),))
    server.files[f"/models/{STUDY}/study.json"] = msgspec.json.encode(public_study(other))
    said = join.once(server.url, code=6)[1]
    assert said.count(" -> ") == 5
    assert "more). Read them with --show" in said


# --- rejections at the start ---


def with_model(name: str, settings: dict[str, Any]) -> Study:
    study = tumours()
    spec = replace(study.lines[0].spec, model=name, settings=settings)
    return replace(study, lines=(replace(study.lines[0], spec=spec),))


@pytest.mark.parametrize(
    ("study", "says"),
    [
        (
            with_model("own", {"loss": "import os; os._exit(7)"}),
            "has the model 'own', and 'fedping join' trains linear",
        ),
        (with_model("svm-ranking", {"features": 31}), "has the model 'svm-ranking'"),
        (with_model("logistic-regression", {"features": 29}), "can't be trained by 'fedping join'"),
        (tumours(training=LocalSteps(epochs=100_000, batch=1, rate=0.1)), "19,000,000 steps a round on 190 rows"),
        (
            tumours(arms=(Arm(name="few", share=1e-12, line="main", applies=True, submits=True),)),
            "and this one is not among them",
        ),
        (
            tumours(
                arms=(
                    Arm(name="plain", share=1 - 1e-12),
                    Arm(name="few", share=1e-12, line="main", applies=True, submits=True),
                )
            ),
            "which follows no model line, so there is nothing to train",
        ),
    ],
)
def test_what_an_institution_cannot_do_is_refused(join: Typed, study: Study, says: str) -> None:
    with faulty_server(study) as server:
        assert says in join.once(server.url, code=2)[1]
        assert [path for path, _ in server.fetches] == [f"/models/{STUDY}/study.json"]


@pytest.mark.parametrize(
    ("settings", "training", "rows", "says"),
    [
        ({"hidden": 500}, LocalSteps(epochs=100_000, rate=0.1), 10**6, "16,502 weights on 1,000,000 rows, which would"),
        ({"hidden": 500}, LocalSteps(epochs=5, batch=16, rate=0.1), 10**6, None),
        ({"hidden": 5}, LocalSteps(epochs=1, rate=1e4), 100, "at the rate 10000, and 'fedping join' takes rates from"),
        ({"hidden": 5}, LocalSteps(epochs=1, rate=1e-13), 100, "takes rates from 1e-12 to 1000"),
        ({"hidden": 500}, OneGradient(), 2 * 10**6, "works out 1,004,000,000 numbers of 2,000,000 rows at once"),
    ],
)
def test_more_work_or_memory_than_anybody_can_mean_is_refused(
    settings: dict[str, Any], training: Training, rows: int, says: str | None
) -> None:
    spec = model_spec("network", {"features": 30, "classes": 2, **settings}, name=STUDY)
    with pytest.raises(InvalidSettings, match=says) if says else nullcontext():
        check_work(training, rows, learner_for(spec, training), spec.m)


def test_studies_of_interactions_are_refused(join: Typed) -> None:
    with faulty_server(fleet_study()) as server:
        said = join(server.url, "--yes", study=server.study.name, code=2)[1]
        assert "takes frecency-update pings, and 'fedping join' takes part in studies of model-update and" in said


def test_mistakes_are_sentences(server: FaultyServer, join: Typed, tmp_path: Path) -> None:
    for options, code, says in (
        (["--every", "0s"], 2, "--every 0s is not a time; give seconds, minutes or hours"),
        (["--for", "soon"], 2, "--for soon is not a time"),
        (["--training-time", "0s"], 2, "--training-time 0s is not a time"),
        (["--show", "--yes"], 2, "--show or --yes"),
        (["--columns", "nowhere.toml"], 2, "cannot read the file of columns"),
        (["--ticket", "nowhere"], 2, "cannot read the ticket"),
        (["--data", "nowhere.csv"], 1, "there is no file"),
        (["--label", "radius"], 1, "has no column 'radius'"),
    ):
        assert says in join(server.url, *options, code=code)[1]
    away = join.once("http://127.0.0.1:9", code=1)[1]
    assert "cannot reach http://127.0.0.1:9: " in away
    assert "; try again later, or ask the study's operator for the correct address" in away
    assert "fedping ingest" not in away
    assert "http://127.0.0.2:9 is not encrypted" in join.once("http://127.0.0.2:9", code=1)[1]
    assert "is not an ingest address" in join.once("nowhere", code=2)[1]
    (tmp_path / "file").write_text("")
    for state, says in ((tmp_path, "with --state"), (tmp_path / "file", "is a file")):
        assert says in join(server.url, "--yes", "--state", state, code=2)[1]
    assert server.attempts == []


def test_a_folder_is_of_one_study_and_of_one_process(server: FaultyServer, join: Typed) -> None:
    join(server.url, "--show")
    with open_folder(join.state):
        assert "another 'fedping join' works with the folder" in join.once(server.url, code=2)[1]
    spec = replace(server.study.lines[0].spec, margin=3.0)
    with faulty_server(tumours(spec=spec)) as other:
        assert "belongs to another model spec of study 'tumours'" in join.once(other.url, code=2)[1]
    (join.state / "identity.key").chmod(0o644)
    assert "others than its owner may use the key" in join.once(server.url, code=2)[1]
    (join.state / "identity.key").chmod(0o600)
    (join.state / ".waiting.json.unfinished").mkdir()
    assert "cannot use the folder" in join.once(server.url, code=1)[1]
    (join.state / "waiting.json").write_text("{")
    assert "waiting.json is damaged" in join.once(server.url, code=1)[1]
    assert server.attempts == []


def test_what_is_waited_for_is_said_once_on_stderr(server: FaultyServer, join: Typed) -> None:
    join.once(server.url)
    out, said = join(server.url, "--yes", "--every", "0.1s", "--for", "3s", code=75)
    assert out == ""
    assert said.count("fedping: waiting for a version after 0\n") == 1


# --- killed at any moment ---


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ended_between_kept_and_answered_it_sends_the_same_again(
    server: FaultyServer, join: Typed, number: signal.Signals
) -> None:
    """The server has received the whole ping, and doesn't answer before the sender has ended."""
    server.go_on.clear()
    process = joining(server.url, "--state", join.state, *join.rows, "--yes")
    assert server.blocked.wait(60)
    assert (join.state / "waiting.json").exists()
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode in (-9, 143, 130)
    assert number == signal.SIGKILL or "; run the same command to continue" in said
    assert "Traceback" not in said
    server.go_on.set()
    assert wait_until(lambda: len(server.attempts) == 1)
    join.once(server.url)
    assert len(server.attempts) == 2
    assert len(server.bodies()) == 1
    server.publish(1)
    assert join.once(server.url)[0].startswith("version 1: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_ended_while_it_asks_it_has_sent_nothing(
    server: FaultyServer, join: Typed, number: signal.Signals, code: int
) -> None:
    process = joining(server.url, "--state", join.state, *join.rows, stdin=subprocess.PIPE)
    assert process.stderr is not None
    said = ""
    while "send it?" not in said:
        said += process.stderr.read(1)
    process.send_signal(number)
    process.wait(timeout=60)  # and only then close its stdin, whose end would be an answer
    _, said = process.communicate()
    assert (process.returncode, "Traceback" in said) == (code, False)
    assert server.attempts == []


def test_a_service_without_answers_asks_nobody(server: FaultyServer, join: Typed) -> None:
    process = joining(server.url, "--state", join.state, *join.rows, stdin=subprocess.DEVNULL)
    assert "--yes is missing" in process.communicate(timeout=60)[1]
    assert process.returncode == 2


def test_the_label_may_be_said_by_hand(server: FaultyServer, join: Typed) -> None:
    assert join(server.url, "--label", LABEL, "--show")[0]
