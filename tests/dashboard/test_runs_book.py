"""Runs are processes that outlive the process that started them; their folders store their state."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import requests

from benchmarks.ingest import free_port
from fedping.commands.dashboard import TOKEN_VARIABLE
from fedping.dashboard.answers import WrongState
from fedping.dashboard.runs.registry import NOTE, RunBook, UnknownRun
from fedping.experiments.run_process import ENDED, PROCESS
from tests.support import forked
from tests.support.dashboard import dashboard_client
from tests.support.processes import left_over, marked, new_mark, wait_until
from tests.support.watched import ended, noted

QUICK = b'rounds = 3\n[model]\nname = "linear-15"\n[data]\nusers = 20\njudges = 10\n[evaluation]\nbaselines = []\n'
LONG = QUICK.replace(b"rounds = 3", b"rounds = 1000000").replace(b"users = 20", b"users = 2000")
WRONG = QUICK.replace(b"users = 20", b"users = 0")


@pytest.fixture
def mark(monkeypatch):
    """Mark every process that a test starts, and check that none is left."""
    mark = new_mark()
    for name, value in mark.items():
        monkeypatch.setenv(name, value)
    yield mark
    assert left_over(mark, seconds=10) == []


def is_in(book: RunBook, id: str, *states: str) -> bool:
    return wait_until(lambda: book.run(id).state in states)


def pid_of(book: RunBook, id: str) -> int:
    file = book.run(id).folder / PROCESS
    assert wait_until(file.exists)
    return json.loads(file.read_bytes())["pid"]


def test_a_run_outlives_the_server_that_started_it(tmp_path, mark):
    """A real dashboard is killed during a run; the next one finds the run running, and then finished."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "fedping",
        "dashboard",
        "--no-token",
        "--port",
        str(port),
        "--runs",
        str(tmp_path / "runs"),
    ]
    command += ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing")]
    slow = QUICK.replace(b"rounds = 3", b"rounds = 20").decode()
    with forked.Popen(command, stdout=subprocess.DEVNULL) as server, requests.Session() as visitor:
        address = f"http://127.0.0.1:{port}"
        assert wait_until(lambda: answers(f"{address}/runs/feed"))
        page = visitor.get(f"{address}/runs/new", headers={"Accept": "text/html"}).text
        token = re.search('name="csrf-token" content="([^"]+)"', page)[1]
        told = {"text": slow, "title": "A slow one: två!", "csrf_token": token}
        answer = visitor.post(f"{address}/runs/start", told, allow_redirects=False)
        id = answer.headers["Location"].split("/")[2]
        server.kill()
    again = dashboard_client(tmp_path)
    row = again.get("/runs/feed").get_json()["data"]["runs"][0]
    assert (row["id"], row["state"], row["title"]) == (id, "running", "A slow one: två!")
    book = RunBook(tmp_path / "runs")
    assert book.run(id).description.read_text() == slow
    assert is_in(book, id, "finished", "failed")
    done = book.run(id)
    assert done.state == "finished", done.message
    assert (done.out / "summary.json").is_file()
    assert done.described <= done.started <= done.ended
    row = again.get("/runs/feed").get_json()["data"]["runs"][0]
    assert (row["state"], row["done"], row["variants"], row["seeds"]) == ("finished", 1.0, 1, 1)
    with pytest.raises(WrongState, match="so it can't continue"):
        book.resume(id)
    book.delete(id)
    assert book.runs() == []
    assert not (tmp_path / "runs" / id).exists()


def answers(address: str) -> bool:
    try:
        return requests.get(address, timeout=5).ok
    except requests.ConnectionError:
        return False


def test_a_stopped_run_leaves_no_process_and_goes_on(tmp_path, mark):
    book = RunBook(tmp_path)
    run = book.start(LONG, "long")
    assert wait_until(lambda: (run.out / "experiment.json").exists())
    with pytest.raises(WrongState, match="stop it before"):
        book.delete(run.id)
    book.stop(run.id)
    assert book.run(run.id).stopping or book.run(run.id).state == "stopped"
    assert is_in(book, run.id, "stopped")
    assert wait_until(lambda: not marked(mark))
    with pytest.raises(WrongState, match="only running"):
        book.stop(run.id)
    book.resume(run.id)
    assert book.run(run.id).state == "running"
    book.stop(run.id)
    assert is_in(book, run.id, "stopped")


def test_what_does_not_heed_is_killed_after_a_while(tmp_path, mark):
    """The command ignores the interrupt, and has a child in a separate process group."""
    from fedping.experiments.run_process import STOP, is_alive, start

    deaf = "import signal, subprocess, sys, time; signal.signal(2, signal.SIG_IGN); "
    deaf += "subprocess.Popen(['sleep', '600'], process_group=0); open(sys.argv[1], 'w'); time.sleep(600)"
    assert start(tmp_path, [sys.executable, "-c", deaf, str(tmp_path / "ready")], patience=0.3)
    assert not start(tmp_path, ["true"], patience=1)
    assert wait_until((tmp_path / "ready").exists)
    (tmp_path / STOP).touch()
    assert wait_until(lambda: not is_alive(tmp_path))
    assert wait_until(lambda: not marked(mark))


