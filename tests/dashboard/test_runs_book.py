"""Runs are processes that outlive whoever started them; their folders tell how they are."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dashboard.runs.book import RunBook, WrongState
from dashboard.runs.run import UnknownRun
from experiments.run_process import PROCESS
from tests.support.processes import left_over, marked, new_mark, wait_until

QUICK = b'rounds = 3\n[model]\nname = "linear-15"\n[data]\nusers = 20\njudges = 10\n[evaluation]\nbaselines = []\n'
LONG = QUICK.replace(b"rounds = 3", b"rounds = 1000000").replace(b"users = 20", b"users = 2000")
WRONG = QUICK.replace(b"users = 20", b"users = 0")


@pytest.fixture
def mark(monkeypatch):
    """Mark every process that a test starts, and hold that none is left."""
    mark = new_mark()
    for name, value in mark.items():
        monkeypatch.setenv(name, value)
    yield mark
    assert left_over(mark, seconds=10) == []


def is_in(book: RunBook, id: str, *states: str) -> bool:
    return wait_until(lambda: book.run(id).state in states, 60)


def pid_of(book: RunBook, id: str) -> int:
    import json

    file = book.run(id).folder / PROCESS
    assert wait_until(file.exists)
    return json.loads(file.read_bytes())["pid"]


def test_a_run_outlives_the_process_that_started_it(tmp_path, mark):
    starter = (
        "import sys, time; from pathlib import Path; from dashboard.runs.book import RunBook; "
        "print(RunBook(Path(sys.argv[1])).start(Path(sys.argv[2]).read_bytes(), 'A quick one: två!').id, flush=True); "
        "time.sleep(600)"
    )
    (tmp_path / "quick.toml").write_bytes(QUICK)
    arguments = [str(tmp_path / "runs"), str(tmp_path / "quick.toml")]
    with subprocess.Popen([sys.executable, "-c", starter, *arguments], stdout=subprocess.PIPE) as server:
        id = server.stdout.readline().decode().strip()
        server.kill()
    book = RunBook(tmp_path / "runs")
    assert book.run(id).state == "running"
    assert book.run(id).description.read_bytes() == QUICK
    assert is_in(book, id, "finished", "failed")
    done = book.run(id)
    assert done.state == "finished", done.message
    assert (done.out / "summary.json").is_file()
    assert done.described <= done.started <= done.ended
    assert [each.id for each in book.runs()] == [id]
    with pytest.raises(WrongState, match="nothing to go on with"):
        book.go_on(id)
    book.delete(id)
    assert book.runs() == []
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [".lock"]


def test_a_run_that_fails_tells_its_last_sentence(tmp_path, mark):
    book = RunBook(tmp_path)
    run = book.start(WRONG, "nobody")
    assert is_in(book, run.id, "failed")
    message = book.run(run.id).message
    assert message.startswith("the experiment file")
    assert "'users' in [data] is 0" in message


def test_a_stopped_run_leaves_no_process_and_goes_on(tmp_path, mark):
    book = RunBook(tmp_path)
    run = book.start(LONG, "long")
    assert wait_until(lambda: (run.out / "experiment.json").exists())
    with pytest.raises(WrongState, match="stop it before"):
        book.delete(run.id)
    book.stop(run.id)
    assert book.run(run.id).stopping or book.run(run.id).state == "stopped"
    assert is_in(book, run.id, "stopped")
    assert wait_until(lambda: not marked(mark), 10)
    with pytest.raises(WrongState, match="only what runs"):
        book.stop(run.id)
    book.go_on(run.id)
    assert book.run(run.id).state == "running"
    book.stop(run.id)
    assert is_in(book, run.id, "stopped")


def test_what_does_not_heed_is_killed_after_a_while(tmp_path, mark):
    """Here a command that ignores the interrupt, and a child of it in a process group of its own."""
    from experiments.run_process import STOP, is_alive, start

    deaf = "import signal, subprocess, sys, time; signal.signal(2, signal.SIG_IGN); "
    deaf += "subprocess.Popen(['sleep', '600'], process_group=0); open(sys.argv[1], 'w'); time.sleep(600)"
    assert start(tmp_path, [sys.executable, "-c", deaf, str(tmp_path / "ready")], patience=0.3)
    assert not start(tmp_path, ["true"], patience=1)
    assert wait_until((tmp_path / "ready").exists)
    (tmp_path / STOP).touch()
    assert wait_until(lambda: not is_alive(tmp_path))
    assert wait_until(lambda: not marked(mark), 5)


def test_a_run_whose_keeper_is_killed_is_lost_and_goes_on(tmp_path, mark):
    book = RunBook(tmp_path)
    run = book.start(LONG, "long")
    os.kill(pid_of(book, run.id), signal.SIGKILL)
    assert is_in(book, run.id, "lost")
    assert "from outside" in book.run(run.id).message
    assert wait_until(lambda: not marked(mark), 10)
    book.go_on(run.id)
    assert book.run(run.id).state == "running"
    book.stop(run.id)
    assert is_in(book, run.id, "stopped")


def test_runs_wait_for_their_turn_and_follow_without_anybody(tmp_path, mark):
    book = RunBook(tmp_path)
    first, second, third = (book.start(WRONG, f"run {number}") for number in range(3))
    assert [first.state, second.state, third.state] == ["running", "waiting", "waiting"]
    book.stop(second.id)
    assert book.run(second.id).state == "stopped"
    # From here on nobody looks at the list: the one that ends starts the next.
    assert is_in(book, third.id, "failed")
    assert book.run(first.id).ended <= book.run(third.id).started
    assert book.run(second.id).started is None


def test_those_that_wait_are_started_by_the_next_who_looks(tmp_path, mark):
    run = RunBook(tmp_path, at_most=0).start(WRONG, "waits")
    assert run.state == "waiting"
    assert RunBook(tmp_path).runs()[0].state == "running"
    assert is_in(RunBook(tmp_path), run.id, "failed")


def test_two_books_of_one_folder_start_a_run_once(tmp_path, mark):
    for number in range(3):
        RunBook(tmp_path, at_most=0).start(LONG, f"run {number}")
    books = [RunBook(tmp_path, at_most=2) for _ in range(6)]
    looks = [threading.Thread(target=book.runs) for book in books]
    for look in looks:
        look.start()
    for look in looks:
        look.join()
    assert sorted(run.state for run in books[0].runs()) == ["running", "running", "waiting"]
    keepers = [command for command in marked(mark).values() if "experiments.run_process" in command]
    assert len(keepers) == 2
    for run in books[0].runs()[::-1]:
        books[1].stop(run.id)
    for run in books[0].runs():
        assert is_in(books[0], run.id, "stopped")


@pytest.mark.parametrize("id", ["..", "../x", "20260101-000000-x/../..", "", "20260101-000000-none", ".lock"])
def test_what_is_no_run_is_refused(tmp_path, id):
    book = RunBook(tmp_path)
    for action in (book.run, book.stop, book.go_on, book.delete):
        with pytest.raises(UnknownRun):
            action(id)
    assert list(tmp_path.iterdir()) == []
    assert Path(tmp_path).is_dir()
