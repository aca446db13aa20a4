"""The experiment's file: valid settings, and one sentence for each error."""

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedping.experiments.laboratory.settings import Experiment, experiment_from_toml, experiment_of
from fedping.experiments.laboratory.settings.merging import assignments, axis, laid_over, merged, nested, with_grid
from fedping.protocol import settings_file
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.pipeline import GradientDescent, RProp
from fedping.protocol.training import LocalSteps, OneGradient
from tests.support.laboratory import small

SMALL: dict[str, Any] = {"rounds": 3, "model": {"name": "logistic-regression"}, "data": {"name": "breast-cancer"}}


def made(**changes: Any) -> Experiment:
    return experiment_of({**SMALL, **changes}, name="small", folder=Path("here"))


def test_what_is_not_said_is_the_plain_federated_gradient_descent() -> None:
    experiment = made()
    assert (experiment.name, experiment.seeds, list(experiment.variants)) == ("small", (1,), ["federated"])
    setup = experiment.variants["federated"]
    assert setup.training == OneGradient()
    assert setup.pipeline.optimizer == GradientDescent()
    assert (setup.pipeline.weighting, setup.pipeline.min_clients, setup.where) == ("examples", 1, "memory")


def test_a_number_of_seeds_is_the_seeds_from_one_on() -> None:
    assert made(seeds=3).seeds == (1, 2, 3)
    assert made(seeds=[7, 5]).seeds == (7, 5)


def test_variants_change_settings_by_table_or_by_dotted_key() -> None:
    local = {"algorithm": "local", "rate": 0.5, "steps": 4}
    variants = [
        {"name": "plain"},
        {"name": "more", "training.steps": 9, "rounds": 5},
        {"name": "other", "training": {"algorithm": "gradient"}, "server": {"optimizer": {"optimizer": "rprop"}}},
    ]
    experiment = made(training=local, server={"optimizer": {"rate": 0.1}, "weighting": "client"}, variants=variants)
    plain, more, other = experiment.variants.values()
    assert plain.training == LocalSteps(rate=0.5, steps=4)
    assert (more.training, more.rounds) == (LocalSteps(rate=0.5, steps=9), 5)
    assert other.training == OneGradient()
    assert other.pipeline.optimizer == RProp()
    assert {each.pipeline.weighting for each in (plain, more, other)} == {"client"}
    assert plain.pipeline.optimizer == GradientDescent(rate=0.1)


def test_another_choice_replaces_the_table_and_the_same_choice_does_not() -> None:
    below = {"training": {"algorithm": "local", "rate": 1.0, "epochs": 2}}
    assert merged(below, {"training": {"algorithm": "local", "rate": 3.0}})["training"]["epochs"] == 2
    assert merged(below, {"training": {"algorithm": "gradient"}})["training"] == {"algorithm": "gradient"}
    data = {"data": {"name": "digits", "standardise": True}}
    assert merged(data, {"data": {"name": "mnist"}})["data"] == {"name": "mnist", "standardise": True}
    assert merged(data, {"data": {"users": 3}})["data"] == {"users": 3}
    assert below == {"training": {"algorithm": "local", "rate": 1.0, "epochs": 2}}


