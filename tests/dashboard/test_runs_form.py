"""The form has a field for every setting, and shows the entered values."""

import string
import tomllib
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from fedping.client_sim.attacks import Attack
from fedping.client_sim.data import DATASETS, ORIGINALS, Partition
from fedping.client_sim.learning.networks.own import own_networks
from fedping.client_sim.learning.registry import LEARNERS
from fedping.client_sim.sampling import Sampling
from fedping.dashboard.runs.form.nodes import Choice, choices_of, fields_of
from fedping.dashboard.runs.form.schema import laboratory_form, laboratory_nodes, study_nodes
from fedping.dashboard.runs.form.values import Arm, Difference, arms_of, filled_form, input_of, settings, tables_of
from fedping.dashboard.runs.judging import Judged, Problem, judge, preset, presets
from fedping.experiments.laboratory.models import OfSpec, features_spec, models
from fedping.experiments.laboratory.settings import experiment_of
from fedping.experiments.laboratory.settings.experiment import Head
from fedping.experiments.laboratory.settings.setup import Setup
from fedping.experiments.simulate.settings import Experiment as StudyExperiment
from fedping.protocol import extensions
from fedping.protocol.extensions import Own, all_of, is_own
from fedping.protocol.pipeline import Combination, Optimizer
from fedping.protocol.settings_file import toml_text
from fedping.protocol.training import Training

LABORATORY = [each.id for each in presets() if each.kind == "laboratory"]


def experiment(tables: dict[str, Any]):
    return experiment_of(tables, name="experiment", folder=Path())


def choice(path: str) -> Choice:
    return next(each for each in choices_of(laboratory_nodes()) if each.path == path)


def settings_of(kind: Any, path: str = "") -> set[str]:
    """Return the dotted names of all settings below a type, for all choices."""
    found: set[str] = set()
    info = kind if isinstance(kind, msgspec.inspect.Type) else msgspec.inspect.type_info(kind)
    inside = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    structs = [each for each in inside if isinstance(each, msgspec.inspect.StructType) and not is_own(each)]
    for struct in structs:
        found |= {f"{path}.{struct.tag_field}".strip(".")} if struct.tag_field else set()
        for field in struct.fields:
            found |= settings_of(field.type, f"{path}.{field.encode_name}".strip("."))
    return found or {path}


def test_every_setting_of_the_file_has_a_field():
    wanted = (settings_of(Head) | settings_of(Setup) | settings_of(OfSpec, "model")) - {"variants", "model"}
    wanted -= {"data.code"}  # computed, not entered
    wanted = {path for path in wanted if path.partition(".")[0] != "spec"}  # [model] is its short form
    wanted |= {f"model.{ask.name}" for model in models() for ask in model.settings}
    paths = {field.path for field in fields_of(laboratory_nodes())}
    paths |= {f"{each.path}.{each.tag}" for each in choices_of(laboratory_nodes()) if each.tag}
    as_a_whole = {path for path in paths if any(other.startswith(f"{path}.") for other in wanted)}
    missing = {path for path in wanted if path not in paths and not any(path.startswith(f"{at}.") for at in as_a_whole)}
    assert missing == set()
    assert as_a_whole == {"model.step"}  # entered as a table in TOML
    assert wanted - {"name", "seeds"} - {path for path in wanted if path.startswith("model.step.")} <= set(settings())


