"""A store in a folder stays intact and durable when a write is killed, interrupted or rejected."""

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from fedping.main import main
from fedping.model_store.store import store_at
from fedping.protocol.errors import FedpingError
from tests.support import forked
from tests.support.ingest_app import make_store

WRITE = """
import os, sys
from pathlib import Path
from fedping.model_store.store import store_at
at = sys.argv[2]
def die(*_): os.kill(os.getpid(), 9)
setattr(os, at, die)
store_at(Path(sys.argv[1])).documents.{operation}("a/key.json", b"new")
"""


@pytest.mark.parametrize(("operation", "step"), [("create", "link"), ("create", "fsync"), ("replace", "replace")])
def test_a_kill_in_a_write_leaves_the_old_or_nothing(tmp_path: Path, operation: str, step: str) -> None:
    blobs = store_at(tmp_path).documents
    if operation == "replace":
        blobs.replace("a/key.json", b"old")
    code = WRITE.format(operation=operation)
    killed = forked.run([sys.executable, "-c", code, str(tmp_path), step], cwd=Path(__file__).parents[2])
    assert killed.returncode == -signal.SIGKILL
    assert blobs.read("a/key.json") == (b"old" if operation == "replace" else None)
    assert blobs.names("a") == (["key.json"] if operation == "replace" else [])
    blobs.replace("a/key.json", b"again")
    assert blobs.read("a/key.json") == b"again"


def test_create_leaves_what_is_there(tmp_path: Path) -> None:
    blobs = store_at(tmp_path).documents
    assert blobs.create("k", b"1")
    assert not blobs.create("k", b"2")
    assert blobs.read("k") == b"1"


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FedpingError, match="No space left on device; free space"):
        store_at(tmp_path).documents.create("k", b"1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("operation", "step"), [("create", "fsync"), ("create", "link"), ("replace", "fsync"), ("replace", "replace")]
)
def test_control_c_in_a_write_leaves_the_old_and_nothing_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, step: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    blobs = store_at(tmp_path).documents
    blobs.replace("a/old.json", b"old")
    monkeypatch.setattr(os, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(blobs, operation)("a/old.json" if operation == "replace" else "a/new.json", b"new")
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "a").iterdir()] == [("old.json", b"old")]


@pytest.fixture(params=[errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def no_links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reject hard links like file systems without them: FAT by EPERM, others by ENOTSUP or ENOSYS."""

    def link(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.usefixtures("no_links")
def test_a_file_system_without_hard_links_is_told_before_anything_is_made(tmp_path: Path) -> None:
    for refused in (
        lambda: store_at(tmp_path).documents.create("k", b"1"),
        lambda: store_at(tmp_path).documents.check_writing(),
    ):
        with pytest.raises(FedpingError, match=r"has no hard links, .*Put the store on a local disk"):
            refused()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_links")
def test_a_study_cannot_be_created_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parents[2] / "experiments" / "firefox.toml"
    assert main(["study", "create", str(file), "--store", str(tmp_path / "store")]) == 1
    told = capsys.readouterr().err
    assert "has no hard links" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("command", [["round", "study"], ["schedule", "study", "--every", "1s", "--now"]])
def test_a_round_says_so_before_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    make_store(tmp_path / "store")  # on a disk with links, and then copied to one without

    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr("fedping.server_jobs.round.engine_named", None)  # otherwise starting an engine would fail
    assert main([*command, "--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing")]) == 1
    assert "has no hard links" in capsys.readouterr().err


def test_where_there_are_links_the_check_leaves_nothing(tmp_path: Path) -> None:
    store_at(tmp_path).documents.check_writing()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("operation", "step"), [("create", "link"), ("replace", "replace"), ("create", "open")])
def test_whatever_else_the_system_refuses_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, step: str
) -> None:
    """An example is a full disk when the folder grows by the new name; `open` is the open of the flushed folder."""

    def refused(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:  # undone before pytest removes the folder, which opens it
        patch.setattr(os, step, refused)
        with pytest.raises(FedpingError, match=r"cannot write .*Input/output error"):
            getattr(store_at(tmp_path).documents, operation)("k", b"1")
