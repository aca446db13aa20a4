"""Foreign and damaged files among a line's versions, and a store restored from a copy."""

import json
import os
import queue
import shutil
import threading
from pathlib import Path

import msgspec
import pytest

from fedping.main import main
from fedping.model_store import MissingVersion, ModelStore, StoreError, Version, VersionConflict, open_store
from fedping.model_store.decisions import continue_at, rollback
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landing import open_landing
from fedping.protocol.model import UnfitModel
from fedping.protocol.storage import LARGEST_BLOB
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.rounds import FIRST_MS, crowd, land, store_with
from tests.support.versions import WHEN, after, small_study, version_0


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Give a store at version 3."""
    made = open_store(tmp_path / "store", create=True)
    study = small_study()
    made.create_study(study, (version_0(study),))
    for _ in range(3):
        made.publish(after(made.head("study", "main")))
    return made


@pytest.fixture
def versions(store: ModelStore, tmp_path: Path) -> Path:
    return tmp_path / "store/study/main/versions"


def grow(store: ModelStore, by: int = 1, change: float = 0.5) -> Version:
    for _ in range(by):
        store.publish(after(store.head("study", "main"), change=change))
    return store.head("study", "main")


def go_on(store: ModelStore, number: int, seen: int = -1) -> Version:
    return continue_at(store, "study", "main", number, seen=seen, created=WHEN, code_version="test")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(LARGEST_BLOB + 1)


def copied(path: Path) -> None:
    shutil.copy(path.with_name("3.json"), path)


STRAYS = {
    "99.json": copied,
    "098.json": copied,
    "97.JSON": copied,
    "1e3.json": copied,
    "\u0663\u0664.json": copied,
    "-4.json": copied,
    "9999999999999.json": copied,
    "96.json": Path.mkdir,
    "95.json": fifo,
    "94.json": lambda path: path.symlink_to("3.json"),
    "93.json": lambda path: path.symlink_to("nowhere"),
    "92.json": huge,
    "91.json": lambda path: path.write_bytes(b"{}"),
    "notes.txt": lambda path: path.write_text("mine"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", STRAYS)
def test_what_does_not_follow_is_never_the_head_and_is_told(store: ModelStore, versions: Path, name: str) -> None:
    STRAYS[name](versions / name)
    for looked in (store, open_store(versions.parents[2])):
        assert looked.iterations("study", "main") == [0, 1, 2, 3]
        assert looked.head("study", "main").iteration == 3
        assert looked.lines.newest("study", "main") == looked.lines.newest_from("study", "main", 0) == 3
        assert looked.lines.trouble("study", "main") is None
        (note,) = looked.lines.notes("study", "main")
        assert ascii(name)[1:-1] in note
        assert "move it away" in note
    assert grow(store).iteration == 4
    assert not (versions.parent / "public" / name).exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [copied, Path.mkdir, fifo, huge, lambda path: path.write_bytes(b"{")])
def test_a_file_in_the_next_place_stops_publishing_and_not_serving(store: ModelStore, versions: Path, make) -> None:
    make(versions / "4.json")
    assert store.lines.newest("study", "main") == store.lines.newest_from("study", "main", 3) == 3
    with pytest.raises(StoreError, match=r"versions/4\.json .*(move it out|restore it)"):
        store.head("study", "main")
    assert "4.json" in (store.lines.trouble("study", "main") or "")
    path = versions / "4.json"
    path.rmdir() if path.is_dir() else path.unlink()
    assert grow(store).iteration == 4


def test_a_version_of_another_past_does_not_follow(store: ModelStore, versions: Path) -> None:
    """The version differs only in its parent's digest, like a version published by a copy of the store."""
    other = msgspec.structs.replace(store.head("study", "main"), created="2027-01-01T00:00:00.000+00:00")
    (versions / "4.json").write_bytes(msgspec.json.encode(after(other)))
    assert store.lines.newest_from("study", "main", 3) == 3
    with pytest.raises(StoreError, match="was computed from a different version 3"):
        store.head("study", "main")


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data.replace(b'"line":"main"', b'"line":"mein"')]
)
def test_a_damaged_head_is_an_error_and_never_passed_over(store: ModelStore, versions: Path, damage) -> None:
    path = versions / "3.json"
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    for looked in (store, open_store(versions.parents[2])):
        with pytest.raises(StoreError, match=r"3\.json .*from a copy"):
            looked.head("study", "main")
        assert looked.lines.newest("study", "main") == 3
        assert looked.lines.trouble("study", "main")
        with pytest.raises(StoreError, match=r"3\.json"):
            looked.public.document("study", "main", 3)
    path.write_bytes(whole)
    assert grow(store).iteration == 4


