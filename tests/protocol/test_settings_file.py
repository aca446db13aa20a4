"""A sentence reports an error in a settings file: the table, the key, and the allowed values."""

from pathlib import Path
from typing import Any

import pytest

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.settings_file import read_toml
from fedping.protocol.study import study_from_toml

DEMO = Path("experiments/demo.toml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "', 'nmae = "', "there is no setting 'nmae'; did you mean 'name'?"),
        ("share = ", "shaer = ", "has no setting 'shaer'; did you mean 'share'?"),
        ("share = ", 'share = "all" # ', "is 'all': expected a number, got a text"),
        ('optimizer = "rprop"', 'optimizer = "sgd"', "optimizer] of line 1 ('main') is 'sgd'; choose one of"),
        ("[lines.spec]", 'upload = [{ link = "signs" }]\n[lines.spec]',
         "has no setting 'upload'; it is one of [lines] of line 1 ('main'): write it above the tables of that"),
        ("[lines.pipeline]", 'telemetry = true\n[lines.pipeline]', "it is one of the whole file: write it above"),
        ("[lines.pipeline]", 'upload = [{ link = "levels", bits = 9 }]\n[lines.pipeline]',
         "'bits' in [lines.upload] of entry 1 of line 1 ('main') is 9; choose one of 1, 2, 3, 4, 5, 6, 7, 8"),
        ("alpha = ", "alhpa = ", "[lines.pipeline.optimizer] of line 1 ('main') has no setting 'alhpa'; did you mean"),
        ('optimizer = "rprop"', 'optimiser = "rprop"', "has no setting 'optimiser'; did you mean 'optimizer'?"),
        ("[lines.pipeline]", '[lines.training]\nalgorithm = "gradient"\nbatch = "2"\n[lines.pipeline]',
         "'batch' in [lines.training] of line 1 ('main') is '2': expected a whole number, got a text"),
        ('kind = "cutoff"', 'kind = "cutof"', "of weight 1 ('firstBucketCutoff') of line 1 ('main') is 'cutof'"),
        ("[lines.pipeline]", '[lines.training]\nalgorithm = "local"\nrate = 1\n[lines.pipeline]',
         "[lines.training] of line 1 ('main'): local training needs 'epochs' or 'steps'; give one of them"),
        ("[lines.pipeline]", '[lines.training]\nalgorithm = "local"\nrate = 1\nsteps = 2\nepochs = 1\n[lines.pipeline]',
         "[lines.training] of line 1 ('main'): local training has both 'epochs' and 'steps'; leave one of them out"),
    ],
)  # fmt: skip
def test_a_study_file_with_a_slip_is_told_where(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = DEMO.read_text()
    assert old in text
    (tmp_path / "study.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidSettings) as raised:
        study_from_toml(tmp_path / "study.toml")
    assert said in str(raised.value)
    assert str(tmp_path / "study.toml") in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot read the study file"), (b"\xff\xfe", "is not UTF-8 text"), (b"a = ", "is not valid TOML")],
)
def test_a_file_that_is_no_toml_is_told_why(tmp_path: Path, content: Any, said: str) -> None:
    if content is not None:
        (tmp_path / "study.toml").write_bytes(content)
    with pytest.raises(InvalidSettings, match=said):
        read_toml(tmp_path / "study.toml", "study file")
