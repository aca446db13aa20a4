"""The feed of a run's page: every point arrives once, for any read pattern and any number of server restarts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.dashboard.runs.registry import UnknownRun
from fedping.dashboard.watching.comparing import finals
from fedping.dashboard.watching.curves import Measured, Reached, finished
from fedping.dashboard.watching.feed import LogFeed, Position, RunFeed, position_text, read_position
from fedping.dashboard.watching.units import Pace, seconds_left, units_in
from fedping.experiments.laboratory.results import MetricLog, Outcome, ProgressFile, RunFolder
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment
from tests.support.laboratory import small
from tests.support.watched import Going, ended, finished_run, noted

ID = "20260102-030405-a"
LOSS = Measured("test", "loss")


def feed(runs: Path, of: Measured = LOSS) -> RunFeed:
    return RunFeed(runs, ID, of)


class Page:
    """A page that follows a feed by its script's rules."""

    def __init__(self, runs: Path, of: Measured = LOSS) -> None:
        self.runs, self.of = runs, of
        self.position: str | None = None
        self.units: list[dict[str, Any]] = []
        self.last: dict[str, Any] = {}

    def look(self) -> bool:
        """Ask a stateless server for news; return whether there are any."""
        change = RunFeed(self.runs, ID, self.of).since(self.position)
        if change is None:
            return False
        self.position, self.last = change.position, msgspec.json.decode(msgspec.json.encode(change.data))
        if self.last["whole"]:
            self.units = [{"x": [], "y": []} for _ in self.last["names"]]
        for new in self.last["units"]:
            before = {"x": [], "y": []} if new["again"] else self.units[new["unit"]]
            self.units[new["unit"]] = {**new, "x": before["x"] + new["x"], "y": before["y"] + new["y"]}
        return True


def measure(log: MetricLog, progress: ProgressFile, round_: int, loss: float) -> None:
    if round_:
        log.add(round_ - 1, "train", {"loss": 2 * loss})
    log.add(round_, "test", {"accuracy": 0.5, "loss": loss})
    progress.write()


def end(run: Going, log: MetricLog, unit: int = 0) -> None:
    note = run.units[unit]
    outcome = Outcome(
        variant="v", seed=note.seed, fold=None, rounds=9, best_round=9, final={"test": {"loss": 0.25}}, updates=1,
        update_bytes=4, clients=1, shown=("loss",), notes=(), seconds=3.0,
    )  # fmt: skip
    RunFolder(run.out / note.folder).finish(outcome, log.table(), np.zeros(1), np.zeros(1))


def test_a_page_is_told_only_what_is_new_and_in_the_end_has_what_the_metrics_have(tmp_path: Path) -> None:
    run, page = Going(tmp_path, ID, seeds=2), Page(tmp_path)
    assert page.look()
    assert [unit["state"] for unit in page.units] == ["waiting", "waiting"]
    assert page.last["quantiles"] == [pytest.approx(12.706, abs=1e-3)]
    assert not page.look()
    log, progress = run.begin()
    page.look()
    assert page.units[0]["state"] == "begun"
    for round_ in range(10):
        measure(log, progress, round_, 1 / (1 + round_))
        assert page.look()
        [new] = page.last["units"]
        assert (new["unit"], new["rounds"], new["x"], new["y"]) == (0, round_, [round_], [1 / (1 + round_)])
        assert not page.look()
    end(run, log)
    assert page.look()
    assert page.last["units"] == [
        {"unit": 0, "state": "finished", "rounds": 9, "seconds": 3.0, "notes": [], "again": False, "x": [], "y": []}
    ]
    whole = finished(run.out, units_in(run.out)[0], LOSS)
    assert (page.units[0]["x"], page.units[0]["y"]) == (whole.rounds, whole.values)


def test_rounds_that_came_between_two_looks_are_read_from_the_metrics_when_the_run_is_over(tmp_path: Path) -> None:
    run, page = Going(tmp_path, ID), Page(tmp_path)
    log, progress = run.begin()
    for round_ in range(4):
        measure(log, progress, round_, float(round_))
    page.look()
    for round_ in range(4, 10):
        measure(log, progress, round_, float(round_))
    end(run, log)
    page.look()
    assert page.last["units"][0]["x"] == list(range(4, 10))
    assert page.units[0]["y"] == [float(round_) for round_ in range(10)]


def test_a_run_that_is_begun_again_replaces_what_a_page_has_of_it(tmp_path: Path) -> None:
    run, page = Going(tmp_path, ID), Page(tmp_path)
    log, progress = run.begin()
    for round_ in range(5):
        measure(log, progress, round_, 1.0)
    page.look()
    assert page.units[0]["rounds"] == 4
    log, progress = run.begin()
    measure(log, progress, 0, 3.0)
    page.look()
    assert page.last["units"][0]["again"]
    assert (page.units[0]["rounds"], page.units[0]["y"]) == (0, [3.0])


@pytest.mark.parametrize(
    "position", ["", "x", "running/", "running/z9", "running/f3", "running/1_2_3", "running/w99999999"]
)
def test_a_position_that_is_not_understood_gives_everything(tmp_path: Path, position: str) -> None:
    Going(tmp_path, ID)
    change = feed(tmp_path).since(position)
    assert change is not None
    assert change.data["whole"]
    assert len(change.data["names"]) == 1


