"""`fedping study check` rejects what no client can do, in one sentence, and accepts a product's own model."""

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fedping
from fedping.client_sim.learning import LEARNERS, model_spec
from fedping.client_sim.models import FRECENCY_NAMES, LINEAR_15_NAMES
from fedping.main import main
from fedping.protocol import extensions

UNBOUNDED = "takes the mean of updates of any length"
STEP = {"start": 0.1, "min": 1e-6, "max": 50.0}
LOGISTIC = {"model": "logistic-regression", "settings": {"features": 30}}
LOCAL = {"algorithm": "local", "epochs": 1, "rate": 1.0}
K_MEANS = {"model": "k-means", "settings": {"features": 2, "clusters": 3, "counts": False}}
RECLUSTER = {
    "aggregate": {"by": "recluster"},
    "optimizer": {"optimizer": "gradient_descent", "rate": 1.0},
}


def weights(names: Any, **more: Any) -> dict[str, Any]:
    return {"weights": [{"name": name, "start": 1.0, "step": STEP, **more} for name in names]}


def blocks(**shapes: list[int]) -> dict[str, Any]:
    return {"blocks": [{"name": name, "shape": shape, "step": STEP} for name, shape in shapes.items()]}


FRECENCY = {"model": "frecency-2018", **weights(FRECENCY_NAMES)}
ARRAYS = blocks(coefficients=[30], intercept=[1])
CENTROIDS = blocks(centroids=[3, 2])


def study(spec: dict[str, Any], pings: str = "model-update", **line: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "pings": pings,
        "arms": [{"name": "treatment", "share": 0.5, "line": "main", "applies": True, "submits": True}],
        "lines": [{"name": "main", "spec": {"name": "mine", **spec}, **line}],
    }


def written(folder: Path, described: dict[str, Any]) -> Path:
    file = folder / "mine.toml"
    file.write_text("".join(f"{key} = {inline(value)}\n" for key, value in described.items()), encoding="utf-8")
    return file


