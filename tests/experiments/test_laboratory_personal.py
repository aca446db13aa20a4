"""Clients with their own models in the laboratory: measurements, their order, and the state after a kill."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.client_sim.learning import MemoryStates, algorithm_for, cohort_updates
from fedping.client_sim.learning.algorithm import Personalizes
from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.evaluation import evaluate
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.report import write_report
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.resuming import CHECKPOINT
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Setup, experiment_from_toml, experiment_of
from fedping.experiments.laboratory.settings.merging import merged, nested
from fedping.experiments.laboratory.units import Unit
from fedping.experiments.laboratory.users import UserSearches
from fedping.main import main
from fedping.protocol.errors import InvalidSettings
from tests.experiments.test_laboratory_resuming import Killed
from tests.experiments.test_laboratory_run import ROOT, contents
from tests.support import forked
from tests.support.laboratory import SMALL, small

OWN: dict[str, Any] = {"by": "fine_tune", "rate": 0.5, "steps": 2, "from_version": 2}
GRADIENT: dict[str, Any] = {"algorithm": "gradient", "personal": OWN}
LOCAL: dict[str, Any] = {"algorithm": "local", "epochs": 1, "batch": 8, "rate": 0.1}

Series = dict[tuple[str, str], list[float]]


def setup_of(**changes: Any) -> Setup:
    [setup] = small(**changes).variants.values()
    return setup


def run(folder: Path, threads: int = 1, on_round: Any = lambda *_: None, **changes: Any) -> tuple[Outcome, Series]:
    unit = Unit("only", None, setup_of(**changes), 1, None)
    outcome = run_unit(unit, folder, on_round, threads)
    series: Series = {}
    for row in unit.folder(folder).metrics().to_pylist():
        series.setdefault((row["split"], row["metric"]), []).append(row["value"])
    return outcome, series


def test_both_are_the_same_until_clients_begin_and_apart_afterwards(tmp_path: Path) -> None:
    outcome, series = run(tmp_path, rounds=5, training=GRADIENT)
    central, personal = (np.array(series[split, "loss"]) for split in ("central", "personal"))
    assert (central[:3] == personal[:3]).all()
    assert (central[3:] != personal[3:]).all()
    np.testing.assert_array_equal(series["gain", "loss"], personal - central)
    np.testing.assert_allclose(central, series["local", "loss"], rtol=1e-12)
    assert outcome.final["personal"]["loss"] == personal[-1]
    assert "personal_worst" not in outcome.final, "of 8 clients a worst tenth is a single one"


def test_of_twenty_clients_the_worst_tenth_is_measured(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, rounds=3, training=GRADIENT, partition__clients=20)
    assert outcome.final["personal_worst"]["loss"] > outcome.final["personal"]["loss"]


def test_the_metrics_of_each_client_are_of_both(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, rounds=4, training=GRADIENT)
    table = pq.read_table(tmp_path / "runs/only/seed-1/clients.parquet").to_pydict()
    assert np.mean(table["personal_loss"]) == pytest.approx(outcome.final["personal"]["loss"])
    assert np.mean(table["loss"]) == pytest.approx(outcome.final["central"]["loss"])


def test_newcomers_are_in_neither_mean(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"rounds": 4, "training": GRADIENT, "evaluation__newcomers": 3}
    outcome, _ = run(tmp_path, **changes)
    table = pq.read_table(tmp_path / "runs/only/seed-1/clients.parquet")
    trained, new = (table.filter(np.array(table["newcomer"]) == which).to_pydict() for which in (False, True))
    assert np.mean(trained["personal_loss"]) == pytest.approx(outcome.final["personal"]["loss"])
    assert np.mean(trained["loss"]) == pytest.approx(outcome.final["central"]["loss"])
    assert np.mean(new["loss"]) == pytest.approx(outcome.final["newcomers"]["loss"])
    np.testing.assert_allclose(new["personal_loss"], new["loss"], rtol=1e-12)


def test_a_run_can_stop_by_the_clients_own_models_and_keeps_what_each_had_at_the_best(tmp_path: Path) -> None:
    """With 30 steps in each round, own models soon overfit; the shared one keeps improving."""
    own = {**OWN, "rate": 2.0, "steps": 30, "from_version": 1}
    outcome, series = run(
        tmp_path,
        rounds=12,
        training={"algorithm": "gradient", "personal": own},
        evaluation__decided_by="personal",
        early_stopping={"patience": 3},
    )
    losses = series["personal_validation", "loss"]
    assert outcome.best_round == int(np.argmin(losses)) < outcome.rounds < 12
    assert outcome.final["personal"]["loss"] == series["personal", "loss"][outcome.best_round]
    table = pq.read_table(tmp_path / "runs/only/seed-1/clients.parquet").to_pydict()
    assert np.mean(table["personal_loss"]) == pytest.approx(outcome.final["personal"]["loss"])


def test_variants_are_compared_by_own_models_with_one_that_has_none_and_what_each_learns_alone(tmp_path: Path) -> None:
    experiment = small(
        rounds=4,
        seeds=2,
        data__validation=0,
        evaluation={"decided_by": "personal", "baselines": ["centralised", "local"], "baseline_iterations": 30},
        variants=[{"name": "one for all"}, {"name": "own", "training": GRADIENT}],
    )
    summary = run_experiment(experiment, tmp_path, jobs=1)
    assert summary.split == summary.chosen_on == "personal"
    shared, own = (summary.variants[name].metrics for name in ("one for all", "own"))
    assert shared["personal"] == shared["central"] == own["central"]
    assert own["personal"]["loss"] != own["central"]["loss"]
    alone, together = (summary.baselines[name].metrics for name in ("local", "centralised"))
    assert alone["personal"] == alone["local"]
    assert "central" not in alone
    assert together["central"] == together["local"]
    page = write_report(tmp_path, tmp_path / "again.html").read_text()
    for said in ("own models", "<br>central", "<br>personal", "<br>gain", "own, personal", "alone"):
        assert said in page
    assert "one for all, personal" not in page


USERS: dict[str, Any] = {
    "rounds": 4,
    "model": {"name": "linear-15"},
    "data": {"users": 6, "judges": 4, "population": {"searches": [4, 8]}},
    "training": {"algorithm": "gradient", "personal": {"by": "fine_tune", "rate": 20.0, "from_version": 1}},
    "server__optimizer": {"optimizer": "gradient_descent", "rate": 20.0},
    "evaluation": {"baselines": []},
}


def test_users_are_measured_on_new_searches_before_they_learn_from_them(tmp_path: Path) -> None:
    """Repeats the iterations by hand: measure on D, then the client's own steps and the update on D, then the round."""
    setup = _users(**USERS)
    outcome = run_unit(Unit("only", None, setup, 1, None), tmp_path)
    problem = prepare(setup, 1, None)
    assert isinstance(problem.train, UserSearches)
    weights, users = problem.spec.start_array, np.arange(6)
    states: Any = MemoryStates(algorithm_for(setup.training).init_state(problem.model))
    found: dict[str, list[float]] = {"central": [], "personal": []}
    for round_ in range(5):
        new = problem.train.of_iteration(round_)
        algorithm = algorithm_for(setup.training, round_)
        assert isinstance(algorithm, Personalizes)
        judged = new.first(4).to_judge_by()
        own = algorithm.personal_weights(problem.model, weights, None, states.load(users))
        for split, held in (("central", np.tile(weights, (6, 1))), ("personal", own)):
            measured = evaluate(problem.model, problem.tally, held.__getitem__, judged)
            found[split].append(measured.mean()["loss"])
        keys = np.zeros(6, np.uint64)
        done = cohort_updates(
            problem.model, setup.training, weights, new.batch(users), keys, states.load(users), version=round_
        )
        states.save(users, done.state)
        share = new.sizes / new.sizes.sum()
        weights = weights + 20.0 * (share @ done.updates)
    rows = Unit("only", None, setup, 1, None).folder(tmp_path).metrics().to_pylist()
    for split, losses in found.items():
        logged = [row["value"] for row in rows if row["split"] == split and row["metric"] == "loss"]
        np.testing.assert_allclose(logged, losses, rtol=1e-5)
    assert found["central"] != found["personal"]
    assert outcome.split == "test"


