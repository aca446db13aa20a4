"""Reports of a study's health: with a killed ingest, in /metrics, by a webhook; and the effect of a declared state."""

import json
import random
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedping.commands.round import PrivateSettings, StudyRounds
from fedping.commands.schedule import run_reported
from fedping.main import main
from fedping.model_store import open_store
from fedping.model_store.decisions import repeated
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landing import open_landing
from fedping.protocol.study import Declared, Study
from fedping.server_jobs.health.checks import FINDINGS
from fedping.server_jobs.health.findings import Finding, Health, Message
from fedping.server_jobs.health.monitor import Reports, Webhook, make_poster, watch_studies
from fedping.server_jobs.health.snapshot import LandedBeside, StudyMonitor, ingest_snapshot
from fedping.server_jobs.ingest import submit
from fedping.server_jobs.ingest.counters import OfStudy, of_studies
from fedping.server_jobs.ingest.journal import Journal, NotStored
from fedping.server_jobs.ingest.settings import IngestSettings
from tests.support.ingest_app import PATH, ingest_app, make_store
from tests.support.ingest_server import running_ingest
from tests.support.pings import ping_json
from tests.support.private import private_study
from tests.support.versions import small_study
from tests.support.walks import walked_store

SINCE = "2026-01-01T00:00:00.000+00:00"
WELL = Health(verdict="healthy", message=Message("worth_a_look", ()))


def ill(pings: int) -> Health:
    stopped = Message("ingest_stopped_with_pings", (("pings", pings),))
    finding = Finding(name="ingest", severity="problem", message=stopped)
    return Health(verdict="problem", message=Message("not_healthy", (("state", "running"),)), findings=(finding,))


ILL = ill(3)


def places(folder: Path) -> IngestSettings:
    landing = folder / "landing"
    return IngestSettings(store=folder / "store", landing=landing, journal=landing / ".journal")


def sentences(folder: Path) -> list[str]:
    _, health = StudyMonitor(places(folder)).study("study", ingest_snapshot(places(folder)))
    return [one.sentence for one in health.findings]


