"""Simulations on Spark's executors: the same files to the byte, and the same messages, as in one process."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fedping.experiments.run_process import LOCKS
from fedping.experiments.simulate import Summary, blocks, experiment_from_toml, simulate
from fedping.experiments.simulate.blocks import CLIENTS_A_BLOCK, SEARCHES_A_BLOCK, blocks_of
from fedping.experiments.simulate.people import Anybody, People
from fedping.experiments.simulate.run import WAVE, Progress
from fedping.main import main
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import landed_files
from fedping.server_jobs.round.spark_engine import SparkEngine
from fedping.server_jobs.spark.failures import Job
from fedping.server_jobs.spark.session_pool import SessionPool
from fedping.server_jobs.spark.spreading import spread
from tests.support.laboratory import small_file
from tests.support.processes import left_over, marked, new_mark, wait_until
from tests.support.small_experiment import contents, experiment_file, private_experiment_file

ROOT = Path(__file__).parents[2]
TRY = Job("the try", "try again")
T = TypeVar("T")


def landed(out: Path) -> pa.Table:
    """Return all pings of a run, in the order of their ids."""
    files = [file for folder in (out / "landing").glob("study=*/line=*/iteration=*") for file in landed_files(folder)]
    return pa.concat_tables([pq.ParquetFile(file).read() for file in sorted(files)]).sort_by("document_id")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split even a small experiment's tick into several blocks."""
    monkeypatch.setattr(blocks, "SEARCHES_A_BLOCK", 100)


# --- blocks ---


@given(clients=st.integers(1, 20_000_000), busy=st.floats(0.01, 60), ticks=st.integers(1, 2))
def test_every_client_is_in_one_block_of_a_tick_and_none_is_large(clients: int, busy: float, ticks: int) -> None:
    experiment, _ = experiment_from_toml(ROOT / "experiments" / "firefox_study.toml")
    experiment = replace(experiment, optimization=replace(experiment.optimization, searches_per_day=busy))
    made = blocks_of(experiment, range(ticks), clients)
    for tick in range(ticks):
        mine = [block for block in made if block.tick == tick]
        assert [block.number for block in mine] == sorted({block.number for block in mine})
        assert [mine[0].clients.start, mine[-1].clients.stop] == [0, clients]
        assert all(one.clients.stop == other.clients.start for one, other in zip(mine, mine[1:], strict=False))
        for block in mine:
            assert 0 < len(block.clients) <= CLIENTS_A_BLOCK
            assert len(block.clients) == 1 or (len(block.clients) - 1) * busy / 48 <= SEARCHES_A_BLOCK


def test_the_study_of_2018_is_one_block_a_tick() -> None:
    experiment, _ = experiment_from_toml(ROOT / "experiments" / "firefox_study.toml")
    assert len(blocks_of(experiment, [7], experiment.clients)) == 1


def test_who_is_enrolled_when_they_search_is_who_was_from_the_start(tmp_path: Path) -> None:
    for more in ("", '[attack]\nattack = "sign_flip"\ninvented = 0.3'):
        experiment, study = experiment_from_toml(experiment_file(tmp_path, more=more))
        people = People(experiment, study)
        anybody = Anybody(experiment, study, people.who_is_hostile)
        everyone = np.arange(len(people.ids)).repeat(2)
        np.testing.assert_array_equal(anybody.ids_of(everyone), people.ids[everyone])
        np.testing.assert_array_equal(anybody.arms_of(everyone), people.arm[everyone])
        np.testing.assert_array_equal(anybody.hostile, people.hostile)
        assert people.hostile.any() == bool(more)


def test_blocks_make_the_pings_of_a_tick_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = experiment_file(tmp_path, iterations=1, ticks=1)
    whole = simulate(*experiment_from_toml(file), tmp_path / "whole")
    monkeypatch.setattr(blocks, "SEARCHES_A_BLOCK", 60)
    parts = simulate(*experiment_from_toml(file), tmp_path / "parts")
    assert isinstance(whole, Summary)
    assert isinstance(parts, Summary)
    assert (parts.pings, parts.senders) == (whole.pings, whole.senders)
    # A round adds up pings in the order of the files, so version 1 and later results may differ in their last bits.
    first = pc.field("model_version") < 1
    one, other = (landed(tmp_path / name).filter(first) for name in ("whole", "parts"))
    assert one.num_rows > 150
    assert one.equals(other)
    files = [len(list((tmp_path / name).rglob("*.parquet"))) for name in ("whole", "parts")]
    assert files[1] > 2 * files[0]


# --- a study ---


