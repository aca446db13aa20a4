"""Rounds of a line with settings for the end of iterations and training: a real store, landed pings, commands."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedping.main import main
from fedping.model_store.decisions import continue_at, rollback
from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.notation import time_at
from fedping.protocol.stopping_settings import EarlyStop, IterationByClients, IterationBySigns, IterationByTime
from fedping.protocol.study import Arm, Study
from fedping.server_jobs.round import NumpyEngine, RoundOptions, RoundResult, recompute, run_round
from tests.support import forked
from tests.support.rounds import FIRST_MS, WHEN, Ping, land, store_with
from tests.support.versions import small_study

ROOT = Path(__file__).parents[2]
ENGINE = NumpyEngine()
RULE = EarlyStop(arm="treatment", patience=2, smooth=1)
MINUTE = 60_000


def ending_study(**rules: Any) -> Study:
    study = small_study()
    return msgspec.structs.replace(study, lines=(msgspec.structs.replace(study.lines[0], **rules),))


def play(store: ModelStore, landing: Path, minutes: float = 0, **more: Any) -> RoundResult:
    now = time_at(FIRST_MS + minutes * MINUTE)
    return run_round(store, landing, "study", "main", ENGINE, RoundOptions(clock=lambda: now, code_version="t", **more))


def land_loss(landing: Path, version: int, loss: float, clients: int = 3) -> None:
    """Land a ping for each of some clients, with this loss before training."""
    pings = [Ping(100 * version + i, i, version=version, loss=loss) for i in range(clients)]
    land(landing, pings, iteration=version, at_ms=FIRST_MS + version)


def land_and_play(store: ModelStore, landing: Path, losses: Sequence[float], first: int = 0) -> list[RoundResult]:
    results = []
    for version, loss in enumerate(losses, first):
        land_loss(landing, version, loss)
        results.append(play(store, landing))
    return results


# --- early stopping ---


def test_training_stops_with_the_best_version_and_no_round_goes_on(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", ending_study(early_stopping=RULE))
    results = land_and_play(store, tmp_path / "landing", [9.0, 7.0, 8.0, 8.0])
    assert [one.status for one in results] == ["published", "published", "published", "stopped"]
    head = store.head("study", "main")
    assert (head.iteration, head.lineage.origin, head.lineage.restored, head.lineage.stopped) == (
        5,
        "rollback",
        1,
        True,
    )
    assert head.model == store.version("study", "main", 1).model
    assert (tmp_path / "store/study/main/public/latest.json").read_bytes() == store.public.document("study", "main", 5)
    assert results[-1].sentence == (
        "study/main: published version 4 from 3 pings of 3 clients (0 other pings not used); training is over; "
        "version 1, which had the lowest loss, is published again as version 5"
    )
    land_loss(tmp_path / "landing", 5, 1.0)
    again = play(store, tmp_path / "landing")
    assert (again.status, again.iteration, again.restored) == ("over", 5, 1)
    assert "training is over; version 5 repeats version 1" in again.sentence
    assert store.iterations("study", "main") == [0, 1, 2, 3, 4, 5]
    for number in range(6):
        assert recompute(store, tmp_path / "landing", "study", "main", number, ENGINE).identical


def test_a_stop_that_the_losses_do_not_bear_out_does_not_come_out_again(tmp_path: Path) -> None:
    """The end of training is recomputed too: it must follow from the losses in the lineage."""
    rule = EarlyStop(arm="treatment", patience=2, smooth=1)
    for name, kept in (("honest", rule), ("other", EarlyStop(arm="treatment", patience=3, smooth=1))):
        store = store_with(tmp_path / name, ending_study(early_stopping=kept))
        for version, loss in enumerate([9.0, 7.0, 8.0, 8.0]):
            land_loss(tmp_path / f"{name}-landing", version, loss)
            play(store, tmp_path / f"{name}-landing")
    store = open_store(tmp_path / "other")
    head = store.head("study", "main")
    assert head.iteration == 4
    stopped = msgspec.structs.replace(
        open_store(tmp_path / "honest").version("study", "main", 5),
        parent_digest=head.digest,
        lineage=msgspec.structs.replace(
            open_store(tmp_path / "honest").version("study", "main", 5).lineage,
            config_digest=head.lineage.config_digest,
            window_end_ms=head.lineage.window_end_ms,
        ),
    )
    store.publish(stopped)
    found = recompute(store, tmp_path / "other-landing", "study", "main", 5, ENGINE)
    assert not found.identical
    assert any(each.startswith("stopped") for each in found.differences)


@pytest.mark.parametrize("by", ["rollback", "continue"])
def test_an_operator_lets_it_begin_anew(tmp_path: Path, by: str) -> None:
    store, landing = store_with(tmp_path / "store", ending_study(early_stopping=RULE)), tmp_path / "landing"
    assert land_and_play(store, landing, [9.0, 7.0, 8.0, 8.0])[-1].status == "stopped"
    if by == "rollback":
        rollback(store, "study", "main", 1, created=WHEN, code_version="t")
    else:
        continue_at(store, "study", "main", 6, created=WHEN, code_version="t")
    results = land_and_play(store, landing, [70.0, 60.0, 65.0, 66.0], first=6)
    assert [one.status for one in results] == ["published"] * 3 + ["stopped"], "worse than before, and counted anew"
    assert store.head("study", "main").lineage.restored == 7


def test_a_loss_of_too_few_examples_does_not_count(tmp_path: Path) -> None:
    rule = EarlyStop(arm="treatment", patience=2, smooth=1, examples=5)
    store, landing = store_with(tmp_path / "store", ending_study(early_stopping=rule)), tmp_path / "landing"
    results = []
    for version, (loss, clients) in enumerate([(9.0, 5), (7.0, 5), (8.0, 4), (8.0, 4), (8.0, 5), (8.0, 5)]):
        land_loss(landing, version, loss, clients)
        results.append(play(store, landing).status)
    assert results == ["published"] * 5 + ["stopped"]
    assert store.head("study", "main").lineage.restored == 1


def test_an_arm_has_to_rank_with_the_line() -> None:
    for arm, told in (("control", "does not rank with the model of that line"), ("nobody", "has no arm 'nobody'")):
        with pytest.raises(InvalidSettings, match=told):
            ending_study(early_stopping=EarlyStop(arm=arm))


def start(moment: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `fedping round` on the store below a folder, disturbed at a moment."""
    round_ = [
        "round",
        "study",
        "main",
        "--engine",
        "numpy",
        "--store",
        folder / "store",
        "--landing",
        folder / "landing",
    ]
    command = [sys.executable, "-m", "tests.support.disturbed_round", moment, folder, *round_]
    return forked.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(("moment", "left"), [("published", 4), ("second_link", 4), ("second_linked", 5)])
