"""A nonsensical study or spec is rejected with a sentence that names the mistake."""

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.protocol.digest import canonical_json
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.personalization import Vector
from fedping.protocol.pipeline import ClipByNorm, ClipByQuantile, Quorum, RProp
from fedping.protocol.spec import ModelSpec, NonNegative, OrderedCutoffs, Step, Weight, published
from fedping.protocol.study import Arm, Line, Study, study_from_toml

STEP = Step(start=1, min=0.1, max=3)


def spec(*names: str, **more: object) -> ModelSpec:
    return ModelSpec(
        name="s", model="linear-15", weights=tuple(Weight(name=n, start=1, step=STEP) for n in names), **more
    )


LINE = Line(name="main", spec=spec("a", "b"))
TRAINED = Arm(name="t", share=0.5, line="main", applies=True, submits=True)

GOOD = """
name = "demo"
[[arms]]
name = "treatment"
share = 0.6
line = "main"
applies = true
submits = true
[[lines]]
name = "main"
[lines.spec]
name = "two"
model = "linear-15"
weights = [
  {name = "a", start = 1, step = {start = 1, min = 0.1, max = 3}},
  {name = "b", start = 2, integer = true, step = {start = 1, min = 0.1, max = 3}},
]
constraints = [{constraint = "non_negative"}, {constraint = "ordered_cutoffs", weights = ["a", "b"]}]
[lines.pipeline]
min_clients = 5
optimizer = {optimizer = "rprop", alpha = 2.0, beta = 0.6}
"""


