"""Simulated time in the laboratory: the times of answers, the answers that rounds merge, FedBuff, and the report."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import fedping
from fedping.client_sim.data.seeds import generator
from fedping.commands.laboratory import print_summary
from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.clock.availability import HOUR, Windows
from fedping.experiments.laboratory.clock.clock import Answers, Clock, People
from fedping.experiments.laboratory.clock.durations import amounts, clock_of, examples_trained
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.report import write_report
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.resuming import CHECKPOINT
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.experiments.laboratory.settings.clock import Asynchronous, Hours, LogNormal, OnOff
from fedping.experiments.laboratory.settings.clock import Clock as Settings
from fedping.experiments.laboratory.summary import Summary
from fedping.experiments.laboratory.units import Unit
from fedping.main import main
from fedping.protocol.draws import child_keys, uniforms
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.training import LocalSteps, OneGradient
from tests.experiments.test_laboratory_run import ROOT, contents
from tests.support import forked
from tests.support.laboratory import small, small_file
from tests.support.registry import registry_of_its_own

LOCAL = {"algorithm": "local", "epochs": 1, "rate": 0.5}
EVEN = {"seconds_per_example": 1.0}
BUFFERED: dict[str, Any] = {
    "training": LOCAL,
    "clock": {"seconds_per_example": [0.5, 1.0, 7.0], "asynchronous": {"buffer": 3, "concurrency": 5}},
    "server__weighting": "ping",
    "server__staleness": {"most": 9, "on": "step"},
    "rounds": 14,
    "evaluation": {"every": 4, "baselines": []},
}


def unit(**changes: Any) -> Unit:
    [setup] = small(**changes).variants.values()
    return Unit("only", None, setup, 1, None)


def run(folder: Path, **changes: Any) -> tuple[Outcome, np.ndarray]:
    of = unit(**changes)
    return run_unit(of, folder), np.load(of.folder(folder).path / "last.npy")


def metric(folder: Path, name: str) -> list[float]:
    [table] = [pq.read_table(file, partitioning=None) for file in folder.glob("runs/*/seed-1/metrics.parquet")]
    rows = [row for row in table.to_pylist() if (row["split"], row["metric"]) == ("train", name)]
    return [row["value"] for row in rows]


def keys_of(count: int, seed: int = 3) -> np.ndarray:
    return child_keys(np.uint64(seed), np.arange(count))


def clock(seconds: list[float], oldest: int = 100, windows: Windows | None = None, **settings: Any) -> Clock:
    count = len(seconds)
    people = People(
        np.array(seconds), windows or Windows(None, keys_of(count)), keys_of(count, 5), np.ones(count, np.bool_)
    )
    return Clock(Settings(seconds_per_example=1.0, **settings), people, 1, oldest)


def said(answers: Answers) -> list[tuple[int, int, float]]:
    """Return the client, age and seconds of each answer."""
    return list(zip(answers.clients.tolist(), answers.ages.tolist(), answers.seconds.tolist(), strict=True))


def rounds_of(one: Clock, count: int) -> list[tuple[float, list[tuple[int, int, float]]]]:
    """Run rounds of all free clients, or buffers, to their end; return the time and the merged answers of each."""
    found = []
    everybody = np.arange(len(one._people.seconds))
    for number in range(count):
        answers = one.buffer(number) if one.asynchronous else one.round(number, one.free(everybody))
        found.append((one.now, said(answers)))
        one.published()
    return found


A, B, C = (0, 0, 10.0), (1, 0, 20.0), (2, 0, 100.0)
"""Three clients that take 10, 20 and 100 seconds, with answers at the newest version."""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [(100, [A, B, C]), (200, [A, B, C])]),
        ({"answers": 2}, [(20, [A, B]), (40, [A, B])]),
        ({"deadline": 50.0}, [(50, [A, B]), (100, [A, B])]),
        ({"deadline": 150.0}, [(100, [A, B, C]), (200, [A, B, C])]),
        ({"deadline": 15.0, "answers": 2}, [(15, [A]), (30, [A])]),
        # C works until 100, and its answer is merged in the round at that time, four versions later:
        (
            {"answers": 2, "late": "counted"},
            [*((20 * n, [A, B]) for n in range(1, 5)), (100, [A, B, (2, 4, 100.0)]), (120, [A, B])],
        ),
        # while B and C work, only A is invited, and its answer ends the round:
        (
            {"deadline": 15.0, "late": "counted"},
            [(15, [A]), (25, [A, (1, 1, 20.0)]), (40, [A]), (50, [A, (1, 1, 20.0)])],
        ),
    ],
)
def test_synchronous_rounds_of_three_clients_by_hand(settings: dict[str, Any], expected: list[Any]) -> None:
    assert rounds_of(clock([10, 20, 100], **settings), len(expected)) == expected


def test_an_asynchronous_run_of_three_clients_by_hand() -> None:
    """All three always work. A answers at 10, 20, …, B at 20, 40, …, and C would at 100. Two answers make a version.

    At 20, B's answer fills the first buffer. A's second answer arrives at the same time, and is one version old. The
    client whose answer fills a buffer is invited again after the step, the other one before it.
    """
    one = clock([10, 20, 100], asynchronous=Asynchronous(buffer=2, concurrency=3))
    assert rounds_of(one, 4) == [
        (20, [A, B]),
        (30, [(0, 1, 10.0), A]),
        (40, [A, (1, 1, 20.0)]),
        (60, [A, (1, 1, 20.0)]),
    ]
    assert one.measured() == {"simulated_hours": 60 / 3600, "invited": 10, "age": 0.5}
    too_old = clock([10, 20, 100], oldest=0, asynchronous=Asynchronous(buffer=2, concurrency=3))
    assert rounds_of(too_old, 2) == [
        (20, [A, B]),
        (40, [A, B]),
    ]  # at 20, A's second answer is too old; at 30, its third isn't


def simple_rounds(seconds: np.ndarray, settings: Settings, count: int, oldest: int) -> list[tuple[float, Counter[Any]]]:
    """Simulate the events again, without a queue: check every client in every step, and invite all free ones."""
    now, found, times = 0.0, [], [0] * len(seconds)
    working: dict[int, tuple[float, bool, int, float]] = {}  # until when, whether it answers, version, since when
    for version in range(count):
        free = [client for client in range(len(seconds)) if client not in working]
        while not free:
            now = min(until for until, *_ in working.values() if until > now)
            free = [client for client in range(len(seconds)) if client not in working or working[client][0] <= now]
        invited = {}
        for client in free:
            coin, share = uniforms(child_keys(keys_of(len(seconds), 5)[[client]], times[client]), 2)[0]
            times[client] += 1
            lost = coin < settings.drop_out
            invited[client] = (now + (share if lost else 1.0) * seconds[client], not lost, version, now)
        answers = sorted((until, client) for client, (until, answer, *_) in invited.items() if answer)
        end = max(until for until, *_ in invited.values())
        if settings.answers and len(answers) >= settings.answers:
            answers = answers[: settings.answers]
            end = answers[-1][0]
        if settings.deadline and end > now + settings.deadline:
            end = now + settings.deadline
            answers = [each for each in answers if each[0] <= end]
        merged = Counter({(client, 0, until - now): 1 for until, client in answers})
        for client, (until, answer, of, since) in [*working.items()]:
            if until <= end:
                if answer and version - of <= oldest:
                    merged[client, version - of, until - since] += 1
                del working[client]
        if settings.late == "counted":
            working |= {c: w for c, w in invited.items() if (w[0], c) not in answers and (w[1] or w[0] > end)}
        now = end
        found.append((now, merged))
    return found


@pytest.mark.parametrize("late", ["dropped", "counted"])
@pytest.mark.parametrize("more", [{"answers": 5}, {"deadline": 4.0}, {"answers": 7, "deadline": 30.0}])
def test_a_second_implementation_of_the_events_agrees(more: dict[str, Any], late: Any) -> None:
    seconds = amounts(LogNormal(median=5.0, sigma=1.5), keys_of(12, 9))
    settings = Settings(seconds_per_example=1.0, drop_out=0.2, late=late, **more)
    one = clock(seconds.tolist(), oldest=3, drop_out=0.2, late=late, **more)
    found = [(now, Counter(answers)) for now, answers in rounds_of(one, 60)]
    assert found == simple_rounds(seconds, settings, 60, oldest=3)
    assert late == "dropped" or max(age for _, answers in found for _, age, _ in answers) == 3


def test_fedbuff_by_a_loop_of_its_own(tmp_path: Path) -> None:
    """Algorithm 1 of Nguyen et al. 2022: w ← w + (1/K) Σ Δ / √(1 + age), of any K answers in a row."""
    _, weights = run(tmp_path, **BUFFERED)
    problem = prepare(unit(**BUFFERED).setup, 1, None)
    sizes = problem.train.sizes
    seconds = np.resize([0.5, 1.0, 7.0], len(sizes)) * sizes
    models, now, draws, number = [problem.spec.start_array], 0.0, 0, 0
    working: list[tuple[float, int, int, int]] = []
    ages = []
    while len(models) <= 14:
        buffer: list[np.ndarray] = []
        while len(buffer) < 3:
            if (wanted := 5 - len(working)) > 0:
                free = np.setdiff1d(np.arange(len(sizes)), [client for _, _, client, _ in working])
                for client in generator(1, "invitations", draws).choice(free, wanted, replace=False).tolist():
                    working.append((now + seconds[client], number, client, len(models) - 1))
                    number += 1
                draws += 1
            first = min(working)
            working.remove(first)
            now, _, client, version = first
            step = -0.5 * problem.model.gradients(models[version], problem.train.batch(np.array([client])))[0]
            ages.append(len(models) - 1 - version)
            if ages[-1] <= 9:
                buffer.append(step / np.sqrt(1 + ages[-1]))
        models.append(models[-1] + sum(buffer) / 3)
    np.testing.assert_allclose(weights, models[-1], atol=1e-6)  # updates travel in single precision
    assert metric(tmp_path, "simulated_hours")[-1] == pytest.approx(now / 3600, rel=1e-12)
    assert max(ages) > 3


@pytest.mark.parametrize("where", ["memory", "files"])
def test_time_alone_changes_no_model(tmp_path: Path, where: str) -> None:
    changes: dict[str, Any] = {"sampling": {"sampling": "by_size", "clients": 4}, "training": LOCAL | {"batch": 8}}
    changes |= {"where": where}
    before, weights = run(tmp_path / "without", **changes)
    after, same = run(tmp_path / "with", **changes, clock={"seconds_per_example": {"median": 1.0, "sigma": 2.0}})
    np.testing.assert_array_equal(same, weights)
    assert (after.updates, after.posted_bytes, after.fetched_bytes) == (
        before.updates,
        before.posted_bytes,
        before.fetched_bytes,
    )
    assert isinstance(after.simulated_hours, float)
    assert "simulated_hours" not in (tmp_path / "without/runs/only/seed-1/run.json").read_text()


def test_late_answers_land_in_files_as_in_memory(tmp_path: Path) -> None:
    late = {"seconds_per_example": [1.0, 2.0, 9.0], "answers": 3, "late": "counted"}
    changes: dict[str, Any] = {"clock": late, "server__staleness": {"most": 3}, "training": LOCAL, "rounds": 8}
    (memory, weights), (files, same) = (run(tmp_path / where, **changes, where=where) for where in ("memory", "files"))
    np.testing.assert_allclose(same, weights, rtol=1e-12, atol=1e-12)
    assert memory.updates == files.updates > 8 * 3
    ages = metric(tmp_path / "files", "age")
    assert max(ages) > 0


def test_over_selection_takes_the_first_and_leaves_out_the_slow(tmp_path: Path) -> None:
    """Of 8 clients, every third needs nine times as long, so the first 6 of all 8 are always the same."""
    slow = {"seconds_per_example": [1.0, 1.0, 9.0], "answers": 6}
    outcome, _ = run(tmp_path, clock=slow, partition={"partition": "fixed_size", "clients": 8, "examples": 40})
    assert metric(tmp_path, "clients") == [6] * 6
    assert metric(tmp_path, "invited") == [8] * 6
    assert outcome.simulated_hours == pytest.approx(6 * 29 / 3600, rel=0.1)  # some 29 of 40 examples are for training


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    away = BUFFERED["clock"] | {"drop_out": 0.2, "available": {"by": "on_off", "on": 0.02, "off": 0.01}}
    late = {"seconds_per_example": [1.0, 9.0], "answers": 3, "late": "counted", "available": away["available"]}
    for name, changes in (("buffered", {"clock": away}), ("late", {"clock": late})):
        whole, killed = (unit(**{**BUFFERED, **changes}) for _ in range(2))
        run_unit(whole, tmp_path / name / "whole")
        for rounds in (3, 9):
            with pytest.raises(KeyboardInterrupt):
                run_unit(killed, tmp_path / name / "killed", lambda done, _, end=rounds: _stop(done == end))
        run_unit(killed, tmp_path / name / "killed")
        assert contents(tmp_path / name / "killed") == contents(tmp_path / name / "whole")


def _stop(now: bool) -> None:
    if now:
        raise KeyboardInterrupt


@pytest.mark.long
def test_a_process_that_is_killed_comes_to_the_same_bits(tmp_path: Path) -> None:
    file = small_file(tmp_path)
    options = ["--jobs", "1"]
    for change in (
        "rounds=300",
        "seeds=1",
        "evaluation.every=100",
        "evaluation.baselines=[]",
        "clock={ seconds_per_example = { median = 1.0 }, drop_out = 0.1, asynchronous = { concurrency = 5 } }",
        "server.staleness={ most = 20 }",
        'variants=[{ name = "only" }]',
    ):
        options += ["--set", change]
    command = [sys.executable, "-m", "fedping", "simulate", str(file), *options]
    assert main([*command[3:], "--out", str(tmp_path / "whole")]) == 0
    checkpoint = tmp_path / "killed/runs/only/seed-1" / CHECKPOINT
    with forked.Popen([*command, "--out", str(tmp_path / "killed")], cwd=ROOT) as process:
        while not checkpoint.is_file():
            assert process.poll() is None
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    assert main([*command[3:], "--out", str(tmp_path / "killed")]) == 0
    assert contents(tmp_path / "killed/runs") == contents(tmp_path / "whole/runs")


def test_more_answers_than_clients_are_drawn_is_noted(tmp_path: Path) -> None:
    few = {"sampling": {"sampling": "uniform", "clients": 3}, "rounds": 1}
    enough, _ = run(tmp_path / "enough", **few, clock=EVEN | {"answers": 3})
    more, _ = run(tmp_path / "more", **few, clock=EVEN | {"answers": 4})
    said = ["rounds wait for all clients" in " ".join(outcome.notes) for outcome in (enough, more)]
    assert said == [False, True]


def test_hours_of_the_day() -> None:
    windows = Windows(Hours(start=20.0, hours=8.0), keys_of(2))
    there = [hour for hour in range(72) if windows.read(hour * HOUR).all()]
    assert there == [*range(4), *range(20, 28), *range(44, 52), *range(68, 72)]
    begins = Windows(Hours(start=12.0, hours=8.0, spread=2.0), keys_of(10_000)).begins / HOUR + 24
    assert begins.mean() == pytest.approx(12.0, abs=5 * 2 / 100)  # five deviations
    assert begins.std() == pytest.approx(2.0, abs=5 * 2 / 141)


def test_on_and_off_have_their_means() -> None:
    """With 10,000 clients and five standard deviations, each assertion fails by chance with probability 6 in 10^7."""
    windows = Windows(OnOff(on=2.0, off=6.0), keys_of(10_000))
    lengths = (windows.ends - np.maximum(windows.begins, 0)) / HOUR
    assert lengths.mean() == pytest.approx(2.0, abs=5 * 2 / 100)
    for hour in (0.0, 5.0, 100.0):
        share = windows.read(hour * HOUR).mean()
        assert share == pytest.approx(0.25, abs=5 * (0.25 * 0.75) ** 0.5 / 100)
    again = Windows(OnOff(on=2.0, off=6.0), keys_of(10_000))
    assert (again.read(100 * HOUR) == windows.read(100 * HOUR)).all(), "however often time is read"
    assert (again.ends == windows.ends).all()


def test_who_goes_away_is_lost_and_rounds_wait_for_somebody() -> None:
    """Both clients are available from 0 to 4 and from 20 to 28 o'clock; answers take one an hour, the other five."""
    windows = Windows(Hours(start=20.0, hours=8.0), keys_of(2))
    found = rounds_of(clock([HOUR, 5 * HOUR], windows=windows), 4)
    fast, slow = (0, 0, HOUR), (1, 0, 5 * HOUR)
    assert [(now / HOUR, answers) for now, answers in found] == [
        (4, [fast]),  # the slow one is lost at 4
        (25, [fast, slow]),  # no client is available before 20
        (28, [fast]),
        (49, [fast, slow]),
    ]


