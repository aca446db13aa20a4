"""The simulations of Hartmann's thesis: their files can be run, and learn what the originals learned."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy import stats

from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Setup, experiment_from_toml
from fedping.experiments.laboratory.settings.experiment import with_noise
from fedping.experiments.laboratory.units import Unit, units_of
from fedping.experiments.papers.scripts.curves import curves
from fedping.experiments.papers.scripts.hartmann import SCHEMES, update_spreads
from fedping.protocol.personalization import FineTune, Vector
from fedping.protocol.training import OwnTraining, Training
from tests.support.effort import few_or_all, in_full

PAPERS = Path(__file__).parents[2] / "experiments" / "papers"


def shortened(file: str, variant: str, rounds: int) -> Setup:
    setup = experiment_from_toml(PAPERS / file).variants[variant]
    return msgspec.structs.replace(setup, rounds=rounds, data=msgspec.structs.replace(setup.data, judges=1000))


def curve(file: str, variant: str, rounds: int, out: Path, seed: int = 1) -> list[float]:
    unit = Unit(variant, None, shortened(file, variant, rounds), seed, None)
    run_unit(unit, out)
    rows = unit.folder(out).metrics().to_pylist()
    return [row["value"] for row in rows if (row["split"], row["metric"]) == ("validation", "top_choice")]


def from_the_first_version(training: Training) -> Training:
    """Return the training with its personal part from the first round on."""
    if isinstance(training, OwnTraining) or not isinstance(training.personal, FineTune | Vector):
        return training
    return msgspec.structs.replace(training, personal=msgspec.structs.replace(training.personal, from_version=0))


SLOW = {
    f"hartmann_2018_{name}": pytest.mark.long for name in ("million", "private_rounds", "compression", "structured")
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem, marks=SLOW.get(file.stem, ()))
        for file in sorted(PAPERS.glob("hartmann_2018_*.toml"))
    ],
)
def test_every_variant_of_a_file_can_begin(file: Path, tmp_path: Path) -> None:
    experiment = with_noise(experiment_from_toml(file))
    units = [unit for unit in units_of(experiment) if unit.seed == experiment.seeds[0] and unit.baseline is None]
    assert len(units) == len(experiment.variants)
    for unit in units[:: few_or_all(-(-len(units) // 4), 1)]:
        data = unit.setup.data
        users = max(400, getattr(unit.setup.sampling, "clients", 0))
        most = {"most": 300} if data.users is None else {"users": users, "judges": 50}
        small = msgspec.structs.replace(data, **most)
        training = from_the_first_version(unit.setup.training)
        setup = msgspec.structs.replace(unit.setup, rounds=1, data=small, training=training)
        outcome = run_unit(replace(unit, setup=setup), tmp_path)
        assert outcome.rounds == 1


def test_rprop_with_finite_differences_passes_99_percent_within_15_iterations(tmp_path: Path) -> None:
    accuracy = curve("hartmann_2018_published.toml", "RProp, numeric", 15, tmp_path)
    assert accuracy[0] < 0.85
    assert max(accuracy) > 0.99


def test_votes_for_zeros_drown_the_other_votes(tmp_path: Path) -> None:
    kept = curve("hartmann_2018_signs.toml", "signs, zeros abstain", 12, tmp_path)
    drowned = curve("hartmann_2018_signs.toml", "signs, zeros vote up", 12, tmp_path)
    assert kept[-1] > kept[0] + 0.02
    assert drowned[-1] < kept[-1] - 0.02


@pytest.mark.long
def test_users_make_up_for_masks_as_in_figure_13(tmp_path: Path) -> None:
    changes = ("rounds=45", "seeds=3", "evaluation.baselines=[]")
    experiment = experiment_from_toml(PAPERS / "hartmann_2018_figure_13.toml", changes)
    rprop = {name: setup for name, setup in experiment.variants.items() if not name.startswith("gradient descent")}
    run_experiment(msgspec.structs.replace(experiment, variants=rprop), tmp_path / "out", jobs=2)
    found = curves(tmp_path / "out", "validation", "top_choice")
    taken = {name: np.mean([first or 45 for first in curve.first_above(0.97)]) for name, curve in found.items()}
    whole = taken["200 users, all weights"]
    assert taken["1,000 users, a fifth"] == pytest.approx(whole, rel=0.3)
    assert taken["2,000 users, a tenth"] == pytest.approx(whole, rel=0.3)
    assert taken["200 users, a fifth"] > 1.5 * whole
    assert taken["200 users, a tenth"] > 2 * whole


@pytest.mark.long
def test_there_is_something_to_personalize_where_users_differ_in_what_they_want(tmp_path: Path) -> None:
    """The thesis's figure 14, up to the last iteration before the drift; a correct program fails in 1 of 1,000 runs."""
    changes = ("rounds=19", "seeds=6", "evaluation.every=18")
    gains = {}
    for file, name in (("", "transfer"), ("_gain", "transfer, no tastes")):
        experiment = experiment_from_toml(PAPERS / f"hartmann_2018_personalization{file}.toml", changes)
        kept = {name: experiment.variants[name]}
        run_experiment(msgspec.structs.replace(experiment, variants=kept), tmp_path / name, jobs=2)
        gains[name] = curves(tmp_path / name, "gain", "top_choice")[name]
    assert gains["transfer"].rounds == [0, 18, 19]
    at_first, differing = ([values[at] for values in gains["transfer"].of_seeds] for at in (0, 1))
    assert at_first == [0.0] * 6
    assert stats.ttest_1samp(differing, 0, alternative="greater").pvalue < 1e-3
    assert abs(np.mean([values[1] for values in gains["transfer, no tastes"].of_seeds])) < 0.004


@pytest.mark.long
@pytest.mark.thorough
def test_strata_lower_the_variance_of_the_update_and_clusters_that_are_alike_inside_raise_it() -> None:
    setup = shortened("hartmann_2018_sampling.toml", "RProp, simple", 0)
    spreads = update_spreads(setup, seed=1, draws=400, searches=(60, 60))
    assert list(spreads) == list(SCHEMES)
    assert 0.8 < spreads["simple"].of_simple < 1.25
    assert spreads["stratified by region"].of_simple < 0.8
    assert spreads["one of 5 regions"].of_simple > 20
    assert 0.7 < spreads["one of 100 villages"].of_simple < 1.4
    assert spreads["stratified by region"].signs_wrong < spreads["simple"].signs_wrong
    if in_full():
        assert update_spreads(setup, seed=1, draws=400, searches=(60, 60)) == spreads
