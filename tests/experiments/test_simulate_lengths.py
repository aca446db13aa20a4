"""The length of an iteration, the end of training, and the version that is then kept."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedping.experiments.simulate import experiment_from_toml, simulate
from fedping.main import main
from fedping.model_store.store import ModelStore, open_store
from fedping.model_store.version import Version
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.notation import milliseconds_of
from fedping.protocol.stopping_settings import EarlyStop
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import NumpyEngine, Provenance, RoundOptions, run_round
from fedping.server_jobs.round.stopping import best_version, should_stop, validation_losses
from tests.support.small_experiment import contents, experiment_file


def versions(file: Path, out: Path) -> list[Version]:
    simulate(*experiment_from_toml(file), out, 1)
    store = open_store(out / "store")
    return [store.version("small", "main", number) for number in store.iterations("small", "main")]


def test_iterations_by_clients_follow_the_day(tmp_path: Path) -> None:
    length = 'length = { by = "clients", clients = 120, most = 40 }'
    more = "[activity]\nswing = 8\naway = 0.0"
    file = experiment_file(tmp_path, optimization=length, iterations=8, clients=400, more=more)
    made = versions(file, tmp_path / "out")
    for version in made[1:]:
        assert version.lineage.aggregate is not None
        assert version.lineage.aggregate.clients >= 120
        assert len({each.path for each in version.lineage.inputs}) >= 1
    ticks = np.diff([int(v.lineage.window_end_ms - 1_529_452_800_000) // 1_800_000 for v in made])
    assert ticks.max() > ticks.min()


def test_iterations_by_signs_are_longer_the_surer_they_have_to_be(tmp_path: Path) -> None:
    def ticks(share: float) -> int:
        length = f'length = {{ by = "signs", z = 2.0, share = {share}, most = 12 }}'
        folder = tmp_path / str(share)
        return sum(
            len(v.lineage.inputs)
            for v in versions(experiment_file(folder, iterations=2, optimization=length), folder / "out")
        )

    assert ticks(0.2) < ticks(0.95)


def test_iterations_of_many_ticks_go_on_after_a_kill_to_the_same_bits(tmp_path: Path) -> None:
    length = "length = { by = 'time', ticks = 3 }"
    file = experiment_file(tmp_path, optimization=length, iterations=3)
    settings, study = experiment_from_toml(file)
    simulate(settings, study, tmp_path / "whole", 1)
    calls = 0

    class Stop(Exception):
        pass

    def watch(progress: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:  # in the second iteration, after two of its three ticks
            raise Stop

    with pytest.raises(Stop):
        simulate(settings, study, tmp_path / "cut", 1, watch)
    simulate(settings, study, tmp_path / "cut", 1)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


@pytest.mark.parametrize("arm", ["treatment", "validation"])
def test_training_stops_and_the_best_version_is_evaluated(tmp_path: Path, arm: str) -> None:
    stopping = f'[optimization.early_stopping]\narm = "{arm}"\npatience = 3\nsmooth = 2'
    file = experiment_file(tmp_path, optimization=stopping, iterations=60)
    made = versions(file, tmp_path / "out")
    kept, rounds = made[-1], made[:-1]
    settings = EarlyStop(arm=arm, patience=3, smooth=2)
    store = open_store(tmp_path / "out" / "store")
    last = rounds[-1].iteration
    losses, before = (validation_losses(store, "small", "main", n, settings) for n in (last, last - 1))
    assert len(rounds) < 61
    assert should_stop(losses, settings)
    assert not should_stop(before, settings)
    assert kept.lineage.stopped
    assert kept.lineage.restored == best_version(losses, settings) == last - 4
    assert kept.model == made[kept.lineage.restored].model
    folder = tmp_path / f"out/landing/study=small/line=main/iteration={kept.iteration}"
    assert len(list(folder.glob("*.parquet"))) == 3  # the ticks of the evaluation
    left = contents(tmp_path / "out")
    assert versions(file, tmp_path / "out") == made
    assert contents(tmp_path / "out") == left


def test_a_line_that_the_validation_arm_does_not_follow_is_trained_to_its_end(tmp_path: Path) -> None:
    stopping = '[optimization.early_stopping]\narm = "treatment"\npatience = 2\nsmooth = 1'
    file = experiment_file(tmp_path, optimization=stopping, iterations=12, clients=300, ticks=2)
    study = tmp_path / "study.toml"
    second = study.read_text().partition("[[lines]]")[2].replace('"main"', '"second"', 1)
    arm = '[[arms]]\nname = "other"\nshare = 0.1\nline = "second"\napplies = true\nsubmits = true\n'
    study.write_text(f"{study.read_text()}\n{arm}[[lines]]{second}")
    summary = simulate(*experiment_from_toml(file), tmp_path / "out", 1)
    stopped, trained = summary.lines["main"], summary.lines["second"]
    store = open_store(tmp_path / "out" / "store")
    assert stopped.rounds < 12
    assert store.head("small", "main").lineage.origin == "rollback"
    assert (trained.rounds, trained.frozen_version) == (12, 12)
    assert store.head("small", "second").lineage.origin == "round"
    assert (stopped.controls, trained.controls) == (["control"], [])
    assert trained.below_all_controls_from is None


def guarded(tmp_path: Path, guard: str, more: str = "") -> Path:
    """Return an experiment whose only line has a guard."""
    file = experiment_file(tmp_path, iterations=12, clients=300)
    study = tmp_path / "study.toml"
    study.write_text(f"{study.read_text()}\n[lines.guard]\n{guard}\n")
    file.write_text(f"{more}\n{file.read_text()}")
    return file


JUMPY = 'rounds = 3\nwindow = 3\ndeviations = 0.01\nclients = 1.001\nnorm = "off"\njump = "off"'


def test_a_simulation_whose_guard_holds_a_version_ends_with_4_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["simulate", str(guarded(tmp_path, JUMPY)), "--out", str(tmp_path / "out"), "--threads", "1"]
    for _ in range(2):  # and again, where it is continued
        assert main(command) == 4
        said = capsys.readouterr().err
        assert "the guard of line 'main' holds version" in said
        assert 'held = "release"' in said
    store = open_store(tmp_path / "out/store")
    assert store.held.held_version("small", "main") is not None


@pytest.mark.parametrize(("held", "decision"), [("release", "released"), ("discard", "discarded")])
def test_a_simulation_goes_on_after_what_is_held_if_it_is_told_to(tmp_path: Path, held: str, decision: str) -> None:
    file = guarded(tmp_path, JUMPY, f'held = "{held}"')
    made = versions(file, tmp_path / "out")
    assert len(made) == 13
    decided = [one for one in made if one.lineage.guard and one.lineage.guard.decision == decision]
    assert decided
    ticks = np.diff([milliseconds_of(one.created) for one in made]) / 1_800_000
    assert set(ticks) == {1}
    left = contents(tmp_path / "out")
    assert versions(file, tmp_path / "out") == made
    assert contents(tmp_path / "out") == left


def test_a_simulated_line_that_its_guard_rolls_back_goes_on_to_its_last_iteration(tmp_path: Path) -> None:
    guard = 'guardrail = { metric = "rank_selected", most = 1.0001, rounds = 1 }'
    made = versions(guarded(tmp_path, guard), tmp_path / "out")
    assert len(made) == 13
    assert "rolled_back" in [one.lineage.guard.decision for one in made if one.lineage.guard]


def with_rules(study: Path, rules: str) -> None:
    """Give the only line of a study file its own rules."""
    study.write_text(study.read_text().replace("[lines.pipeline]", f"{rules}\n[lines.pipeline]"))


def test_rules_of_the_line_are_those_of_the_experiment_and_of_real_rounds(tmp_path: Path) -> None:
    stopping = '{ arm = "treatment", patience = 2, smooth = 2 }'
    in_experiment = f'length = {{ by = "clients", clients = 40, most = 3 }}\nearly_stopping = {stopping}'
    in_line = f'length = {{ by = "clients", clients = 40, most = 90 }}\nearly_stopping = {stopping}'
    there = versions(experiment_file(tmp_path / "a", optimization=in_experiment, iterations=40), tmp_path / "one")
    file = experiment_file(tmp_path / "b", iterations=40)
    with_rules(tmp_path / "b" / "study.toml", in_line)
    here = versions(file, tmp_path / "two")
    assert there[-1].lineage.stopped
    assert [one.model for one in here] == [one.model for one in there]
    assert (here[-1].lineage.restored, here[-1].created) == (there[-1].lineage.restored, there[-1].created)

    simulated = open_store(tmp_path / "two" / "store").study("small")
    store, landing = open_store(tmp_path / "real", create=True), tmp_path / "landing"
    store.create_study(simulated, first_versions(simulated, created=here[0].created, code_version="t"))
    for version in (one for one in here if one.lineage.origin == "round"):
        for part in version.lineage.inputs:
            (landing / part.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tmp_path / "two" / "landing" / part.path, landing / part.path)
        done = run_round(
            store,
            landing,
            "small",
            "main",
            NumpyEngine(),
            RoundOptions(clock=partial(str, version.created), code_version="t"),
        )
    assert (done.status, done.restored) == ("stopped", here[-1].lineage.restored)
    assert [store.version("small", "main", n).model for n in range(len(here))] == [one.model for one in here]


@pytest.mark.parametrize("rule", ['length = { by = "signs" }', 'early_stopping = { arm = "treatment" }'])
def test_one_of_the_two_says_when_it_ends(tmp_path: Path, rule: str) -> None:
    file = experiment_file(tmp_path, optimization=rule)
    with_rules(tmp_path / "study.toml", rule)
    with pytest.raises(InvalidSettings, match="Remove it from the experiment"):
        experiment_from_toml(file)


def test_a_line_that_stages_its_versions_is_refused_for_nobody_would_fetch_them(tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    with_rules(tmp_path / "study.toml", "guard = { stage = { share = 0.1 } }")
    with pytest.raises(InvalidSettings, match="Remove 'stage' from its guard"):
        experiment_from_toml(file)


def test_a_run_killed_when_training_has_just_ended_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = 'early_stopping = { arm = "treatment", patience = 2, smooth = 2 }'
    settings, study = experiment_from_toml(experiment_file(tmp_path, optimization=stopping, iterations=40))
    simulate(settings, study, tmp_path / "whole", 1)

    class Killed(Exception): ...

    def killed(store: ModelStore, _: Path, head: Version, rule: EarlyStop, provenance: Provenance) -> None:
        if should_stop(validation_losses(store, head.study, head.line, head.iteration, rule), rule):
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("fedping.server_jobs.round.run.stop_if_over", killed)
        with pytest.raises(Killed):
            simulate(settings, study, tmp_path / "cut", 1)
    assert open_store(tmp_path / "cut" / "store").head("small", "main").lineage.origin == "round"
    simulate(settings, study, tmp_path / "cut", 1)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
