"""kill -9 of a private round at every step: one release for each version, and no ping left in the end."""

import shutil
import sys
from pathlib import Path

import pytest

from fedping.model_store.store import open_store
from fedping.server_jobs.privacy.budget import spent
from fedping.server_jobs.round import recompute
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support import forked
from tests.support.private import private_study
from tests.support.private_rounds import land_private, private_crowd
from tests.support.rounds import store_with

ROOT = Path(__file__).parents[2]
KILLED = -9
BETWEEN = ("repaired", "listed", "aggregated", "stepped", "replace", "replaced")
"""Moments of a round between those at which a private round stores something."""


def run(moment: str, folder: Path) -> int:
    round_ = ["round", "private", "--engine", "numpy", "--store", folder / "store", "--landing", folder / "landing"]
    command = [sys.executable, "-m", "tests.support.disturbed_round", moment, folder, *round_]
    return forked.run(command, cwd=ROOT, capture_output=True, timeout=240).returncode


def landed(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in (folder / "landing").rglob("*.parquet"))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a store at version 0 and its pings."""
    folder = tmp_path_factory.mktemp("begun")
    study = private_study()
    store_with(folder / "store", study)
    land_private(folder / "landing", study, private_crowd(study, 200))
    return folder


@pytest.mark.parametrize(
    "moment",
    [
        *("drawn", "link", "linked", "published"),
        *(pytest.param(each, marks=pytest.mark.long) for each in BETWEEN),
    ],
)
def test_a_private_round_killed_anywhere_releases_a_version_once(begun: Path, tmp_path: Path, moment: str) -> None:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    assert run(moment, tmp_path) == KILLED
    store = open_store(tmp_path / "store")
    seen = int(moment in ("linked", "replace", "replaced", "published"))
    assert landed(tmp_path) == landed(begun), "pings stay until their version is published, and a moment longer"
    assert spent(store, store.head("private", "main")).releases == seen
    first = (tmp_path / "store/private/main/versions/1.json").read_bytes() if seen else None
    assert run("never", tmp_path) == 0
    store = open_store(tmp_path / "store")
    assert spent(store, store.head("private", "main")).releases == store.head("private", "main").iteration == 1 + seen
    if first is not None:
        assert (tmp_path / "store/private/main/versions/1.json").read_bytes() == first
    assert list((tmp_path / "landing").rglob("*.parquet")) == []
    assert recompute(store, tmp_path / "landing", "private", "main", 1, NumpyEngine()).identical