moments = st.integers(0, 4 * 10**15).map(lambda microseconds: 1e3 + microseconds / 1e6)
reached = st.builds(Reached, st.integers(0, 2**40), st.integers(0, 10**6), st.integers(0, 10**6), moments)


@given(st.from_regex(r"[a-z0-9:-]*", fullmatch=True), st.lists(st.sampled_from(["f", "b", "w"]) | reached, max_size=30))
def test_a_position_survives_being_written(state: str, runs: list[Any]) -> None:
    position = Position(state, tuple(runs))
    assert read_position(position_text(position)) == position


def test_a_page_learns_what_is_measured_and_that_a_value_is_no_number(tmp_path: Path) -> None:
    run, page = Going(tmp_path, ID), Page(tmp_path)
    log, progress = run.begin()
    measure(log, progress, 0, math.nan)
    page.look()
    assert page.last["measured"] == [["test", "accuracy"], ["test", "loss"]]
    measure(log, progress, 1, math.inf)
    page.look()
    assert ["train", "loss"] in page.last["measured"]
    assert page.units[0]["y"] == [None, None]


def test_the_state_of_the_process_is_told_though_no_round_is_new(tmp_path: Path) -> None:
    run, page = Going(tmp_path, ID), Page(tmp_path)
    page.look()
    assert page.last["state"] == "lost"
    ended(run.folder, 1)
    (run.folder / "stderr").write_text("Error: the data are not there\n")
    assert page.look()
    assert (page.last["state"], page.last["message"], page.last["units"]) == ("failed", "the data are not there", [])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    finished_run(runs, ID, "done", "rounds=3")
    return runs


def test_a_finished_run_is_the_same_by_one_file_of_all_and_by_those_of_each(done: Path) -> None:
    out = done / ID / "out"
    page = Page(done)
    page.look()
    assert page.position is not None
    assert page.position.endswith("/f10")
    assert not page.look()
    by_all = [finished(out, unit, LOSS) for unit in units_in(out)]
    (out / "metrics.parquet").rename(out / "aside")
    by_each = [finished(out, unit, LOSS) for unit in units_in(out)]
    (out / "aside").rename(out / "metrics.parquet")
    assert by_all == by_each
    assert [unit["x"] for unit in page.units[:2]] == [[0, 1, 2, 3]] * 2
    assert page.last["left"] is None


def test_runs_without_a_list_are_known_by_the_settings(tmp_path: Path) -> None:
    experiment: Experiment = small(rounds=1, evaluation={"baselines": ["start"]})
    run_experiment(experiment, tmp_path, jobs=1)
    listed = units_in(tmp_path)
    (tmp_path / "units.json").unlink()
    assert units_in(tmp_path) == listed
    assert [unit.note.name for unit in listed] == ["federated", "start"]


def test_the_table_of_results_is_that_of_the_summary(done: Path) -> None:
    found = finals(done / ID / "out")
    assert found is not None
    summary = msgspec.json.decode((done / ID / "out/summary.json").read_bytes())
    ours = msgspec.json.decode(msgspec.json.encode(found.summary))
    for key in ("best", "metric", "variants", "baselines", "notes", "seeds"):
        assert ours[key] == summary[key]
    assert (found.finished, found.all) == (4, 4)


def test_time_left_is_that_of_the_rounds_at_the_pace_of_their_variant() -> None:
    slow = Pace("slow", 10, 10, 20.0, finished=True, begun=True)
    going = Pace("slow", 4, 10, 8.0, finished=False, begun=True)
    fast = Pace("fast", 5, 10, 1.0, finished=False, begun=True)
    waits = Pace("slow", 0, 10, 0.0, finished=False, begun=False)
    baseline = Pace("local", 0, None, 0.0, finished=False, begun=False)
    assert seconds_left([slow, going, fast, waits, waits, baseline]) == pytest.approx((6 * 2 + 5 * 0.2 + 20 * 2) / 2)
    assert seconds_left([slow, going, fast, waits]) == pytest.approx(10 * 2)  # the longest alone takes as much
    assert seconds_left([slow]) == 0
    assert seconds_left([waits, baseline]) is None
    unknown = Pace("new", 0, 10, 0.0, finished=False, begun=False)
    assert seconds_left([slow, unknown]) == pytest.approx(20)


def test_what_a_run_says_is_followed(tmp_path: Path) -> None:
    folder, log = noted(tmp_path, ID, "talks"), LogFeed(tmp_path, ID)
    first = log.since(None)
    assert first is not None
    assert first.data == {"whole": True, "stdout": "", "stderr": ""}
    assert log.since(first.position) is None
    (folder / "stdout").write_text("a line\n" * 20_000)
    second = log.since(first.position)
    assert second is not None
    assert second.data["stdout"].startswith("a line\n")
    assert 60_000 < len(second.data["stdout"]) <= 65_536


@pytest.mark.parametrize("id", ["nothing", "..", ".lock", "a/b"])
def test_a_run_that_is_not_there_is_told(tmp_path: Path, id: str) -> None:
    with pytest.raises(UnknownRun):
        RunFeed(tmp_path, id, LOSS).since(None)
