"""The landing folder: atomic files, rows grouped by client shard, iterations in numeric order."""

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.protocol import landing
from fedping.protocol.landing import SHARDS, id_bytes, open_landing, shard_of, write_landed
from fedping.protocol.storage import TooLarge, open_storage
from tests.support.landed import landed_table


@pytest.mark.parametrize("rows", [0, 1, 100, landing.SINGLE_GROUP_ROWS, 20_000])
def test_a_landed_file_holds_the_rows_it_was_given(tmp_path: Path, rows: int) -> None:
    table = landed_table(rows, seed=1)
    read = pq.read_table(write_landed(tmp_path, table, 1))
    assert read.num_rows == rows
    assert read.schema.equals(table.schema)
    order = [("document_id", "ascending")]
    assert read.sort_by(order).equals(table.sort_by(order))


def test_row_group_k_holds_the_clients_of_shard_k(tmp_path: Path) -> None:
    file = pq.ParquetFile(write_landed(tmp_path, landed_table(20_000, seed=2), 1))
    assert file.metadata.num_row_groups == SHARDS
    assert file.schema_arrow.metadata[landing.SHARDS_KEY] == str(SHARDS).encode()
    for shard in range(SHARDS):
        clients = file.read_row_group(shard, columns=["client_id"]).column(0).combine_chunks()
        clients = clients.chunk(0) if hasattr(clients, "chunk") else clients
        assert set(shard_of(id_bytes(clients)).tolist()) == {shard}


def test_a_shard_is_kept_even_when_nobody_falls_into_it(tmp_path: Path) -> None:
    table = landed_table(5_000, seed=3, client_bytes=lambda rng, n: np.zeros((n, 16), np.uint8))
    file = pq.ParquetFile(write_landed(tmp_path, table, 1))
    assert [file.metadata.row_group(i).num_rows for i in range(SHARDS)] == [5_000] + [0] * (SHARDS - 1)


def test_a_link_to_a_folder_that_it_lies_in_is_not_followed(tmp_path: Path) -> None:
    elsewhere = write_landed(landing.partition(tmp_path / "disk", "b", "main", 0), landed_table(3, 1), 1)
    here = tmp_path / "landing"
    file = write_landed(landing.partition(here, "a", "main", 0), landed_table(3, 1), 1)
    (here / "study=b").symlink_to(tmp_path / "disk/study=b")
    for way, to in {"study=a/loop": ".", "study=a/up": here, "other": "..", "self": "self"}.items():
        (here / way).symlink_to(to)
    linked = here / "study=b" / elsewhere.relative_to(tmp_path / "disk/study=b")
    assert landing.open_landing(here).all_files() == [file, linked]
    assert landing.open_landing(here).studies() == ["a", "b"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_landed(tmp_path, landed_table(10, seed=4), 1)
    assert list(tmp_path.iterdir()) == []


def test_iterations_are_ordered_as_numbers_and_foreign_names_are_not_read(tmp_path: Path) -> None:
    for name in (
        "iteration=9",
        "iteration=10",
        "iteration=-1",
        "iteration=100",
        "iteration=x",
        "other",
        "iteration=009",
    ):
        (landing.line_folder(tmp_path, "s", "main") / name).mkdir(parents=True)
    assert landing.open_landing(tmp_path).iterations("s", "main") == [-1, 9, 10, 100]
    folder = landing.partition(tmp_path, "s", "main", 9)
    for name in (".1-a.parquet.tmp", "_SUCCESS", "_x.parquet", "2-b.parquet", "10-c.parquet", "notes.txt"):
        (folder / name).touch()
    assert [p.name for p in landing.landed_files(folder)] == ["10-c.parquet", "2-b.parquet"]
    assert landing.landed_at(folder / "0000000000002-b.parquet") == 2
    assert landing.landed_at(folder / "foreign.parquet") is None


def test_a_file_of_more_bytes_than_asked_for_is_too_large(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    storage.write("note", [b"12"], durable=False)
    assert storage.read("note", 2) == b"12"
    with pytest.raises(TooLarge):
        storage.read("note", 1)
    assert storage.read("other", 2) is None


def test_a_note_that_is_interrupted_leaves_nothing_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_landing(tmp_path).record_published(str(tmp_path / "store"), "study", "main", 3)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
