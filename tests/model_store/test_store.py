"""The store: one winner for each version, numeric order, atomic documents, and clear messages about damage."""

import json
import multiprocessing
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.model_store.decisions import difference, rollback
from fedping.model_store.documents import headers, sealed
from fedping.model_store.store import ModelStore, StoreError, VersionConflict, open_store
from fedping.model_store.version import Lineage, Version
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.model import ModelDocument
from fedping.protocol.storage import open_storage
from tests.support.dict_storage import DictStorage
from tests.support.versions import WHEN, after, small_study, version_0


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ModelStore:
    local = request.param == "local"
    made = ModelStore(open_storage(tmp_path / "store", headers) if local else DictStorage(), "the store")
    study = small_study()
    assert made.create_study(study, (version_0(study),))
    return made


def grown(store: ModelStore, to: int) -> Version:
    head = store.head("study", "main")
    while head.iteration < to:
        head = after(head)
        store.publish(head)
    return head


def test_a_created_study_has_version_0_for_clients_to_fetch(store: ModelStore) -> None:
    assert store.studies.names() == ["study"]
    assert store.study("study") == small_study()
    document = msgspec.json.decode(store.public.document("study", "main", 0), type=ModelDocument)
    assert (document.model, document.iteration, document.parent) == ((10.0, 11.0), 0, None)


def test_a_client_of_2018_can_read_the_public_document_and_finds_no_state_in_it(store: ModelStore) -> None:
    document = json.loads(store.public.document("study", "main", 0))
    assert document["model"] == [10.0, 11.0]
    assert document["iteration"] == 0
    assert not {"state", "weights", "lineage"} & set(document)


def test_creating_again_changes_nothing_and_a_changed_study_is_refused(store: ModelStore) -> None:
    study = small_study()
    grown(store, 3)
    assert not store.create_study(study, (version_0(study),))
    assert store.head("study", "main").iteration == 3
    changed = small_study(min_clients=7)
    with pytest.raises(StoreError, match="new name"):
        store.create_study(changed, (version_0(changed),))


def test_versions_are_ordered_as_numbers(store: ModelStore) -> None:
    grown(store, 11)
    assert store.iterations("study", "main") == list(range(12))
    assert store.head("study", "main").iteration == 11


def test_a_version_comes_back_to_the_last_bit(store: ModelStore) -> None:
    made = after(store.head("study", "main"), change=0.1 + 0.2)
    store.publish(made)
    assert store.version("study", "main", 1) == made
    assert store.version("study", "main", 1).digest == made.digest


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_doubles_survive_the_document(values: list[float]) -> None:
    version = msgspec.structs.replace(version_0(small_study()), weights=tuple(values))
    assert msgspec.json.decode(msgspec.json.encode(version), type=Version) == version


def test_only_one_of_two_children_is_published(store: ModelStore) -> None:
    parent = store.head("study", "main")
    store.publish(after(parent, change=1))
    with pytest.raises(VersionConflict, match="already at version 1"):
        store.publish(after(parent, change=2))
    assert store.head("study", "main").model == (11.0, 12.0)


def test_a_child_of_another_parent_is_not_published(store: ModelStore) -> None:
    stranger = msgspec.structs.replace(store.head("study", "main"), weights=(0.0, 0.0))
    with pytest.raises(VersionConflict):
        store.publish(after(stranger))
    assert store.head("study", "main").iteration == 0


def _race(
    where: Path, barrier: "multiprocessing.synchronize.Barrier", change: int, won: "multiprocessing.Queue"
) -> None:
    store = open_store(where)
    for _ in range(20):
        child = after(store.head("study", "main"), change=change)
        barrier.wait()
        try:
            store.publish(child)
            won.put((child.iteration, change))
        except VersionConflict:
            pass
        barrier.wait()


def test_of_four_processes_publishing_at_once_exactly_one_wins_each_version(tmp_path: Path) -> None:
    study = small_study()
    open_store(tmp_path, create=True).create_study(study, (version_0(study),))
    context = multiprocessing.get_context("spawn")
    barrier, won = context.Barrier(4), context.Queue()
    racers = [context.Process(target=_race, args=(tmp_path, barrier, c, won)) for c in range(1, 5)]
    for racer in racers:
        racer.start()
    winners = dict(won.get(timeout=240) for _ in range(20))
    for racer in racers:
        racer.join()
    assert sorted(winners) == list(range(1, 21))
    store = open_store(tmp_path)
    for iteration, change in winners.items():
        before = store.version("study", "main", iteration - 1)
        assert store.version("study", "main", iteration).weights == tuple(w + change for w in before.weights)
    assert list(tmp_path.rglob(".*")) == []