def test_a_round_killed_while_it_stops_training_is_repeated_to_the_same_end(
    tmp_path: Path, moment: str, left: int
) -> None:
    store, landing = store_with(tmp_path / "store", ending_study(early_stopping=RULE)), tmp_path / "landing"
    land_and_play(store, landing, [9.0, 7.0, 8.0])
    land_loss(landing, 3, 8.0)
    assert start(moment, tmp_path).returncode == -9
    assert store.head("study", "main").iteration == left
    again = start("never", tmp_path)
    assert again.returncode == 0, again.stderr
    if left == 4:
        assert again.stdout == (
            "study/main: training is over; version 1, which had the lowest loss, is published again as version 5\n"
        )
    else:
        assert again.stdout.startswith("study/main: training is over; version 5 repeats version 1")
    head = store.head("study", "main")
    assert (head.iteration, head.lineage.restored, head.lineage.stopped) == (5, 1, True)
    assert (tmp_path / "store/study/main/public/latest.json").read_bytes() == store.public.document("study", "main", 5)
    for number in range(6):
        assert recompute(store, landing, "study", "main", number, ENGINE).identical


# --- lengths ---


def test_a_round_comes_too_early_for_an_iteration_by_time(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", ending_study(length=IterationByTime(minutes=45)))
    landing = tmp_path / "landing"
    assert store.head("study", "main").created == WHEN
    land_loss(landing, 0, 1.0)

    def at(when: str) -> RoundResult:
        return run_round(store, landing, "study", "main", ENGINE, RoundOptions(clock=lambda: when, code_version="t"))

    early = at("2026-01-01T00:44:59.999+00:00")
    assert (early.status, early.until) == ("early", "2026-01-01T00:45:00.000+00:00")
    assert early.sentence == "study/main: version 0 stays until 2026-01-01 00:45:00 UTC"
    assert at("2026-01-01T00:45:00.000+00:00").status == "published"


def test_an_iteration_of_a_version_from_the_future_does_not_last_until_then_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_with(tmp_path / "store", ending_study(length=IterationByTime(minutes=45)))
    landing = tmp_path / "landing"
    land_loss(landing, 0, 1.0)

    def at(when: str) -> RoundResult:
        return run_round(store, landing, "study", "main", ENGINE, RoundOptions(clock=lambda: when, code_version="t"))

    assert at("2025-12-31T23:59:30.000+00:00").status == "early", "clocks may be some seconds apart"
    assert at("2099-01-01T00:00:00.000+00:00").status == "published"  # by a machine whose clock is wrong
    land_loss(landing, 1, 1.0)
    places = ("--store", tmp_path / "store", "--landing", landing)
    code, _, err = run(capsys, "round", "study", "--engine", "numpy", *places)
    assert code == 75
    assert "version 1" in err
    assert "in the future" in err
    assert "store continue study main --from 2" in err
    assert run(capsys, "store", "continue", "study", "main", "--from", "2", *places)[0] == 0
    code, out, _ = run(capsys, "round", "study", "--engine", "numpy", *places)
    assert (code, "version 2 stays until" in out) == (0, True)


def test_history_names_versions_whose_date_cannot_be_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, landing = store_with(tmp_path / "store", ending_study()), tmp_path / "landing"
    for number, year in enumerate((2099, 2026, 2026)):
        land_loss(landing, number, 1.0)
        when = f"{year}-02-0{number + 1}T00:00:00.000+00:00"
        run_round(store, landing, "study", "main", ENGINE, RoundOptions(clock=lambda when=when: when, code_version="t"))
    for last, named in ((20, (1, 2)), (2, (2,)), (1, ())):
        code, out, err = run(capsys, "store", "history", "study", "main", "--last", last, "--store", tmp_path / "store")
        assert (code, len(out.splitlines())) == (0, 1 + min(last, 4))
        notes = err.splitlines()
        assert [f"version {number} " in note for number, note in zip(named, notes, strict=True)] == [True] * len(named)
        assert all("in the future" in note or "before its parent" in note for note in notes)


@pytest.mark.parametrize(
    ("rule", "waits"),
    [
        (IterationByClients(clients=5, least=10, most=60), "3 of 5 clients have sent a usable update"),
        (IterationBySigns(least=10, most=60), "the signs of 0 % of the weights are stable, of 80 % needed"),
    ],
)
def test_an_iteration_ends_with_enough_of_what_it_waits_for_or_at_its_most(
    tmp_path: Path, rule: IterationByClients | IterationBySigns, waits: str
) -> None:
    study, landing = ending_study(length=rule), tmp_path / "landing"
    stores: dict[str, ModelStore] = {}
    for name in ("soon", "late"):
        stores[name] = store_with(tmp_path / name, study)
    noisy = [Ping(i, i, (float((-1) ** i), 1.0 - i)) for i in range(3)]
    land(landing, noisy)

    def at(name: str, minute: int) -> RoundResult:
        when = f"2026-01-01T0{minute // 60}:{minute % 60:02}:00.000+00:00"
        return run_round(
            stores[name], landing, "study", "main", ENGINE, RoundOptions(clock=lambda: when, code_version="t")
        )

    assert at("soon", 9).sentence == "study/main: version 0 stays until 2026-01-01 00:10:00 UTC"
    told = at("soon", 10)
    assert (told.status, told.clients) == ("early", 3)
    assert told.sentence == (
        f"study/main: version 0 stays; {waits}, and its iteration lasts at most until 2026-01-01 01:00:00 UTC"
    )
    assert at("late", 59).status == "early"
    assert at("late", 60).status == "published"
    land(landing, [Ping(100 + i, 100 + i, (5.0, 5.0)) for i in range(40)], at_ms=FIRST_MS + 1)
    assert at("soon", 11).status == "published"
    assert recompute(stores["soon"], landing, "study", "main", 1, ENGINE).identical


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([*map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_commands_say_so_and_exit_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = {"early_stopping": RULE, "length": IterationByTime(minutes=525_600)}
    store, landing = store_with(tmp_path / "store", ending_study(**rules)), tmp_path / "landing"
    places = ("--engine", "numpy", "--store", tmp_path / "store", "--landing", landing)
    land_loss(landing, 0, 1.0)
    code, out, _ = run(capsys, "round", "study", *places)
    assert (code, out) == (0, "study/main: version 0 stays until 2027-01-01 00:00:00 UTC\n")
    assert store.iterations("study", "main") == [0]
    _, out, _ = run(capsys, "round", "study", "--json", *places)
    assert json.loads(out)["status"] == "early"
    assert json.loads(out)["until"] == "2027-01-01T00:00:00.000+00:00"
    code, out, _ = run(capsys, "study", "show", "study", "--store", tmp_path / "store")
    assert "an iteration lasts 525,600 minutes" in out
    assert "training stops when the loss of treatment has not been lower for 2 versions" in out


def test_a_schedule_skips_a_line_whose_iteration_lasts_on_and_says_until_when(tmp_path: Path) -> None:
    study = ending_study(length=IterationByTime(minutes=525_600))
    second = msgspec.structs.replace(study.lines[0], name="second", length=None, early_stopping=None)
    arm = Arm(name="other", share=0.0001, line="second", applies=True, submits=True)
    arms = (msgspec.structs.replace(study.arms[0], share=0.5), study.arms[1], arm)
    study = msgspec.structs.replace(study, arms=arms, lines=(*study.lines, second))
    store = store_with(tmp_path / "store", study)
    land_loss(tmp_path / "landing", 0, 1.0)
    places = ["--engine", "numpy", "--store", tmp_path / "store", "--landing", tmp_path / "landing"]
    command = [sys.executable, "-m", "fedping", "schedule", "study", "--now", "--every", "6h", *places]
    with forked.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline(), process.stdout.readline()]
        process.kill()
    assert said == [
        "study/main: version 0 stays until 2027-01-01 00:00:00 UTC\n",
        "study/second: nothing to do; no pings of version 0 have landed\n",
    ]
    assert store.iterations("study", "main") == [0]