def test_a_study_file_says_all_of_a_study(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(GOOD)
    study = study_from_toml(tmp_path / "s.toml")
    assert study.arm("treatment").share == 0.6
    assert study.line("main").spec.constraints == (NonNegative(), OrderedCutoffs(weights=("a", "b")))
    assert study.line("main").pipeline.optimizer.alpha == 2.0
    assert msgspec.json.decode(msgspec.json.encode(study), type=Study) == study


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (("share = 0.6", "share = 1.6"), "share"),
        (('line = "main"', 'line = "other"'), "other"),
        (("submits = true", "submits = false"), "never be trained"),
        (('name = "b"', 'name = "a"'), "two weights named 'a'"),
        (('weights = ["a", "b"]', 'weights = ["a", "z"]'), "'z'"),
        (("step = {start = 1, min = 0.1, max = 3}}", "step = {start = 9, min = 0.1, max = 3}}"), "step.start 9"),
        (("min_clients = 5", "min_clients = 0"), "min_clients"),
        (("alpha = 2.0", "alpha = 0.5"), "alpha"),
        (("[lines.pipeline]", "[lines.pipeline]\nspeed = 3"), "speed"),
        (('name = "demo"', 'name = "../demo"'), "name"),
        (("[[arms]]", "[[arms"), "TOML"),
    ],
)
def test_a_wrong_study_file_is_told_by_name(tmp_path: Path, change: tuple[str, str], names: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(InvalidSettings, match=r"(?s)" + names.replace(".", r"\.")):
        study_from_toml(path)


def test_a_study_whose_clients_would_all_fall_silent_at_once_is_refused(tmp_path: Path) -> None:
    vector = '[lines.training]\nalgorithm = "gradient"\npersonal = {by = "vector", rate = 1, in_step = true}\n'
    text = GOOD.replace("[lines.pipeline]", vector + "[lines.pipeline]").replace("applies", "personal = true\napplies")
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(InvalidSettings, match="Remove 'in_step'"):
        study_from_toml(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text(text.replace(", in_step = true", ""))
    assert study_from_toml(tmp_path / "s.toml").line("main").training.personal == Vector(rate=1)


def test_a_folder_in_place_of_a_study_file_names_the_file_in_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"it is a folder; give a file in it\Z"):
        study_from_toml(tmp_path)
    (tmp_path / "study.toml").write_text(GOOD)
    with pytest.raises(InvalidSettings, match=r"it is a folder; give a file in it: .*study\.toml\Z"):
        study_from_toml(tmp_path)


def test_a_study_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="check the path"):
        study_from_toml(tmp_path / "none.toml")
    (tmp_path / "s.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidSettings, match="UTF-8"):
        study_from_toml(tmp_path / "s.toml")


def test_shares_may_not_exceed_one_and_names_may_not_repeat() -> None:
    with pytest.raises(InvalidSettings, match="exceed 1"):
        Study(name="s", arms=(TRAINED, Arm(name="c", share=0.6)), lines=(LINE,))
    with pytest.raises(InvalidSettings, match="two arms named 't'"):
        Study(name="s", arms=(TRAINED, TRAINED), lines=(LINE,))
    with pytest.raises(InvalidSettings, match="follows no model line"):
        Arm(name="x", share=0.1, applies=True)
    with pytest.raises(InvalidSettings, match="has no arm 'x'; it has t"):
        Study(name="s", arms=(TRAINED,), lines=(LINE,)).arm("x")


@given(st.floats(-1e9, 1e9))
def test_integers_are_published_half_up_and_others_as_they_are(value: float) -> None:
    mixed = ModelSpec(
        name="s",
        model="r",
        weights=(Weight(name="i", start=0, step=STEP, integer=True), Weight(name="f", start=0, step=STEP)),
    )
    integer, real = published(mixed, (value, value))
    assert real == value
    assert integer == int(integer)
    assert -0.5 < integer - value <= 0.5


def test_a_spec_has_the_same_digest_before_and_after_it_travels() -> None:
    sent = spec("a", "b")
    received = msgspec.json.decode(msgspec.json.encode(sent), type=ModelSpec)
    assert received.digest == sent.digest
    assert spec("a", "c").digest != sent.digest


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_setting_of_any_model_is_finite_for_it_is_published(value: float) -> None:
    weights = (Weight("w", 0.0, Step(start=1, min=1, max=1)),)
    with pytest.raises(InvalidSettings, match=r"'a' of model spec 's' is -?(inf|nan), which cannot"):
        ModelSpec(name="s", model="mine", settings={"features": 4, "a": value}, weights=weights)


CLIPS = [
    ("", ClipByQuantile(units="step", multiple=0.1)),
    ('[lines.training]\nalgorithm = "local"\nepochs = 1\nrate = 0.1', ClipByQuantile()),
    ('clip = {by = "none"}', None),
    ('clip = {by = "norm", norm = 3}', ClipByNorm(norm=3.0)),
    ('clip = {by = "quantile", quantile = 0.9}', ClipByQuantile(quantile=0.9)),
    ('aggregate = {by = "median"}', None),
    ('aggregate = {by = "mean_of_signs"}', None),
]


@pytest.mark.parametrize(("said", "clip"), CLIPS)
def test_a_new_study_clips_where_it_can_and_says_nothing_else(tmp_path: Path, said: str, clip: object) -> None:
    (tmp_path / "s.toml").write_text(GOOD + said + "\n")
    study = study_from_toml(tmp_path / "s.toml", new=True)
    assert study.line("main").pipeline.clip == clip
    assert msgspec.json.decode(msgspec.json.encode(study), type=Study) == study


QUORUMS = [
    ("", "", Quorum(decides=0.015)),
    ('clip = {by = "norm", norm = 3}', "quorum = {decides = 0.03}", Quorum(decides=0.03)),
    ("", "quorum = {decides = 0, hastens = 0}", None),
    ('clip = {by = "quantile", units = "step"}', "", Quorum(decides=0.015)),
    ('clip = {by = "norm", norm = 3}', "", None),
    ('clip = {by = "none"}', "", None),
    ('aggregate = {by = "mean_of_signs"}', "", None),
    ('aggregate = {by = "median"}\nclip = {by = "quantile", units = "step"}', "", None),
]


@pytest.mark.parametrize(("said", "of_rprop", "quorum"), QUORUMS)
def test_a_new_study_has_a_quorum_where_it_clips_by_steps(
    tmp_path: Path, said: str, of_rprop: str, quorum: object
) -> None:
    text = GOOD.replace("beta = 0.6", f"beta = 0.6, {of_rprop}") if of_rprop else GOOD
    (tmp_path / "s.toml").write_text(text + said + "\n")
    optimizer = study_from_toml(tmp_path / "s.toml", new=True).line("main").pipeline.optimizer
    assert optimizer == RProp(alpha=2.0, beta=0.6, quorum=quorum)  # type: ignore[arg-type]


def test_a_study_whose_clients_send_signs_clips_nothing(tmp_path: Path) -> None:
    signs = GOOD.replace("[lines.pipeline]", '[[lines.upload]]\nlink = "sign"\n[lines.pipeline]')
    (tmp_path / "s.toml").write_text(signs)
    assert study_from_toml(tmp_path / "s.toml", new=True).line("main").pipeline.clip is None
    (tmp_path / "s.toml").write_text(signs + 'clip = {by = "norm", norm = 1}\n')
    with pytest.raises(InvalidSettings, match="clients of line 'main' send signs"):
        study_from_toml(tmp_path / "s.toml", new=True)


def test_a_study_that_clips_nothing_has_the_digest_of_one_from_before_there_was_a_clip(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(GOOD)
    written = study_from_toml(tmp_path / "s.toml")
    new = study_from_toml(tmp_path / "s.toml", new=True)
    assert written.digest != new.digest
    off = {"enrolment": "elsewhere", "limits": "{}", "guard": "{enabled = false}", "clip": '{by = "none"}'}
    text = f'enrolment = "{off["enrolment"]}"\nlimits = {off["limits"]}\n' + GOOD + f"clip = {off['clip']}\n"
    (tmp_path / "s.toml").write_text(text + "[lines.guard]\nenabled = false\n")
    bare = study_from_toml(tmp_path / "s.toml", new=True)
    assert bare.lines == written.lines
    assert study_from_toml(tmp_path / "s.toml").lines == written.lines
    assert b"clip" not in canonical_json(bare)
    assert b"guard" not in canonical_json(bare)
