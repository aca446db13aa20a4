"""LocalBlobs keeps what it promises when it is killed in the middle of a write."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from model_store.blobs import LocalBlobs
from protocol.errors import FedpingError

WRITE = """
import os, sys
from pathlib import Path
from model_store.blobs import LocalBlobs
at = sys.argv[2]
def die(*_): os.kill(os.getpid(), 9)
setattr(os, at, die)
LocalBlobs(Path(sys.argv[1])).{operation}("a/key.json", b"new")
"""


@pytest.mark.parametrize(("operation", "step"), [("create", "link"), ("create", "fsync"), ("replace", "replace")])
def test_a_kill_in_a_write_leaves_the_old_or_nothing(tmp_path: Path, operation: str, step: str) -> None:
    blobs = LocalBlobs(tmp_path)
    if operation == "replace":
        blobs.replace("a/key.json", b"old")
    code = WRITE.format(operation=operation)
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path), step], cwd=Path(__file__).parents[2])
    assert killed.returncode == -signal.SIGKILL
    assert blobs.read("a/key.json") == (b"old" if operation == "replace" else None)
    assert blobs.names("a") == (["key.json"] if operation == "replace" else [])
    blobs.replace("a/key.json", b"again")
    assert blobs.read("a/key.json") == b"again"


def test_create_leaves_what_is_there(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    assert blobs.create("k", b"1")
    assert not blobs.create("k", b"2")
    assert blobs.read("k") == b"1"


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FedpingError, match="No space left on device; free space"):
        LocalBlobs(tmp_path).create("k", b"1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("operation", "step"), [("create", "fsync"), ("create", "link"), ("replace", "fsync"), ("replace", "replace")]
)
def test_control_c_in_a_write_leaves_the_old_and_nothing_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, step: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    blobs = LocalBlobs(tmp_path)
    blobs.replace("a/old.json", b"old")
    monkeypatch.setattr(os, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(blobs, operation)("a/old.json" if operation == "replace" else "a/new.json", b"new")
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "a").iterdir()] == [("old.json", b"old")]
