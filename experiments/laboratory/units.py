"""The units of work of an experiment: each variant and each baseline, once per seed and fold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fedping.client_sim.data import Partition
from fedping.experiments.laboratory.results import RunFolder, UnitNote
from fedping.experiments.laboratory.settings import Experiment, Setup
from fedping.experiments.laboratory.settings.data import Data
from fedping.experiments.laboratory.settings.experiment import ONLY_VARIANT
from fedping.experiments.laboratory.settings.setup import BaselineName, Evaluation
from fedping.protocol.digest import digest_of
from fedping.protocol.spec import ModelSpec


@dataclass(frozen=True, eq=False)
class Unit:
    """One run; two runs are equal only if they are the same object.

    Attributes:
        name: name of the variant, or of the baseline as a table shows it.
        baseline: the baseline, or None for a variant.
        setup: the setup; a baseline only uses the settings of the problem.
        seed: the seed of all draws.
        fold: the part of each client's examples that is the test set; None without cross-validation.
    """

    name: str
    baseline: BaselineName | None
    setup: Setup
    seed: int
    fold: int | None

    @property
    def where(self) -> str:
        """The beginning of an error message about its settings; empty if the file has no variants."""
        return "" if self.baseline or self.name == ONLY_VARIANT else f"variant '{self.name}': "

    def folder(self, out: Path) -> RunFolder:
        """Return the folder of the run's results."""
        return RunFolder(out / self._place)

    @property
    def note(self) -> UnitNote:
        """The description of the run for readers of the folder."""
        rounds = None if self.baseline else self.setup.most_rounds
        return UnitNote(
            name=self.name,
            baseline=self.baseline is not None,
            seed=self.seed,
            fold=self.fold,
            folder=self._place,
            rounds=rounds,
        )

    @property
    def _place(self) -> str:
        repetition = f"seed-{self.seed}" + ("" if self.fold is None else f"-fold-{self.fold}")
        return f"{'baselines' if self.baseline else 'runs'}/{self.name}/{repetition}"


def units_of(experiment: Experiment) -> list[Unit]:
    """Return all runs of an experiment, repetition by repetition, so that comparisons are complete early."""
    jobs = [(name, None, setup) for name, setup in experiment.variants.items()] + baselines_of(experiment)
    return [
        Unit(name, baseline, setup, seed, fold)
        for seed in experiment.seeds
        for name, baseline, setup in jobs
        for fold in _folds(setup)
    ]


def baselines_of(experiment: Experiment) -> list[tuple[str, BaselineName | None, Setup]]:
    """Return the baselines: one set for all variants with the same problem, otherwise one for each problem."""
    problems: dict[str, tuple[str, Setup]] = {}
    for name, setup in experiment.variants.items():
        problems.setdefault(problem_digest(setup), (name, setup))
    alone = len(problems) == 1
    return [
        (baseline if alone else f"{baseline} ({name})", baseline, setup)
        for name, setup in problems.values()
        for baseline in setup.evaluation.baselines
    ]


class _ProblemSettings(msgspec.Struct, frozen=True):
    model: dict[str, Any]
    data: Data
    partition: Partition
    evaluation: Evaluation
    keeps_last: bool = False
    spec: ModelSpec | None = None


def problem_digest(setup: Setup) -> str:
    """Return a digest of the baselines' inputs: model, data, partition, evaluation and stopping."""
    # Without early stopping a baseline now keeps its last version; it once kept the best on validation examples.
    keeps_last = setup.early_stopping is None and bool(setup.data.validation)
    problem = _ProblemSettings(setup.model, setup.data, setup.partition, setup.evaluation, keeps_last, setup.spec)
    return digest_of(problem)


def _folds(setup: Setup) -> list[int | None]:
    return [None] if setup.data.folds is None else list(range(setup.data.folds))
