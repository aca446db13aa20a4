"""A run's environment: recorded with its results, and not part of its identity."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedping.experiments import run_folder
from fedping.experiments.laboratory import resuming, training
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.resuming import CHECKPOINT
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.units import units_of
from fedping.experiments.run_folder import ENVIRONMENT, Environment, environment_here, environments_in
from tests.support.laboratory import small

ELSEWHERE = Environment(machine="arm64", python="3.12.0", numpy="2.0.0", blas=("openblas 0.3 neoversen1",))


def test_each_run_says_with_which_kernel_it_was_computed(tmp_path: Path) -> None:
    made = small(rounds=2, evaluation__baselines=["start"])
    summary = run_experiment(made, tmp_path, jobs=1)
    for unit in units_of(made):
        [found] = environments_in(unit.folder(tmp_path).path)
        assert found == environment_here()
        assert found.numpy == np.__version__
    assert len(units_of(made)) == 2
    [kernel] = environment_here().blas
    assert len(kernel.split()) == 3

    for file in tmp_path.rglob(ENVIRONMENT):  # as of an earlier fedping
        file.unlink()
    assert run_experiment(made, tmp_path, jobs=1) == summary
    [first, *_] = units_of(made)
    assert environments_in(first.folder(tmp_path).path) == ()


def test_another_kernel_of_the_same_library_is_told_apart() -> None:
    [kernel] = environment_here().blas
    if not kernel.startswith("openblas") or environment_here().machine != "x86_64":
        pytest.skip("needs OpenBLAS on x86_64, which OPENBLAS_CORETYPE gives another kernel")
    code = "from fedping.experiments.run_folder import environment_here; print(*environment_here().blas)"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OPENBLAS_CORETYPE": core},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for core in ("Haswell", "Sandybridge")
    }
    assert len(found) == 2


def test_a_run_that_goes_on_elsewhere_names_both_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill(done: int, rows: object) -> None:
        if done == 2:
            raise Killed

    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    [unit] = units_of(small(rounds=4, evaluation__baselines=[]))
    whole = run_unit(unit, tmp_path / "whole")
    with monkeypatch.context() as there:
        there.setattr(training, "environment_here", lambda: ELSEWHERE)
        with pytest.raises(Killed):
            run_unit(unit, tmp_path / "killed", kill)
    after = run_unit(unit, tmp_path / "killed")
    assert msgspec.structs.replace(after, seconds=0) == msgspec.structs.replace(whole, seconds=0)
    assert environments_in(unit.folder(tmp_path / "killed").path) == (ELSEWHERE, environment_here())
    assert not (unit.folder(tmp_path / "killed").path / CHECKPOINT).exists()


def test_a_folder_gets_each_environment_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folder.write_environment(tmp_path)
    run_folder.write_environment(tmp_path, environments_in(tmp_path))
    assert environments_in(tmp_path) == (environment_here(),)
    monkeypatch.setattr(run_folder, "environment_here", lambda: ELSEWHERE)
    run_folder.write_environment(tmp_path, environments_in(tmp_path))
    assert environments_in(tmp_path)[1:] == (ELSEWHERE,)