def test_settings_on_the_command_line_are_written_as_in_toml() -> None:
    assert assignments(["rounds=10", "data.name=digits", "seeds = [1, 2]", "training.rate=1e-3"]) == {
        "rounds": 10,
        "data": {"name": "digits"},
        "seeds": [1, 2],
        "training": {"rate": 0.001},
    }
    assert nested({"a.b": 1, "a": {"c.d": 2}}) == {"a": {"b": 1, "c": {"d": 2}}}
    for keys in (("data.most", "data.name"), ("data.name", "data.most")):
        assert nested(dict.fromkeys(keys, 1)) == {"data": {"most": 1, "name": 1}}, "whichever of them is said first"


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('rounds = 1\n[model]\nname = "m"\n[data]\nfile = "rows.csv"\ntarget = "y"\n')
    experiment = experiment_from_toml(path, ["rounds=2"])
    assert experiment.name == "own"
    assert experiment.variants["federated"].data.file == str(tmp_path / "rows.csv")
    assert experiment.variants["federated"].rounds == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"round": 3}, "there is no setting 'round'; did you mean 'rounds'?"),
        ({"model": {"hidden": 3}}, "[model] has no name"),
        ({"data": {"name": "a", "file": "b"}}, "one of 'name', 'file' and 'users'"),
        ({"data": {}}, "one of 'name', 'file' and 'users'"),
        ({"data": {"users": 5, "standardise": True}}, "'standardise', which is not a setting of synthetic users"),
        ({"data": {"name": "a", "target": "b"}}, "are of a 'file'"),
        ({"data": {"name": "a", "clip_beyond": 3}}, "needs 'clip'"),
        ({"data": {"file": "b.csv"}}, "needs 'target'"),
        ({"data": {"name": "a", "test": 0.5, "validation": 0.5}}, "leave nothing to train on"),
        ({"data": {"name": "a", "tset": 0.5}}, "[data] has no setting 'tset'; did you mean 'test'?"),
        ({"engine": "spark"}, "exclude each other"),
        ({"early_stopping": {"patience": 3}}, "needs validation examples"),
        ({"early_stopping": {}}, "needs 'patience' or 'rise'"),
        ({"training": {"algorithm": "local", "rate": 1.0}}, "'epochs' or 'steps'"),
        ({"training": {"algorithm": "global"}}, "'algorithm' in [training] is 'global'; choose one of gradient, local"),
        ({"sampling": {"sampling": "uniform"}}, "[sampling] needs the setting 'clients'"),
        ({"seeds": [4, 4]}, "seed 4 is listed twice"),
        ({"seeds": 0}, "'seeds' is 0: expected a whole number >= 1"),
        ({"rounds": "ten"}, "'rounds' is 'ten': expected a whole number, got a text"),
        ({"name": "a b"}, "'name' is 'a b': expected a name of letters, digits"),
        ({"where": "htp"}, "'where' is 'htp'; choose one of files, http, memory"),
        (
            {"data": {"name": "digits", "test": "author"}},
            "'test' in [data] is 'author'; choose one of authors, a number",
        ),
        (
            {"server": {"optimizer": {"optimizer": "adam", "rat": 1}}},
            "[server.optimizer] has no setting 'rat'; did you",
        ),
        (
            {"server": {"optimizer": "adam"}},
            "in [server] is 'adam': expected a table, got a text; write server.optimizer.optimizer = \"adam\"",
        ),
        (
            {"server": {"optimizer": "adm"}},
            "got a text; server.optimizer.optimizer makes the choice; did you mean 'adam'?",
        ),
        (
            {"optimizer": {"rate": 0.1}},
            "there is no setting 'optimizer'; did you mean 'server.optimizer.rate' or 'training.optimizer.rate' or ",
        ),
        ({"weighting": "client"}, "there is no setting 'weighting'; did you mean 'server.weighting'?"),
        ({"server": {"rate": 0.1}}, "[server] has no setting 'rate'; did you mean 'optimizer.rate'?"),
        ({"privacy": "central"}, "'privacy' is 'central': expected a table, got a text"),
        (
            {"partition": {"partition": "iid", "clients": 3, "alpha": 1}},
            "no setting 'alpha'; choose one of clients, least",
        ),
        (
            {"evaluation": {"baselines": ["all"]}},
            "value 1 of 'baselines' in [evaluation] is 'all'; choose one of central",
        ),
        ({"data": {"users": 9, "groups": [{"shre": 1}]}}, "has no setting 'shre'; did you mean 'share'?"),
        ({"variants": [{"rounds": 3}]}, "variant 1 has no name"),
        ({"variants": [{"name": "a"}, {"name": "a"}]}, "two variants are named 'a'"),
        ({"variants": [{"name": "a/b"}]}, "without '/'"),
        ({"variants": [{"name": "local"}]}, "a variant is named 'local', like the baseline"),
        ({"variants": [{"name": "../b"}]}, "cannot be a folder's name"),
        ({"variants": [{"name": "a", "training.": 3}]}, "'training.' is not the name of a setting"),
        ({"variants": [{"name": "a", "server": {"min_clients": 0}}]}, "variant 'a'"),
    ],
)
def test_a_file_that_cannot_be_meant_is_told_in_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        made(**changes)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_change_that_sets_nothing_is_told() -> None:
    with pytest.raises(InvalidSettings, match="does not set anything"):
        assignments(["rounds"])


