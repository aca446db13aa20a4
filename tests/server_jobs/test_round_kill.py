"""kill -9 of the round at every step, and two rounds at the same time, each in a separate process."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from fedping.model_store.store import ModelStore, open_store
from fedping.model_store.version import Version
from fedping.protocol.model import ModelDocument
from tests.support import forked
from tests.support.rounds import FIRST_MS, crowd, land, store_with
from tests.support.versions import small_study

ROOT = Path(__file__).parents[2]
KILLED = -9


def start(moment: str, folder: Path, store: str = "store") -> subprocess.Popen[str]:
    """Start `fedping round` on a store below a folder, disturbed at a moment."""
    round_ = ["round", "study", "main", "--engine", "numpy", "--store", folder / store, "--landing", folder / "landing"]
    command = [sys.executable, "-m", "tests.support.disturbed_round", moment, folder, *round_]
    return forked.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def undated(version: Version) -> Version:
    return msgspec.structs.replace(version, created="")


def every_visible_file_is_whole(store: Path) -> None:
    for path in store.rglob("*.json"):
        if not path.name.startswith("."):
            kinds = {"versions": Version, "public": ModelDocument}
            msgspec.json.decode(path.read_bytes(), type=kinds.get(path.parent.name, dict))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Version]:
    """Give a folder with a store at version 1 and landed pings of versions 0, 1 and 2, and the resulting version 2."""
    folder = tmp_path_factory.mktemp("undisturbed")
    land(folder / "landing", crowd(20, seed=1))
    store_with(folder / "store", small_study())
    assert finish(start("never", folder))[0] == 0
    land(folder / "landing", crowd(30, seed=2, version=1), iteration=1, at_ms=FIRST_MS + 10)
    land(folder / "landing", crowd(5, seed=3, first_document=900), iteration=0, at_ms=FIRST_MS + 11)
    shutil.copytree(folder / "store", folder / "calm")
    assert finish(start("never", folder, "calm"))[0] == 0
    calm = open_store(folder / "calm")
    assert calm.iterations("study", "main") == [0, 1, 2]
    return folder, calm.version("study", "main", 2)


@pytest.fixture
def ready(undisturbed: tuple[Path, Version], tmp_path: Path) -> Path:
    """Give a folder with a store at version 1, and landed pings of versions 0, 1 and 2."""
    for name in ("store", "landing"):
        shutil.copytree(undisturbed[0] / name, tmp_path / name)
    return tmp_path


BEFORE_THE_LINK = ("repaired", "listed", "aggregated", "stepped", "link")
AFTER_THE_LINK = ("linked", "replace", "replaced", "published")


@pytest.mark.parametrize(
    "moment",
    [
        *("link", "linked", "replaced"),
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in BEFORE_THE_LINK + AFTER_THE_LINK
            if each not in ("link", "linked", "replaced")
        ),
    ],
)
def test_a_round_killed_at_any_step_is_repeated_to_the_same_version(
    ready: Path, undisturbed: tuple[Path, Version], moment: str
) -> None:
    code, out, _ = finish(start(moment, ready))
    assert (code, out) == (KILLED, "")
    every_visible_file_is_whole(ready / "store")
    store: ModelStore = open_store(ready / "store")
    assert store.head("study", "main").iteration == (
        2 if moment in ("linked", "replace", "replaced", "published") else 1
    )

    assert finish(start("never", ready))[0] == 0
    assert store.iterations("study", "main") == [0, 1, 2]
    assert undated(store.version("study", "main", 2)) == undated(undisturbed[1])
    public = ready / "store/study/main/public"
    assert sorted(p.name for p in public.iterdir() if p.suffix == ".json") == [
        "0.json",
        "1.json",
        "2.json",
        "latest.json",
    ]
    assert (public / "latest.json").read_bytes() == store.public.document("study", "main", 2)
    assert (public / "2.json").read_bytes() == (public / "latest.json").read_bytes()


def test_of_two_rounds_at_once_one_wins_and_the_other_says_so(ready: Path) -> None:
    both = [start("wait", ready), start("wait", ready)]
    deadline = time.monotonic() + 240
    while len(list(ready.glob("ready-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    (ready / "go").touch()
    ends = [finish(process) for process in both]
    assert [code for code, _, _ in ends] == [0, 0], ends
    said = sorted(out.partition("\n")[0] for _, out, _ in ends)
    assert said[0].startswith("study/main: another round published version 2 first, so this one published no version")
    assert said[1].startswith("study/main: published version 2 from 30 pings of 30 clients")
    assert open_store(ready / "store").iterations("study", "main") == [0, 1, 2]
    every_visible_file_is_whole(ready / "store")