def test_drop_outs_have_their_share() -> None:
    """With 2,000 invitations and five standard deviations, the test fails by chance with probability 6 in 10^7."""
    one = clock([10.0] * 2_000, drop_out=0.3)
    answers = one.round(0, np.arange(2_000))
    assert answers.others == 2_000 - len(answers.clients)
    assert answers.others / 2_000 == pytest.approx(0.3, abs=5 * (0.21 / 2_000) ** 0.5)
    assert one.now == 10.0


def test_amounts_of_clients() -> None:
    assert amounts(2.0, keys_of(3)).tolist() == [2.0, 2.0, 2.0]
    assert amounts((1.0, 5.0), keys_of(3)).tolist() == [1.0, 5.0, 1.0]
    logs = np.log(amounts(LogNormal(median=3.0, sigma=0.5), keys_of(10_000)))
    assert logs.mean() == pytest.approx(np.log(3.0), abs=5 * 0.5 / 100)
    assert logs.std() == pytest.approx(0.5, abs=5 * 0.5 / 141)


def test_seconds_of_an_answer_by_hand() -> None:
    """20 examples twice at 0.5 s each, 3 s more, and 4 bytes for each of m weights at 100 and at 10 bytes a second."""
    setup = unit(
        training=LOCAL | {"epochs": 2},
        partition={"partition": "fixed_size", "clients": 8, "examples": 20},
        data={"name": "breast-cancer", "test": 0.0, "validation": 0.0},
        clock={
            "seconds_per_example": 0.5,
            "seconds_per_answer": 3.0,
            "download_rate": 100.0,
            "upload_rate": 10.0,
        },
    ).setup
    problem = prepare(setup, 1, None)
    one = clock_of(setup, problem)
    assert one is not None
    m = problem.spec.m
    assert one._people.seconds.tolist() == pytest.approx([2 * 20 * 0.5 + 3 + 4 * m / 100 + 4 * m / 10] * 8)