def test_whatever_is_registered_can_be_chosen_and_is_explained():
    """A new optimizer, model, partition or data set appears automatically."""
    for path, kinds in (
        ("server.optimizer", Optimizer),
        ("server.aggregate", Combination),
        ("partition", Partition),
        ("sampling", Sampling),
        ("training", Training),
        ("attack", Attack),
    ):
        tags = {str(kind.__struct_config__.tag): kind.__doc__ for kind in get_args(kinds) if not issubclass(kind, Own)}
        if path == "training":
            tags |= {each.name: each.help for each in all_of("client_algorithm")}
            assert {"scaffold", "feddyn", "apfl"} <= tags.keys()
        if path == "server.aggregate":
            tags |= {each.name: each.help for each in all_of("aggregation")}
            assert "fednova" in tags
        options = {option.value: option.help for option in choice(path).options if option.value}
        assert options.keys() == tags.keys()
        assert all(help and " ".join(tags[tag].split()).startswith(help) for tag, help in options.items())
    offered = {option.value: option.help for option in choice("model").options}
    assert offered.keys() == {*LEARNERS, "features", *own_networks()}
    assert all(offered.values())
    data_set = next(field for field in fields_of(laboratory_nodes()) if field.path == "data.name")
    assert dict(data_set.options).keys() == {**DATASETS, **ORIGINALS}.keys() == data_set.about.keys()


def test_a_network_of_an_extension_is_offered_with_what_it_does_not_get_from_the_data(monkeypatch):
    monkeypatch.setattr(extensions, "_registered", dict(extensions._registered))

    def wide(*, features: int, classes: int, width: int = 7):
        """A network's hidden layer."""

    extensions.register("model", "wide", wide)
    laboratory_form.cache_clear()
    laboratory_nodes.cache_clear()
    offered = next(option for option in choice("model").options if option.value == "wide")
    names = [field.path for field in offered.children]
    assert names[:3] == ["model.width", "model.seed", "model.precision"]
    assert not {"model.features", "model.classes", "model.gradient"} & {*names}
    laboratory_form.cache_clear()
    laboratory_nodes.cache_clear()


def test_no_two_inputs_have_the_same_name():
    names = [field.name for field in fields_of(laboratory_nodes())]
    names += [each.name for each in choices_of(laboratory_nodes())]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", LABORATORY)
def test_a_shipped_experiment_comes_out_of_the_form_as_it_went_in(name):
    tables = tomllib.loads(preset(name).text)
    filled = filled_form(tables)
    assert filled.unplaced == []
    text = toml_text(tables_of(filled.values, filled.arms))
    assert experiment(tomllib.loads(text)) == experiment(tables)
    assert isinstance(judge(text), Judged)


def test_a_form_that_was_hardly_filled_in_describes_what_is_usual():
    filled = {"rounds": "3", "data@set.name": "digits", "model.name": "network", "seeds": "[7, 11]"}
    tables = tables_of({**filled_form({}).values, **filled}, [])
    setup = experiment(tables).variants["federated"]
    assert tables["model"] == {"name": "network"}
    assert (setup.rounds, setup.data.name, setup.where) == (3, "digits", "memory")
    assert experiment(tables).seeds == (7, 11)


def test_a_table_that_may_be_absent_is_left_out_unless_something_is_chosen():
    tables = tables_of({**filled_form({}).values}, ())
    assert "attack" not in tables
    chosen = {"attack.attack": "sign_flip", "attack@sign_flip.scale": "3", "attack@scale.share": "0.5"}
    assert tables_of({**filled_form({}).values, **chosen}, ())["attack"] == {"attack": "sign_flip", "scale": 3}


def test_only_the_settings_of_what_is_chosen_count():
    form = {
        "training.algorithm": "gradient",
        "training@local.rate": "0.1",
        "training@gradient.batch": "8",
        "rounds": "1",
    }
    assert tables_of(form, [])["training"] == {"algorithm": "gradient", "batch": 8}
    form = {"data@": "users", "data@users.users": "50", "data@set.test": "0.5", "partition@iid.clients": "3"}
    form["data@users.applies"] = "on"
    assert tables_of(form, [])["data"] == {"users": 50}
    assert "partition" not in tables_of(form, [])


