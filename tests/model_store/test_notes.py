"""Notes about a study: their contents, concurrent writers, full disks and damaged files."""

import errno
import os
import random
import signal
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from fedping.model_store import ModelStore, StoreError, open_store
from fedping.model_store.copying import copy_study
from fedping.model_store.documents import sealed
from fedping.model_store.notes import KEPT, NoteConflict, in_utc
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.formats import with_format
from fedping.protocol.notes import MOST_NOTES, Note, Notes
from fedping.protocol.study import Study
from tests.support.versions import small_study
from tests.support.walks import walked_store

HERE = Note(id=1, text="The crawler was wrong.", version=2, line="main", by="ann")


@pytest.fixture
def study() -> Study:
    return small_study("noted", m=3)


@pytest.fixture
def store(tmp_path: Path, study: Study) -> ModelStore:
    walked_store(tmp_path / "store", study, 3)
    return open_store(tmp_path / "store")


def texts(store: ModelStore) -> list[str]:
    return [note.text for note in open_store(Path(store.where)).notes.of("noted").notes]


def test_notes_are_added_edited_and_removed_and_no_number_is_used_twice(store: ModelStore, study: Study) -> None:
    first = store.notes.add(study, HERE)
    second = store.notes.add(study, replace(HERE, text="Second"))
    store.notes.edit(study, first, replace(first, text="Mended"))
    assert texts(store) == ["Mended", "Second"]
    store.notes.remove(study, second)
    assert store.notes.add(study, HERE).id == 3
    assert store.notes.newest("noted") == 5


@pytest.mark.parametrize("change", ["edit", "remove"])
def test_a_note_that_another_has_changed_stays_as_it_is(store: ModelStore, study: Study, change: str) -> None:
    seen = store.notes.add(study, HERE)
    store.notes.edit(study, seen, replace(seen, text="Mended"))
    with pytest.raises(NoteConflict, match="note 1 of study 'noted' was changed or removed"):
        store.notes.remove(study, seen) if change == "remove" else store.notes.edit(study, seen, seen)
    assert texts(store) == ["Mended"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"text": ""}, "1 to 1,000 characters; this one has 0"),
        ({"text": " \n "}, "this one has 0"),
        ({"text": "x" * 1001}, "this one has 1,001"),
        ({"text": "a\x00b"}, r"U\+0000"),
        ({"text": "a\x1b[31mb"}, r"U\+001B"),
        ({"text": "a\u202eb"}, r"U\+202E"),
        ({"text": "a\u2028b"}, r"U\+2028"),
        ({"text": "a\udc80b"}, r"U\+DC80"),
        ({"version": None}, "give one of them"),
        ({"date": "2026-01-01T00:00Z"}, "give one of them"),
        ({"version": None, "date": "yesterday"}, "'yesterday' is not a date"),
        ({"version": None, "date": "2026-01-01T00:00"}, "no time zone"),
        ({"version": None, "date": "0001-01-01T00:00Z"}, "not between 1971 and 2200"),
        ({"version": None, "date": "9999-12-31T23:59:59-14:00"}, "not between 1971 and 2200"),
        ({"text": "\u200e"}, "no character that can be seen"),
        ({"text": "\u3164\u2800\u200d\ufe0f"}, "no character that can be seen"),
        ({"line": ""}, "Name the line"),
        ({"line": "../../etc"}, "no line '../../etc'; it has main"),
        ({"arm": "nowhere"}, "no arm 'nowhere'"),
    ],
)
def test_what_can_be_no_note_is_refused_in_a_sentence(
    store: ModelStore, study: Study, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidSettings, match=said):
        store.notes.add(study, replace(HERE, **changes))
    assert store.notes.newest("noted") == 0


@pytest.mark.parametrize(
    "text", ["x" * 1000, "two\nlines", "كان الزاحف مخطئًا", "爬虫有误\u3000吗", "👩\u200d🔬 1\u00a0000", "<b>&'"]
)
def test_people_write_in_their_own_script(store: ModelStore, study: Study, text: str) -> None:
    store.notes.add(study, replace(HERE, text=text))
    assert texts(store) == [text]


def test_a_date_is_kept_in_utc() -> None:
    assert in_utc("2026-03-01T14:30+02:00") == "2026-03-01T12:30:00+00:00"
    assert in_utc("no date") == "no date"
    assert in_utc("2026-03-01T14:30") == "2026-03-01T14:30"  # not interpreted in the server's time zone
    assert in_utc("0001-01-01T00:00+14:00") == "0001-01-01T00:00+14:00"


def test_a_study_has_a_thousand_notes_and_its_folder_a_few_files(
    store: ModelStore, study: Study, tmp_path: Path
) -> None:
    full = Notes(number=1, next_id=MOST_NOTES + 1, notes=tuple(replace(HERE, id=n + 1) for n in range(MOST_NOTES)))
    assert store.documents.create("noted/notes/1.json", sealed(with_format(msgspec.json.encode(full))))
    with pytest.raises(InvalidSettings, match="at most 1,000 notes; remove some first"):
        store.notes.add(study, HERE)
    for note in full.notes[: 2 * KEPT]:
        store.notes.remove(study, note)
    assert len(store.notes.of("noted").notes) == MOST_NOTES - 2 * KEPT
    assert len(list((tmp_path / "store" / "noted" / "notes").iterdir())) == KEPT