@pytest.mark.spark
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "more", ["", pytest.param('[attack]\nattack = "sign_flip"\ninvented = 0.2', marks=pytest.mark.long)]
)
def test_executors_leave_the_same_bytes_as_one_process(tmp_path: Path, spark, more: str) -> None:
    file = experiment_file(tmp_path, iterations=1, ticks=2, more=more)
    here = simulate(*experiment_from_toml(file), tmp_path / "here", threads=2)
    engine, told = SparkEngine(lambda: nullcontext(spark)), list[Progress]()
    there = simulate(*experiment_from_toml(file), tmp_path / "there", watch=told.append, spark=engine)
    assert there == here
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert [each.phase for each in told if each.done == each.total] == ["optimization", "evaluation"]
    assert max(each.pings or 0 for each in told) == there.pings  # type: ignore[union-attr]
    assert len(told) > 8, "each block is told of, not each tick alone"


@pytest.mark.spark
def test_a_run_that_was_spread_goes_on_in_one_process(tmp_path: Path, spark) -> None:
    file = experiment_file(tmp_path, clients=300, iterations=1, ticks=6)
    simulate(*experiment_from_toml(file), tmp_path / "here")
    engine = SparkEngine(lambda: nullcontext(spark))

    class Enough(Exception):
        pass

    def watch(now: Progress) -> None:
        if now.phase == "evaluation" and now.done == now.total:  # so that no executor is still at it
            raise Enough

    with pytest.raises(Enough):
        simulate(*experiment_from_toml(file), tmp_path / "there", watch=watch, spark=engine)
    assert json.loads((tmp_path / "there" / WAVE).read_bytes())["tick"] == 1
    (tmp_path / "there" / LOCKS).mkdir()  # as left by a killed driver
    for file_of_the_middle in (tmp_path / "there" / "landing").rglob("*-000000000003.parquet"):
        file_of_the_middle.unlink()  # as if that tick's executor had not been the quickest
    simulate(*experiment_from_toml(file), tmp_path / "there")
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_a_private_study_is_not_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = private_experiment_file(tmp_path)
    assert main(["simulate", str(file), "--out", str(tmp_path / "out"), "--engine", "spark"]) == 2
    said = capsys.readouterr().err
    assert "study 'hushed' is private" in said
    assert "emove --engine spark" in said
    assert not (tmp_path / "out").exists()


# --- the laboratory ---


def without_seconds(out: Path) -> dict[str, bytes]:
    """Return the files of an experiment, without its runs' durations."""
    found = contents(out)
    return {
        name: json.dumps({**json.loads(said), "seconds": 0}).encode() if name.endswith("run.json") else said
        for name, said in found.items()
    }


OWN = """
from beside_it import half

def loss(weights, x, y):
    return half((weights**2).sum())

def predict(weights, x):
    return x[:, 0] * 0
"""


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.usefixtures("warm_commands")
def test_a_sweep_on_executors_leaves_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = small_file(tmp_path / "mine")
    (file.parent / "spread_loss.py").write_text(OWN)
    (file.parent / "beside_it.py").write_text("def half(x):\n    return x / 2\n")
    names = 'function = "spread_loss:loss", predict = "spread_loss:predict"'
    given = ["--set", f'model={{ name = "own", weights = 2, {names} }}', "--set", "evaluation.baselines=[]"]
    given += ["--set", "rounds=2", "--set", "seeds=1", "--over", "server.optimizer.rate=0.1,0.2"]
    assert main(["sweep", str(file), "--out", str(tmp_path / "here"), "--jobs", "1", *given]) == 0
    assert main(["sweep", str(file), "--out", str(tmp_path / "there"), "--engine", "spark", *given]) == 0
    assert without_seconds(tmp_path / "there") == without_seconds(tmp_path / "here")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "there").rglob("run.json")}
    assert len(before) == 4
    capsys.readouterr()
    assert main(["sweep", str(file), "--out", str(tmp_path / "there"), "--engine", "spark", *given]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what is finished is not run again"
    assert not (tmp_path / "there" / LOCKS).exists()
    for name in ("spread_loss", "beside_it"):
        sys.modules.pop(name)


@pytest.mark.spark
@pytest.mark.usefixtures("warm_commands")
def test_a_run_that_fails_on_an_executor_is_told_as_it_is_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = small_file(
        tmp_path, '\n[[variants]]\nname = "too many"\nsampling = { sampling = "uniform", clients = 99 }\n'
    )
    said = []
    for name, more in (("here", ["--jobs", "1"]), ("there", ["--engine", "spark"])):
        assert main(["simulate", str(file), "--out", str(tmp_path / name), "--set", "rounds=2", *more]) == 2
        said.append([line for line in capsys.readouterr().err.splitlines() if line.startswith("fedping:")])
    assert said[0] == said[1]
    assert "too many" in said[0][-1]
    assert not (tmp_path / "there" / LOCKS).exists()


@pytest.mark.parametrize(
    ("changes", "word"),
    [(["where=http"], "over HTTP"), (["where=files", "engine=spark"], "its own Spark session")],
)
def test_what_cannot_be_spread_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: list[str], word: str
) -> None:
    given = [word for change in changes for word in ("--set", change)]
    file = small_file(tmp_path)
    assert main(["simulate", str(file), "--out", str(tmp_path / "out"), "--engine", "spark", *given]) == 2
    said = capsys.readouterr().err
    assert word in said
    assert "variant 'gradient'" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (["--master", "local[2]"], "--master needs --engine spark"),
        (["--engine", "spark", "--threads", "3"], "--threads has no effect"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], word: str
) -> None:
    assert main(["simulate", str(experiment_file(tmp_path)), "--out", str(tmp_path / "out"), *given]) == 2
    assert word in capsys.readouterr().err


