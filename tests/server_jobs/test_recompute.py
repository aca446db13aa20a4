"""Every published version can be recomputed from its lineage, bit for bit; later changes are detected."""

from pathlib import Path

import msgspec
import pytest

from fedping.main import main
from fedping.model_store.decisions import rollback
from fedping.model_store.store import ModelStore
from fedping.model_store.version import Version
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import landed_files, partition
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.rounds import FIRST_MS, WHEN, Ping, crowd, land, store_with
from tests.support.versions import small_study

ENGINE = NumpyEngine()


@pytest.fixture
def trained(tmp_path: Path) -> ModelStore:
    """Give a store at version 5 (three rounds, a rollback to 1, a round), with pings landed below tmp_path."""
    store = store_with(tmp_path / "store", small_study())
    for n in (0, 1, 2, 3, 4):
        if n == 3:
            rollback(store, "study", "main", 1, created=WHEN, code_version="test")
            continue
        land(tmp_path, crowd(40, seed=n, version=n), iteration=n, at_ms=FIRST_MS + 2 * n)
        again = [*crowd(9, seed=n, version=n), Ping(700, 3, None, version=n), Ping(701, 4, payload=b"?", version=n)]
        land(tmp_path, again, iteration=n, at_ms=FIRST_MS + 2 * n + 1)
        run_round(store, tmp_path, "study", "main", ENGINE, RoundOptions(clock=lambda: WHEN, code_version="test"))
    return store


def change(tmp_path: Path, iteration: int, **changes: object) -> Version:
    """Change a published version's document behind the store's back."""
    path = tmp_path / f"store/study/main/versions/{iteration}.json"
    version = msgspec.structs.replace(msgspec.json.decode(path.read_bytes(), type=Version), **changes)
    path.write_bytes(msgspec.json.encode(version))
    return version


@pytest.mark.parametrize("iteration", [0, 1, 2, 3, 4, 5])
def test_every_version_is_bit_identical_when_computed_again(
    trained: ModelStore, tmp_path: Path, iteration: int
) -> None:
    again = recompute(trained, tmp_path, "study", "main", iteration, ENGINE)
    assert (again.identical, again.differences) == (True, ())


def test_pings_that_landed_later_do_not_matter(trained: ModelStore, tmp_path: Path) -> None:
    land(tmp_path, crowd(30, seed=8, version=2, first_document=9000), iteration=2, at_ms=FIRST_MS + 99)
    assert recompute(trained, tmp_path, "study", "main", 3, ENGINE).identical


def test_a_weight_changed_in_the_last_bit_shows(trained: ModelStore, tmp_path: Path) -> None:
    version = trained.version("study", "main", 5)
    change(tmp_path, 5, weights=(version.weights[0] + 2e-15, *version.weights[1:]))
    again = recompute(trained, tmp_path, "study", "main", 5, ENGINE)
    assert not again.identical
    assert again.differences[0].startswith("weights differs at 1 of 2 places, first at 0: ")


@pytest.mark.parametrize("iteration", [0, 4])
def test_a_changed_start_or_rollback_shows(trained: ModelStore, tmp_path: Path, iteration: int) -> None:
    change(tmp_path, iteration, state=())
    again = recompute(trained, tmp_path, "study", "main", iteration, ENGINE)
    assert not again.identical
    assert again.differences[0].startswith("state was published as ()")


def test_a_changed_ping_shows(trained: ModelStore, tmp_path: Path) -> None:
    """The file has the same number of rows and is intact, but the lineage detects the change."""
    folder = partition(tmp_path, "study", "main", 1)
    first = landed_files(folder)[0]
    other = land(tmp_path / "elsewhere", crowd(40, seed=77, version=1), iteration=1)
    other.rename(first)
    with pytest.raises(FedpingError, match=rf"{first.name} is not the file"):
        recompute(trained, tmp_path, "study", "main", 2, ENGINE)


def test_a_changed_ping_shows_in_what_is_older_than_digests(trained: ModelStore, tmp_path: Path) -> None:
    """The document has no digests of its files, but the mean differs."""
    lineage = trained.version("study", "main", 2).lineage
    inputs = tuple(msgspec.structs.replace(file, digest="") for file in lineage.inputs)
    change(tmp_path, 2, lineage=msgspec.structs.replace(lineage, inputs=inputs))
    assert recompute(trained, tmp_path, "study", "main", 2, ENGINE).identical
    other = land(tmp_path / "elsewhere", crowd(40, seed=77, version=1), iteration=1)
    other.rename(landed_files(partition(tmp_path, "study", "main", 1))[0])
    again = recompute(trained, tmp_path, "study", "main", 2, ENGINE)
    assert not again.identical
    assert any(difference.startswith("aggregate") for difference in again.differences)


def test_a_missing_or_other_file_is_named(trained: ModelStore, tmp_path: Path) -> None:
    first, second = landed_files(partition(tmp_path, "study", "main", 0))
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(FedpingError, match=rf"{second.name} is missing.*Restore it"):
        recompute(trained, tmp_path, "study", "main", 1, ENGINE)
    second.write_bytes(kept)
    land(tmp_path / "elsewhere", crowd(3)).rename(first)
    with pytest.raises(FedpingError, match=rf"{first.name} has 3 pings, .* 40"):
        recompute(trained, tmp_path, "study", "main", 1, ENGINE)


def test_the_command_says_so_and_exits_accordingly(
    trained: ModelStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path)]
    assert main(["store", "recompute", "study", "main", "5", *where]) == 0
    assert "bit-identical" in capsys.readouterr().out
    change(tmp_path, 5, model=(0.0, 0.0))
    assert main(["store", "recompute", "study", "main", "5", *where]) == 1
    assert "model differs at 2 of 2 places" in capsys.readouterr().out
    assert main(["store", "recompute", "study", "main", "6", *where]) == 1
    assert "has no version 6" in capsys.readouterr().err