def test_of_many_who_write_at_once_no_note_is_lost(store: ModelStore, study: Study) -> None:
    """Each writer has its own store object, like two dashboards, and retries if others are faster."""
    wrong: list[Exception] = []

    def write(who: int) -> None:
        mine = open_store(Path(store.where))
        for n in range(10):
            while True:
                try:
                    mine.notes.add(study, replace(HERE, text=f"{who}.{n}"))
                    break
                except NoteConflict:
                    continue
                except Exception as error:
                    wrong.append(error)
                    return

    writers = [threading.Thread(target=write, args=(who,)) for who in range(6)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert not wrong
    assert sorted(texts(store)) == sorted(f"{who}.{n}" for who in range(6) for n in range(10))
    ids = [note.id for note in store.notes.of("noted").notes]
    assert ids == list(range(1, 61))


@pytest.mark.parametrize("others", [1, KEPT, 3 * KEPT])
def test_a_change_is_made_once_though_many_follow_before_its_writer_looks(
    store: ModelStore, study: Study, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    quick, create = open_store(Path(store.where)), store.documents.create

    def slow(key: str, data: bytes) -> bool:
        made = create(key, data)
        monkeypatch.undo()
        for n in range(others):
            quick.notes.add(study, replace(HERE, text=str(n)))
        return made

    monkeypatch.setattr(store.documents, "create", slow)
    assert store.notes.add(study, HERE).id == 1
    assert texts(store) == [HERE.text, *map(str, range(others))]


def test_a_writer_that_comes_when_its_place_is_free_again_writes_behind_the_others(
    store: ModelStore, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, create = open_store(Path(store.where)), store.documents.create

    def late(key: str, data: bytes) -> bool:
        monkeypatch.undo()
        for n in range(2 * KEPT):
            quick.notes.add(study, replace(HERE, text=str(n)))
        return create(key, data)

    monkeypatch.setattr(store.documents, "create", late)
    assert store.notes.add(study, HERE).id == 2 * KEPT + 1
    assert texts(store) == [*map(str, range(2 * KEPT)), HERE.text]


def test_a_full_disk_leaves_the_notes_as_they_were(
    store: ModelStore, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.notes.add(study, HERE)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(FedpingError, match="No space left on device; free space"):
            store.notes.add(study, replace(HERE, text="Second"))
    assert texts(store) == [HERE.text]
    store.notes.add(study, replace(HERE, text="Third"))
    assert texts(store) == [HERE.text, "Third"]


def _write_for_ever(where: str, study: Study) -> None:
    store, n = open_store(Path(where)), 0
    while True:
        note = store.notes.add(study, replace(HERE, text=f"{n} " + "x" * 900))
        if n % 5 == 4:
            store.notes.remove(study, note)
        n += 1


def test_a_kill_at_any_moment_leaves_whole_notes(store: ModelStore, study: Study) -> None:
    draws = random.Random(33)
    for _ in range(5):
        writer = get_context("spawn").Process(target=_write_for_ever, args=(store.where, study), daemon=True)
        before = store.notes.newest("noted")
        writer.start()
        deadline = time.monotonic() + 60
        while store.notes.newest("noted") == before and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(draws.uniform(0, 0.05))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        found = open_store(Path(store.where)).notes.of("noted")
        assert found.number == store.notes.newest("noted") > before
        assert all(len(note.text) > 900 for note in found.notes)
    assert store.notes.add(study, HERE).id == store.notes.of("noted").next_id - 1


def test_damaged_notes_are_told_and_never_overwritten(store: ModelStore, study: Study, tmp_path: Path) -> None:
    store.notes.add(study, HERE)
    file = tmp_path / "store" / "noted" / "notes" / "1.json"
    file.write_bytes(file.read_bytes().replace(b"crawler", b"trawler"))
    again = open_store(tmp_path / "store")
    with pytest.raises(StoreError, match=r"notes/1.json cannot be read"):
        again.notes.of("noted")
    with pytest.raises(StoreError, match=r"notes/1.json cannot be read"):
        again.notes.add(study, HERE)
    assert [each.name for each in file.parent.iterdir()] == ["1.json"]


def test_foreign_files_are_no_notes(store: ModelStore, study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "store" / "noted" / "notes"
    folder.mkdir()
    for name in ("x.json", "0.json", "9999999999.json", "7.txt", ".8.json", "³.json"):
        (folder / name).write_text("{}")
    assert store.notes.newest("noted") == 0
    assert store.notes.add(study, HERE).id == 1


def test_notes_are_copied_with_their_study(store: ModelStore, study: Study, tmp_path: Path) -> None:
    store.notes.add(study, HERE)
    other = open_store(tmp_path / "other", create=True)
    copy_study(store, other, "noted")
    assert other.notes.of("noted").notes == store.notes.of("noted").notes