VARIANTS = """
rounds = 3
[model]
name = "m"
[data]
name = "d"
[server]
weighting = "client"
[[variants]]
name = "a"
training = { algorithm = "local", rate = 0.5, epochs = 1 }
[[variants]]
name = "b"
training = { algorithm = "local", rate = 0.1, epochs = 1 }
"""


def test_a_word_and_a_shortened_name_on_the_command_line_say_what_to_write(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(VARIANTS)
    with pytest.raises(InvalidSettings, match=r'write server\.optimizer\.optimizer = "adam"$'):
        experiment_from_toml(path, ["server.optimizer=adam"])
    changed = experiment_from_toml(path, ["server.optimizer.optimizer=adam"])
    assert type(changed.variants["a"].pipeline.optimizer).__name__ == "Adam"
    with pytest.raises(InvalidSettings, match=r"did you mean 'server\.optimizer\.rate' or 'training"):
        experiment_from_toml(path, over=["optimizer.rate=0.1,0.2"])


def test_a_change_that_no_variant_heeds_is_told(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(VARIANTS)
    with pytest.raises(InvalidSettings, match="3 changes nothing, because every variant"):
        experiment_from_toml(path, ["rounds=5", "training.rate=3"])
    for harmless in ("rounds=3", "where=memory", "seeds=1", "server.weighting=client"):
        assert experiment_from_toml(path, [harmless]) == experiment_from_toml(path)
    assert experiment_from_toml(path, ["training.batch=4"]).digest != experiment_from_toml(path).digest
    assert experiment_from_toml(path, ["where=http", "engine=spark", "rounds=1", "rounds=2"]).variants["a"].rounds == 2
    with pytest.raises(InvalidSettings, match="'variants' is 3: expected a list"):
        experiment_from_toml(path, ["variants=3"], ["rounds=3,4"])
    swept = experiment_from_toml(path, [], ["training.rate=3,4"])
    assert {setup.training.rate for setup in swept.variants.values() if isinstance(setup.training, LocalSteps)} == {
        3,
        4,
    }


def test_experiments_differ_in_their_digest_if_they_differ_at_all() -> None:
    assert made().digest == made().digest
    assert made().digest != made(rounds=4).digest
    assert made().digest != made(seeds=2).digest


def test_a_grid_has_a_variant_at_every_point() -> None:
    local = {"algorithm": "local", "rate": 0.5, "steps": 4}
    raw = with_grid({**SMALL, "training": local}, ["training.rate=0.1,0.3", "sampling={sampling='uniform', clients=2}"])
    experiment = experiment_of(raw, name="small", folder=Path())
    assert [setup.training for setup in experiment.variants.values()] == [
        LocalSteps(rate=0.1, steps=4),
        LocalSteps(rate=0.3, steps=4),
    ]
    assert len({setup.sampling for setup in experiment.variants.values()}) == 1


def test_a_grid_over_variants_has_each_of_them_at_every_point() -> None:
    raw = with_grid({**SMALL, "variants": [{"name": "a"}, {"name": "b", "rounds": 7}]}, ["data.test=0.1,0.2"])
    variants = experiment_of(raw, name="small", folder=Path()).variants
    assert list(variants) == ["a, test=0.1", "a, test=0.2", "b, test=0.1", "b, test=0.2"]
    assert [(setup.rounds, setup.data.test) for setup in variants.values()] == [(3, 0.1), (3, 0.2), (7, 0.1), (7, 0.2)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rounds=1, 2", ("rounds", [1, 2])),
        ("data.name=digits,mnist", ("data.name", ["digits", "mnist"])),
        ("data.standardise=true,false", ("data.standardise", [True, False])),
        ("x=[1,2],[3]", ("x", [[1, 2], [3]])),
    ],
)
def test_an_axis_is_a_setting_and_its_values(text: str, found: tuple[str, list[Any]]) -> None:
    assert axis(text) == found


@pytest.mark.parametrize("over", [["rounds"], ["=3"], ["rounds="], ["rounds=1", "rounds=2"]])
def test_what_is_no_grid_is_told(over: list[str]) -> None:
    with pytest.raises(InvalidSettings, match=r"not an axis|swept twice"):
        with_grid(SMALL, over)


def test_a_grid_that_is_too_large_is_refused_before_it_is_made() -> None:
    axes = [f"{name}={','.join(map(str, range(10_000)))}" for name in ("rounds", "training.rate", "seeds")]
    with pytest.raises(InvalidSettings, match=r"the sweep has 1,000,000,000,000 points, and at most 10,000"):
        with_grid(SMALL, axes)


def test_the_example_of_the_reference_can_be_meant() -> None:
    text = (Path(__file__).parents[2] / "docs/reference.md").read_text()
    example = text.partition("## Laboratory experiment file")[2].partition("```toml\n")[2].partition("```")[0]
    experiment = experiment_of(tomllib.loads(example), name="reference", folder=Path())
    assert list(experiment.variants) == ["FedAvg", "FedAvg, 5 clients"]
    assert [setup.pipeline.weighting for setup in experiment.variants.values()] == ["examples", "client"]


BELOW = """
rounds = 3
model.name = "logistic-regression"
data.name = "breast-cancer"
data.validation = 0.1
lateness.shares = [0.5, 0.5]
early_stopping.patience = 2
training = { algorithm = "gradient", personal = { by = "fine_tune", rate = 1.0, steps = 7 } }
[[variants]]
name = "all of it"
[[variants]]
name = "none"
training.personal = {}
lateness = {}
early_stopping = {}
privacy = {}
"""


def test_an_empty_table_of_a_variant_takes_away_the_one_below(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(BELOW)
    every, none = experiment_from_toml(file).variants.values()
    assert None not in (every.lateness, every.early_stopping)
    assert every.training != OneGradient()
    assert (none.lateness, none.early_stopping, none.privacy, none.training) == (None, None, None, OneGradient())


def test_an_empty_table_on_the_command_line_takes_it_from_the_file_and_in_a_sweep_from_a_point(
    tmp_path: Path,
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(BELOW)
    every, _ = experiment_from_toml(file, ["training.personal={}"]).variants.values()
    assert every.training == OneGradient()
    swept = experiment_from_toml(file, (), ['training.personal={}, { by = "fine_tune", rate = 2.0 }']).variants
    assert [getattr(setup.training, "personal", None) is None for setup in swept.values()] == [True, False] * 2


def test_another_table_with_nothing_in_it_keeps_what_is_below() -> None:
    assert laid_over({"co_op": {"lower": 1}, "data": {"name": "a"}}, {"co_op": {}, "data": {}}) == {
        "co_op": {"lower": 1},
        "data": {"name": "a"},
    }


@pytest.mark.parametrize(
    ("there", "said"),
    [((), ", and no extension of that name is loaded; install"), (("spread",), "; choose one of spread, ")],
)
def test_a_metric_of_no_extension_is_told_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(settings_file, "all_of", lambda kind: [SimpleNamespace(name=name) for name in there])
    with pytest.raises(InvalidSettings, match=f"is 'f2'{said}"):
        small(evaluation__metrics=["f2"])
