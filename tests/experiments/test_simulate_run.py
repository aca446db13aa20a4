"""Whole runs: the same seed gives the same bits, also after kills; phases, stale models, and a run's files."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedping.experiments.simulate import Summary, experiment_from_toml, simulate
from fedping.experiments.simulate.run import Progress
from fedping.main import main
from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landing import landed_files, partition
from fedping.server_jobs.round import engine_named, recompute
from tests.support import forked
from tests.support.small_experiment import contents, experiment_file

ROOT = Path(__file__).parents[2]


def run(file: Path, out: Path, threads: int = 1) -> Summary:
    summary = simulate(*experiment_from_toml(file), out, threads)
    assert isinstance(summary, Summary)
    return summary


def store_of(out: Path) -> ModelStore:
    return open_store(out / "store")


def landed(out: Path, iteration: int, line: str | None = "main") -> pa.Table:
    files = landed_files(partition(out / "landing", "small", line, iteration))
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a finished run, with its experiment next to it."""
    folder = tmp_path_factory.mktemp("simulated")
    run(experiment_file(folder), folder / "out")
    return folder


def test_the_same_seed_gives_the_same_bits_whatever_the_threads(done: Path, tmp_path: Path) -> None:
    run(done / "experiment.toml", tmp_path / "out", threads=3)
    assert contents(tmp_path / "out") == contents(done / "out")


def test_another_seed_gives_others(done: Path, tmp_path: Path) -> None:
    run(experiment_file(tmp_path, seed=5), tmp_path / "out")
    assert store_of(tmp_path / "out").head("small", "main").model != store_of(done / "out").head("small", "main").model


@pytest.mark.parametrize(
    ("function", "nth", "moment"),
    [
        pytest.param("replace", 7, "before", marks=pytest.mark.long),  # the first landed file
        pytest.param("replace", 19, "after", marks=pytest.mark.long),  # in an iteration, one partition of a tick landed
        pytest.param("link", 3, "before", marks=pytest.mark.long),  # a version about to be published
        ("link", 4, "after"),  # a version published, not yet what clients fetch
        ("replace", 41, "before"),  # in the evaluation
    ],
)
def test_a_killed_run_ends_with_the_same_bits(done: Path, tmp_path: Path, function: str, nth: int, moment: str) -> None:
    def process(function: str) -> int:
        arguments = [done / "experiment.toml", tmp_path / "out", function, str(nth), moment]
        command = [sys.executable, "-m", "tests.support.small_experiment", *map(str, arguments)]
        return forked.run(command, cwd=ROOT, timeout=120).returncode

    assert process(function) == -9
    every = contents(done / "out")
    before = contents(tmp_path / "out")
    passing = {"latest.json", "progress.json", "state.json"}  # show the progress, and change
    whole = {
        name: data
        for name, data in before.items()
        if not name.endswith(".tmp") and Path(name).name not in passing and "/.published/" not in name
    }
    assert whole.items() <= every.items()  # nothing is half-written
    assert len(before) < len(every)
    run(done / "experiment.toml", tmp_path / "out")
    after = contents(tmp_path / "out")
    assert {name: data for name, data in after.items() if not name.endswith(".tmp")} == every


def test_a_finished_run_is_not_made_again(done: Path) -> None:
    before = contents(done / "out")
    told: list[Progress] = []
    simulate(*experiment_from_toml(done / "experiment.toml"), done / "out", 1, told.append)
    assert contents(done / "out") == before
    assert told[-1].pings < 200  # only the last tick is checked again, because it may have been cut off


def test_each_iteration_s_pings_make_the_next_version(done: Path) -> None:
    store = store_of(done / "out")
    assert store.iterations("small", "main") == list(range(6))
    with engine_named("numpy") as engine:
        for number in range(1, 6):
            assert recompute(store, done / "out/landing", "small", "main", number, engine).identical
    created = [store.version("small", "main", number).created for number in range(3)]
    assert created == [
        "2018-06-20T00:00:00.000+00:00",
        "2018-06-20T00:30:00.000+00:00",
        "2018-06-20T01:00:00.000+00:00",
    ]


