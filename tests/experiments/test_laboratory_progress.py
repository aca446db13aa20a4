"""An experiment's progress files: every row once and in whole lines, also if its process is killed."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.pool import Progress
from fedping.experiments.laboratory.results import (
    PROGRESS,
    MetricLog,
    ProgressFile,
    Row,
    read_progress,
    read_units,
    rounds_of,
)
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment, experiment_from_toml
from fedping.experiments.laboratory.units import Unit, units_of
from fedping.protocol.errors import FedpingError
from tests.support.laboratory import small, small_file


class Killed(Exception):
    """Stands for the death of the process; the laboratory doesn't handle it."""


def no_baselines(**changes: object) -> Experiment:
    return small(evaluation={"baselines": []}, **changes)


def final_rows(folder: Path) -> list[Row]:
    table = pq.read_table(folder / "metrics.parquet", partitioning=None)
    columns = (table[name].to_pylist() for name in ("round", "split", "metric", "value"))
    return [(round_, split, metric, value) for round_, split, metric, value in zip(*columns, strict=True)]


def test_a_run_tells_every_row_once_and_when_it_is_over_the_metrics_say_the_same(tmp_path: Path) -> None:
    [unit] = units_of(no_baselines(rounds=5))
    seen: list[Row] = []
    rounds: list[tuple[int, int]] = []
    at: tuple[float | None, int] = (None, 0)

    def on_round(done: int, measured: Sequence[Row]) -> None:
        nonlocal at
        told = read_progress(unit.folder(tmp_path).path, *at)
        assert told is not None
        assert told.rows == list(measured)
        seen.extend(told.rows)
        at = (told.begun, told.offset)
        rounds.append((done, rounds_of(seen)))

    run_unit(unit, tmp_path, on_round)
    assert rounds == [(done, done) for done in range(6)]
    assert seen == final_rows(unit.folder(tmp_path).path)
    assert read_progress(unit.folder(tmp_path).path) is None


def test_a_run_that_was_killed_is_told_from_the_one_that_begins_again(tmp_path: Path) -> None:
    experiment = no_baselines(rounds=5, seeds=2)
    folder = tmp_path / "out/runs/federated/seed-1"

    def kill(now: Progress) -> None:
        if now.rounds == 3:
            raise Killed

    with pytest.raises(Killed):
        run_experiment(experiment, tmp_path / "out", jobs=1, watch=kill)
    with open(folder / PROGRESS, "ab") as file:
        file.write(b'[[4,"train","lo')  # the process ended in the middle of a line
    left = read_progress(folder)
    assert left is not None
    assert rounds_of(left.rows) == 3

    again: list[Row] = []

    def look(now: Progress) -> None:
        if now.unit.seed == 1 and now.rounds and not now.finished and not again:  # several may be reported at once
            told = read_progress(folder, left.begun, left.offset)
            assert told is not None
            assert told.begun > left.begun
            again.extend(told.rows)

    run_experiment(experiment, tmp_path / "out", jobs=1, watch=look)
    assert 1 <= rounds_of(again) <= 5
    both = min(rounds_of(again), 3)
    assert _until(again, both) == _until(left.rows, both)
    run_experiment(experiment, tmp_path / "whole", jobs=1)
    assert final_rows(tmp_path / "out") == final_rows(tmp_path / "whole")
    assert not list((tmp_path / "out").rglob(PROGRESS))


def _until(rows: Sequence[Row], rounds: int) -> list[Row]:
    return [row for row in rows if row[0] + (row[1] == "train") <= rounds]


values = st.floats(width=64) | st.integers(0, 9).map(float)
rows = st.tuples(st.integers(0, 99), st.sampled_from(["train", "test"]), st.text(max_size=5), values)


@given(st.lists(st.lists(rows, max_size=4), max_size=6), st.integers(0, 2000))
def test_wherever_the_file_is_cut_what_is_read_before_and_after_is_every_row_once(
    rounds: list[list[tuple[int, str, str, float]]], cut: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), MetricLog("v", 1, None)
        with ProgressFile(folder, log) as progress:
            for told in rounds:
                log.rows.extend(told)
                progress.write()
        assert (folder / PROGRESS).exists() == bool(rounds)
        whole = (folder / PROGRESS).read_bytes() if rounds else b""
        cut %= len(whole) + 1
        (folder / PROGRESS).write_bytes(whole[:cut])
        first = read_progress(folder)
        (folder / PROGRESS).write_bytes(whole)
        second = read_progress(folder, first.begun, first.offset) if first else read_progress(folder)
        found = [*(first.rows if first else []), *(second.rows if second else [])]
    assert found == [(*row[:3], row[3] if math.isfinite(row[3]) else None) for row in log.rows]


def test_the_runs_are_listed_in_their_order_before_the_first_begins(tmp_path: Path) -> None:
    experiment = experiment_from_toml(small_file(tmp_path), ["rounds=1"])

    def kill(now: Progress) -> None:
        raise Killed

    with pytest.raises(Killed):
        run_experiment(experiment, tmp_path / "out", jobs=1, watch=kill)
    units = read_units(tmp_path / "out")
    assert units is not None
    names = ["gradient", "local, three", "centralised", "local", "start"]
    assert [(unit.name, unit.seed) for unit in units] == [(name, seed) for seed in (1, 2) for name in names]
    assert [unit.rounds for unit in units[:5]] == [1, 1, None, None, None]
    assert all(
        unit.folder == f"{'baselines' if unit.baseline else 'runs'}/{unit.name}/seed-{unit.seed}" for unit in units
    )


def test_an_experiment_that_fails_before_it_has_measured_anything_may_be_corrected_in_its_folder(
    tmp_path: Path,
) -> None:
    with pytest.raises(FedpingError, match="unknown metric"):
        run_experiment(small(evaluation={"metric": "rmse", "baselines": []}), tmp_path, jobs=1)
    run_experiment(no_baselines(rounds=1), tmp_path, jobs=1)
    assert [unit.rounds for unit in read_units(tmp_path) or []] == [1]


def test_training_that_diverges_has_told_what_it_measured(tmp_path: Path) -> None:
    changes = {"model": {"name": "linear-regression"}, "data": {"name": "diabetes"}, "server__optimizer__rate": 50.0}
    [setup] = no_baselines(rounds=400, **changes).variants.values()
    unit = Unit("only", None, setup, 1, None)
    last: list[Row] = []

    def on_round(*_: object) -> None:
        told = read_progress(unit.folder(tmp_path).path)
        assert told is not None
        last[:] = told.rows

    outcome = run_unit(unit, tmp_path, on_round)
    measured = final_rows(unit.folder(tmp_path).path)
    assert rounds_of(last) == outcome.rounds < 400
    finite = [(*row[:3], row[3] if row[3] is not None and math.isfinite(row[3]) else None) for row in measured]
    assert last == finite
