"""Pings of old versions: published versions are accepted, no ping is lost, and the number of files stays bounded."""

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest

from fedping.protocol.landing import APART, OLDER, landed_files, open_landing, partition
from fedping.protocol.study import Study
from fedping.server_jobs.ingest import compactor as compactor_module
from fedping.server_jobs.ingest.compactor import Compactor
from fedping.server_jobs.ingest.counters import Counters
from fedping.server_jobs.ingest.segments import CLOSED, segments
from fedping.server_jobs.round.manifest import list_landed
from tests.support.ingest_app import PATH, IngestApp, ingest_app, ingest_study, landed_ids
from tests.support.pings import ping_json


def at_version(ingest: IngestApp, newest: int) -> IngestApp:
    """Make ingest believe that a line is at a version."""
    ingest.services.catalogue.rules("study").heads["main"].known = newest
    return ingest


def post(ingest: IngestApp, versions: list[int]) -> list[str]:
    pings = [
        {"documentId": str(uuid.uuid4()), **ping_json(update=[0.0, 1.0], model_version=version)} for version in versions
    ]
    assert ingest.post(PATH, "\n".join(map(json.dumps, pings)).encode()).json["accepted"] == len(pings)
    return [ping["documentId"] for ping in pings]


def versions_by_folder(landing: Path) -> dict[int, Counter[int]]:
    table = ds.dataset(landing, partitioning="hive").to_table(columns=["iteration", "model_version"])
    found: dict[int, Counter[int]] = {}
    for folder, version in zip(table["iteration"].to_pylist(), table["model_version"].to_pylist(), strict=True):
        found.setdefault(folder, Counter())[version] += 1
    return found


def test_a_batch_that_names_every_version_makes_no_more_files_than_we_allow(tmp_path: Path) -> None:
    ingest = at_version(ingest_app(tmp_path, m=2), 3000)
    documents = post(ingest, [-1, *range(3001)])
    ingest.land()
    assert ingest.totals()["files"] == APART + 3
    assert landed_ids(ingest.settings.landing) == sorted(documents)
    found = versions_by_folder(ingest.settings.landing)
    assert found.pop(OLDER) == Counter(range(3000 - APART))
    assert found == {version: Counter([version]) for version in [-1, *range(3000 - APART, 3001)]}


def test_the_window_of_every_line_goes_with_its_newest_ping(tmp_path: Path) -> None:
    ingest = at_version(ingest_app(tmp_path, m=2), 1000)
    post(ingest, [0, 5])
    ingest.services.journals.roll()
    compactor = Compactor(ingest.settings, Counters(ingest.settings.counters))
    compactor.run_once()
    assert open_landing(ingest.settings.landing).iterations("study", "main") == [0, 5]
    for versions in ([5 + APART, 5, 4], [5], [6 + APART, 5, 6]):
        post(ingest, versions)
        ingest.services.journals.roll()
        compactor.run_once()
    found = versions_by_folder(ingest.settings.landing)
    assert found[5] == Counter({5: 3})
    assert found[OLDER] == Counter({4: 1, 5: 1})
    assert found[6] == Counter({6: 1})


def test_whatever_a_round_may_merge_late_is_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """Even without pings of the newest version: the window reaches back from the newest known version."""
    head = 500
    ingest = at_version(ingest_app(tmp_path, m=2), head)
    rng = np.random.default_rng(3)
    sent: list[int] = []
    compactor = Compactor(ingest.settings, Counters(ingest.settings.counters))
    for newest in (300, 420, 480, 500):
        sent += (batch := rng.integers(0, newest + 1, 40).tolist())
        post(ingest, batch)
        ingest.services.journals.roll()
        compactor.run_once()
        found = versions_by_folder(ingest.settings.landing)
        assert sum(sum(each.values()) for each in found.values()) == len(sent)
        assert not [version for version in found.get(OLDER, ()) if version >= newest - APART]


def test_a_round_counts_the_pings_of_old_versions_as_stale(tmp_path: Path) -> None:
    ingest = at_version(ingest_app(tmp_path, m=2), 300)
    post(ingest, [300] * 4 + [299] * 2 + [7, 8, 9] + [-1])
    ingest.land()
    study: Study = ingest_study(2)
    manifest = list_landed(ingest.settings.landing, study, "main", 300)
    assert (manifest.rows, manifest.stale, manifest.future) == (4, 6, 0)


class Stopped(Exception):
    """Stands for a crash."""


@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_a_pass_that_is_repeated_with_another_window_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """The second attempt finds a newer version, so pings that had their own folder now count as old."""
    ingest = at_version(ingest_app(tmp_path, m=2), 1000)
    documents = post(ingest, [1, 2, 150, 160, 170])
    ingest.services.journals.roll()
    real_write = compactor_module.write_landed
    calls: list[Path] = []

    def write(folder: Path, *args: Any, **named: Any) -> Path:
        if len(calls) == written:
            raise Stopped
        calls.append(folder)
        return real_write(folder, *args, **named)

    compactor = Compactor(ingest.settings, Counters(ingest.settings.counters))
    with monkeypatch.context() as patch:
        patch.setattr(compactor_module, "write_landed", write)
        with pytest.raises(Stopped):
            compactor.run_once()
    documents += post(ingest, [400])
    ingest.services.journals.roll()
    again = Compactor(ingest.settings, Counters(ingest.settings.counters))
    while again.run_once():
        pass
    assert landed_ids(ingest.settings.landing) == sorted(documents)
    assert not segments(ingest.settings.journal, CLOSED)
    assert len(landed_files(partition(ingest.settings.landing, "study", "main", OLDER))) == 1 + (written > 0)
