"""Documents of the store have checksums: flipped bits are rejected, and no document is read as another model's."""

import errno
import os
import random
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedping.main import main
from fedping.model_store import ModelStore, StoreError, Version, open_store
from fedping.model_store.copying import copy_study
from fedping.model_store.decisions import continue_at, with_stage
from fedping.model_store.documents import is_whole, sealed, unsealed
from fedping.model_store.version import StageState
from fedping.protocol.digest import canonical_json
from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import with_format
from fedping.protocol.guard import Stage
from fedping.protocol.storage import folder as folder_storage
from fedping.protocol.study import Declared
from tests.support.effort import few_or_all
from tests.support.versions import WHEN, after, small_study, version_0


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Give a store at version 1."""
    made, study = open_store(tmp_path / "store", create=True), small_study()
    made.create_study(study, (version_0(study),))
    made.publish(after(made.head("study", "main")))
    return made


def flipped(data: bytes, some: int) -> list[bytes]:
    """Return copies of data with one bit flipped: some random bits, and all in the last 60 bytes, with the checksum."""
    every = np.random.default_rng(5).permutation(8 * len(data))[: few_or_all(some, 8 * len(data))].tolist()
    made = []
    for bit in sorted({*every, *range(8 * (len(data) - 60), 8 * len(data))}):
        other = bytearray(data)
        other[bit // 8] ^= 1 << bit % 8
        made.append(bytes(other))
    return made


@pytest.mark.thorough
def test_a_flipped_bit_of_a_version_is_refused_or_harmless(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "store/study/main/versions/1.json"
    whole, version = path.read_bytes(), store.head("study", "main")
    public = store.public.document("study", "main", 1)
    refused = 0
    for data in flipped(whole, 400):
        path.write_bytes(data)
        looked = open_store(tmp_path / "store")
        try:
            found = looked.version("study", "main", 1)
        except StoreError as error:
            told = str(error)
            for read in (looked.public.document, looked.version):
                with pytest.raises(StoreError, match=r"versions/1\.json .*from a copy"):
                    read("study", "main", 1)
            with pytest.raises(StoreError, match=re.escape(told)):
                looked.head("study", "main")
            refused += 1
        else:
            assert (found, looked.public.document("study", "main", 1)) == (version, public)
    assert refused > 400
    path.write_bytes(whole)
    assert open_store(tmp_path / "store").head("study", "main") == version


@pytest.mark.thorough
def test_a_flipped_bit_of_a_study_is_refused(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "store/study/study.json"
    for data in flipped(path.read_bytes(), 400):
        path.write_bytes(data)
        with pytest.raises(StoreError, match=r"study/study\.json cannot be read .*from a copy"):
            store.study("study")


def test_a_seal_is_no_part_of_a_document(store: ModelStore, tmp_path: Path) -> None:
    folder = tmp_path / "store/study"
    continue_at(store, "study", "main", 9, created=WHEN, code_version="test")
    for path in [folder / "study.json", *(folder / "main/versions").iterdir()]:
        data = path.read_bytes()
        assert data == sealed(unsealed(data)) != unsealed(data)
        assert is_whole(data)
        assert is_whole(unsealed(data))
        assert unsealed(unsealed(data)) == unsealed(data)
    assert unsealed((folder / "study.json").read_bytes()) == with_format(canonical_json(small_study()))
    first = msgspec.json.decode((folder / "main/versions/0.json").read_bytes(), type=Version)
    assert first.digest == version_0(small_study()).digest
    for path in (folder / "main/public").iterdir():
        assert b"seal" not in path.read_bytes()


def test_a_flipped_bit_of_a_fence_is_told(store: ModelStore, tmp_path: Path) -> None:
    continue_at(store, "study", "main", 9, created=WHEN, code_version="test")
    path = tmp_path / "store/study/main/versions/2.json"
    path.write_bytes(path.read_bytes().replace(b'"goes_on_at":9', b'"goes_on_at":8'))
    looked = open_store(tmp_path / "store")
    assert looked.head("study", "main").iteration == looked.lines.newest_from("study", "main", -1) == 9
    (note,) = looked.lines.notes("study", "main")
    assert "versions/2.json is missing or damaged. It is the fence" in note


LOST = ["versions", "public", "fences"]


@pytest.mark.parametrize("left", LOST)
def test_version_0_is_never_published_a_second_time(
    store: ModelStore, tmp_path: Path, left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    study = small_study()
    continue_at(store, "study", "main", 9, created=WHEN, code_version="test")
    folder = tmp_path / "store/study/main"
    for name in LOST:
        for path in (folder / name).iterdir():
            if name != left or path.name == "0.json":
                path.unlink()
    (tmp_path / "store/study/study.json").unlink()
    before = sorted((tmp_path / "store").rglob("*"))
    with pytest.raises(StoreError, match=r"has no version 0 .* published. Restore .*versions/0\.json.* a copy"):
        store.create_study(study, (version_0(study),))
    assert sorted((tmp_path / "store").rglob("*")) == before


def test_version_0_is_not_published_again_where_only_the_landing_folder_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedping.protocol.landing import open_landing

    root, landing = tmp_path / "store", tmp_path / "landing"
    where = ["--store", str(root), "--landing", str(landing)]
    demo = str(Path(__file__).parents[2] / "experiments/demo.toml")
    assert main(["study", "create", demo, *where]) == 0
    open_landing(landing).record_published(str(root), "demo", "main", 0)
    for path in root.rglob("main/*/*.json"):
        path.unlink()
    before = sorted(root.rglob("*"))
    assert main(["study", "create", demo, *where]) == 1
    assert "a copy: no version is published a second time" in capsys.readouterr().err
    assert main(["round", "demo", "--engine", "numpy", *where]) == 1
    said = capsys.readouterr().err
    assert "a copy: no version is published a second time" in said
    assert "study create" not in said
    assert sorted(root.rglob("*")) == before


def test_an_interrupted_create_is_finished(tmp_path: Path) -> None:
    store, study = open_store(tmp_path, create=True), small_study()
    assert store.create_study(study, ())
    with pytest.raises(StoreError, match="run 'fedping study create'"):
        store.head("study", "main")
    assert store.create_study(study, (version_0(study),))
    assert store.head("study", "main").iteration == 0


@pytest.mark.parametrize("what", [b"{}", b""])
def test_a_stray_file_after_the_next_is_told_before_anything_is_written(
    store: ModelStore, tmp_path: Path, what: bytes
) -> None:
    folder = tmp_path / "store/study/main"
    (folder / "versions/3.json").write_bytes(what)
    before = sorted(folder.rglob("*"))
    for attempt in (
        lambda: store.publish(after(store.head("study", "main"))),
        lambda: continue_at(store, "study", "main", 2, created=WHEN, code_version="test"),
        lambda: continue_at(store, "study", "main", 8, created=WHEN, code_version="test"),
    ):
        with pytest.raises(StoreError, match=r"versions/3\.json does not follow version 1"):
            attempt()
    assert "versions/3.json" in (store.lines.trouble("study", "main") or "")
    assert sorted(folder.rglob("*")) == before
    (folder / "versions/3.json").unlink()
    store.publish(after(store.head("study", "main")))
    assert store.head("study", "main").iteration == 2


@pytest.mark.parametrize("number", [3, 50])
@pytest.mark.parametrize("damage", ["unmarked", "torn", "gone"])
def test_a_lost_fence_is_told_and_its_line_goes_on(
    store: ModelStore, tmp_path: Path, number: int, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    continue_at(store, "study", "main", number, created=WHEN, code_version="test")
    fence, mark = (tmp_path / f"store/study/main/{folder}/2.json" for folder in ("versions", "fences"))
    if damage == "torn":
        fence.write_bytes(fence.read_bytes()[:-30])
    else:
        (mark if damage == "unmarked" else fence).unlink()
    named = "fences/2.json is missing" if damage == "unmarked" else "versions/2.json is missing or damaged"
    looked = open_store(tmp_path / "store")
    assert looked.lines.trouble("study", "main") is None
    assert looked.lines.newest("study", "main") == looked.lines.newest_from("study", "main", -1) == number
    assert main(["store", "history", "study", "main", "--store", str(tmp_path / "store")]) == 0
    said = capsys.readouterr()
    assert f"{number}  2026" in said.out
    assert named in said.err
    assert "from a copy" in said.err
    assert "move it" not in said.err
    looked.publish(after(looked.head("study", "main")))
    assert looked.head("study", "main").iteration == number + 1


def test_after_a_lost_fence_that_leads_nowhere_yet_nothing_is_published(store: ModelStore, tmp_path: Path) -> None:
    continue_at(store, "study", "main", 50, created=WHEN, code_version="test")
    folder = tmp_path / "store/study/main"
    for lost in ("versions/2.json", "versions/50.json", "public/50.json"):
        (folder / lost).unlink()
    looked = open_store(tmp_path / "store")
    with pytest.raises(StoreError, match=r"versions/2\.json is missing or damaged. It is the fence"):
        looked.head("study", "main")
    assert "versions/2.json" in (looked.lines.trouble("study", "main") or "")


def _read_only(*args: object, **more: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_read_only_file_system_is_told_in_a_sentence(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    version = after(store.head("study", "main"))
    monkeypatch.setattr(
        "builtins.open", lambda path, mode="r", **more: _read_only() if "x" in mode else _OPEN(path, mode, **more)
    )
    monkeypatch.setattr(Path, "unlink", _read_only)
    for attempt in (lambda: store.publish(version), store.check_publishing):
        with pytest.raises(FedpingError, match=r"cannot write .*: Read-only file system"):
            attempt()


_OPEN = open


def test_a_file_in_place_of_the_public_folder_is_told_in_a_sentence(store: ModelStore, tmp_path: Path) -> None:
    public = tmp_path / "store/study/main/public"
    for path in public.iterdir():
        path.unlink()
    public.rmdir()
    public.write_text("mine")
    with pytest.raises(FedpingError, match=r"cannot write .*/public/0\.json in the model store"):
        store.public.refresh("study", "main")


def test_rounds_go_on_where_the_landing_folder_can_only_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedping.server_jobs.round import RoundOptions, run_round
    from fedping.server_jobs.round.engine import NumpyEngine
    from tests.support.rounds import crowd, land, store_with

    landing = tmp_path / "landing"
    store = store_with(tmp_path / "store", small_study())
    land(landing, crowd(5))
    monkeypatch.setattr(folder_storage, "make_folder", _kept_out_of(landing, folder_storage.make_folder))
    for method in ("write_text", "unlink"):
        monkeypatch.setattr(Path, method, _kept_out_of(landing, getattr(Path, method)))
    result = run_round(
        store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="t")
    )
    assert (result.status, store.head("study", "main").iteration) == ("published", 1)
    assert not (landing / ".published").exists()


def _kept_out_of(folder: Path, method):
    return lambda path, *args, **more: _read_only() if folder in path.parents else method(path, *args, **more)


def test_continue_says_that_there_is_no_landing_folder(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDPING_LANDING", raising=False)
    assert main(["store", "continue", "study", "main", "--from", "9"]) == 0
    said = capsys.readouterr()
    assert "the landing folder landing does not exist" in said.err
    assert "published version 9" in said.out
    (tmp_path / "landing").mkdir()
    assert main(["store", "continue", "study", "main", "--from", "19"]) == 0
    assert capsys.readouterr().err == ""


def all_documents(store: Path) -> list[Path]:
    """Return the files of a study with a fence, a history and a staged version, without markers, which are empty."""
    opened = open_store(store)
    continue_at(opened, "study", "main", 5, created=WHEN, code_version="test")
    opened.studies.declare("study", Declared(state="paused", since=WHEN))
    staged = with_stage(after(opened.head("study", "main")), Stage(share=0.5, clients=3))
    opened.hold(staged)
    opened.held.note_stage(staged, StageState(share=0.5))
    opened.public.refresh("study", "main")
    return sorted(path for path in store.rglob("*.json") if path.parent.name != "fences")


@pytest.mark.thorough
def test_no_flipped_bit_gets_into_a_copy(store: ModelStore, tmp_path: Path) -> None:
    home, copy = tmp_path / "store", tmp_path / "copy"
    documents = all_documents(home)
    assert len(documents) == 14
    assert copy_study(open_store(home), open_store(copy, create=True), "study").files == 15
    for path in documents:
        whole = path.read_bytes()
        damaged = flipped(whole, 20)
        for data in random.Random(7).sample(damaged, few_or_all(12, len(damaged))):
            path.write_bytes(data)
            with pytest.raises(FedpingError, match=re.escape(str(path))):
                copy_study(open_store(home), open_store(copy), "study")
            assert (copy / path.relative_to(home)).read_bytes() == whole
        path.write_bytes(whole)


def test_what_clients_are_told_of_a_stage_that_is_just_over_is_no_damage(store: ModelStore, tmp_path: Path) -> None:
    all_documents(tmp_path / "store")
    for held in (tmp_path / "store").glob("study/main/held/*"):
        held.unlink()
    assert b'"staged"' in (tmp_path / "store/study/main/public/latest.json").read_bytes()
    assert copy_study(open_store(tmp_path / "store"), open_store(tmp_path / "copy", create=True), "study").files > 0


@pytest.mark.parametrize("file", ["versions/0.json", "public/0.json", "public/latest.json"])
def test_a_copy_of_an_older_damaged_document_is_refused_in_one_sentence(
    store: ModelStore, tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store/study/main" / file
    command = ["store", "copy", "study", "--store", str(tmp_path / "store"), "--to", str(tmp_path / "copy")]
    assert main(command) == 0
    path.write_bytes(path.read_bytes().replace(b'"created":"2', b'"created":"3'))
    before = {file: file.read_bytes() for file in (tmp_path / "copy").rglob("*.json")}
    assert main(command) == 1
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert f"study/main/{file}" in said
    assert "it was damaged: restore it from a copy" in said
    assert {file: file.read_bytes() for file in (tmp_path / "copy").rglob("*.json")} == before


def test_a_copy_of_a_line_that_lacks_a_version_is_refused(store: ModelStore, tmp_path: Path) -> None:
    for _ in range(2):
        store.publish(after(store.head("study", "main")))
    (tmp_path / "store/study/main/versions/1.json").unlink()
    with pytest.raises(
        StoreError, match=r"public/1\.json belongs to version 1, which is missing: restore .*versions/1\."
    ):
        copy_study(open_store(tmp_path / "store"), open_store(tmp_path / "copy", create=True), "study")


def test_a_line_that_has_gone_on_beyond_lost_versions_is_copied(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "store/study/main/versions/1.json").unlink()
    looked = open_store(tmp_path / "store")
    continue_at(looked, "study", "main", 9, created=WHEN, code_version="test")
    assert copy_study(looked, open_store(tmp_path / "copy", create=True), "study").files > 0
    assert open_store(tmp_path / "copy").head("study", "main").iteration == 9