def test_a_missing_version_in_between_is_told_and_does_not_take_the_line_back(
    store: ModelStore, versions: Path
) -> None:
    (versions / "1.json").unlink()
    assert store.iterations("study", "main") == [0, 2, 3]
    assert "lacks 1.json to 1.json" in store.lines.notes("study", "main")[0]
    assert grow(store).iteration == 4


def test_a_version_is_read_once_to_learn_whether_it_follows(versions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(versions.parents[2])
    blobs = store.documents
    reads: list[str] = []
    read = blobs.read
    monkeypatch.setattr(blobs, "read", lambda key: (reads.append(key), read(key))[1])
    assert store.lines.newest_from("study", "main", 2) == 3
    assert reads
    reads.clear()
    for _ in range(5):
        assert store.lines.newest_from("study", "main", 2) == 3
        assert store.lines.newest_from("study", "main", 3) == 3
    assert reads == []


def test_a_copied_study_folder_is_told(store: ModelStore, versions: Path) -> None:
    shutil.copytree(versions.parents[1], versions.parents[2] / "study-old")
    with pytest.raises(StoreError, match="is the study 'study': a copy"):
        store.study("study-old")


@pytest.mark.parametrize("weights", [(1e31, 12.0), (float("nan"), 12.0), (float("inf"), 12.0), (-2e30, 12.0)])
def test_what_no_client_could_read_is_not_published(store: ModelStore, weights: tuple[float, float]) -> None:
    version = msgspec.structs.replace(after(store.head("study", "main")), weights=weights, model=weights)
    with pytest.raises(UnfitModel, match=r"weight 'w0' would be .* between -1e30 and 1e30"):
        store.publish(version)
    assert store.iterations("study", "main") == [0, 1, 2, 3]


def test_a_state_that_could_not_be_read_again_is_not_published(store: ModelStore) -> None:
    head = store.head("study", "main")
    for change in ({"state": ({"rate": (0.1, float("inf"))},)}, {"weights": (float("nan"), 1.0)}):
        with pytest.raises(UnfitModel, match=r"position [01]: (inf|nan)"):
            store.publish(msgspec.structs.replace(after(head), **change))
    with pytest.raises(UnfitModel, match="has 3 weights, and model spec 'small' has 2"):
        store.publish(msgspec.structs.replace(after(head), model=(1.0, 2.0, 3.0)))
    assert store.head("study", "main") == head


def restored_copy(store: ModelStore, versions: Path, further: int = 3) -> dict[str, bytes]:
    """Copy the store, publish more versions, restore the copy; return the documents that clients may have fetched."""
    root = versions.parents[2]
    shutil.copytree(root, root.with_name("copy"))
    grow(store, further, change=1.0)
    fetched = {path.name: path.read_bytes() for path in (versions.parent / "public").glob("[0-9]*.json")}
    shutil.rmtree(root)
    shutil.copytree(root.with_name("copy"), root)
    return fetched


@pytest.mark.parametrize("number", [7, 8, 5000])
def test_a_restored_store_goes_on_where_no_number_is_published_twice(
    store: ModelStore, versions: Path, number: int
) -> None:
    fetched = restored_copy(store, versions)
    made = go_on(open_store(versions.parents[2]), number)
    assert (made.iteration, made.parent, made.lineage.origin, made.lineage.restored) == (number, 3, "continued", 3)
    looked = open_store(versions.parents[2])
    grow(looked, 2, change=2.0)
    assert looked.iterations("study", "main") == [0, 1, 2, 3, number, number + 1, number + 2]
    assert looked.lines.notes("study", "main") == []
    for known in (-1, 0, 3, number, number + 1):
        assert looked.lines.newest_from("study", "main", known) == number + 2
    assert store.lines.newest_from("study", "main", 6) == number + 2  # a process that knew a lost version
    for lost in (4, 5, 6):
        with pytest.raises(MissingVersion):
            looked.version("study", "main", lost)
    for name, data in fetched.items():
        public = versions.parent / "public" / name
        assert not public.exists() or public.read_bytes() == data


def test_the_fence_right_after_one_lost_version(store: ModelStore, versions: Path) -> None:
    """No number is between the fence's own place and its target."""
    restored_copy(store, versions, further=1)
    looked = open_store(versions.parents[2])
    go_on(looked, 5)
    grow(looked)
    assert looked.iterations("study", "main") == [0, 1, 2, 3, 5, 6]
    assert looked.lines.newest_from("study", "main", 3) == 6


def test_without_a_gap_the_next_version_repeats_the_head(store: ModelStore) -> None:
    made = go_on(store, 4)
    assert (made.model, made.parent, made.lineage.origin) == (store.version("study", "main", 3).model, 3, "continued")
    assert store.iterations("study", "main") == [0, 1, 2, 3, 4]
    assert go_on(store, 4) == made  # again: nothing more


def test_numbers_that_were_published_are_refused(store: ModelStore, versions: Path) -> None:
    for number in (-1, 0, 3):
        with pytest.raises(InvalidSettings, match="at version 3; give --from a number above"):
            go_on(store, number)
    with pytest.raises(InvalidSettings, match="--from 10'"):
        go_on(store, 9, seen=9)
    with pytest.raises(InvalidSettings, match="too large"):
        go_on(store, 2**31)
    (versions / "50.json").write_bytes(b"mine")
    with pytest.raises(StoreError, match=r"50\.json exists, but is not a version"):
        go_on(store, 50)
    assert grow(store).iteration == 4


def test_static_files_that_show_more_stop_publishing_until_the_fence(store: ModelStore, versions: Path) -> None:
    """The versions were restored from a copy, the static files weren't."""
    (versions / "3.json").unlink()
    looked = open_store(versions.parents[2])
    assert looked.lines.newest("study", "main") == 2
    for attempt in (
        lambda: grow(looked),
        lambda: looked.public.refresh("study", "main"),
        lambda: rollback(looked, "study", "main", 0, created=WHEN, code_version="test"),
    ):
        with pytest.raises(StoreError, match=r"older copy.*'fedping store continue study main --from 4'"):
            attempt()
    assert json.loads((versions.parent / "public/latest.json").read_bytes())["iteration"] == 3
    go_on(looked, 4)
    assert grow(looked).iteration == 5
    assert json.loads((versions.parent / "public/latest.json").read_bytes())["iteration"] == 5


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_fence_that_was_interrupted_is_finished_by_the_same_command(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The command is killed before it writes its first, second or third file."""

    class Killed(BaseException): ...

    blobs, calls = store.documents, 0
    create = blobs.create

    def create_until(key: str, data: bytes) -> bool:
        nonlocal calls
        calls += 1
        if calls == at:
            raise Killed
        return create(key, data)

    monkeypatch.setattr(blobs, "create", create_until)
    with pytest.raises(Killed):
        go_on(store, 20)
    monkeypatch.undo()
    assert store.head("study", "main").iteration == 3
    assert store.lines.newest_from("study", "main", 3) == store.lines.newest("study", "main") == 3
    if at > 1:
        with pytest.raises(StoreError, match=r"was interrupted; finish it with .*--from 20'"):
            grow(store)
        assert "--from 20'" in (store.lines.trouble("study", "main") or "")
        with pytest.raises(StoreError, match=r"finish it with .*--from 20'"):
            go_on(store, 30)
    assert go_on(store, 20).iteration == 20
    assert grow(store).iteration == 21
    assert store.iterations("study", "main") == [0, 1, 2, 3, 20, 21]


def _publish(where: Path, barrier, won, fence: bool) -> None:
    store = open_store(where)
    head = store.head("study", "main")
    barrier.wait()
    try:
        if fence:
            won.put(go_on(store, head.iteration + 7).iteration)
        else:
            store.publish(after(head))
            won.put(head.iteration + 1)
    except (VersionConflict, StoreError, InvalidSettings):
        won.put(None)


def test_of_a_round_and_a_fence_at_once_one_wins(store: ModelStore, versions: Path) -> None:
    for _ in range(15):
        barrier, won = threading.Barrier(2), queue.Queue[int | None]()
        root = versions.parents[2]
        racers = [threading.Thread(target=_publish, args=(root, barrier, won, fence)) for fence in (True, False)]
        for racer in racers:
            racer.start()
        results = [won.get(timeout=120), won.get(timeout=120)]
        for racer in racers:
            racer.join()
        numbers = [number for number in results if number is not None]
        assert store.head("study", "main").iteration == max(numbers)
        # both only if the fence was made after the round's version, which it then follows
        assert len(numbers) == 1 or store.head("study", "main").parent == min(numbers)


def test_rounds_notice_an_older_copy_by_the_landing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    landing, root = tmp_path / "landing", tmp_path / "store"
    store = store_with(root, small_study())
    where = ["--store", str(root), "--landing", str(landing)]
    for n in range(4):
        if n == 2:
            shutil.copytree(root, tmp_path / "copy")
        land(landing, crowd(5, seed=n, version=n), iteration=n, at_ms=FIRST_MS + n)
        run_round(store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="t"))
    assert open_landing(landing).read_published(str(root), "study", "main") == 4
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "copy", root)
    before = sorted(path.read_bytes() for path in root.rglob("*.json"))
    assert main(["round", "study", "main", "--engine", "numpy", *where]) == 1
    assert "the store is an older copy" in capsys.readouterr().err
    assert sorted(path.read_bytes() for path in root.rglob("*.json")) == before
    assert main(["store", "continue", "study", "main", "--from", "4", *where]) == 2
    assert "--from 5'" in capsys.readouterr().err
    assert main(["store", "continue", "study", "main", "--from", "5", *where]) == 0
    # a ping of a lost version that lands now is stale; those of version 5 train version 6
    land(landing, crowd(3, seed=8, version=3, first_document=500), iteration=3, at_ms=FIRST_MS + 50)
    land(landing, crowd(5, seed=9, version=5, first_document=900), iteration=5, at_ms=FIRST_MS + 51)
    assert main(["round", "study", "main", "--engine", "numpy", *where]) == 0
    head = open_store(root).head("study", "main")
    assert (head.iteration, head.parent, head.lineage.aggregate.pings) == (6, 5, 5)
    assert head.lineage.counts["stale"] >= 3
    for number in (5, 6):
        assert recompute(open_store(root), landing, "study", "main", number, NumpyEngine()).identical
    assert main(["store", "history", "study", "main", *where[:2]]) == 0
    assert "continues 2" in capsys.readouterr().out


def test_the_note_in_the_landing_folder_is_only_believed_if_it_is_a_number(tmp_path: Path) -> None:
    assert open_landing(tmp_path).read_published("store", "study", "main") == -1
    open_landing(tmp_path).record_published("store", "study", "main", 7)
    assert open_landing(tmp_path).read_published("store", "study", "main") == 7
    assert open_landing(tmp_path).read_published("elsewhere", "study", "main") == -1
    (path,) = (tmp_path / ".published/study/main").iterdir()
    for odd in (b"", b"1e3", b"-1", b"9" * 40, "٣".encode()):
        path.write_bytes(odd)
        assert open_landing(tmp_path).read_published("store", "study", "main") == -1
    path.unlink()
    os.mkfifo(path)
    assert open_landing(tmp_path).read_published("store", "study", "main") == -1


def test_a_folder_that_cannot_be_read_is_told(store: ModelStore, versions: Path) -> None:
    shutil.rmtree(versions)
    versions.write_text("a file")
    with pytest.raises(FedpingError, match="has no version"):
        store.head("study", "main")
    assert store.lines.newest("study", "main") == -1
    assert first_versions(small_study(), created=WHEN, code_version="t")