def test_the_form_of_a_file_with_a_line_has_the_settings_and_defaults_of_the_line():
    tables = {
        "rounds": 3,
        "model": {"name": "logistic-regression"},
        "data": {"name": "digits"},
        "line": {"training": {"algorithm": "local", "epochs": 2, "rate": 0.5}, "pipeline": {"weighting": "ping"}},
        "variants": [{"name": "slow", "line.training.rate": 0.1}],
    }
    assert isinstance(judge(toml_text(tables)), Judged)
    filled = filled_form(tables)
    assert filled.unplaced == []
    assert filled.values["server.min_clients"] == "100"
    assert experiment(tables_of(filled.values, filled.arms)).digest == experiment(tables).digest
    assert filled_form({**tables, "line": {"guard": {}}}).unplaced == ["line"]


def test_a_setting_that_the_form_does_not_know_is_named():
    filled = filled_form({"rounds": 1, "training": {"algorithm": "local", "pace": 3}, "data": 4, "wind": {"speed": 1}})
    assert sorted(filled.unplaced) == ["data", "training.pace", "wind"]


def test_variants_are_read_row_by_row():
    form = {
        "arm.2.name": "second",
        "arm.0.name": "first",
        "arm.0.key.0": "training.algorithm",
        "arm.0.value.0": "local",
        "arm.0.key.1": "training.rate",
        "arm.0.value.1": "0.1",
        "arm.1.name": " ",
        "arm.1.key.0": "",
        "arm.1.value.0": "",
        "arm.3.key.0": "rounds",
        "arm.3.value.0": "",
    }
    arms = arms_of(form)
    assert arms == [
        Arm("first", (Difference("training.algorithm", "local"), Difference("training.rate", "0.1"))),
        Arm("second"),
    ]
    assert tables_of({}, arms)["variants"] == [
        {"name": "first", "training": {"algorithm": "local", "rate": 0.1}},
        {"name": "second"},
    ]


