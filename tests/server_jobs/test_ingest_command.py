"""Bad input on the command line: one sentence, a non-zero exit, and nothing left running."""

import os
import socket
import sys
from pathlib import Path

import pytest

from fedping.main import main
from tests.support import forked
from tests.support.ingest_app import make_store
from tests.support.ingest_server import ROOT, IngestServer, free_port
from tests.support.processes import left_over, new_mark


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make_store(tmp_path / "store")
    return tmp_path / "store"


def run(*options: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "fedping", "ingest", *map(str, options)]
    mark = new_mark()
    environment = {**os.environ, **mark}
    done = forked.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert "Traceback" not in done.stderr
    assert left_over(mark) == []
    return done.returncode, done.stderr


def test_a_missing_store(tmp_path: Path) -> None:
    code, told = run("--store", tmp_path / "none", "--landing", tmp_path / "landing")
    assert code == 1
    assert "there is no model store at" in told
    assert "--store" in told
    assert not (tmp_path / "landing").exists()


@pytest.mark.parametrize("damage", ["study.json", "a file"])
def test_a_corrupt_store(store: Path, tmp_path: Path, damage: str) -> None:
    if damage == "study.json":
        (store / "study" / "study.json").write_text("{")
    else:
        store = tmp_path / "file"
        store.write_text("")
    code, told = run("--store", store, "--landing", tmp_path / "landing")
    assert code == 1
    assert str(store) in told


def test_a_port_in_use(store: Path, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, told = run("--store", store, "--landing", tmp_path / "landing", "--port", port)
    assert code == 1
    assert f"port {port} of 127.0.0.1 is in use" in told
    assert "--port" in told


def test_the_port_and_the_journal_of_another_ingest(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "fedping.server_jobs.ingest.supervisor.LOCK_PATIENCE", 0.2
    )  # seconds: nobody is about to give it up
    server = IngestServer(store, tmp_path / "landing", "--workers", "1")
    server.start()
    try:
        code, told = run("--store", store, "--landing", tmp_path / "other", "--port", server.port)
        assert (code, "is in use" in told) == (1, True)
        again = ["--store", str(store), "--landing", str(tmp_path / "landing"), "--port", str(free_port())]
        code, told = main(["ingest", *again]), capsys.readouterr().err
        assert (code, "another ingest is running with the journal" in told) == (1, True)
        assert server.is_well()
    finally:
        server.stop()


@pytest.mark.parametrize("what", ["landing", "journal"])
def test_a_folder_that_is_a_file(store: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("")
    options = {"landing": tmp_path / "landing", "journal": tmp_path / "journal"} | {what: tmp_path / "file"}
    code, told = run("--store", store, *(x for name, path in options.items() for x in (f"--{name}", path)))
    assert code == 1
    assert f"the {what} folder {tmp_path / 'file'} cannot be written" in told


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write")
@pytest.mark.parametrize("what", ["landing", "journal"])
def test_a_folder_that_cannot_be_written(store: Path, tmp_path: Path, what: str) -> None:
    options = {"landing": tmp_path / "landing", "journal": tmp_path / "journal"} | {what: Path("/proc/self/fedping")}
    code, told = run("--store", store, *(x for name, path in options.items() for x in (f"--{name}", path)))
    assert code == 1
    assert f"the {what} folder /proc/self/fedping cannot be written" in told


@pytest.mark.parametrize(
    "options",
    [("--workers", "0"), ("--port", "0"), ("--port", "70000"), ("--compact-every", "0"), ("--compact-every", "nan")],
)
def test_a_number_out_of_range(store: Path, tmp_path: Path, options: tuple[str, str]) -> None:
    code, told = run("--store", store, "--landing", tmp_path / "landing", *options)
    assert code == 2
    assert options[0] in told


def test_a_host_that_is_none(store: Path, tmp_path: Path) -> None:
    code, told = run("--store", store, "--landing", tmp_path / "landing", "--host", "no.such.host.invalid")
    assert code == 1
    assert "--host" in told
