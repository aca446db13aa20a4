"""The progress of a study's simulation, as its folder shows it during the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedping.experiments.simulate import experiment_from_toml, simulate
from fedping.experiments.simulate.run import PROGRESS, Progress, ProgressNote, read_study_progress
from tests.support.small_experiment import experiment_file


def test_a_simulation_says_where_it_is_and_leaves_the_summary_alone(tmp_path: Path) -> None:
    seen: list[Progress | None] = []
    settings, study = experiment_from_toml(experiment_file(tmp_path))
    simulate(settings, study, tmp_path / "out", 1, lambda _: seen.append(read_study_progress(tmp_path / "out")))
    known = [now for now in seen if now is not None]
    assert known == seen
    assert list(dict.fromkeys(now.phase for now in known)) == ["enrolling", "optimization", "evaluation", "summary"]
    ends = [now for now in known if now.phase == "optimization"][-1]
    assert ends.done == ends.total == settings.optimization.iterations
    assert read_study_progress(tmp_path / "out") is None
    assert (tmp_path / "out/summary.json").is_file()


def test_a_phase_is_written_at_its_beginning_and_its_end_and_seldom_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedping.experiments.simulate.run.PACE", 3600.0)
    note = ProgressNote(tmp_path)
    for done in range(10):
        note.write(Progress("optimization", done, 10, 5 * done))
    assert read_study_progress(tmp_path) == Progress("optimization", 0, 10, 0)
    note.write(Progress("optimization", 10, 10, 50))
    assert read_study_progress(tmp_path) == Progress("optimization", 10, 10, 50)
    (tmp_path / PROGRESS).write_bytes(b'{"phase":"optim')
    assert read_study_progress(tmp_path) is None
