"""Landed pings in a custom storage, here a dict, which needs only the methods of ``Storage``."""

from pathlib import Path

import pytest

from fedping.main import main
from fedping.protocol import storage
from fedping.protocol.landed_file import open_landed
from fedping.protocol.landing import open_landing, rewrite
from fedping.protocol.location import Place, key_in, place_of
from fedping.protocol.storage import Headers, Storage
from fedping.server_jobs.round import recompute
from fedping.server_jobs.round.engine import NumpyEngine
from tests.server_jobs.test_landing_in_a_bucket import copied, landed, rounds
from tests.server_jobs.test_store_in_a_bucket import ROUNDS, digests, small_study
from tests.support.dict_storage import DictStorage
from tests.support.rounds import store_with


def test_rounds_and_commands_need_nothing_else_of_a_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: dict[str, bytes] = {}

    def in_the_dict(place: Place, headers: Headers | None = None) -> Storage:
        return DictStorage(place, kept)

    monkeypatch.setattr(storage, "BucketStorage", in_the_dict)  # the storage of an address
    there, back = place_of("s3://in-a-dict/pings"), tmp_path / "back"
    assert not open_landing(there).exists()
    open_landing(there).mark()
    assert open_landing(there).exists()
    landed(there)
    stores = [store_with(tmp_path / name, small_study()) for name in ("one", "other")]
    rounds(stores[0], there, NumpyEngine())
    rounds(stores[1], copied(there, back), NumpyEngine())
    assert digests(stores[0]) == digests(stores[1])
    assert recompute(stores[0], there, "study", "main", ROUNDS, NumpyEngine()).identical

    said = ["--store", str(tmp_path / "one"), "--landing", str(there)]
    assert main(["landing", "copy", "study", "--to", "s3://in-a-dict/copy", *said]) == 0
    assert main(["landing", "prune", "study", "--keep", "1", *said]) == 0
    assert f"{ROUNDS - 1} landed files" in capsys.readouterr().out
    [left] = open_landing(there).all_files()
    rows = open_landed(left).footer.num_rows
    rewrite(left, lambda table: table.slice(1))
    assert open_landed(left).footer.num_rows == rows - 1
    copies = [
        key_in(place_of("s3://in-a-dict/copy"), file)
        for file in open_landing(place_of("s3://in-a-dict/copy")).all_files()
    ]
    assert copies == [key_in(back, file) for file in open_landing(back).all_files()]
