"""Forgetting one client: its landed pings are removed, affected versions are named, and rounds continue."""

import json
import signal
import uuid
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.compute as pc
import pytest

from fedping.main import main
from fedping.model_store import open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import open_landed
from fedping.protocol.landing import SHARDS, SHARDS_KEY, landed_files, partition, write_landed
from fedping.protocol.pipeline import Staleness
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.ingest_app import ingest_app
from tests.support.killed_command import killed_at
from tests.support.landed import landed_table
from tests.support.pings import ping_json
from tests.support.rounds import FIRST_MS, WHEN, crowd, id_of, land, store_with
from tests.support.versions import small_study

CLIENT = str(uuid.UUID(bytes=id_of("client", 3)))


def played(folder: Path, staleness: Staleness | None = None) -> None:
    """Play three rounds with client 3 in the first two, next to another study without a store."""
    study = small_study()
    pipeline = msgspec.structs.replace(study.lines[0].pipeline, staleness=staleness)
    study = msgspec.structs.replace(study, lines=(msgspec.structs.replace(study.lines[0], pipeline=pipeline),))
    store_with(folder / "store", study)
    for n in range(3):
        clients = crowd(20, seed=n, version=n, first_document=100 * n)
        for k, some in enumerate((clients[:10], clients[10:])):
            land(folder / "landing", some[4:] if n == 2 else some, iteration=n, at_ms=FIRST_MS + 1000 * n + k)
        assert play(folder) == "published"
    land(folder / "landing", crowd(5), study="elsewhere")


def play(folder: Path) -> str:
    store, landing = open_store(folder / "store"), folder / "landing"
    return run_round(
        store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
    ).status


def forget(folder: Path, *words: str, client: str = CLIENT) -> int:
    places = ["--store", str(folder / "store"), "--landing", str(folder / "landing")]
    return main(["landing", "forget", client, *words, *places])


def pings_of(folder: Path, client: str = CLIENT) -> int:
    found = 0
    for file in (folder / "landing").rglob("*.parquet"):
        for batch in open_landed(file).batches(["client_id"]):
            found += sum(value == uuid.UUID(client).bytes for value in batch.column(0).to_pylist())
    return found


def again(folder: Path, number: int) -> bool:
    return recompute(open_store(folder / "store"), folder / "landing", "study", "main", number, NumpyEngine()).identical


def test_all_pings_of_a_client_go_and_the_versions_they_went_into_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played(tmp_path)
    assert pings_of(tmp_path) == 3
    capsys.readouterr()
    assert forget(tmp_path, "--dry-run", "--json") == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned == {
        "pings": 3,
        "files": 3,
        "versions": {"study": {"main": [1, 2]}},
        "removed": False,
        "waiting": None,
        "damaged": 0,
    }
    assert pings_of(tmp_path) == 3
    head = open_store(tmp_path / "store").head("study", "main")

    assert forget(tmp_path, "--because", "they asked us to") == 0
    said = capsys.readouterr().out
    assert "3 pings in 3 landed files removed" in said
    assert "they were used for versions 1 to 2 of study/main" in said
    assert pings_of(tmp_path) == 0
    assert pings_of(tmp_path, str(uuid.UUID(bytes=id_of("client", 2)))) == 3, "others keep theirs"
    store = open_store(tmp_path / "store")
    assert store.head("study", "main").digest == head.digest, "what is published stays"
    assert again(tmp_path, 3)
    with pytest.raises(
        FedpingError, match=r"the landed pings of a forgotten client were removed, on .* they asked us to"
    ):
        again(tmp_path, 1)
    (entry,) = store.studies.history("study")
    assert (entry.kind, entry.versions) == ("forgotten", {"main": (1, 2)})
    for written in (tmp_path / "store").rglob("*.json"):
        assert CLIENT not in written.read_text(), "nobody is remembered for having been forgotten"

    assert forget(tmp_path) == 0
    assert "this client has no landed pings" in capsys.readouterr().out
    assert len(store.studies.history("study")) == 1