@pytest.mark.parametrize(
    ("before", "after", "name", "says"),
    [
        ("clients = 20", "clients = 0", "partition@iid.clients", "expected a whole number >= 1"),
        ("rate = 1.0 }", 'rate = "x" }', "server.optimizer@gradient_descent.rate", "expected a number"),
        ("l2 = 1e-3", "l2 = -1", "model@logistic-regression.l2", "at least 0"),
        ("rounds = 60", "", "rounds", "is missing"),
        ("rounds = 60", "rounds = 60\nengine = 'spark'", None, "exclude each other"),
        ('"breast-cancer"\ntest', '"brest"\ntest', "data@set.name", "there is no data set"),
        ("share = 0.25", "share = 2.5", "arm.4.value.4", "expected a number <= 1"),
        ('name = "FedGD+"', 'name = "FedGD"', None, "two variants are named"),
        ("steps = 10, rate", "rate", "arm.1.name", "[training]: local training needs 'epochs' or 'steps'"),
        ("seeds = 5", "seeds = [1, 1]", None, "listed twice"),
    ],
)
def test_a_problem_is_shown_where_it_is(before, after, name, says):
    text = preset("breast_cancer").text.replace(before, after, 1)
    filled = filled_form(tomllib.loads(text))
    problem = judge(text)
    assert isinstance(problem, Problem)
    assert says in problem.sentence
    assert input_of(problem, filled.values, filled.arms) == name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rounds = = 1", "not valid TOML"),
        ("rounds = 1", "not an experiment"),
        ('study = "none.toml"\nclients = 5', "not shipped"),
        ('study = "demo.toml"\nclients = 0\noptimization = { iterations = 1 }', "'clients' is 0"),
        ('rounds = 1\n[model]\nname = "own"\n[data]\nname = "digits"', "needs the setting 'function'"),
        (
            'rounds = 1\n[model]\nname = "linear-regression"\n[data]\nfile = "x.csv"\ntarget = "y"',
            "give its absolute path",
        ),
        (
            'rounds = 1\n[model]\nname = "linear-regression"\n[data]\nfile = "/none/x.csv"\ntarget = "y"',
            "may name files below",
        ),
        ('rounds = 1\n[model]\nname = "network"\nhiden = 3\n[data]\nname = "digits"', "did you mean 'hidden'"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_sentence(text, says):
    problem = judge(text)
    assert isinstance(problem, Problem)
    assert says in problem.sentence


def test_code_of_ones_own_is_not_run_to_judge_it(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("raise SystemExit('run by the judge')")
    monkeypatch.syspath_prepend(tmp_path)
    model = 'rounds = 1\n[model]\nname = "own"\nfunction = "mine:loss"\nweights = 3\n[data]\nname = "digits"'
    problem = judge(model)
    assert isinstance(problem, Problem)
    assert "that the dashboard was started with" in problem.sentence


def test_the_study_of_a_shipped_experiment_comes_with_it():
    judged = judge(preset("demo_study").text)
    assert isinstance(judged, Judged)
    assert judged.kind == "study"
    assert list(judged.beside) == ["demo.toml"]


words = st.text(string.ascii_letters + "ä-_ .\"\\'#[]=\n\t\x7f\x01", max_size=8)
plain = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    words,
    st.lists(st.integers(0, 9), max_size=3),
)
tables = st.recursive(
    st.dictionaries(words, plain, max_size=3),
    lambda inner: st.dictionaries(words, st.one_of(plain, inner, st.lists(inner, min_size=1, max_size=2)), max_size=3),
    max_leaves=8,
)


@settings_of_hypothesis(max_examples=40, deadline=None)
@given(tables)
def test_toml_reads_as_what_was_written(raw):
    assert tomllib.loads(toml_text(raw)) == raw


STUDIES = [each.id for each in presets() if each.kind == "study"]


def test_every_setting_of_a_study_s_experiment_has_a_field():
    wanted = settings_of(StudyExperiment)
    paths = {field.path for field in fields_of(study_nodes())}
    paths |= {f"{each.path}.{each.tag}" for each in choices_of(study_nodes()) if each.tag}
    assert wanted - paths == set()
    assert all(field.label for field in fields_of(study_nodes()))


@pytest.mark.parametrize("id", STUDIES)
def test_the_form_of_a_study_says_what_it_was_filled_with(id):
    tables = tomllib.loads(preset(id).text)
    filled = filled_form(tables)
    assert not filled.unplaced
    text = toml_text(tables_of(filled.values, filled.arms))
    assert msgspec.convert(tomllib.loads(text), StudyExperiment) == msgspec.convert(tables, StudyExperiment)
    assert judge(text).kind == "study"


@pytest.mark.parametrize(
    ("input", "said"),
    [
        ("clients", "none"),
        ("study", "nowhere.toml"),
        ("optimization.iterations", "0.5"),
        ("evaluation@use.ticks", "-1"),
        ("optimization.length@time.ticks", "0"),
        ("users.pages", "1"),
    ],
)
def test_a_problem_of_a_study_s_experiment_is_told_of_its_input(input, said):
    filled = filled_form(tomllib.loads(preset("demo_study").text))
    values = {**filled.values, input: said}
    problem = judge(toml_text(tables_of(values, [])))
    assert isinstance(problem, Problem)
    assert input_of(problem, values, []) == input


def test_the_model_of_features_can_be_chosen_and_comes_back_as_it_was() -> None:
    (option,) = [each for each in choice("model").options if each.value == "features"]
    assert "your own features" in option.help
    assert all(field.help for field in fields_of(option.children))
    tables = {
        "data": {"file": "lists.csv", "choice": "list", "target": "chosen", "client": "visitor"},
        "model": {
            "name": "features",
            "features": [{"kind": "number", "name": "shop_score", "start": 1.0}, {"kind": "flag", "name": "in_stock"}],
            "loss": "pairwise",
            "places": 5,
        },
    }
    filled = filled_form(tables)
    assert not filled.unplaced
    read = tables_of(filled.values, ())
    assert {name: read[name] for name in tables} == tables
    (example,) = [field.example for field in fields_of(option.children) if field.key == "features"]
    assert tomllib.loads(f"features = {example}")["features"] == tables["model"]["features"]
    spec = features_spec(read["model"])
    assert (spec.loss, spec.names[:3]) == ("pairwise", ("shop_score", "in_stock", "place 2"))