def test_examples_that_clients_compute() -> None:
    sizes = np.array([3, 40])
    assert examples_trained(OneGradient(), sizes).tolist() == [3, 40]
    assert examples_trained(LocalSteps(rate=1.0, epochs=5, batch=8), sizes).tolist() == [15, 200]
    assert examples_trained(LocalSteps(rate=1.0, steps=5, batch=8), sizes).tolist() == [15, 40]
    assert examples_trained(LocalSteps(rate=1.0, steps=5), sizes).tolist() == [15, 200]


def test_an_extension_knows_seconds_and_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry_of_its_own(monkeypatch)
    seen: list[tuple[float, list[float]]] = []
    took: list[float] = []

    @fedping.sampling("timed")
    def timed(sizes: Any, groups: Any, random: Any, past: Any) -> Any:
        seen.append((past.now, past.seconds.tolist()))
        return np.arange(2)

    @fedping.aggregation("timed-mean")
    def timed_mean() -> Any:
        def finish(kept: Any, line: Any, weights: Any, state: Any, key: Any, senders: Any) -> Any:
            took.extend(senders.seconds.tolist())
            return kept.updates.mean(axis=0)

        return fedping.of_all(finish)

    of = {"sampling": {"sampling": "timed"}, "server__aggregate": {"by": "timed-mean"}, "rounds": 2}
    apart = {"partition": {"partition": "fixed_size", "clients": 8, "examples": 20}, "data__test": 0.0}
    run(tmp_path / "timed", **of, **apart, clock={"seconds_per_example": [1.0, 2.0]})
    sizes = prepare(unit(**of, **apart, clock=EVEN).setup, 1, None).train.sizes
    first, second = float(sizes[0]), 2.0 * float(sizes[1])
    now, seconds = next(each for each in reversed(seen) if not np.isnan(each[0]))  # notes ask last, without
    assert now == max(first, second)
    assert seconds[:2] == [first, second]
    assert np.isnan(seconds[2:]).all()
    assert sorted(took) == sorted([first, second] * 2)
    seen.clear()
    run(tmp_path / "without", **of, **apart)
    assert np.isnan(seen[-1][0])
    assert np.isnan(seen[-1][1]).all()