def test_it_is_told_where_there_is_no_journal_to_look_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played(tmp_path)
    assert forget(tmp_path, "--dry-run", "--journal", str(tmp_path / "elsewhere")) == 0
    assert (
        f"there is no journal at {tmp_path / 'elsewhere'}, so pings that have not landed yet" in capsys.readouterr().err
    )
    (tmp_path / "elsewhere").mkdir()
    assert forget(tmp_path, "--dry-run", "--json", "--journal", str(tmp_path / "elsewhere")) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["waiting"] == 0
    assert "journal" not in said.err


def test_rounds_that_take_late_pings_go_on_and_are_computed_again(tmp_path: Path) -> None:
    played(tmp_path, Staleness(most=3))
    assert forget(tmp_path) == 0
    land(tmp_path / "landing", crowd(20, seed=2, version=2, first_document=200), iteration=2, at_ms=FIRST_MS + 9000)
    land(tmp_path / "landing", crowd(20, seed=9, version=3, first_document=900), iteration=3, at_ms=FIRST_MS + 9001)
    assert play(tmp_path) == "published"
    assert again(tmp_path, 4)
    counts = open_store(tmp_path / "store").head("study", "main").lineage.counts
    assert counts["duplicate"] >= 12, "pings that an earlier round has used are known again"


def test_a_forgetting_that_is_killed_goes_on(tmp_path: Path) -> None:
    played(tmp_path)
    words = ("landing", "forget", CLIENT, "--store", str(tmp_path / "store"))
    assert killed_at(3, *words, "--landing", str(tmp_path / "landing")) == -signal.SIGKILL
    assert 0 < pings_of(tmp_path) < 3
    (entry,) = open_store(tmp_path / "store").studies.history("study")
    assert entry.versions == {"main": (1, 2)}, "it is told before anything is done"
    assert forget(tmp_path) == 0
    assert pings_of(tmp_path) == 0


def test_files_in_shards_keep_their_shards_and_who_may_read_them(tmp_path: Path) -> None:
    store_with(tmp_path / "store", small_study())
    table = landed_table(5000, 1, m=2)
    folder = partition(tmp_path / "landing", "study", "main", 0)
    file = write_landed(folder, table, FIRST_MS, {b"ours": b"note"})
    file.chmod(0o604)
    client = str(uuid.UUID(bytes=table.column("client_id")[17].as_py()))
    assert forget(tmp_path, client=client) == 0
    (there,) = landed_files(folder)
    assert there == file
    assert file.stat().st_mode & 0o777 == 0o604
    landed = open_landed(file)
    assert landed.entries is not None
    assert (landed.footer.num_rows, landed.footer.num_row_groups) == (4999, SHARDS)
    assert landed.footer.metadata[b"ours"] == b"note"
    assert landed.footer.metadata[SHARDS_KEY] == str(SHARDS).encode()
    with landed.opened() as opened:
        now = opened.read()
    assert now.schema.equals(table.schema)
    stays = pc.not_equal(table.column("client_id"), uuid.UUID(client).bytes)
    order = [("document_id", "ascending")]
    assert now.sort_by(order).equals(table.filter(stays).sort_by(order))


def test_pings_in_the_journal_are_told_until_they_have_landed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest = ingest_app(tmp_path)
    client = ping_json()["clientId"]
    assert ingest.ping().status_code == 200
    journal = ["--journal", str(ingest.settings.journal)]
    assert forget(tmp_path, *journal, client=client.upper()) == 1
    assert "pings of this client that have not landed yet are in 1 segment of" in capsys.readouterr().err
    ingest.land()
    assert pings_of(tmp_path, client) == 1
    assert forget(tmp_path, *journal, client=client) == 0
    assert pings_of(tmp_path, client) == 0


def test_a_damaged_file_hides_none_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played(tmp_path)
    first = landed_files(partition(tmp_path / "landing", "study", "main", 0))[0]
    data = bytearray(first.read_bytes())
    data[100:200] = np.zeros(100, np.uint8).tobytes()
    first.write_bytes(bytes(data[:-20]))
    assert forget(tmp_path) == 1
    said = capsys.readouterr()
    assert first.name in said.err
    assert "; 1 landed file could not" in said.err
    assert "2 pings in 2 landed files removed" in said.out
    assert forget(tmp_path, client="nobody") == 2
