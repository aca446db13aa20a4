"""kill -9 of a two-server round at every step: one version, one answer, and nothing left over."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedping.model_store.store import open_store
from fedping.server_jobs.privacy.budget import spent
from fedping.server_jobs.round import recompute
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support import forked
from tests.support.helper_server import HelperServer, helper_server
from tests.support.private_rounds import land_private
from tests.support.rounds import FIRST_MS, store_with
from tests.support.shared_rounds import KEY, SharedLine, shared_line

ROOT = Path(__file__).parents[2]
KILLED = -9


def run(moment: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    places = ["--store", folder / "store", "--landing", folder / "landing", "--privacy-key", folder / "key"]
    round_ = ["round", "private", "main", "--engine", "numpy", *places, *more]
    command = [sys.executable, "-m", "tests.support.disturbed_round", moment, folder, *map(str, round_)]
    return forked.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


@pytest.fixture
def line(tmp_path: Path) -> SharedLine:
    """Give a store at version 0, its pings, two of which the helper will reject, and the leader's key."""
    made = shared_line(tmp_path)
    store_with(tmp_path / "store", made.study)
    bad = [replace(ping, payload=bytes(8) + (ping.payload or b"")[8:]) for ping in made.crowd(2, seed=8)]
    land_private(tmp_path / "landing", made.study, [*made.crowd(30), *made.crowd(20, arm="control"), *bad])
    (tmp_path / "key").write_text(KEY.hex() + "\n")
    (tmp_path / "key").chmod(0o600)
    return made


@pytest.fixture
def server(line: SharedLine) -> Iterator[HelperServer]:
    with helper_server(line.helper) as made:
        yield made


def expect_one_version(folder: Path, server: HelperServer, vectors: np.ndarray) -> None:
    store = open_store(folder / "store")
    head = store.head("private", "main")
    assert (head.iteration, spent(store, head).releases) == (1, 1)
    event = head.lineage.privacy
    assert event is not None
    assert event.released["treatment"] == tuple(vectors.sum(axis=0).tolist())
    assert event.shared is not None
    assert event.shared.refused == 2
    posted = {body for method, _, body in server.asked if method == "POST"}
    assert len(posted) == 1, "one request, however often it was sent"
    left = {path.name for path in (folder / "store/private/main/asked").iterdir() if not path.name.startswith(".")}
    assert left == {"0.answer"}, "but for hidden files of writes that were cut off"
    assert list((folder / "landing").rglob("*.parquet")) == []
    assert recompute(store, folder / "landing", "private", "main", 1, NumpyEngine()).identical


AROUND_WHAT_STAYS = ("link", "linked", "answered", "second_link", "second_linked", "deleted")
"""Moments around naming the files of request, answer and version, and after the pings are deleted."""

BETWEEN = (
    *("repaired", "listed", "summed", "asked", "replace", "replaced", "aggregated", "drawn", "stepped"),
    *("published", "forgotten"),
)


@pytest.mark.parametrize(
    "moment", [*AROUND_WHAT_STAYS, *(pytest.param(each, marks=pytest.mark.long) for each in BETWEEN)]
)
def test_a_round_of_shares_killed_anywhere_makes_one_version(
    line: SharedLine, tmp_path: Path, server: HelperServer, moment: str
) -> None:
    killed = run(moment, tmp_path, "--helper", server.url)
    assert killed.returncode == KILLED, killed.stderr
    land_private(tmp_path / "landing", line.study, line.crowd(3, seed=5), at_ms=FIRST_MS + 1)
    again = run("never", tmp_path, "--helper", server.url)
    assert again.returncode == 0, again.stderr
    vectors = line.vectors(30)
    if moment in ("repaired", "listed", "summed", "link"):  # before there was a request
        vectors = np.concatenate([vectors, line.vectors(3, seed=5)])
    expect_one_version(tmp_path, server, vectors)


def test_a_round_killed_before_its_request_was_sent_makes_no_second_one(
    line: SharedLine, tmp_path: Path, server: HelperServer
) -> None:
    """Not even if the first would still fit: pings landed in the meantime aren't read, so they don't matter."""
    killed = run("linked", tmp_path, "--helper", server.url)
    assert killed.returncode == KILLED, killed.stderr
    request = (tmp_path / "store/private/main/asked/0.msgpack").read_bytes()
    land_private(tmp_path / "landing", line.study, line.crowd(3, seed=5), at_ms=FIRST_MS + 1).write_bytes(b"torn")
    told = run("never", tmp_path)
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "store/private/main/asked/0.msgpack").read_bytes() == request
    again = run("never", tmp_path, "--helper", server.url)
    assert again.returncode == 0, again.stderr
    expect_one_version(tmp_path, server, line.vectors(30))


@pytest.mark.parametrize(
    ("asking", "moment"),
    [
        (True, "linked"),
        (False, "linked"),
        pytest.param(True, "asked", marks=pytest.mark.long),
        *(pytest.param(False, each, marks=pytest.mark.long) for each in ("answered", "stepped", "published")),
    ],
)
def test_a_round_by_files_killed_anywhere_makes_one_version(
    line: SharedLine, tmp_path: Path, server: HelperServer, asking: bool, moment: str
) -> None:
    request, answer = tmp_path / "store/private/main/asked/0.request", tmp_path / "answer"
    if asking:
        assert run(moment, tmp_path).returncode == KILLED
    told = run("never", tmp_path)
    assert told.returncode == 0
    assert f"send {request} to the helper" in told.stdout
    answer.write_bytes(server.says("POST", "/answers", request.read_bytes()).body)
    if not asking:
        assert run(moment, tmp_path, "--answer", str(answer)).returncode == KILLED
    again = run("never", tmp_path, "--answer", str(answer))
    assert again.returncode == 0, again.stderr
    expect_one_version(tmp_path, server, line.vectors(30))