def test_a_sampling_draws_among_those_who_are_available(tmp_path: Path) -> None:
    """All clients leave after four hours, and absent ones aren't drawn, so every answer arrives within a window."""
    hours = {"by": "hours", "start": 22.0, "hours": 4.0, "spread": 6.0}
    changes: dict[str, Any] = {"clock": {"seconds_per_example": 20.0, "available": hours}, "rounds": 10}
    sampling = {"sampling": "uniform", "clients": 3}
    run(tmp_path, **changes, sampling=sampling)
    invited = metric(tmp_path, "invited")
    assert 1 <= min(invited) <= max(invited) <= 3
    assert min(invited) < 3, "at some hours fewer are there than the sampling draws"


def test_compiled_training_has_the_same_time(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    for name, changes in (("buffered", BUFFERED), ("first", {"training": LOCAL, "clock": EVEN | {"answers": 3}})):
        (_, weights), (outcome, compiled) = (
            run(tmp_path / name / engine, **changes, engine=engine) for engine in ("numpy", "jax")
        )
        np.testing.assert_allclose(compiled, weights, atol=1e-6)
        hours = [metric(tmp_path / name / engine, "simulated_hours") for engine in ("numpy", "jax")]
        assert hours[0] == hours[1]
        assert any("[clock]" in note for note in outcome.notes)


def test_a_run_ends_when_its_hours_are_over(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, clock=EVEN | {"hours": 0.05}, rounds=1000, evaluation={"every": 50, "baselines": []})
    hours = metric(tmp_path, "simulated_hours")
    assert hours[-2] < 0.05 <= hours[-1] == outcome.simulated_hours
    assert outcome.rounds == outcome.best_round == len(hours) < 50
    assert outcome.final["test"]["accuracy"] is not None


def test_results_say_what_the_time_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variants = [{"name": "timed", "clock.seconds_per_example": 1.0}, {"name": "slow", "clock.seconds_per_example": 9.0}]
    evaluation = {"local": False, "target": 0.8, "baselines": ["start"]}
    experiment = small(variants=[*variants, {"name": "without"}], evaluation=evaluation)
    folder = tmp_path / "out"
    summary: Summary = run_experiment(experiment, folder, jobs=1)
    print_summary(summary, folder)
    table = capsys.readouterr().out
    assert "simulated" in table
    assert "hours to" in table
    found = json.loads(msgspec.json.encode(summary))["variants"]
    timed, slow = found["timed"], found["slow"]
    assert slow["simulated_hours"]["mean"] == pytest.approx(9 * timed["simulated_hours"]["mean"])
    assert slow["hours_to_target"]["mean"] == pytest.approx(9 * timed["hours_to_target"]["mean"])
    assert "simulated_hours" not in found["without"]
    assert main(["compare", f"{folder}:timed", f"{folder}:slow", "--json"]) == 0
    by_metric = {each["metric"]: each for each in json.loads(capsys.readouterr().out)["differences"]}
    assert by_metric["simulated_hours"]["percent"] == pytest.approx(800)
    page = write_report(folder, tmp_path / "report.html").read_text()
    assert "accuracy over simulated hours" in page
    assert "hours to<br>accuracy 0.8" in page
    assert main(["export", str(folder), "--mlflow", str(tmp_path / "mlruns")]) == 0
    assert [*(tmp_path / "mlruns").glob("*/*/metrics/train/simulated_hours")]


def test_the_example_of_the_docs_runs_and_its_buffer_is_the_fastest(tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n# clock.toml\n(.*?)```", (ROOT / "docs/researchers.md").read_text(), re.DOTALL)
    (tmp_path / "clock.toml").write_text(text)
    changes = ("seeds=1", "rounds=3", "evaluation.every=3", "data.most=5")
    experiment = experiment_from_toml(tmp_path / "clock.toml", changes)
    short = {name: replace(setup, rounds=min(setup.rounds, 9)) for name, setup in experiment.variants.items()}
    summary = run_experiment(replace(experiment, variants=short), tmp_path / "out", jobs=1)
    hours = [row.simulated_hours.mean for row in summary.variants.values() if row.simulated_hours]  # of 90 answers each
    assert hours == sorted(hours, key=lambda each: each or 0.0, reverse=True)


def test_without_a_clock_nothing_speaks_of_time(tmp_path: Path) -> None:
    summary: Summary = run_experiment(small(evaluation__baselines=[]), tmp_path / "out", jobs=1)
    assert summary.variants["federated"].simulated_hours is not None
    assert "hours" not in (tmp_path / "out/summary.json").read_text()


def test_a_variant_takes_away_a_clock_or_the_hours_of_its_clients() -> None:
    available = {"by": "hours", "start": 1.0, "hours": 3.0}
    variants = [
        {"name": "with"},
        {"name": "always there", "clock.available": {}},
        {"name": "on and off", "clock.available": {"by": "on_off", "on": 1.0, "off": 1.0}},
        {"name": "without", "clock": {}},
    ]
    setups = small(clock=EVEN | {"available": available}, variants=variants).variants.values()
    clocks = [setup.clock for setup in setups]
    assert [clock and clock.available for clock in clocks] == [
        Hours(start=1.0, hours=3.0),
        None,
        OnOff(on=1.0, off=1.0),
        None,
    ]
    assert clocks[1] == Settings(seconds_per_example=1.0)
    assert clocks[3] is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clock": EVEN | {"asynchronous": {}, "answers": 3}}, "no round waits for clients"),
        ({"clock": EVEN | {"late": "counted"}}, "so late answers"),
        ({"clock": EVEN, "lateness": {"shares": [0.5, 0.5]}}, r"Remove \[lateness\]"),
        ({"clock": EVEN, "co_op": {}, "training": LOCAL}, "sets its own arrivals"),
        ({"clock": EVEN, "gossip": {"graph": "ring"}, "training": LOCAL}, "rounds without time"),
        ({"clock": EVEN, "attack": {"attack": "sign_flip", "share": 0.2}}, "no speeds"),
        ({"clock": EVEN | {"asynchronous": {}}}, "Set staleness"),
        ({"clock": EVEN | {"answers": 2, "late": "counted"}}, "Set staleness"),
        (
            {"clock": EVEN | {"asynchronous": {}}, "server__staleness": {}, "server__min_clients": 2},
            "Set min_clients = 1",
        ),
        ({**BUFFERED, "sampling": {"sampling": "uniform", "clients": 3}}, r"Remove \[sampling\]"),
        ({**BUFFERED, "where": "files"}, "Remove 'where'"),
        (
            {"clock": EVEN | {"answers": 3}, "training": {"algorithm": "scaffold", "epochs": 1, "rate": 0.1}},
            "adds up the means of all rounds",
        ),
        ({"clock": {"seconds_per_example": 0.0}}, "clock"),
        ({"clock": {"seconds_per_example": 1.0, "available": {"by": "hours", "start": 3, "hours": 24}}}, "< 24"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSettings, match=sentence):
        small(**changes)


def test_a_guarantee_does_not_go_with_it() -> None:
    privacy = {"central": {"epsilon": 2.0, "delta": 1e-5, "rounds": 6, "population": 8, "noise_multiplier": 4.0}}
    with pytest.raises(InvalidSettings, match="by a coin alone"):
        small(clock=EVEN, privacy=privacy, server__weighting="client", training=LOCAL)


def test_a_run_in_which_nobody_ever_answers_ends_with_the_reason(tmp_path: Path) -> None:
    gone = {"by": "hours", "start": 1.0, "hours": 0.01}
    clock = {**BUFFERED["clock"], "seconds_per_example": 10.0, "available": gone}
    with pytest.raises(FedpingError, match="makes no progress"):
        run(tmp_path, **{**BUFFERED, "clock": clock})