def _users(**changes: Any) -> Setup:
    raw = {key: value for key, value in tomllib.loads(SMALL).items() if key == "server"}
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    [setup] = experiment_of(merged(raw, nested(dotted)), name="users", folder=Path()).variants.values()
    return setup


KILLED: dict[str, Any] = {
    "rounds": 20,
    "partition__clients": 40,
    "training": {**LOCAL, "personal": {**OWN, "optimizer": {"optimizer": "adam", "keep": True}, "rate": 0.05}},
    "sampling": {"sampling": "uniform", "clients": 15},
    "evaluation__every": 3,
}


EXPERT: dict[str, Any] = {"by": "expert", "private_rate": 0.1, "gate_rate": 0.1, "clip": 1.0, "noise": 2.0}
WITH_EXPERTS: dict[str, Any] = {**KILLED, "training": {"algorithm": "gradient", "batch": 8, "personal": EXPERT}}


@pytest.mark.parametrize(("threads", "asked"), [*((threads, KILLED) for threads in (1, 2, 4)), (2, WITH_EXPERTS)])
def test_a_killed_run_goes_on_to_the_same_bits_with_what_clients_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, asked: dict[str, Any]
) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    monkeypatch.setattr("fedping.client_sim.learning.updates.MOST_BYTES", 20_000)  # several blocks a round
    run(tmp_path / "whole", **asked)
    for last in (5, 6, 14):

        def on_round(done: int, rows: object, last: int = last) -> None:
            if done == last:
                raise Killed

        with pytest.raises(Killed):
            run(tmp_path / "killed", threads, on_round, **asked)
    told: list[int] = []
    run(tmp_path / "killed", threads, lambda done, _: told.append(done), **asked)
    assert told[0] == 14
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert not list((tmp_path / "killed").rglob("states*"))


