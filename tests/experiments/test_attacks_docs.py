"""The examples of "Attack it" in the researchers' guide have the results that the guide states."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.hostile_studies import setup_of as hostile_setup
from benchmarks.robustness import losses_of
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.experiments.laboratory.units import units_of
from fedping.protocol.study import study_from_toml

ROOT = Path(__file__).parents[2]


def shown(tmp_path: Path) -> dict[str, Outcome]:
    text = (ROOT / "docs" / "researchers.md").read_text(encoding="utf-8").partition("### Attack it\n")[2]
    (name, example) = re.findall(r"```toml\n# file: (\S+)\n(.*?)```", text, re.DOTALL)[0]
    (tmp_path / name).write_text(example, encoding="utf-8")
    experiment = experiment_from_toml(tmp_path / name)
    return {unit.name: run_unit(unit, tmp_path / "out") for unit in units_of(experiment)}


def test_the_example_of_the_guide_shows_what_it_says(tmp_path: Path) -> None:
    clean, turned, majority, door, none = shown(tmp_path).values()

    def figure(outcome: Outcome, split: str, metric: str) -> float:
        return outcome.final[split][metric] or 0.0

    accuracy = [figure(one, "test", "accuracy") for one in (clean, turned, majority, door, none)]
    assert min(accuracy[0], accuracy[2], accuracy[4]) > 0.9
    assert accuracy[1] < 0.2
    assert accuracy[3] > accuracy[0] - 0.05
    assert figure(none, "attack", "backdoor_success") < 0.2 < 0.8 < figure(door, "attack", "backdoor_success")


def test_no_one_client_moves_the_demos_model_by_much_under_the_default_of_new_studies() -> None:
    experiment = experiment_from_toml(ROOT / "experiments" / "attacks.toml", ["seeds=1", "evaluation.baselines=[]"])
    clip = study_from_toml(ROOT / "experiments" / "demo.toml", new=True).lines[0].pipeline.clip

    def losses(variant: str) -> list[float]:
        setup = experiment.variants[variant]
        setup = replace(setup, pipeline=replace(setup.pipeline, clip=clip))
        found = losses_of(setup, prepare(setup, 1, None), 1)
        return [found[0], found[15]]

    start, clean = losses("nobody is hostile")
    assert clean < 40 < 300 < start
    for variant in ("1 client against all, 1e9 times", "1 client drags two weights"):
        assert losses(variant)[1] < clean + 0.05 * (start - clean)
    assert losses("10 percent collude against")[1] < clean + 0.4 * (start - clean)


def test_the_shipped_attacks_on_the_demos_model_go_as_the_guide_says(tmp_path: Path) -> None:
    changes = ["data.users=60", "data.judges=60", "seeds=1", "evaluation.baselines=[]"]
    experiment = experiment_from_toml(ROOT / "experiments" / "attacks.toml", changes)
    demo = study_from_toml(ROOT / "experiments" / "demo.toml").lines[0].spec
    spec = prepare(experiment.variants["nobody is hostile"], 1, None).spec
    assert (spec.weights, spec.constraints, spec.margin) == (demo.weights, demo.constraints, demo.margin)
    wanted = ["nobody is hostile", "1 client against all, 1e9 times", "1 client against all, majority of signs"]
    units = {unit.name: unit for unit in units_of(experiment)}
    clean, against, majority = (run_unit(units[name], tmp_path).final["test"]["loss"] or 0 for name in wanted)
    assert max(clean, majority) < 200 < 2000 < against


@pytest.mark.long
def test_five_percent_of_hostile_clients_cost_the_demo_at_most_five_percent_in_15_and_40_rounds() -> None:
    """Tested with a new study's bounds and five seeds; docs/robustness.md has all attacks and all shipped studies."""
    attacks = ["nobody", "others' mean turned around, × 10⁹", "two weights dragged to 0, × 10⁹", "10⁹ in every weight"]
    losses: dict[str, list[dict[int, float]]] = {attack: [] for attack in attacks}
    for seed in range(1, 6):
        problem = prepare(hostile_setup("demo.toml", "nobody", "nobody", 200), seed, None)
        for attack in attacks:
            hostile = "nobody" if attack == "nobody" else "5 %"
            losses[attack].append(losses_of(hostile_setup("demo.toml", hostile, attack, 200), problem, seed))
    for rounds in (15, 40):
        means = {attack: sum(each[rounds] for each in found) / 5 for attack, found in losses.items()}
        start = sum(each[0] for each in losses["nobody"]) / 5
        assert max(means.values()) - means["nobody"] < 0.05 * (start - means["nobody"])