def test_a_publisher_that_died_before_the_static_files_is_repaired(tmp_path: Path) -> None:
    study = small_study()
    store = open_store(tmp_path, create=True)
    store.create_study(study, (version_0(study),))
    grown(store, 2)
    public = tmp_path / "study" / "main" / "public"
    (public / "2.json").unlink()
    os.replace(public / "1.json", public / "latest.json")
    store.public.refresh("study", "main")
    assert sorted(os.listdir(public)) == ["0.json", "1.json", "2.json", "latest.json"]
    assert (public / "latest.json").read_bytes() == (public / "2.json").read_bytes()


def test_a_rollback_goes_forward_and_restores_weights_and_state(store: ModelStore) -> None:
    grown(store, 3)
    restored = rollback(store, "study", "main", 1, created=WHEN, code_version="test")
    assert restored.iteration == 4
    assert restored.lineage.restored == 1
    old = store.version("study", "main", 1)
    assert (restored.weights, restored.state, restored.model) == (old.weights, old.state, old.model)
    assert store.head("study", "main") == restored
    with pytest.raises(InvalidSettings, match="already at version 4"):
        rollback(store, "study", "main", 4, created=WHEN, code_version="test")
    with pytest.raises(StoreError, match="no version 9"):
        rollback(store, "study", "main", 9, created=WHEN, code_version="test")


def test_a_difference_names_the_weights_that_changed(store: ModelStore) -> None:
    first = store.head("study", "main")
    second = msgspec.structs.replace(first, model=(10.0, 14.0))
    assert difference(first, second, ("w0", "w1")) == [{"name": "w1", "old": 11.0, "new": 14.0, "change": 3.0}]
    assert difference(first, first, ("w0", "w1")) == []


def test_what_is_missing_or_damaged_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no model store at"):
        open_store(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is a file"):
        open_store(tmp_path / "file")
    study = small_study()
    store = open_store(tmp_path / "s", create=True)
    with pytest.raises(StoreError, match="has no study 'study'; it has none"):
        store.study("study")
    store.create_study(study, (version_0(study),))
    with pytest.raises(FedpingError, match="has no line 'other'; it has main"):
        store.head("study", "other")
    with pytest.raises(StoreError, match=r"no version 5 in .*; its newest is 0"):
        store.version("study", "main", 5)
    document = tmp_path / "s" / "study" / "main" / "versions" / "0.json"
    document.write_bytes(document.read_bytes()[:-20])
    with pytest.raises(StoreError, match=r"versions/0\.json cannot be read"):
        store.head("study", "main")
    (tmp_path / "s" / "study" / "study.json").write_bytes(b"\xff")
    with pytest.raises(StoreError, match=r"study\.json cannot be read"):
        store.study("study")


def test_an_unfinished_write_is_not_seen(tmp_path: Path) -> None:
    study = small_study()
    store = open_store(tmp_path, create=True)
    store.create_study(study, (version_0(study),))
    (tmp_path / "study" / "main" / "versions" / ".1.json.abc.tmp").write_bytes(b"{")
    assert store.iterations("study", "main") == [0]


class LaterLineage(Lineage, frozen=True, kw_only=True):
    """A lineage as in a later version of the program."""

    later: int = 0


def stored(store: ModelStore, version: Version) -> None:
    """Put a version into a store like a later program, whose digest covers all its fields."""
    key = f"study/main/versions/{version.iteration}.json"
    assert store.documents.create(key, sealed(msgspec.json.encode(version)))


def test_a_version_with_more_than_is_known_is_served_and_none_is_made_after_it(tmp_path: Path) -> None:
    store = open_store(tmp_path, create=True)
    store.create_study(small_study(), (version_0(small_study()),))
    first = after(version_0(small_study()))
    later = LaterLineage(origin="round", code_version="9", config_digest="c", later=7)
    first = msgspec.structs.replace(first, lineage=later)
    stored(store, first)
    store.public.refresh("study", "main")
    here = open_store(tmp_path)
    assert here.lines.newest("study", "main") == here.lines.newest_from("study", "main", 0) == 1
    with pytest.raises(StoreError, match=r"versions/1\.json has 'lineage\.later', which fedping .* does not know: .*"):
        here.head("study", "main")
    with pytest.raises(StoreError, match="none can follow version 1 before fedping is upgraded here"):
        here.publish(after(here.version("study", "main", 1)))
    assert here.iterations("study", "main") == [0, 1]
    assert here.lines.trouble("study", "main") is not None

    stored(store, after(first))  # by the later program; it has nothing more, and names the digest of all of version 1
    again = open_store(tmp_path)
    again.publish(after(again.head("study", "main")))
    assert (again.lines.newest("study", "main"), again.lines.trouble("study", "main")) == (3, None)