def test_pings_that_a_killed_ingest_leaves_in_its_journal_are_told_until_it_runs_again(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    options = ("--compact-every", "3600", "--workers", "1")
    lines = [json.dumps({"documentId": f"{k:08x}-0000-4000-8000-000000000000", **ping_json()}) for k in range(128)]
    body = "\n".join(lines).encode()
    with running_ingest(tmp_path / "store", tmp_path / "landing", *options) as server:
        posting = urllib.request.Request(f"{server.url}{PATH}", body, {"Content-Type": "application/x-ndjson"})
        with urllib.request.urlopen(posting) as answer:
            assert json.load(answer)["accepted"] == 128
        assert sentences(tmp_path) == [], "they have an hour to land, as was asked for"
        server.kill()
        deadline = time.monotonic() + 240  # until the last thread of its processes has let go of the lock
        while ingest_snapshot(places(tmp_path)).state == "running":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (told,) = sentences(tmp_path)
        assert told.startswith("Ingest is not running: 128 pings that it has accepted wait in its journal")
        server.start()
        server.flush()
        assert sentences(tmp_path) == []


def test_metrics_tell_each_study_by_the_names_of_findings_and_nothing_else(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    store = open_store(tmp_path / "store")
    store.studies.declare("study", Declared(state="paused", since=SINCE))
    page = ingest.operator.get("/metrics").get_data(as_text=True)
    told = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if line[0] != "#"}
    levels = {name: told[f'fedping_study_finding{{finding="{name}",study="study"}}'] for name in FINDINGS}
    assert sum("fedping_study_finding" in name for name in told) == len(FINDINGS)
    assert levels == {**dict.fromkeys(FINDINGS, 0.0), "ingest": 2.0}, "this ingest has no process that holds the lock"
    assert told['fedping_study_state{state="paused",study="study"}'] == 1
    assert told['fedping_study_state{state="running",study="study"}'] == 0
    assert told['fedping_study_lines_over{study="study"}'] == 0
    head = store.head("study", "main")
    store.publish(repeated(head, head, stopped=True, created=SINCE, code_version="t"))
    assert 'fedping_study_lines_over{study="study"} 1.0' in ingest.operator.get("/metrics").get_data(as_text=True)
    (tmp_path / "store" / "study" / "study.json").write_text("{")
    assert ingest.operator.get("/metrics").status_code == 200


def test_a_few_bad_lines_among_the_good_ones_of_a_batch_are_no_finding(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    lines = [*(json.dumps({"documentId": str(uuid.uuid4()), **ping_json()}) for _ in range(2_000)), *["x"] * 60]
    random.Random(0).shuffle(lines)
    assert ingest.post(PATH, "\n".join(lines).encode()).json["accepted"] == 2_000
    ingest.services.flush()
    assert dict(of_studies(ingest.settings.counters)) == {
        "study": OfStudy(accepted=2_000, rejected={"not_json": 60}),
    }
    _, health = StudyMonitor(ingest.settings).all(ingest_snapshot(ingest.settings))["study"]
    assert not any(one.name == "refused" for one in health.findings)


def test_of_a_batch_that_fails_the_pings_on_disk_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest = ingest_app(tmp_path)
    monkeypatch.setattr(submit, "PART", 1)
    append = Journal.append
    stored: list[int] = []

    def full_after_one(self: Journal, lines: bytes, rows: int) -> None:
        if stored:
            raise NotStored("no space left", full=True)
        append(self, lines, rows)
        stored.append(rows)

    monkeypatch.setattr(Journal, "append", full_after_one)
    line = json.dumps({"documentId": str(uuid.uuid4()), **ping_json()})
    assert ingest.post(PATH, "\n".join([line] * 2_000).encode()).status_code == 507
    ingest.services.flush()
    assert stored
    assert of_studies(ingest.settings.counters)["study"].accepted == sum(stored)


def test_refusals_are_counted_by_study_for_studies_that_exist(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path, others=[small_study("other")])
    for _ in range(30):
        assert ingest.ping().status_code == 200
        ingest.post("/submit/other/frecency-update/1", b"{}\n{}")
        ingest.post(f"/submit/other/frecency-update/1/{uuid.uuid4()}", b"x")
        ingest.post(f"/submit/{uuid.uuid4()}/frecency-update/1/{uuid.uuid4()}", b"x")
    ingest.services.flush()
    assert dict(of_studies(ingest.settings.counters)) == {
        "other": OfStudy(rejected={"not_a_ping": 60, "not_json": 30}),
        "study": OfStudy(accepted=30),
    }
    page = ingest.operator.get("/metrics").get_data(as_text=True)
    told = [line for line in page.splitlines() if line.startswith(("fedping_study_accepted", "fedping_study_rejected"))]
    assert sorted(told) == [
        'fedping_study_accepted_total{study="other"} 0.0',
        'fedping_study_accepted_total{study="study"} 30.0',
        'fedping_study_rejected_total{reason="not_a_ping",study="other"} 60.0',
        'fedping_study_rejected_total{reason="not_json",study="other"} 30.0',
    ]
    found = {
        name: [one.sentence for one in health.findings if one.name == "refused"]
        for name, (_, health) in StudyMonitor(ingest.settings).all(ingest_snapshot(ingest.settings)).items()
    }
    assert len(found["study"]) == 1
    assert "30 of the 60 pings for unknown studies" in found["study"][0]
    assert len(found["other"]) == 2
    assert "90 of the 90 pings and requests of study other" in " ".join(found["other"])


def test_pages_that_are_asked_for_in_vain_are_no_refused_pings(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    for _ in range(25):
        assert ingest.ping().status_code == 200
    for _ in range(71):
        for page in ("zzz/study.json", "zzz/main/latest.json", "study/none/latest.json", "study/main/77.json"):
            assert ingest.client.get(f"/models/{page}").status_code == 404
    ingest.services.flush()
    _, health = StudyMonitor(ingest.settings).study("study", ingest_snapshot(ingest.settings))
    assert [one.sentence for one in health.findings if one.name == "refused"] == []
    page = ingest.operator.get("/metrics").get_data(as_text=True)
    assert 'fedping_ingest_rejected_total{reason="page"} 284.0' in page
    assert 'fedping_ingest_rejected_total{reason="unknown_study"} 0.0' in page


@pytest.mark.parametrize("lost", ["store", "store/study/study.json"])
@pytest.mark.parametrize("is_private", [False, True])
def test_a_store_that_cannot_be_read_changes_no_number_of_pings(tmp_path: Path, is_private: bool, lost: str) -> None:
    ingest = ingest_app(tmp_path, others=[private_study()] if is_private else [])
    for _ in range(7):
        assert ingest.ping().status_code == 200
    ingest.services.flush()

    def accepted() -> list[str]:
        page = ingest.operator.get("/metrics").get_data(as_text=True)
        return [line for line in page.splitlines() if line.startswith("fedping_ingest_pings_accepted_total")]

    before = accepted()
    assert before == [f"fedping_ingest_pings_accepted_total {0.0 if is_private else 7.0}"]
    (tmp_path / lost).rename(tmp_path / "away")
    assert accepted() == before
    (tmp_path / "away").rename(tmp_path / lost)
    assert accepted() == before


def test_pings_of_arms_without_a_line_are_counted_by_when_they_landed(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    began = int(time.time() * 1000)
    beside = LandedBeside(open_landing(tmp_path / "landing"), "study")
    assert beside.between(began - 1, began) == 0
    for arm in ("plain", "plain", "control"):
        assert ingest.ping(ping_json(study_variation=arm, update=None, model_version=-1)).status_code == 200
    ingest.land()
    now = int(time.time() * 1000)
    assert beside.between(began - 1, now) == 2
    assert beside.between(now, now + 1) == 0


def test_clients_are_told_of_the_end_and_their_pings_are_refused(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    store, catalogue = open_store(tmp_path / "store"), ingest.services.catalogue
    running = ingest.client.get("/models/study/study.json").get_json()
    assert "ended" not in running

    store.studies.declare("study", Declared(state="paused", since=SINCE))
    catalogue.refresh()
    assert ingest.ping().status_code == 200, "a pause keeps no ping away"
    assert ingest.client.get("/models/study/study.json").get_json() == running

    store.studies.declare("study", Declared(state="ended", since=SINCE))
    catalogue.refresh()
    refused = ingest.ping()
    assert (refused.status_code, refused.get_json()["error"]) == (
        410,
        "study 'study' has ended and accepts no more pings; stop sending",
    )
    assert ingest.client.get("/models/study/study.json").get_json() == {**running, "ended": SINCE}
    assert ingest.client.get("/models/study/main/latest.json").status_code == 200
    assert ingest.totals()["rejected.study_ended"] == 1

    (tmp_path / "store" / "study" / "state.json").write_text("{")
    catalogue.refresh()
    assert "state.json cannot be read" in (catalogue.trouble or "")
    assert ingest.ping().status_code == 410, "what was known holds until it can be read again"
    store.studies.declare("study", Declared(since=SINCE))
    catalogue.refresh()
    assert (catalogue.trouble, ingest.ping().status_code) == (None, 200)


def test_a_state_is_declared_by_command_and_changes_nothing_that_has_a_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = walked_store(tmp_path / "store", small_study(), 2)
    before = store.study("study").digest, store.head("study", "main").digest

    def command(*words: str) -> int:
        return main([*words, "--store", str(tmp_path / "store")])

    for word, state in (("pause", "paused"), ("end", "ended"), ("resume", "running")):
        assert command("study", word, "study") == 0
        assert store.studies.declared("study").state == state
        assert store.studies.declared("study").since
        assert command("study", word, "study") == 0
        assert "nothing changed" in capsys.readouterr().out
    assert command("study", "pause", "other") == 1
    assert "has no study 'other'" in capsys.readouterr().err
    assert (store.study("study").digest, store.head("study", "main").digest) == before


@pytest.mark.parametrize(("word", "told"), [("pause", "is paused since"), ("end", "has ended")])
def test_no_round_of_a_study_that_rests(
    tmp_path: Path, word: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = walked_store(tmp_path / "store", small_study(), 1)
    options = ["--store", str(tmp_path / "store")]
    assert main(["study", word, "study", *options]) == 0
    landing = ["--landing", str(tmp_path / "landing")]
    assert main(["round", "study", *options, *landing, "--engine", "numpy"]) == 0
    assert f"no round, because study 'study' {told}" in capsys.readouterr().err
    assert store.iterations("study", "main") == [0, 1]


def test_the_terminal_tells_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    walked_store(tmp_path / "store", small_study(), 2)
    options = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing")]
    elsewhere = str(tmp_path / "no-journal")
    main(["study", "health", *options, "--journal", elsewhere])
    [said] = [line for line in capsys.readouterr().out.splitlines() if elsewhere in line]
    assert said.startswith("  warning: Unknown whether ingest is running: pings have landed")
    places(tmp_path).journal.mkdir(parents=True)
    assert main(["study", "health", *options]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "study: Not healthy."
    assert shown[1:] == [f"  problem: {sentence}" for sentence in sentences(tmp_path)]


class Receiver:
    """A webhook's receiver, with answers set by a test."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.came, self.may_answer = threading.Semaphore(0), threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                receiver.came.release()
                receiver.may_answer.wait(60)
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret"


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.may_answer.set()
        receiver.server.shutdown()
        thread.join()
        receiver.server.server_close()


def test_a_webhook_is_told_at_first_and_of_every_change_and_of_nothing_else() -> None:
    now, complaints = [0.0], list[str]()
    with receiving() as receiver:
        hook = Webhook(make_poster(receiver.url), complaints.append, lambda: now[0], begin=lambda work: work())
        for health in (WELL, WELL, ILL, ill(7), ILL, WELL):
            hook.update({"study": (Declared(), health)})
    assert [(body["was"], body["verdict"]) for body in receiver.bodies] == [
        (None, "healthy"),
        ("healthy", "problem"),
        ("problem", "healthy"),
    ]
    assert receiver.bodies[1]["text"] == f"fedping, study study: Not healthy.\nproblem: {ILL.findings[0].sentence}"
    assert receiver.bodies[1]["findings"][0]["name"] == "ingest"
    assert not complaints


def test_all_that_is_due_is_posted_at_once_and_a_receiver_that_fails_is_not_asked_for_the_others() -> None:
    now, complaints = [0.0], list[str]()
    studies = {f"study-{k}": (Declared(), ILL) for k in range(30)}
    with receiving() as receiver:
        hook = Webhook(make_poster(receiver.url), complaints.append, lambda: now[0], begin=lambda work: work())
        receiver.statuses = [500]
        hook.update(studies)
        assert len(receiver.bodies) == 1
        hook.update(studies)
        assert len(receiver.bodies) == 30, "all but the one that is tried again later"
        now[0] = 30.0
        hook.update(studies)
        hook.update(studies)
    assert len(receiver.bodies) == 31
    assert {body["study"] for body in receiver.bodies} == studies.keys()


def test_a_post_that_fails_is_told_without_the_address_and_made_again_later() -> None:
    now, complaints = [0.0], list[str]()
    with receiving() as receiver:
        receiver.statuses = [500, 302]
        hook = Webhook(make_poster(receiver.url), complaints.append, lambda: now[0], begin=lambda work: work())
        for then in (0.0, 29.0, 30.0, 89.0, 90.0, 1000.0):
            now[0] = then
            hook.update({"study": (Declared(), ILL)})
        assert len(receiver.bodies) == 3, "at 0, 30 and 90 seconds, and no more once it was taken"
    hook.update({"study": (Declared(), WELL)})
    assert complaints[:2] == [
        "can't post the health of study 'study' to the webhook: HTTP 500; retrying in 30 s",
        "can't post the health of study 'study' to the webhook: HTTP 302; retrying in 60 s",
    ]
    assert "ConnectionError" in complaints[2]
    assert not any("secret" in one for one in complaints)


def test_a_receiver_that_hangs_holds_up_nobody_and_only_the_newest_waits() -> None:
    now, complaints = [0.0], list[str]()
    with receiving() as receiver:
        receiver.may_answer.clear()
        done = threading.Semaphore(0)

        def begin(work: Any) -> None:
            threading.Thread(target=lambda: (work(), done.release()), daemon=True).start()

        hook = Webhook(make_poster(receiver.url), complaints.append, lambda: now[0], begin=begin)
        hook.update({"study": (Declared(), WELL)})
        assert receiver.came.acquire(timeout=60)
        for k in range(50):
            now[0] = 2.0 * k
            hook.update({"study": (Declared(), ILL if k % 2 else WELL)})
        assert len(receiver.bodies) == 1
        assert complaints == ["the webhook has not completed its answer within a minute; posts wait until it does"]
        receiver.may_answer.set()
        assert done.acquire(timeout=60)
        hook.update({"study": (Declared(), ILL)})
        assert done.acquire(timeout=60)
    assert [body["verdict"] for body in receiver.bodies] == ["healthy", "problem"]


@pytest.mark.parametrize(
    "url",
    [
        "chat.example/x",
        "file:///etc/passwd",
        "https://",
        "",
        "http://[::1",
        "https://chat.example:99999/x",
        "https://a b/",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match="not an http or https address"):
        make_poster(url)


class Looks:
    """A clock that stops after a number of checks, and runs an action between them."""

    def __init__(self, *between: Any) -> None:
        self.between = list(between)
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait_until(self, when: float) -> bool:
        if when <= self.time:
            return True
        self.time = when
        if not self.between:
            return False
        self.between.pop(0)()
        return True


def test_whoever_watches_is_told_of_changes_and_of_a_store_that_is_away(tmp_path: Path) -> None:
    study: Study = small_study()
    store = walked_store(tmp_path / "store", study, 1)
    places(tmp_path).journal.mkdir(parents=True)
    away = tmp_path / "away"
    clock = Looks(
        lambda: None,
        lambda: store.studies.declare("study", Declared(state="ended", since=SINCE)),
        lambda: (tmp_path / "store").rename(away),
        lambda: None,
        lambda: away.rename(tmp_path / "store"),
        lambda: store.studies.declare("study", Declared(since=SINCE)),
    )
    told, complaints = list[tuple[str, str]](), list[str]()
    watch_studies(
        StudyMonitor(places(tmp_path)),
        (),
        clock,
        60.0,
        Reports(lambda name, judgement: told.append((name, judgement[1].verdict)), complaints.append),
    )
    assert told == [("study", "problem"), ("study", "ended"), ("study", "problem")]
    assert len(complaints) == 1
    with pytest.raises(FedpingError):
        StudyMonitor(places(tmp_path / "nowhere")).studies()


@pytest.mark.parametrize("damage", [None, b"{"])
def test_a_schedule_has_no_round_of_a_study_that_rests_and_says_so_each_time(
    tmp_path: Path, damage: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    store = walked_store(tmp_path / "store", small_study(), 1)
    store.studies.declare("study", Declared(state="paused", since=SINCE))
    if damage is not None:
        (tmp_path / "store" / "study" / "state.json").write_bytes(damage)
    rounds = StudyRounds(store=store, landing=open_landing(tmp_path / "landing"), study="study", lines=["main"])
    nothing: Any = None  # neither an engine nor a time limit is used
    for _ in range(2):
        run_reported(rounds, nothing, PrivateSettings(), None, nothing)
    why = "is paused since 2026-01-01 00:00 UTC" if damage is None else "state.json cannot be read"
    assert capsys.readouterr().err.count(why) == 2
    assert store.iterations("study", "main") == [0, 1]
