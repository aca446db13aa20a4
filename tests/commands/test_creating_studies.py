"""Studies created with the safe defaults: from a file, by `fedping.create_study`, and the shipped ones."""

import tomllib
import warnings
from pathlib import Path

import pytest
from msgspec.structs import replace

import fedping
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.limits import Limits, UpdateLimits
from fedping.protocol.pipeline import NoClip, Quorum
from fedping.protocol.study import Study, protected, study_from_toml
from fedping.server_jobs.optimize import first_versions
from tests.support.environments import ROOT

EXPERIMENTS = ROOT / "experiments"
UNBOUNDED = "takes the mean of updates of any length"


def studies() -> list[Path]:
    """Return the shipped study files, which are those with arms."""
    return sorted(file for file in EXPERIMENTS.glob("*.toml") if "arms" in tomllib.loads(file.read_text()))


@pytest.mark.parametrize("file", studies(), ids=lambda file: file.name)
def test_only_the_original_studies_are_undefended_and_create_warns_of_them(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    undefended = file.name in ("firefox_2018.toml", "linear.toml")
    for command in (["check"], ["create", "--store", str(tmp_path)]):
        assert main(["study", command[0], str(file), *command[1:]]) == 0
        assert (UNBOUNDED in capsys.readouterr().err) == undefended
    study = open_store(tmp_path).study(tomllib.loads(file.read_text())["name"])
    assert all((line.pipeline.clips or line.privacy is not None) != undefended for line in study.lines)


@pytest.mark.parametrize(
    ("defended", "original"), [("firefox.toml", "firefox_2018.toml"), ("linear_defended.toml", "linear.toml")]
)
def test_a_defended_study_is_the_original_but_for_its_name_and_its_bounds(defended: str, original: str) -> None:
    one, other = study_from_toml(EXPERIMENTS / defended), study_from_toml(EXPERIMENTS / original)
    assert one.name != other.name
    [line] = one.lines
    optimizer = replace(line.pipeline.optimizer, quorum=None)  # type: ignore[type-var]
    bare = replace(line, pipeline=replace(line.pipeline, optimizer=optimizer, clip=None))
    assert replace(one, name=other.name, lines=(bare,)) == other
    assert study_from_toml(EXPERIMENTS / defended, new=True).lines[0].pipeline.clips
    assert not study_from_toml(EXPERIMENTS / original, new=True).lines[0].pipeline.clips


def test_a_study_made_from_python_is_that_of_the_command(tmp_path: Path) -> None:
    file = EXPERIMENTS / "firefox.toml"
    assert main(["study", "create", str(file), "--store", str(tmp_path / "command")]) == 0
    made = fedping.create_study(file, tmp_path / "python")
    assert made == protected(made)
    stored = [open_store(tmp_path / where) for where in ("command", "python")]
    assert stored[0].study("firefox") == stored[1].study("firefox") == made
    digests = {replace(store.head("firefox", "main"), created="").digest for store in stored}
    assert len(digests) == 1
    assert fedping.create_study(study_from_toml(file), tmp_path / "python") == made, "again, it changes nothing"
    with pytest.raises(fedping.StoreError, match="other settings"):
        fedping.create_study(replace(made, limits=Limits()), tmp_path / "python")


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ("loss = [0, 10]\nclip_loss = [20, 30]", "count as 20"),
        ("loss = [20, 30]\nclip_loss = [0, 10]", "count as 10"),
        ("loss = [0, 10]\nclip_loss = [10, 30]", "count as 10"),
        ("clip_loss = [5, 5]", "count as 5"),
        ("loss = [0, 10]\nclip_loss = [9, 30]", None),
        ("loss = [0, 10]", None),
    ],
)
def test_a_new_study_whose_losses_would_all_count_alike_is_refused(
    limits: str, told: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = (EXPERIMENTS / "firefox.toml").read_text()
    file, store = tmp_path / "study.toml", tmp_path / "store"
    file.write_text(f"{original}\n[limits]\n{limits}\n")
    assert main(["study", "check", str(file)]) == (0 if told is None else 2)
    assert told is None or told in capsys.readouterr().err
    if told is None:
        assert fedping.create_study(file, store).limits is not None
        return
    with pytest.raises(fedping.InvalidSettings, match=told):
        fedping.create_study(file, store)
    fedping.create_study(EXPERIMENTS / "firefox.toml", store)
    assert main(["study", "change", str(file), "--store", str(store)]) == 2
    assert told in capsys.readouterr().err


def test_a_stored_study_whose_losses_all_count_alike_stays_as_it_is(tmp_path: Path) -> None:
    file, store = tmp_path / "study.toml", open_store(tmp_path / "store", create=True)
    original = (EXPERIMENTS / "firefox.toml").read_text()
    file.write_text(f"{original}\n[limits]\nloss = [0, 10]\nclip_loss = [20, 30]\n")
    made = study_from_toml(file, new=True)
    store.create_study(made, first_versions(made, created="2026-01-01T00:00:00.000+00:00", code_version="test"))
    at = ["--store", str(tmp_path / "store")]
    assert fedping.create_study(file, tmp_path / "store") == store.study(made.name) == made
    assert main(["study", "create", str(file), *at]) == main(["study", "change", str(file), *at]) == 0


def test_a_study_of_before_the_safe_choices_stays_as_it_is(tmp_path: Path) -> None:
    written = study_from_toml(EXPERIMENTS / "firefox.toml")
    store = open_store(tmp_path, create=True)
    store.create_study(written, first_versions(written, created="2026-01-01T00:00:00.000+00:00", code_version="test"))
    assert fedping.create_study(EXPERIMENTS / "firefox.toml", tmp_path) == written


def test_a_study_with_the_quorum_of_an_earlier_version_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """New studies once had a quorum of 1 %; created again, or changed by its file, such a study keeps it."""
    file = EXPERIMENTS / "linear_defended.toml"
    older = protected(study_from_toml(file), Quorum(decides=0.01, hastens=0.1, slows=0.9), clips=False)
    store = open_store(tmp_path / "store", create=True)
    store.create_study(older, first_versions(older, created="2026-01-01T00:00:00.000+00:00", code_version="test"))
    at = ["--store", str(tmp_path / "store")]
    assert main(["study", "create", str(file), *at]) == 0
    assert "nothing changed" in capsys.readouterr().out
    assert main(["study", "change", str(file), *at]) == 0
    assert "nothing changed" in capsys.readouterr().out
    edited = tmp_path / "edited.toml"
    edited.write_text(file.read_text().replace("min_clients = 100", "min_clients = 50"))
    assert main(["study", "change", str(edited), *at]) == 0
    assert fedping.create_study(edited, tmp_path / "store").line("main").pipeline.min_clients == 50
    assert store.study("linear-defended").line("main").pipeline.quorum == Quorum(decides=0.01)
    new = fedping.create_study(file, tmp_path / "new").line("main").pipeline.quorum
    assert new == Quorum(decides=0.015)


def unbounded(study: Study, limits: UpdateLimits | None = None) -> Study:
    [line] = study.lines
    return replace(
        study, lines=(replace(line, pipeline=replace(line.pipeline, clip=NoClip()), limits=limits),), name="mine"
    )


@pytest.mark.parametrize(("limits", "warned"), [(None, 1), (UpdateLimits(norm=5.0), 0), (UpdateLimits(weight=5.0), 0)])
def test_a_mean_without_a_bound_is_warned_of_in_python(
    tmp_path: Path, limits: UpdateLimits | None, warned: int
) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fedping.create_study(unbounded(study_from_toml(EXPERIMENTS / "linear_defended.toml"), limits), tmp_path)
    assert [UNBOUNDED in str(each.message) for each in found] == [True] * warned
    assert all(each.filename == __file__ for each in found)
