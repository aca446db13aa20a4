"""Pruning landed pings: kept versions can be recomputed, and rounds continue unchanged, also after a kill."""

import json
import shutil
import signal
import time
import uuid
from pathlib import Path

import msgspec
import pytest

from fedping.analysis.rounds.history import metric_series
from fedping.main import main
from fedping.model_store import ModelStore, open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import landed_files, open_landing, partition, write_landed
from fedping.protocol.pipeline import Staleness
from fedping.protocol.study import Arm, Study
from fedping.server_jobs.deletion import deletion_lock, describe_versions
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.killed_command import killed_at
from tests.support.rounds import FIRST_MS, WHEN, Ping, crowd, id_of, land, store_with, table_of
from tests.support.versions import small_study

ROUNDS = 5


def study_of(staleness: Staleness | None = None) -> Study:
    study = small_study()
    line = msgspec.structs.replace(
        study.lines[0], pipeline=msgspec.structs.replace(study.lines[0].pipeline, staleness=staleness)
    )
    arms = (*(msgspec.structs.replace(arm, share=arm.share / 2) for arm in study.arms), Arm(name="plain", share=0.3))
    return msgspec.structs.replace(study, arms=arms, lines=(line,))


def play(folder: Path) -> str:
    store, landing = open_store(folder / "store"), folder / "landing"
    return run_round(
        store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
    ).status


def played(folder: Path, staleness: Staleness | None = None) -> ModelStore:
    """Return a store after some rounds of two files each, with late pings, and pings of an arm without a line."""
    store, landing = store_with(folder / "store", study_of(staleness)), folder / "landing"
    for n in range(ROUNDS):
        at = FIRST_MS + 10_000 * n
        for k in range(2):
            pings = crowd(20, seed=10 * n + k, version=n, first_document=1000 * n + 100 * k)
            land(landing, pings, iteration=n, at_ms=at + k)
        if n:
            late = crowd(5, seed=n, version=n - 1, first_document=1000 * n + 500)
            land(landing, [*late, crowd(20, version=n - 1)[0]], iteration=n - 1, at_ms=at + 5)
        beside = table_of([Ping(1000 * n + 900, 900, None, arm="plain", version=-1)])
        write_landed(partition(landing, "study", None, -1), beside, at + 6)
        assert play(folder) == "published"
    return store


def prune(folder: Path, *words: str) -> int:
    places = ["--store", str(folder / "store"), "--landing", str(folder / "landing")]
    return main(["landing", "prune", *words, *places])


def again(folder: Path, number: int) -> bool:
    return recompute(open_store(folder / "store"), folder / "landing", "study", "main", number, NumpyEngine()).identical