def test_a_command_gets_the_environment_without_the_secrets_of_the_server(tmp_path, mark, monkeypatch):
    from fedping.experiments.run_process import STDOUT, is_alive, start

    secret = "a token of the dashboard"
    for name in (TOKEN_VARIABLE, "CREDENTIALS_DIRECTORY"):
        monkeypatch.setenv(name, secret)
    tell = "import os; print(open(f'/proc/{os.getppid()}/environ').read(), *os.environ.items())"
    assert start(tmp_path, [sys.executable, "-c", tell], patience=1)
    assert wait_until(lambda: not is_alive(tmp_path))
    said = (tmp_path / STDOUT).read_text()
    for name in (TOKEN_VARIABLE, "CREDENTIALS_DIRECTORY", secret):
        assert name not in said
    for value in mark.values():
        assert value in said


def test_a_run_whose_keeper_is_killed_is_lost_and_goes_on(tmp_path, mark):
    book = RunBook(tmp_path)
    run = book.start(LONG, "long")
    os.kill(pid_of(book, run.id), signal.SIGKILL)
    assert is_in(book, run.id, "lost")
    assert "ended by another program" in book.run(run.id).message
    assert wait_until(lambda: not marked(mark))
    book.resume(run.id)
    assert book.run(run.id).state == "running"
    book.stop(run.id)
    assert is_in(book, run.id, "stopped")


def test_runs_wait_for_their_turn_and_follow_without_anybody(tmp_path, mark):
    first, second, third = (RunBook(tmp_path, at_most=0).start(WRONG, f"run {number}") for number in range(3))
    assert [first.state, second.state, third.state] == ["waiting"] * 3
    book = RunBook(tmp_path)
    assert [run.state for run in book.runs()] == ["waiting"] * 3
    book.start_waiting()
    assert [run.state for run in book.runs()] == ["waiting", "waiting", "running"]
    book.stop(second.id)
    assert book.run(second.id).state == "stopped"
    # From here on the list isn't read: the run that ends starts the next.
    assert is_in(book, third.id, "failed")
    assert book.run(first.id).ended <= book.run(third.id).started
    assert book.run(second.id).started is None
    message = book.run(first.id).message
    assert message.startswith("the experiment file")
    assert "'users' in [data] is 0" in message


def test_two_books_of_one_folder_start_a_run_once(tmp_path, mark):
    for number in range(3):
        RunBook(tmp_path, at_most=0).start(LONG, f"run {number}")
    books = [RunBook(tmp_path, at_most=2) for _ in range(6)]
    looks = [threading.Thread(target=book.start_waiting) for book in books]
    for look in looks:
        look.start()
    for look in looks:
        look.join()
    assert sorted(run.state for run in books[0].runs()) == ["running", "running", "waiting"]
    keepers = [command for command in marked(mark).values() if "fedping.experiments.run_process" in command]
    assert len(keepers) == 2
    for run in books[0].runs()[::-1]:
        books[1].stop(run.id)
    for run in books[0].runs():
        assert is_in(books[0], run.id, "stopped")


@pytest.mark.parametrize("id", ["..", "../x", "20260101-000000-x/../..", "", "20260101-000000-none", ".lock"])
def test_what_is_no_run_is_refused(tmp_path, id):
    book = RunBook(tmp_path)
    for action in (book.run, book.stop, book.resume, book.delete):
        with pytest.raises(UnknownRun):
            action(id)
    assert list(tmp_path.iterdir()) == []
    assert Path(tmp_path).is_dir()


def test_what_is_damaged_in_one_run_stops_neither_the_others_nor_the_dashboard(tmp_path):
    runs = tmp_path / "runs"
    finished = noted(runs, "20260101-000001-finished", "finished")
    ended(finished)
    for number, name in enumerate((PROCESS, ENDED, NOTE), start=2):
        folder = noted(runs, f"20260101-00000{number}-damaged", name)
        (folder / name).write_bytes(b"[1, \xff")
    no_file = noted(runs, "20260101-000005-no-file", "no file")
    (no_file / NOTE).unlink()
    (no_file / NOTE).mkdir()
    (runs / "20260101-000006-no-folder").write_text("")
    rows = dashboard_client(tmp_path).get("/runs/feed").get_json()["data"]["runs"]
    states = {row["title"]: row["state"] for row in rows}
    assert states == {"finished": "finished", PROCESS: "lost", ENDED: "lost"}


def test_a_title_is_one_line_of_signs_that_are_seen(tmp_path):
    book = RunBook(tmp_path, at_most=0)
    assert book.start(b"", " a\u202e b\n\tc\x00 å ").title == "a b c å"
    assert book.start(b"", "\u200b").title == "untitled"