def test_a_run_whose_clients_states_are_damaged_begins_again_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    few = {**KILLED, "rounds": 6}
    whole, _ = run(tmp_path / "whole", **few)

    def killed_after(rounds: int) -> list[int]:
        told: list[int] = []

        def on_round(done: int, rows: object) -> None:
            told.append(done)
            if done == rounds:
                raise Killed

        with pytest.raises(Killed):
            run(tmp_path / "killed", on_round=on_round, **few)
        return told

    killed_after(4)
    file = tmp_path / "killed/runs/only/seed-1/states.bin"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert killed_after(3)[0] == 0
    outcome, _ = run(tmp_path / "killed", **few)
    [said] = set(outcome.notes) - set(whole.notes)
    assert said.startswith("it was killed and began again from round 0, for what its clients keep, states.bin and its")
    assert outcome.final == whole.final
    assert len(outcome.notes) == len(whole.notes) + 1


@pytest.mark.long
def test_a_process_that_is_killed_at_any_moment_comes_to_the_same_bits(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    expert = '{ by = "expert", private_rate = 0.1, gate_rate = 0.1 }'
    own = f'training = {{ algorithm = "gradient", personal = {expert} }}\n'
    file.write_text(own + SMALL.partition("[[variants]]")[0])
    options = ("rounds=200", "evaluation.every=50", "seeds=1", "evaluation.baselines=[]", "partition.clients=50")
    command = [sys.executable, "-m", "fedping", "simulate", str(file), "--jobs", "1"]
    command += [word for option in options for word in ("--set", option)]
    assert main([*command[3:], "--out", str(tmp_path / "whole")]) == 0
    folder = tmp_path / "killed/runs/federated/seed-1"
    with forked.Popen([*command, "--out", str(tmp_path / "killed")], cwd=ROOT) as process:
        while not (folder / CHECKPOINT).is_file():
            assert process.poll() is None
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    assert (folder / "states.bin").is_file()
    assert main([*command[3:], "--out", str(tmp_path / "killed")]) == 0
    assert contents(tmp_path / "killed/runs") == contents(tmp_path / "whole/runs")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"training": {**LOCAL, "personal": OWN}, "co_op": {"lower": 0}},
            r"^\[training.personal\]: \[co_op\] gives every client a model",
        ),
        (
            {
                "training": {**LOCAL, "personal": OWN},
                "model": {"name": "k-means", "clusters": 3},
                "server": {"aggregate": {"by": "recluster"}},
            },
            r"^\[training.personal\]: the server clusters centroids again",
        ),
        (
            {"training": {**GRADIENT, "personal": {**OWN, "from_version": 6}}},
            r"it begins from_version = 6, and the last of 6 rounds trains on version 5",
        ),
        (
            {
                "training": {**GRADIENT, "personal": {"by": "vector", "rate": 1.0}},
                "lateness": {"shares": [0.5, 0.5]},
                "server__staleness": {"most": 1},
            },
            "Remove \\[lateness\\]",
        ),
        ({"training": {**LOCAL, "personal": OWN}, "evaluation__trained": True}, "'trained' in "),
        (
            {"training": {**LOCAL}, "co_op": {"lower": 0}, "evaluation__decided_by": "personal"},
            r"\[co_op\] measures the merged model alone",
        ),
    ],
)
def test_what_does_not_go_with_models_of_clients_own_is_refused_at_the_start(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidSettings, match=sentence):
        setup_of(**changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"training": {**GRADIENT, "personal": {**OWN, "frozen": ["nothing"]}}},
            "'frozen' names 'nothing', and the model has neither a weight nor a block of that name",
        ),
        (
            {
                "training": {**LOCAL, "personal": {**OWN, "frozen": ["centroids"]}},
                "model": {"name": "k-means", "clusters": 3, "spread": 1.0},
            },
            "keeps weights 'frozen'.*Remove 'frozen'",
        ),
    ],
)
def test_names_that_do_not_fit_the_model_are_refused_before_any_round(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    if "model" in changes:
        changes = {**changes, "evaluation__task": "clustering"}
    with pytest.raises(InvalidSettings, match=sentence):
        run(tmp_path, **changes)


@pytest.mark.parametrize(
    ("personal", "sentence"),
    [
        ({**OWN, "frozen": ["W9"]}, "'frozen' names 'W9', and the model has neither"),
        ({"by": "vector", "rate": 1.0, "size": 7}, "a personal vector of size = 7 is added to the 31 weights"),
        (
            {"by": "partly_local", "rate": 1.0, "local": ["coefficients", "intercept"]},
            "'local' names all blocks of the model",
        ),
    ],
)
def test_a_variant_that_does_not_fit_the_model_is_named_before_another_has_begun(
    tmp_path: Path, personal: dict[str, Any], sentence: str
) -> None:
    wrong = {"algorithm": "gradient", "personal": personal}
    experiment = small(variants=[{"name": "fits"}, {"name": "odd", "training": wrong}])
    with pytest.raises(InvalidSettings, match=f"^variant 'odd': {sentence}"):
        run_experiment(experiment, tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()


def test_a_variant_whose_model_only_its_examples_tell_is_named_in_its_turn(tmp_path: Path) -> None:
    wrong = {"algorithm": "gradient", "personal": {**OWN, "frozen": ["W9"]}}
    experiment = small(variants=[{"name": "odd", "training": wrong}], data__drop_constant=True)
    with pytest.raises(InvalidSettings, match=r"^variant 'odd': 'frozen' names 'W9'"):
        run_experiment(experiment, tmp_path, jobs=1)


def test_settings_that_exclude_each_other_name_their_variant() -> None:
    late = {**GRADIENT, "personal": {**OWN, "from_version": 6}}
    with pytest.raises(InvalidSettings, match=r"^variant 'late': \[training.personal\]: it begins from_version = 6"):
        small(variants=[{"name": "fits"}, {"name": "late", "training": late}])


def test_fine_tuning_from_the_start_model_is_noted_as_learning_alone(tmp_path: Path) -> None:
    for begins, more, noted in ((0, {}, True), (0, {"proximal": 1.0}, False), (1, {}, False)):
        personal = {**OWN, "from_version": begins, **more}
        outcome, _ = run(tmp_path / f"{begins}{noted}", training={**GRADIENT, "personal": personal})
        assert any("from_version = 0" in note for note in outcome.notes) == noted


@pytest.mark.parametrize("where", ["memory", "files", "http"])
def test_rounds_in_which_nobody_sends_go_on_everywhere(tmp_path: Path, where: str) -> None:
    own = {**OWN, "shares": False, "rate": 0.2}
    outcome, series = run(tmp_path, rounds=5, training={"algorithm": "gradient", "personal": own}, where=where)
    assert (outcome.rounds, outcome.versions) == (5, 2)
    central, personal = (series[split, "loss"] for split in ("central", "personal"))
    assert len({*central[2:]}) == 1
    assert len({*personal[2:]}) == 4
    [note] = [each for each in outcome.notes if "version" in each]
    assert "clients stop sending from version 2 on (shares = false)" in note


def test_the_example_of_the_guide_shows_both_models_newcomers_and_what_each_learns_alone(tmp_path: Path) -> None:
    text = (ROOT / "docs/researchers.md").read_text(encoding="utf-8").partition("## Personalization\n")[2]
    (name, example) = re.findall(r"```toml\n# file: (\S+)\n(.*?)```", text, re.DOTALL)[0]
    (tmp_path / name).write_text(example, encoding="utf-8")
    changes = ["rounds=14", "seeds=1", "evaluation.baseline_iterations=20"]
    summary = run_experiment(experiment_from_toml(tmp_path / name, changes), tmp_path / "out", jobs=1)
    accuracy = {
        variant: {split: metrics["accuracy"].mean or 0.0 for split, metrics in row.metrics.items()}
        for variant, row in summary.variants.items()
    }
    shared, tuned, ditto = accuracy.values()
    assert shared["central"] == tuned["central"] == ditto["central"] == shared["personal"]
    assert ditto["personal"] > ditto["central"]
    assert summary.baselines["local"].metrics["personal"]["accuracy"].mean != shared["central"]
    assert 0.3 < ditto["newcomers"] < 1