def left(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet"))


@pytest.mark.parametrize("staleness", [None, Staleness(most=2)])
def test_what_is_kept_is_computed_again_and_what_is_not_is_named(
    tmp_path: Path, staleness: Staleness | None, capsys: pytest.CaptureFixture[str]
) -> None:
    store = played(tmp_path, staleness)
    before = left(tmp_path)
    capsys.readouterr()
    assert prune(tmp_path, "--keep", "2", "--dry-run", "--json") == 0
    planned = json.loads(capsys.readouterr().out)
    assert left(tmp_path) == before
    assert store.studies.history("study") == []
    assert planned["removed"] is False
    assert planned["kept_from"] == {"main": ROUNDS - 1}
    given_up = planned["given_up"]["main"]
    assert given_up
    assert max(given_up) < ROUNDS - 1

    assert prune(tmp_path, "study", "--keep", "2", "--because", "the disk is full") == 0
    assert "can no longer be recomputed" in capsys.readouterr().out
    assert len(before) - len(left(tmp_path)) == planned["files"] > 0
    for number in range(ROUNDS + 1):
        if number in given_up:
            with pytest.raises(FedpingError, match=r"landed pings were pruned, on .* because: the disk is full"):
                again(tmp_path, number)
        else:
            assert again(tmp_path, number)
    (entry,) = store.studies.history("study")
    assert (entry.kind, entry.because, entry.versions) == ("pruned", "the disk is full", {"main": tuple(given_up)})
    plain = landed_files(partition(tmp_path / "landing", "study", None, -1))
    assert 0 < len(plain) < ROUNDS
    assert prune(tmp_path, "--keep", "2") == 0
    assert "nothing to remove" in capsys.readouterr().out
    assert len(store.studies.history("study")) == 1


def test_figures_have_the_rounds_that_are_left(tmp_path: Path) -> None:
    store, landing = played(tmp_path), tmp_path / "landing"
    whole = metric_series(store, landing, "study", "main", "num_chars_typed")
    assert prune(tmp_path, "--keep", "2") == 0
    client = str(uuid.UUID(bytes=id_of("client", 3)))
    places = ["--store", str(tmp_path / "store"), "--landing", str(landing)]
    assert main(["landing", "forget", client, *places]) == 0
    there = metric_series(store, landing, "study", "main", "num_chars_typed")
    assert whole["treatment"].iterations == tuple(range(ROUNDS))
    assert there["treatment"].iterations == tuple(range(ROUNDS - 2, ROUNDS))


@pytest.mark.parametrize("staleness", [None, Staleness(most=2)])
def test_rounds_go_on_as_if_nothing_had_gone(tmp_path: Path, staleness: Staleness | None) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    played(one, staleness)
    shutil.copytree(one, other)
    assert prune(other, "--keep", "1") == 0
    assert left(other) != left(one)
    for folder in (one, other):
        at = FIRST_MS + 10_000 * ROUNDS
        for age in range(4):
            version = ROUNDS - age
            land(
                folder / "landing",
                crowd(20, seed=77, version=version, first_document=70_000),
                iteration=version,
                at_ms=at,
            )
        old = crowd(20, seed=10, version=ROUNDS - 1, first_document=1000 * (ROUNDS - 1))
        land(folder / "landing", old, iteration=ROUNDS - 1, at_ms=at + 1)  # sent a second time
        assert play(folder) == "published"
    heads = [open_store(folder / "store").head("study", "main") for folder in (one, other)]
    tokens = [{file.path.rpartition("-")[0] for file in head.lineage.inputs} for head in heads]
    assert tokens[0] == tokens[1]
    assert heads[0].weights == heads[1].weights
    assert heads[0].lineage.counts == heads[1].lineage.counts
    assert heads[0].lineage.ages == heads[1].lineage.ages
    assert again(other, ROUNDS + 1)


def test_a_pruning_that_is_killed_goes_on(tmp_path: Path) -> None:
    played(tmp_path)
    before = len(left(tmp_path))
    words = ("landing", "prune", "--keep", "1", "--store", str(tmp_path / "store"))
    assert killed_at(4, *words, "--landing", str(tmp_path / "landing")) == -signal.SIGKILL
    between = len(left(tmp_path))
    assert before - 4 < between < before
    (entry,) = open_store(tmp_path / "store").studies.history("study")
    assert entry.versions == {"main": tuple(range(1, ROUNDS))}
    assert prune(tmp_path, "--keep", "1") == 0
    assert len(left(tmp_path)) < between
    assert again(tmp_path, ROUNDS)
    with pytest.raises(FedpingError, match="landed pings were pruned"):
        again(tmp_path, 1)


def test_what_may_be_asked_for_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, landing = store_with(tmp_path / "store", study_of()), tmp_path / "landing"
    now = round(time.time() * 1000)
    land(landing, crowd(20), at_ms=now - 1000)
    assert play(tmp_path) == "published"
    land(landing, crowd(20, version=1, first_document=100), iteration=1, at_ms=now)
    assert play(tmp_path) == "published"
    foreign = partition(landing, "study", "main", 0) / "theirs.parquet"
    shutil.copy(landed_files(foreign.parent)[0], foreign)
    assert prune(tmp_path, "--keep", "1") == 0
    assert "nothing to remove" in capsys.readouterr().out, "it landed in the last hour, or bears another's name"
    assert store.studies.history("study") == []
    assert prune(tmp_path, "other", "--keep", "1") == 1
    assert "has no study 'other'" in capsys.readouterr().err
    assert prune(tmp_path, "--keep", "0") == 2
    with deletion_lock(open_landing(landing)):
        assert prune(tmp_path, "--keep", "1") == 75
        assert prune(tmp_path, "--keep", "1", "--dry-run") == 0
    assert "another 'fedping landing' command" in capsys.readouterr().err


def test_nothing_is_removed_that_the_history_cannot_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played(tmp_path)
    before = left(tmp_path)
    (tmp_path / "store" / "study" / "history").write_text("in the way")
    assert prune(tmp_path, "--keep", "1") == 1
    assert "cannot write" in capsys.readouterr().err
    assert left(tmp_path) == before


def test_versions_are_told_in_runs() -> None:
    assert describe_versions((1, 2, 3, 5, 8, 9)) == "versions 1 to 3, 5, 8 to 9"
    assert describe_versions((4,)) == "version 4"


def test_it_says_why_nothing_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played(tmp_path)
    where = ("--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing"))
    prune = ["landing", "prune", "study", "--dry-run", *where]

    def stays(keep: int) -> dict[str, int]:
        capsys.readouterr()
        assert main([*prune, "--keep", str(keep), "--json"]) == 0
        found: dict[str, int] = json.loads(capsys.readouterr().out)["stays"]
        return found

    files = open_landing(tmp_path / "landing").all_files
    landed = len(files())
    everything = stays(100)
    assert sum(everything.values()) == landed
    assert everything["recompute"] == 2 * ROUNDS, "each round had two files of its version"
    assert everything["last_hour"] == 0
    capsys.readouterr()
    assert main([*prune, "--keep", "100"]) == 0
    said = capsys.readouterr().out
    assert f"{2 * ROUNDS} landed files stay: they are needed to recompute the kept versions" in said
    assert "every version of main is kept; a smaller --keep may remove pings" in said

    assert main([*prune, "--keep", "2", "--json"]) == 0
    some = json.loads(capsys.readouterr().out)
    assert some["files"] + sum(some["stays"].values()) == landed
    assert some["stays"]["recompute"] == 4
    assert main([word for word in prune if word != "--dry-run"] + ["--keep", "2"]) == 0
    capsys.readouterr()
    assert main([*prune, "--keep", "2"]) == 0
    said = capsys.readouterr().out
    assert "4 landed files stay: they are needed to recompute the kept versions" in said
    assert "every version" not in said, "older versions are given up, and a smaller number is no remedy"

    for file in files():
        Path(str(file)).unlink()
    land(tmp_path / "landing", crowd(3, version=0), iteration=0, at_ms=int(time.time() * 1000) - 60_000)
    assert stays(1) == {"foreign": 0, "recompute": 0, "upcoming": 0, "newer": 1, "last_hour": 0}


def test_it_says_that_a_store_has_nothing_to_prune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "landing").mkdir()
    where = ("--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing"))
    assert main(["landing", "prune", "--keep", "5", *where]) == 0
    assert f"the store at {tmp_path / 'store'} has no study" in capsys.readouterr().out
    store_with(tmp_path / "store", study_of())
    assert main(["landing", "prune", "--keep", "5", *where]) == 0
    assert f"it has no pings in {tmp_path / 'landing'}" in capsys.readouterr().out