def inline(value: Any) -> str:
    """Return a value as TOML, with inline tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(one)}" for key, one in value.items() if one is not None) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def checked(
    folder: Path, capsys: pytest.CaptureFixture[str], described: dict[str, Any], *options: str
) -> tuple[int, str, list[str]]:
    """Check a study, and that its creation gives the same result; return the exit code, the answer and the warnings."""
    file = written(folder, described)
    codes, answers = [], []
    for command in (["check"], ["create", "--store", str(folder / "store")]):
        codes.append(main(["study", *command, str(file), *options]))
        answers.append(capsys.readouterr())
    assert codes[0] == codes[1]
    assert answers[0].err == answers[1].err
    assert (folder / "store" / "mine").exists() == (codes[0] == 0)
    assert "Traceback" not in answers[0].err
    return codes[0], answers[0].out, answers[0].err.splitlines()


def test_whose_updates_count_and_how_much_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = {**RECLUSTER, "aggregate": {"by": "mean"}, "weighting": "examples", "most_votes": 2000}
    described = study(LOGISTIC | ARRAYS, training=LOCAL, participation=0.3, pipeline=pipeline)
    code, told, _ = checked(tmp_path, capsys, described)
    assert code == 0
    assert "one vote an example and 2,000 a client at most, at least 100 clients a round" in told
    assert "30 % of the clients send an update of a version, selected by their ids" in told


REFUSED = [
    (
        study(FRECENCY | weights(FRECENCY_NAMES[:21]), "frecency-update"),
        "[lines.spec] of line 'main' has 21 weights, but the model 'frecency-2018' has 22: ",
    ),
    (
        study({"model": "linear-15", **weights([*LINEAR_15_NAMES[:14], "banana"])}, "frecency-update"),
        "names weight 15 of 15 'banana', where the model 'linear-15' has",
    ),
    (
        study({"model": "linear-15", **weights([LINEAR_15_NAMES[1], LINEAR_15_NAMES[0], *LINEAR_15_NAMES[2:]])}),
        f"names weight 1 of 15 '{LINEAR_15_NAMES[1]}', where the model 'linear-15' has '{LINEAR_15_NAMES[0]}'",
    ),
    (
        study({"model": "frecency-2018", **blocks(w=[22])}, "frecency-update"),
        "names weight 1 of 22 'w[0]', where the model 'frecency-2018' has",
    ),
    (
        study(FRECENCY | {"model": "frecency-2081"}, "frecency-update"),
        "has the model 'frecency-2081', which is none of ours; did you mean 'frecency-2018'?",
    ),
    (
        study({**LOGISTIC, **weights([f"w{i}" for i in range(12)])}),
        "has 12 weights, but the model 'logistic-regression' with features = 30 has 31: "
        "coefficients of shape [30], intercept of shape [1]; correct the weights, or the settings",
    ),
    (study({"model": "logistic-regression", **ARRAYS}), "the model 'logistic-regression' needs the setting 'features'"),
    (
        study({**LOGISTIC, "settings": {"features": 30, "clases": 3}, **ARRAYS}),
        "the model 'logistic-regression' has no setting 'clases'; did you mean 'classes'?",
    ),
    (
        study({**LOGISTIC, **blocks(coefficients=[31])}),
        "has the block 'coefficients' of shape [31] from weight 1 on, but the model 'logistic-regression' with "
        "features = 30 has coefficients of shape [30], intercept of shape [1]; give these blocks",
    ),
    (study({**LOGISTIC, **blocks(coefficients=[15, 2], intercept=[1])}), "block 'coefficients' of shape [15, 2]"),
    (
        study({**LOGISTIC, "settings": {"features": 1}, **blocks(intercept=[1], coefficients=[1])}),
        "has the block 'intercept' in the place of 'coefficients'",
    ),
    (
        study({**LOGISTIC, "settings": {"features": 2}, **weights(["intercept[0]", "a", "b"])}),
        "has 'intercept[0]' as weight 1 of 3, where the model 'logistic-regression' has 'coefficients[0]'",
    ),
    (
        study({**LOGISTIC, **ARRAYS}, "frecency-update"),
        "which learns from examples, but the study takes frecency-update pings, which describe a ranked list. Set "
        'pings = "model-update"',
    ),
    (
        study({**LOGISTIC, **ARRAYS}, pipeline={"aggregate": {"by": "recluster"}}),
        "and its settings have no 'clusters'; reclustering is for",
    ),
    (study({**K_MEANS, **CENTROIDS}, pipeline=RECLUSTER), "its [lines.training] sends a gradient. Set training = "),
    (
        study({**K_MEANS, **CENTROIDS}, pipeline=RECLUSTER, training={**LOCAL, "sign": True}),
        "its [lines.training] sends signs alone",
    ),
    (
        study({**K_MEANS, **weights([f"c{i}" for i in range(6)], integer=True)}, pipeline=RECLUSTER, training=LOCAL),
        "Remove 'integer'",
    ),
]


@pytest.mark.parametrize(("described", "sentence"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_no_client_could_do_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], described: dict[str, Any], sentence: str
) -> None:
    code, out, said = checked(tmp_path, capsys, described)
    assert (code, out, len(said)) == (2, "", 1)
    assert said[0].startswith(f"fedping: the study file {tmp_path / 'mine.toml'}: ")
    assert sentence in said[0]


RIGHT = [
    study(FRECENCY, "frecency-update"),
    study(FRECENCY, "model-update", training={"algorithm": "local", "steps": 2, "rate": 0.1}),
    study({"model": "linear-15", **weights(LINEAR_15_NAMES, integer=True)}, "frecency-update"),
    study({**LOGISTIC, **ARRAYS}, training={**LOCAL, "batch": 8}),
    study({**LOGISTIC, **weights([f"coefficients[{i}]" for i in range(30)] + ["intercept[0]"])}),
    study({**LOGISTIC, "settings": {"features": 2}, **weights(["age", "income", "bias"])}),
    study({**LOGISTIC, **blocks(slopes=[30], bias=[1])}),
    study({**K_MEANS, **CENTROIDS}, pipeline=RECLUSTER, training=LOCAL),
]


@pytest.mark.parametrize("described", RIGHT, ids=lambda one: one["lines"][0]["spec"]["model"])
def test_what_clients_can_do_passes_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], described: dict[str, Any]
) -> None:
    code, out, said = checked(tmp_path, capsys, described)
    assert (code, said) == (0, [])
    assert "line main: " in out


@pytest.mark.parametrize("name", sorted(set(LEARNERS) - {"own", "jax"}))
def test_the_spec_that_each_model_proposes_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    sizes: dict[str, Any] = {
        "layout": "rodriguez-barroso-2020",
        "features": 16,
        "classes": 3,
        "clusters": 2,
        "items": 5,
        "factors": 2,
    }
    wanted = {
        "linear-regression": ["features"],
        "logistic-regression": ["features", "classes"],
        "network": ["features", "classes"],
        "matrix-factorization": ["items", "factors"],
        "k-means": ["features", "clusters"],
        "svm-ranking": ["features"],
        "cnn": ["features", "classes", "layout"],
        "lstm": ["features", "classes"],
        "transformer": ["features", "classes"],
    }
    spec = model_spec(name, {key: sizes[key] for key in wanted.get(name, [])})
    code, _, said = checked(tmp_path, capsys, study(msgspec.to_builtins(spec)))
    assert (code, said) == (0, [])


@pytest.mark.parametrize(
    ("training", "told", "promised"),
    [
        ({"algorithm": "gradient"}, "each number of its gradient", "protects each row itself"),
        ({"algorithm": "local", "steps": 5, "rate": 0.1}, "number of each of its steps", "protects each row"),
        ({"algorithm": "apfl", "steps": 5, "rate": 0.1},
         "must accept that rows can be reconstructed: the training 'apfl'", "must accept that its rows"),
    ],
)  # fmt: skip
def test_what_institutions_make_of_a_line_is_said_and_on_its_privacy_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], training: dict[str, Any], told: str, promised: str
) -> None:
    spec = msgspec.to_builtins(model_spec("logistic-regression", {"features": 3}))
    described = study(spec)
    described["lines"][0]["training"] = training
    out = checked(tmp_path, capsys, described)[1]
    assert told in out
    assert main(["privacy", "card", str(tmp_path / "mine.toml")]) == 0
    assert promised in capsys.readouterr().out


def test_a_model_of_the_products_own_is_warned_of_unless_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = study({"model": "house-prices", **weights(["a", "b"])})
    code, out, said = checked(tmp_path, capsys, described)
    assert code == 0
    assert "line main: house-prices, 2 weights" in out
    assert len(said) == 1
    assert said[0].startswith("fedping: warning: the study file ")
    assert "does not know, so neither its weights nor its settings are checked" in said[0]
    assert checked(tmp_path, capsys, described, "--own-model", "house-prices")[2] == []


def test_an_own_model_may_have_a_name_like_one_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = study({"model": "logistic-regression-js", **weights(["a", "b"])})
    code, _, said = checked(tmp_path, capsys, described)
    assert code == 2
    assert "did you mean 'logistic-regression'? For your own model of that name, give --own-model" in said[0]
    assert checked(tmp_path, capsys, described, "--own-model", "logistic-regression-js")[::2] == (0, [])


def test_a_study_file_runs_no_code_of_the_model_that_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('was run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    described = study({"model": "own", "settings": {"function": "trap:loss", "start": "trap:start"}, **weights(["a"])})
    code, _, said = checked(tmp_path, capsys, described)
    assert code == 0
    assert "whose code the clients bring" in said[0]


def test_what_is_odd_but_possible_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = study({**K_MEANS, **CENTROIDS}, training=LOCAL, pipeline={"aggregate": {"by": "recluster"}})
    code, _, said = checked(tmp_path, capsys, described)
    assert (code, len(said)) == (0, 1)
    assert "its optimizer does not go all the way to the new centroids" in said[0]


def test_every_line_is_checked_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = study(FRECENCY, "frecency-update")
    second = copy.deepcopy(described["lines"][0]) | {"name": "second"}
    second["spec"]["weights"].pop()
    described["lines"].append(second)
    described["arms"].append({**described["arms"][0], "name": "other", "line": "second"})
    _, _, (said,) = checked(tmp_path, capsys, described)
    assert "[lines.spec] of line 'second' has 21 weights" in said
    described["lines"].pop()
    described["arms"].pop()
    described["lines"][0]["spec"] = msgspec.to_builtins(model_spec("logistic-regression", {"features": 2}))
    described["lines"][0]["spec"]["blocks"][0]["integer"] = True
    described["arms"][0]["decays"] = True
    described["pings"] = "model-update"
    code, _, warned = checked(tmp_path, capsys, described)
    assert code == 0
    assert "is rounded to whole numbers" in warned[0]
    assert "'decays' of arm 'treatment' is about stored scores of pages" in warned[1]


def test_a_training_that_the_browser_module_refuses_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = checked(tmp_path, capsys, study(FRECENCY, "frecency-update", training=LOCAL))
    assert (code, len(said)) == (0, 1)
    assert "[lines.training] of line 'main' is 'local'" in said[0]
    assert "the browser module refuses to take part" in said[0]


@pytest.mark.parametrize(
    ("link", "told"),
    [
        ({"link": "mask", "keep": 0.5, "draw": "independent"}, "the link 'mask' with draw = \"independent\""),
        ({"link": "eden", "bits": 1}, "the link 'eden'"),
        ({"link": "mask", "keep": 0.5}, None),
        ({"link": "levels", "bits": 4, "rotate": True}, None),
    ],
)
def test_a_link_that_the_browser_module_refuses_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], link: dict[str, Any], told: str | None
) -> None:
    described = study(FRECENCY, "frecency-update")
    described["lines"][0]["upload"] = [link]
    code, _, said = checked(tmp_path, capsys, described)
    assert (code, len(said)) == (0, int(told is not None))
    for sentence in said:
        assert f"'upload' of line 'main' has {told}: " in sentence
        assert "the browser module refuses to take part" in sentence


@pytest.mark.parametrize(
    ("personal", "told"),
    [
        ({"by": "fine_tune", "from_version": 1, "optimizer": {"optimizer": "adam"}}, "the optimizer 'adam'"),
        ({"by": "fine_tune", "from_version": 1, "optimizer": {"optimizer": "rprop"}}, None),
        ({"by": "vector"}, None),
    ],
)
def test_a_model_of_ones_own_that_the_browser_module_refuses_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], personal: dict[str, Any], told: str | None
) -> None:
    training = {"algorithm": "gradient", "personal": {"rate": 1.0, **personal}}
    described = study(FRECENCY, "frecency-update", training=training)
    described["arms"][0] |= {"applies": True, "personal": True}
    code, _, said = checked(tmp_path, capsys, described)
    said = [sentence for sentence in said if "personal" in sentence]
    assert (code, len(said)) == (0, int(told is not None))
    for sentence in said:
        assert f"[lines.training.personal] of line 'main' has {told}: " in sentence
        assert "the browser module refuses to take part" in sentence


@pytest.mark.parametrize(("more", "told"), [({}, 1), ({"from_version": 1}, 0), ({"proximal": 0.1}, 0)])
def test_fine_tuning_from_the_start_model_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Any], told: int
) -> None:
    training = {"algorithm": "gradient", "personal": {"by": "fine_tune", "rate": 1.0, **more}}
    described = study({**LOGISTIC, **ARRAYS}, training=training)
    described["arms"][0] |= {"applies": True, "personal": True}
    code, _, said = checked(tmp_path, capsys, described)
    found = [sentence for sentence in said if "[lines.training.personal] of line 'main': clients fine-tune" in sentence]
    assert (code, len(found)) == (0, told)


@pytest.mark.parametrize("weighting", ["client", "ping", "examples"])
@pytest.mark.parametrize("by", ["median", "trimmed_mean", "geometric_median", "krum", "mean_of_signs", "mean"])
def test_a_majority_that_one_client_can_be_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], weighting: str, by: str
) -> None:
    described = study({**LOGISTIC, **ARRAYS}, pipeline={"aggregate": {"by": by}, "weighting": weighting})
    described["limits"] = {"examples": 50}
    code, _, said = checked(tmp_path, capsys, described)
    assert code == 0
    assert len(said) == (weighting != "client" and by != "mean")
    for sentence in said:
        assert f'with weighting = "{weighting}" a single client that' in sentence
        assert "can have most of them" in sentence


@pytest.mark.parametrize(
    ("pipeline", "told"),
    [
        ({}, "RProp on the mean of the updates"),
        ({"aggregate": {"by": "mean_of_signs"}}, "RProp on the mean of the updates' signs"),
        ({"aggregate": {"by": "median"}, "bucketing": 2}, "RProp on the median of each weight"),
        ({"aggregate": {"by": "median"}, "bucketing": 2}, "averaged in random groups of 2 clients"),
        ({"aggregate": {"by": "trimmed_mean"}}, "the mean of each weight without 10 % of the votes at either end"),
        ({"aggregate": {"by": "geometric_median"}}, "the geometric median of the updates"),
        ({"aggregate": {"by": "krum"}}, "the update nearest to the others (Krum, of up to 20 % hostile)"),
        ({"aggregate": {"by": "krum", "keep": 9}}, "the mean of the 9 updates nearest to the others"),
        ({"aggregate": {"by": "centered_clip", "radius": 2.0}}, "each clipped to 2 around the last direction"),
        ({"clip": {"by": "norm", "norm": 3.0}}, "updates are clipped to norm 3"),
    ],
)
def test_the_check_tells_how_a_round_defends_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pipeline: dict[str, Any], told: str
) -> None:
    file = written(tmp_path, study({**LOGISTIC, **ARRAYS}, pipeline=pipeline))
    assert main(["study", "check", str(file)]) == 0
    assert told in capsys.readouterr().out


def test_the_check_names_what_somebody_has_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "_registered", dict(extensions._registered))
    extensions.register("optimizer", "lion", lambda spec: None)
    extensions.register("aggregation", "middle", lambda: fedping.of_all(lambda kept, line, weights, state, key: None))
    pipeline = {"optimizer": {"optimizer": "lion"}, "aggregate": {"by": "middle"}}
    file = written(tmp_path, study({**LOGISTIC, **ARRAYS}, pipeline=pipeline))
    assert main(["study", "check", str(file)]) == 0
    told = capsys.readouterr().out
    assert "the extension 'lion' on the aggregation of the extension 'middle'" in told


TWICE = blocks(coefficients=[30], intercept=[1], control=[31])
"""The arrays of logistic regression, followed by those that SCAFFOLD publishes."""


@pytest.mark.parametrize(
    ("pipeline", "sentence"),
    [
        ({"optimizer": {"optimizer": "gradient_descent"}}, "the server clips updates"),
        (
            {"clip": {"by": "none"}},
            'the server has another optimizer. Set optimizer = { optimizer = "gradient_descent"',
        ),
        ({"clip": {"by": "none"}, "optimizer": {"optimizer": "gradient_descent"}}, None),
    ],
)
def test_an_algorithm_that_needs_the_mean_is_refused_any_other_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pipeline: dict[str, Any], sentence: str | None
) -> None:
    training = {"algorithm": "scaffold", "rate": 0.1, "steps": 3}
    code, _, told = checked(tmp_path, capsys, study({**LOGISTIC, **TWICE}, training=training, pipeline=pipeline))
    assert (code == 0) == (sentence is None)
    *others, line = told
    assert [UNBOUNDED in other and "'clip'" not in other for other in others] == [True] * (sentence is None)
    if sentence is None:
        assert "a client counts for more in one round than in another, as in a study" in line
    else:
        assert "[lines.training] of line 'main': the training 'scaffold' needs a server that adds the mean" in line
        assert sentence in line


@pytest.mark.parametrize(("said", "told"), [({}, True), ({"participation": 0.3}, False)])
def test_a_participation_of_the_training_that_is_not_the_line_s_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: dict[str, float], told: bool
) -> None:
    training = {"algorithm": "scaffold", "rate": 0.1, "steps": 3, **said}
    pipeline = {"clip": {"by": "none"}, "optimizer": {"optimizer": "gradient_descent"}}
    described = study({**LOGISTIC, **TWICE}, training=training, pipeline=pipeline, participation=0.3)
    code, _, lines = checked(tmp_path, capsys, described)
    assert code == 0
    assert any("participation = 1, but 30 % of the clients" in line for line in lines) == told


def test_the_check_tells_what_guards_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rail = {"metric": "loss", "most": 1.2, "rounds": 4}
    line = {"guard": {"guardrail": rail, "stage": {"share": 0.1}}, "limits": {"weight": 5.0, "norm": 40.0}}
    file = written(tmp_path, with_control(study({**LOGISTIC, **ARRAYS}, **line)))
    assert main(["study", "check", str(file)]) == 0
    out = capsys.readouterr().out
    assert "rolled back when its loss was more than 1.2 times the control's for 4 rounds in a row" in out
    assert "goes to 10 % of clients first" in out
    assert "an update with a number beyond 5 is rejected" in out
    assert "an update with a norm above 40 is rejected" in out
    assert "trim 2.5 % of the clients at either end" in out


def with_control(described: dict[str, Any]) -> dict[str, Any]:
    described["arms"].append({"name": "control", "share": 0.5, "line": "main"})
    return described


def test_a_guardrail_that_could_never_act_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = study({**LOGISTIC, **ARRAYS}, guard={"guardrail": {"metric": "loss"}})
    assert main(["study", "check", str(written(tmp_path, alone))]) == 2
    assert "compares arms that apply its versions with arms that do not" in capsys.readouterr().err
    ranks = with_control(study({**LOGISTIC, **ARRAYS}, guard={"guardrail": {"metric": "rank_selected"}}))
    assert main(["study", "check", str(written(tmp_path, ranks))]) == 2
    assert "'rank_selected', which model-update pings do not have" in capsys.readouterr().err


def test_it_tells_what_updates_are_sent_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upload = [{"link": "mask", "keep": 0.5}, {"link": "float32"}]
    file = written(tmp_path, study({**LOGISTIC, **ARRAYS}, training=LOCAL, upload=upload))
    assert main(["study", "check", str(file)]) == 0
    assert "updates are encoded by mask keep = 0.5, float32" in capsys.readouterr().out


def test_it_tells_which_arm_is_personal_and_by_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = {"algorithm": "gradient", "personal": {"by": "fine_tune", "rate": 1.0, "from_version": 12}}
    described = study({**LOGISTIC, **ARRAYS}, training=training)
    described["arms"][0] |= {"applies": True, "personal": True}
    assert main(["study", "check", str(written(tmp_path, described))]) == 0
    out = capsys.readouterr().out
    assert "follows main  applies submits personal" in out
    assert "clients of personal arms keep private state: fine_tune from version 12 on" in out


@pytest.mark.parametrize(
    ("said", "warned"),
    [
        ({}, "a ping counts as 1,000 examples at most"),
        ({"limits": {"examples": 5000}}, ""),
        ({"limits": {"examples": 1000}}, ""),
        ({"limits": {}}, "no limit on a ping's examples"),
    ],
)
def test_as_how_many_examples_a_ping_counts_is_told_where_examples_are_votes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: dict[str, Any], warned: str
) -> None:
    described = study({**LOGISTIC, **ARRAYS}, pipeline={"weighting": "examples"}) | said
    code, _, errors = checked(tmp_path, capsys, described)
    assert code == 0
    assert [warned in line and "'examples' in [limits]" in line for line in errors] == [True] * bool(warned)
    (tmp_path / "client").mkdir()
    assert checked(tmp_path / "client", capsys, study({**LOGISTIC, **ARRAYS}) | said)[2] == []