def test_the_evaluation_lands_with_the_frozen_version_and_nothing_else_does(done: Path) -> None:
    begin = 1_529_452_800_000 + 5 * 1_800_000
    received = landed(done / "out", 5).column("received_at").cast(pa.int64()).to_numpy()
    assert len(received) > 100
    assert received.min() >= begin
    assert received.max() < begin + 3 * 1_800_000
    for number in range(4):  # pings of the last trained version may be late, in the first ticks of the evaluation
        times = landed(done / "out", number).column("received_at").cast(pa.int64()).to_numpy()
        assert np.mean(times < begin) > 0.95


def test_arms_report_as_they_are_meant_to(done: Path) -> None:
    table = landed(done / "out", 3)
    arms = np.array(table.column("study_variation").to_pylist())
    updates = np.array([update is not None for update in table.column("update").to_pylist()])
    assert set(arms) == {"treatment", "validation", "control"}
    assert updates[arms == "treatment"].all()
    assert not updates[arms != "treatment"].any()
    plain = landed(done / "out", -1, None)
    assert set(plain.column("study_variation").to_pylist()) == {"plain"}
    assert len(np.unique([bytes(i) for i in table.column("document_id").to_pylist()])) == len(table)


def test_late_fetches_are_stale_pings(tmp_path: Path) -> None:
    file = experiment_file(tmp_path, more="[activity]\nfetch_late = 0.3")
    summary = run(file, tmp_path / "out")
    versions = [store_of(tmp_path / "out").version("small", "main", number) for number in range(2, 6)]
    stale = sum(version.lineage.counts["stale"] for version in versions)
    taken = sum(summary.pings for version in versions for summary in version.lineage.arms.values())
    assert stale / (stale + taken) == pytest.approx(0.3, abs=0.1)
    evaluation = summary.evaluation
    assert evaluation is not None
    assert sum(arm.stale for arm in evaluation.arms.values()) > 0


def test_the_summary_counts_what_landed(done: Path) -> None:
    file = done / "experiment.toml"
    summary = run(file, done / "out")
    files = [f for folder in (done / "out/landing").glob("study=*/line=*/iteration=*") for f in landed_files(folder)]
    tables = [pq.ParquetFile(f).read(columns=["client_id", "num_chars_typed", "rank_selected"]) for f in files]
    ids = {i for table in tables for i in table.column("client_id").to_pylist()}
    assert summary.pings == sum(table.num_rows for table in tables)
    assert summary.senders == len(ids)
    assert summary.evaluation is not None
    both = summary.optimization.pings + summary.evaluation.pings
    assert both == summary.pings
    assert summary.lines["main"].frozen_version == 5


def test_a_folder_of_something_else_is_refused(done: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="another experiment"):
        run(experiment_file(tmp_path, seed=9), done / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(InvalidSettings, match="no run of an experiment"):
        run(done / "experiment.toml", tmp_path / "full")


def test_too_few_clients_for_a_round_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedping.experiments.simulate.run.WAITED_ENOUGH", 4)
    with pytest.raises(FedpingError, match="min_clients"):
        run(experiment_file(tmp_path, min_clients=600), tmp_path / "out")


def test_ticks_for_an_evaluation_that_there_is_not_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = experiment_file(tmp_path)
    head, _, tail = file.read_text().partition("[evaluation]")
    file.write_text(head + tail[tail.index("[users]") :])
    assert main(["simulate", str(file), "--out", str(tmp_path / "out"), "--evaluation-ticks", "2"]) == 2
    assert "--evaluation-ticks needs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"clients": 0}, "clients"),
        ({"more": "tick_minute = 3"}, "tick_minute"),
        ({"optimization": '[optimization.early_stopping]\narm = "control"'}, "does not rank with the trained model"),
        ({"optimization": 'length = { by = "moon" }'}, "length"),
        ({"users": "true_weights = [1, 2]"}, "true_weights are 2, but 'frecency-2018' has 22"),
        ({"users": "drift_at = 3\ndrifted_weights = [1]"}, "drifted_weights are 1, but 'frecency-2018' has 22"),
    ],
)
def test_an_experiment_that_cannot_be_meant_is_refused(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidSettings, match=word):
        experiment_from_toml(experiment_file(tmp_path, **change))
