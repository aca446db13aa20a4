"""The curve of training: cohorts have the rounds' sizes, killed commands resume, and more users don't learn worse."""

import csv
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from multiprocessing import active_children
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedping.analysis.cohorts import TrainingCurve, TrainingPoint, TrainingRun, draw_training, headline, smallest_enough
from fedping.client_sim.population.behaviour import Activity, ActivitySettings
from fedping.experiments.power import TrainingPlan, TrainingProgress, training_curve, training_plan
from fedping.experiments.power.curve import train_side_by_side
from fedping.experiments.power.plan import searching_share
from fedping.experiments.simulate import experiment_from_toml
from fedping.experiments.simulate.settings import Experiment, FixedLength, Optimization
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.stopping_settings import IterationByTime
from tests.support import forked
from tests.support.processes import left_over, marked, new_mark, wait_until
from tests.support.small_experiment import experiment_file

ROOT = Path(__file__).parents[2]

LEARNABLE = f"""
study = "{ROOT / "experiments/demo.toml"}"
clients = 1000
[optimization]
iterations = 8
searches_per_day = 20
activity_shape = 0.5
"""


def plan_of(folder: Path, cohorts: list[int], repetitions: int = 1) -> TrainingPlan:
    return training_plan(*experiment_from_toml(experiment_file(folder)), cohorts, repetitions, validation_searches=300)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a finished curve, with its experiment next to it."""
    folder = tmp_path_factory.mktemp("train")
    training_curve(plan_of(folder, [12, 40], 2), folder / "out", within=5)
    return folder


@pytest.mark.parametrize(
    ("activity", "ticks"),
    [
        (ActivitySettings(fetch_late=0), 1),
        (ActivitySettings(fetch_late=0, swing=1, away=0.4), 4),
        (ActivitySettings(fetch_late=0, rollout_days=0.3), 2),
    ],
)
def test_the_share_of_clients_that_search_is_that_of_simulated_ones(activity: ActivitySettings, ticks: int) -> None:
    phase = Optimization(iterations=6, length=FixedLength(ticks=ticks), searches_per_day=9, activity_shape=0.4)
    experiment = msgspec.convert(
        {"study": "none", "clients": 1, "users": {"nothing_selected": 0}, "optimization": {"iterations": 1}}, Experiment
    )
    experiment = msgspec.structs.replace(experiment, activity=activity, optimization=phase)
    everyone = Activity(40_000, activity, 5, 1 / 48, 0)
    means, shares = everyone.means(9, 0.4), []
    for first in range(0, 6 * ticks, ticks):
        who = [everyone.searching(tick, means).users for tick in range(first, first + ticks)]
        shares.append(len(np.unique(np.concatenate(who))) / 40_000)
    assert searching_share(experiment) == pytest.approx(np.mean(shares), rel=0.05)


def test_a_round_gets_the_cohort_on_average(done: Path) -> None:
    curve = msgspec.json.decode((done / "out/curve.json").read_bytes(), type=TrainingCurve)
    for point in curve.points:
        noise = 4 / np.sqrt(point.cohort * point.runs * curve.iterations)
        assert point.clients_a_round == pytest.approx(point.cohort, rel=noise + 0.05)
    assert [point.cohort for point in curve.points] == [12, 40]
    assert all(point.low <= point.loss <= point.high for point in curve.points)
    assert {run.seed for run in curve.runs} == {4, 5}
    assert len({run.loss for run in curve.runs}) == 4


def test_what_it_leaves_says_the_same_in_every_form(done: Path) -> None:
    curve = json.loads((done / "out/curve.json").read_text())
    with open(done / "out/runs.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == [run["loss"] for run in curve["runs"]]
    drawn = (done / "out/curve.svg").read_text()
    for word in ("small: final loss by cohort size", "clients a round", "loss after 5 iterations", ">12<", ">40<"):
        assert word in drawn
    store = open_store(done / "out/cohort=40/repetition=2/store")
    assert store.head("small", "main").iteration == 5
    assert not list((done / "out").rglob("landing"))


def test_only_the_arms_that_train_take_part(done: Path) -> None:
    plan = plan_of(done, [12])
    assert [arm.name for arm in plan.study.arms] == ["treatment"]
    assert plan.study.lines[0].pipeline.min_clients == 1
    assert plan.experiment.evaluation is None
    assert plan.enrolled_share == pytest.approx(0.9)


def test_the_same_command_makes_nothing_again_and_adds_what_is_new(done: Path) -> None:
    results = {file: file.stat().st_mtime_ns for file in (done / "out").rglob("result.json")}
    told: list[TrainingProgress] = []
    curve = training_curve(plan_of(done, [12, 25, 40], 2), done / "out", within=5, watch=told.append)
    assert {file: file.stat().st_mtime_ns for file in results} == results
    assert len(list((done / "out").rglob("result.json"))) == 6
    assert (told[0].runs, told[-1].runs, told[-1].rounds) == (4, 6, 30)
    assert [point.cohort for point in curve.points] == [12, 25, 40]


@pytest.mark.long
def test_a_killed_command_leaves_no_process_and_ends_as_one_that_was_not(done: Path, tmp_path: Path) -> None:
    mark, out = new_mark(), tmp_path / "out"
    command = [sys.executable, "-m", "fedping", "power", "train", str(done / "experiment.toml"), "--out", str(out)]
    command += ["--cohorts", "12,40", "--seeds", "2", "--processes", "2", "--validation-searches", "300", "--json"]
    begun = forked.Popen(command, cwd=ROOT, env=os.environ | mark, stdout=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: len(list(out.rglob("versions/*.json"))) >= 4 or begun.poll() is not None)
    finally:
        os.kill(begun.pid, signal.SIGKILL)
        begun.wait()
    assert left_over(mark) == []
    assert not (out / "curve.json").exists()
    assert len(list(out.rglob("result.json"))) < 4
    again = training_curve(plan_of(tmp_path, [12, 40], 2), out, within=5)
    whole = training_curve(plan_of(done, [12, 40], 2), done / "out", within=5)
    assert again == whole


def test_ctrl_c_is_one_line_and_leaves_no_process(done: Path, tmp_path: Path) -> None:
    """Ctrl-C reaches every process of the terminal, but only the command's own may print."""
    mark, out = new_mark(), tmp_path / "out"
    command = [sys.executable, "-m", "fedping", "power", "train", str(done / "experiment.toml"), "--out", str(out)]
    command += ["--cohorts", "300,400", "--processes", "2"]
    begun = forked.Popen(
        command, cwd=ROOT, env=os.environ | mark, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert wait_until(lambda: len(marked(mark)) >= 3 or begun.poll() is not None)
    os.killpg(begun.pid, signal.SIGINT)
    _, said = begun.communicate(timeout=240)
    assert (begun.returncode, said.strip()) == (130, "fedping: interrupted")
    assert left_over(mark) == []


def test_a_killed_worker_is_one_sentence_and_stops_the_others(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, [300], 3)

    def kill_one() -> None:
        if list(tmp_path.rglob("experiment.json")):
            active_children()[0].kill()

    with pytest.raises(
        FedpingError, match=r"of cohort 300, repetition \d was killed by signal 9.* continues from there"
    ):
        train_side_by_side(plan, tmp_path / "out", [(300, 1), (300, 2), (300, 3)], 2, kill_one)
    assert active_children() == []


def test_a_mistake_that_a_worker_meets_is_told_in_its_sentence(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, [12], 2)
    folder = tmp_path / "out/cohort=12/repetition=1"
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text("another")
    (folder / "summary.json").write_text("of it")
    with pytest.raises(FedpingError, match="holds a run of another experiment"):
        train_side_by_side(plan, tmp_path / "out", [(12, 1)], 2, lambda: None)


@pytest.mark.long
def test_larger_cohorts_learn_better_and_the_table_says_from_which_on_it_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "learnable.toml"
    file.write_text(LEARNABLE)
    assert tomllib.loads(LEARNABLE)["clients"] == 1000
    options = ["--cohorts", "2,150", "--seeds", "2", "--validation-searches", "2000", "--processes", "1"]
    options += ["--out", str(tmp_path / "out"), "--figure", str(tmp_path / "figures/curve.png")]
    assert main(["power", "train", str(file), *options]) == 0
    said = capsys.readouterr().out
    assert said.startswith("150 clients a round are enough: the final loss is")
    assert "It is the largest that was tried" in " ".join(said.split())
    assert (tmp_path / "figures/curve.png").read_bytes().startswith(b"\x89PNG")
    assert main(["power", "train", str(file), *options, "--json"]) == 0
    curve = json.loads(capsys.readouterr().out)
    few, many = curve["points"]
    assert many["high"] < few["low"] < curve["start_loss"]
    assert curve["enough"] == 150


def point(cohort: int, loss: float) -> TrainingPoint:
    return TrainingPoint(
        cohort=cohort,
        clients_a_round=cohort,
        enrolled=10 * cohort,
        searches_a_day=100.0 * cohort,
        runs=3,
        loss=loss,
        low=loss - 1,
        high=loss + 1,
    )


@pytest.mark.parametrize(
    ("losses", "enough", "word"),
    [
        ([200, 104, 103, 100], 20, "20 clients a round are enough"),
        ([200, 104, 106, 100], 80, "It is the largest that was tried"),
        ([103, 102, 101, 100], 10, "It is the smallest that was tried"),
        ([200, 100, 101, 108], None, "the largest cohort, 80, ends 8 % above it"),
        ([100, 101, 200, 300], None, "This curve gives no sufficient number"),
        ([600, 700, 800, 501], None, "No cohort learned anything"),
    ],
)
def test_enough_is_where_it_and_all_larger_cohorts_are_near_the_best(
    losses: list[float], enough: int | None, word: str
) -> None:
    points = [point(cohort, loss) for cohort, loss in zip((10, 20, 40, 80), losses, strict=True)]
    found = smallest_enough(points, 5, 500)
    assert (found and found.cohort) == enough
    assert word in headline(points, 5, 500)


def test_a_curve_that_does_not_tell_is_drawn_without_a_mark() -> None:
    runs = tuple(
        TrainingRun(
            cohort=c, repetition=1, seed=1, clients=c, rounds=9, clients_a_round=c, pings=9 * c, version=9, loss=loss
        )
        for c, loss in ((10, 100.0), (20, 150.0))
    )

    def words(within: float) -> list[str]:
        points = tuple(point(run.cohort, run.loss) for run in runs)
        found = smallest_enough(points, within, 500)
        curve = TrainingCurve(
            study="s", line="main", iterations=9, validation_searches=5, start_loss=500, within=within,
            enough=found.cohort if found else None, headline="", points=points, runs=runs,
        )  # fmt: skip
        return [text.get_text() for text in draw_training(curve).axes[0].texts]

    assert "10 are enough" in words(60)
    assert not any("enough" in text for text in words(5))


@pytest.mark.parametrize(
    ("options", "changes", "sentence"),
    [
        (["--cohorts", "0"], {}, "cohorts are different whole numbers of at least 1"),
        (["--cohorts", ""], {}, "cohorts are different whole numbers of at least 1"),
        (["--cohorts", "5,5"], {}, "cohorts are different whole numbers of at least 1"),
        (["--cohorts", "many"], {}, "--cohorts 'many'"),
        (["--cohorts", "1000000000"], {}, "more than can be simulated"),
        (["--line", "other"], {}, "has no line 'other'; it has main"),
        (["--figure", "curve.bmp"], {}, r"must end in \.svg, \.png or \.pdf"),
        ([], {"iterations": 0}, "training needs at least one iteration"),
        ([], {"optimization": 'length = { by = "clients", clients = 9 }'}, "iterations do not last a fixed time"),
        (["--out", "full"], {}, "full exists and holds no trainings; give another --out"),
        (["--out", "other"], {}, "other holds trainings of another experiment"),
        (["--out", "busy"], {}, "another 'fedping power train' is at work in busy"),
    ],
)
def test_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    changes: dict[str, object],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "fedping.experiments.power.curve._make_all", lambda *_: (_ for _ in ()).throw(AssertionError("ran"))
    )
    for folder, note in (("full", "notes.txt"), ("other", "training.json"), ("busy", ".lock")):
        Path(folder).mkdir()
        (Path(folder) / note).touch()
    file = experiment_file(tmp_path, **changes)  # type: ignore[arg-type]
    with open("busy/.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(["power", "train", str(file), *options]) in (1, 2)
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert re.search(sentence, said), said


def test_an_experiment_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["power", "train", str(tmp_path / "none.toml")]) == 2
    assert "cannot read the experiment file" in capsys.readouterr().err


def test_a_line_with_a_length_of_its_own_cannot_be_planned_by_clients(tmp_path: Path) -> None:
    experiment, study = experiment_from_toml(experiment_file(tmp_path))
    line = msgspec.structs.replace(study.lines[0], length=IterationByTime(minutes=30))
    with pytest.raises(InvalidSettings, match="has a 'length'"):
        training_plan(experiment, msgspec.structs.replace(study, lines=(line,)), (5,), 1)
