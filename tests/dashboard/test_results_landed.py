"""The number of pings landed since a count is computed from the files, regardless of their origin."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.analysis.study import Window
from fedping.dashboard.results.landed import Folders, Landed, Since, Watch, new_files
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.study import Study
from tests.support.landed import landed_table
from tests.support.versions import small_study


@pytest.fixture
def study() -> Study:
    return small_study()


def land(landing: Path, iteration: int, pings: int, stamp: int) -> Path:
    return write_landed(partition(landing, "study", "main", iteration), landed_table(pings, stamp), stamp)


def test_only_the_windows_new_files_count(tmp_path: Path, study: Study) -> None:
    land(tmp_path, 3, 10, 1)
    now = [0.0]
    watch, window = Watch(tmp_path, clock=lambda: now[0]), Window(first=3)
    before = watch.folders.files(tmp_path, study, window)
    assert watch.since("one", study, window, lambda: before) == Since(0, complete=True)
    land(tmp_path, 2, 5, 2)
    land(tmp_path, 3, 7, 3)
    land(tmp_path, 4, 11, 4)
    assert watch.since("one", study, window, lambda: before).pings == 0, "asked again at once"
    now[0] = 10.0
    assert watch.since("one", study, window, lambda: before) == Since(18, complete=True)
    everything = watch.since("two", study, Window(), lambda: before)
    assert everything == Since(23, complete=True)


def test_a_window_in_time_counts_what_was_received_in_it(tmp_path: Path, study: Study) -> None:
    path = land(tmp_path, 3, 40, 1)
    import pyarrow.parquet as pq

    received = pq.read_table(path)["received_at"].cast("int64").to_numpy()
    middle = int(np.sort(received)[len(received) // 2])
    watch = Watch(tmp_path)
    early = watch.since("early", study, Window(until=middle), dict).pings
    late = watch.since("late", study, Window(since=middle), dict).pings
    assert (early, late) == (int((received < middle).sum()), int((received >= middle).sum()))


def test_many_new_files_are_read_over_several_looks(
    tmp_path: Path, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedping.dashboard.results.landed.FILES_A_LOOK", 2)
    for stamp in range(5):
        land(tmp_path, 3, 10, 100 + stamp)
    now = [0.0]
    watch = Watch(tmp_path, clock=lambda: now[0])
    found = []
    for _ in range(4):
        found.append(watch.since("one", study, Window(), dict))
        now[0] += 10
    assert found == [Since(20, False), Since(40, False), Since(50, True), Since(50, True)]


def test_a_folder_that_changed_is_listed_again_and_another_is_not(tmp_path: Path, study: Study) -> None:
    old = land(tmp_path, 3, 4, 1)
    os.utime(old.parent, ns=(10**18, 10**18))
    folders = Folders()
    first = folders.files(tmp_path, study, Window())
    hidden = old.rename(old.parent / ".gone.parquet")
    os.utime(old.parent, ns=(10**18, 10**18))
    assert folders.files(tmp_path, study, Window()) == first, "its stamp says that nothing changed"
    hidden.rename(old)
    other = land(tmp_path, 3, 4, 2)
    assert folders.files(tmp_path, study, Window()) == {"study=study/line=main/iteration=3": (old.name, other.name)}


names = st.lists(st.sampled_from("abcdef"), unique=True).map(lambda given: tuple(sorted(given)))
listings = st.dictionaries(st.sampled_from(["x", "y"]), names)


@given(listings, listings)
def test_new_files_are_those_that_were_not_there(now: dict[str, tuple[str, ...]], before: dict[str, tuple[str, ...]]):
    def paths(files: dict[str, tuple[str, ...]]) -> set[str]:
        return {f"{folder}/{name}" for folder, found in files.items() for name in found}

    assert set(new_files(now, before)) == paths(now) - paths(before)


def test_what_had_landed_has_a_digest_of_its_own() -> None:
    one = Landed({"x": ("a",)}, {"main": 3}, "1")
    assert one.digest == Landed({"x": ("a",)}, {"main": 3}, "1").digest
    others = [Landed({"x": ("b",)}, {"main": 3}, "1"), Landed({"x": ("a",)}, {"main": 4}, "1"), Landed({}, {}, "1")]
    assert len({one.digest, *(other.digest for other in others)}) == 4