def test_jobs_are_the_masters_to_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--engine", "spark", "--jobs", "2"]
    assert main(["simulate", str(small_file(tmp_path)), "--out", str(tmp_path / "out"), *given]) == 2
    assert "--jobs has no effect" in capsys.readouterr().err


def test_that_spark_is_not_installed_is_told_before_anything_is_read(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pyspark'] = None; from fedping.main import run; run()"
    command = [sys.executable, "-c", code, "simulate", str(experiment_file(tmp_path)), "--engine", "spark"]
    ran = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    assert ran.returncode == 1
    assert b'pip install "fedping[spark]"' in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


# --- distribution over executors ---


@pytest.mark.spark
def test_outcomes_come_as_they_end_and_an_error_is_the_same_error(spark) -> None:
    sessions = SessionPool(lambda: nullcontext(spark))

    def squared(number: int) -> int:
        if number == 7:
            raise FedpingError("seven cannot be squared")
        return number**2

    assert sorted(spread(sessions, squared, 7, TRY)) == [(number, number**2) for number in range(7)]
    assert list(spread(sessions, squared, 0, TRY)) == []
    with pytest.raises(FedpingError, match="seven cannot be squared"):
        list(spread(sessions, squared, 8, TRY))

    def broken(number: int) -> int:
        return number // 0

    with pytest.raises(ZeroDivisionError) as raised:
        list(spread(sessions, broken, 1, TRY))
    assert "in broken" in raised.value.__notes__[0]


SCRIPT = """
from fedping.server_jobs.spark.failures import Job
from fedping.server_jobs.spark.session_pool import SessionPool
from fedping.server_jobs.spark.session import spark_session
from fedping.server_jobs.spark.settings import SparkSettings
from fedping.server_jobs.spark.spreading import spread

def work(number):
    import helper
    return helper.FACTOR * number

if __name__ == "__main__":
    sessions = SessionPool(lambda: spark_session(SparkSettings(master="local[1]")))
    print(list(spread(sessions, work, 2, Job("the try", "run it again"))))
    sessions.close()
"""


@pytest.mark.long  # as the sweep above, with a module of the user's own beside the experiment
@pytest.mark.spark
def test_what_lies_beside_a_script_is_imported_here_as_by_the_script(tmp_path: Path) -> None:
    """Tested with a module that has the name of a folder of fedping's checkout."""
    (tmp_path / "helper.py").write_text("FACTOR = 21\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[(0, 0), (1, 21)]", done.stderr


@pytest.mark.long  # as test_demo interrupts rounds on Spark
@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_that_goes_on_and_it_can_go_on(tmp_path: Path, number: signal.Signals) -> None:
    file, mark = small_file(tmp_path), new_mark()
    command = [sys.executable, "-m", "fedping", "simulate", str(file), "--out", str(tmp_path / "out")]
    command += ["--engine", "spark", "--master", "local[2]", "--set", "rounds=1000000"]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | mark, stderr=subprocess.PIPE) as process:
        assert wait_until(lambda: process.poll() is not None or list(tmp_path.glob("out/runs/*/*/checkpoint.npz")))
        assert process.poll() is None
        assert marked(mark)
        process.send_signal(number)
        said = process.communicate()[1].decode()
    assert process.returncode == 128 + number
    assert not left_over(mark)
    assert [line for line in said.splitlines() if not line.startswith("spark:")] == [
        "fedping: interrupted" if number == signal.SIGINT else "fedping: terminated"
    ]
    assert list(tmp_path.glob("out/runs/*/*/checkpoint.npz"))
