"""Laboratory experiments from a program or a notebook: run, follow and continue them, read and compare results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.error_text import python_names
from fedping.experiments.laboratory.comparing import Comparison, chosen, compared
from fedping.experiments.laboratory.pool import Progress
from fedping.experiments.laboratory.results import read_units
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment, experiment_of
from fedping.experiments.laboratory.settings.experiment import Head
from fedping.experiments.laboratory.settings.merging import Raw, merged, nested, of_file, variants_of
from fedping.experiments.laboratory.summary import Summary, read_summary
from fedping.extras import missing_package
from fedping.protocol.errors import FedpingError, InvalidSettings, sentences_with
from fedping.protocol.settings_file import read_toml

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from fedping.experiments.laboratory.artifact import Reproduction


@dataclass(frozen=True)
class Round:
    """One round of one run of an experiment, passed to ``on_round``.

    Attributes:
        variant: name of the variant.
        seed: seed of the repetition.
        fold: number of the fold; None without cross-validation.
        number: number of finished rounds; 0 for the evaluation of the start model.
        metrics: values by split, then by metric. The split "train" has the round's loss, number of clients, and bytes
            (``update_bytes``, ``posted_bytes``, ``fetched_bytes``); "validation" and "test" are present in evaluated
            rounds (``evaluation.every``).
    """

    variant: str
    seed: int
    fold: int | None
    number: int
    metrics: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Results:
    """A finished experiment.

    Attributes:
        folder: folder of the results.
        summary: names of variants and baselines, means with 95 % intervals over the seeds, the best variant.
    """

    folder: Path
    summary: Summary

    def metrics(self) -> pa.Table:
        """Return all measurements, one per row: variant, seed, fold, round, split, metric, value."""
        import pyarrow.parquet as pq

        return pq.read_table(self.folder / "metrics.parquet", partitioning=None)

    def to_pandas(self) -> pd.DataFrame:
        """Return :meth:`metrics` as a data frame.

        Raises:
            MissingPackage: pandas is not installed.
        """
        with _errors_of("Results.to_pandas"):
            return self.metrics().to_pandas()

    def weights(
        self, variant: str | None = None, *, seed: int | None = None, fold: int | None = None, last: bool = False
    ) -> NDArray[np.float64]:
        """Return the weights of one run, shape (m,).

        Args:
            variant: a variant or a baseline; None for the best variant, or the only one.
            seed: seed of the repetition; None for the first.
            fold: number of the fold; None for the first.
            last: whether to return the last round's weights instead of the tested version's; they differ with early
                stopping.

        Raises:
            InvalidSettings: no such run exists.
        """
        name = variant or self.summary.best or next(iter(self.summary.variants))
        for unit in read_units(self.folder) or ():
            if unit.name == name and seed in (None, unit.seed) and fold in (None, unit.fold):
                weights: NDArray[np.float64] = np.load(self.folder / unit.folder / f"{'last' if last else 'best'}.npy")
                return weights
        known = ", ".join([*self.summary.variants, *self.summary.baselines])
        seeds = ", ".join(map(str, self.summary.seeds))
        raise InvalidSettings(
            f"{self.folder} has no run of '{name}' with seed {seed} and fold {fold}; choose from {known}, seeds {seeds}"
        )

    def write_report(self, path: str | Path | None = None) -> Path:
        """Write the page with curves, intervals and the table to ``path``, or to ``report.html`` in the folder if None.

        Raises:
            FedpingError: the file can't be written, or matplotlib isn't installed.
        """
        from fedping.experiments.laboratory.report import write_report

        with _errors_of("Results.write_report"):
            return write_report(self.folder, self.folder / "report.html" if path is None else Path(path))

    def to_latex(self) -> str:
        """Return the table of final results for a paper, in LaTeX, as ``fedping export --latex`` writes it."""
        from fedping.experiments.laboratory.latex_of_experiment import experiment_table

        with _errors_of("Results.to_latex"):
            return experiment_table(self.folder)

    def write_artifact(self, folder: str | Path) -> list[str]:
        """Write a folder that a reviewer can run again with :func:`reproduce`, like ``fedping export --artifact``.

        Returns:
            the paths in the folder of data that a reviewer has to get from the data's authors.

        Raises:
            FedpingError: the folder exists, can't be written, or the data have changed since the run.
        """
        from fedping.experiments.laboratory.artifact import write_artifact

        with _errors_of("Results.write_artifact"):
            return write_artifact(self.folder, Path(folder))


def run(
    experiment: str | Path | Mapping[str, Any],
    *,
    overrides: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    resume: bool = True,
    replace: bool = False,
    jobs: int = 1,
    on_round: Callable[[Round], None] | None = None,
) -> Results:
    """Run a laboratory experiment to its end, and return its results.

    Your own loss, prediction or start (``model.function``, ``predict``, ``start``) can be the function itself, defined
    at the top level of a module or in a notebook cell.

    Args:
        experiment: an experiment's file, or its tables as a mapping. Paths and modules in a file are relative to it, in
            a mapping to the working directory.
        overrides: settings by dotted name, such as ``{"training.rate": 0.1}``. They take precedence over those of
            variants.
        folder: folder of the results; ``simulated/<name>`` if None.
        resume: continue in a folder of the same experiment; otherwise the folder must be new.
        replace: in a folder with other settings, code, data or version of fedping, repeat the runs that have changed
            and keep the rest.
        jobs: number of parallel runs, each in a separate process; 1 runs all in this process, on all cores. The results
            don't depend on it. With functions of ``__main__`` it is always 1.
        on_round: called after each round of a variant. An error in it ends the run. With several jobs it is called in
            another thread.

    Raises:
        InvalidSettings: a setting is invalid, or the folder holds another experiment.
        FedpingError: the settings do not fit the data or the model, or a user's function failed.
        MissingPackage: the extra ``laboratory`` is not installed.
    """
    if jobs < 1:
        raise InvalidSettings(f"jobs is {jobs}; give at least 1")
    functions: dict[str, Callable[..., Any]] = {}
    settings, modules = _experiment(experiment, overrides or {}, functions)
    out = Path("simulated") / settings.name if folder is None else Path(folder)
    if not resume and out.exists():
        raise InvalidSettings(f"{out} exists; give another folder, or resume=True to continue the run in it")
    let_import_from(modules)
    if any(name.startswith("__main__:") for name in functions):
        jobs = 1
    with _errors_of("fedping.run"):
        return Results(out, run_experiment(settings, out, jobs, _watching(on_round), replace))


def open_results(folder: str | Path) -> Results:
    """Return the results of a finished experiment from :func:`run`, `fedping simulate` or `sweep`.

    Raises:
        FedpingError: the folder has no finished experiment of the laboratory.
    """
    summary = read_summary(Path(folder))
    if summary is None:
        raise FedpingError(f"{folder} has no finished experiment; run or continue it with fedping.run")
    return Results(Path(folder), summary)


Compared: TypeAlias = "str | Path | Results | tuple[str | Path | Results, str]"
"""A results folder or results with one variant; or a pair of either and the name of a variant or a baseline."""


def compare(a: Compared, b: Compared) -> Comparison:
    """Return the differences of b from a, paired by seed, with the 95 % t interval of the mean difference.

    ``differences`` has a row for each split and metric that both have: the means of a and b, ``difference`` (``mean``,
    ``half`` the interval) of b - a, and which is ``better`` if the interval does not contain 0.

    Raises:
        InvalidSettings: no such results exist, they have several variants, or no seed in common.
    """
    with _errors_of("fedping.compare"):
        return compared(chosen(_named(a)), chosen(_named(b)))


def reproduce(folder: str | Path, *, jobs: int | None = None) -> Reproduction:
    """Rerun the experiment of a folder for reviewers, and compare its figures with the expected ones.

    ``apart`` has each figure that differs by more than 1e-6 of its size, and is empty if all are reproduced. Results
    are in ``rerun`` of the folder; after an interruption the same call continues.

    Args:
        folder: a folder written by :meth:`Results.write_artifact` or ``fedping export --artifact``.
        jobs: number of parallel runs, each in its own process; None for one per core.

    Raises:
        FedpingError: the folder isn't one for reviewers, is of another version of fedping, or a file is missing or
            changed.
        MissingPackage: the extra ``laboratory`` is not installed.
    """
    from fedping.experiments.laboratory.artifact import reproduce as run_again

    if jobs is not None and jobs < 1:
        raise InvalidSettings(f"jobs is {jobs}; it has to be at least 1")
    let_import_from(Path(folder))
    with _errors_of("fedping.reproduce"):
        return run_again(Path(folder), jobs)


def let_import_from(folder: Path) -> None:
    """Allow an experiment to import modules next to its file, such as its own loss.

    The folder is last in the path, so its files never hide modules of Python or fedping. Runs in other processes
    inherit the path.
    """
    if (path := str(folder.resolve())) not in sys.path:
        sys.path.append(path)


def _named(one: Compared) -> str:
    if isinstance(one, tuple):
        return f"{_named(one[0])}:{one[1]}"
    return str(one.folder if isinstance(one, Results) else one)


def _experiment(
    experiment: str | Path | Mapping[str, Any], overrides: Mapping[str, Any], functions: dict[str, Callable[..., Any]]
) -> tuple[Experiment, Path]:
    """Return an experiment and the folder of its modules; add its functions to ``functions`` by name."""
    if isinstance(experiment, Mapping):
        raw = _overridden(of_file(experiment), overrides)
        return experiment_of(_by_name(raw, functions), name="experiment", folder=Path()), Path()
    file = Path(experiment)
    tables = read_toml(file, "experiment file")
    if "study" in tables and tables.keys().isdisjoint({"model", "line"}):
        raise InvalidSettings(f"{file} is the experiment of a study; run it with `fedping simulate {file}`")
    with sentences_with(f"the experiment file {file}: "):
        raw = _overridden(of_file(tables), overrides)
        return experiment_of(_by_name(raw, functions), name=file.stem, folder=file.parent), file.parent


def _overridden(raw: Mapping[str, Any], overrides: Mapping[str, Any]) -> Raw:
    """Return the tables with the overrides, which take precedence over the changes of variants."""
    changes = nested(overrides)
    changed = merged(raw, changes)
    settings = {key: value for key, value in changes.items() if key not in Head.__struct_fields__}
    if raw.get("variants") and "variants" not in changes and (variants := variants_of(raw)) is not None:
        changed["variants"] = [merged(_tables(variant), settings) for variant in variants]
    return changed


def _tables(variant: Mapping[str, Any]) -> Raw:
    name = {key: value for key, value in variant.items() if key == "name"}
    return name | nested({key: value for key, value in variant.items() if key != "name"})


def _by_name(value: Any, functions: dict[str, Callable[..., Any]]) -> Any:
    """Return settings with each function in them replaced by its name, "module:function".

    Raises:
        InvalidSettings: a function, such as one inside another, can't be imported by its name.
    """
    if isinstance(value, Mapping):
        return {key: _by_name(inner, functions) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_by_name(inner, functions) for inner in value]
    if not callable(value):
        return value
    function: Callable[..., Any] = value
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    if getattr(sys.modules.get(module), name, None) is not function:
        raise InvalidSettings(
            f"the function {name or function!r} can't be found by its name; define it with def in a module or a "
            "cell, not inside another function, and pass the newest definition"
        )
    functions[f"{module}:{name}"] = function
    return f"{module}:{name}"


def _watching(on_round: Callable[[Round], None] | None) -> Callable[[Progress], None]:
    def watch(now: Progress) -> None:
        if on_round is None or now.finished or now.unit.baseline is not None:
            return
        metrics: dict[str, dict[str, float]] = {}
        for _, split, name, value in now.measured:
            metrics.setdefault(split, {})[name] = float("nan") if value is None else value
        on_round(Round(now.unit.name, now.unit.seed, now.unit.fold, now.rounds, metrics))

    return watch


_PARAMETERS = {"out": "'folder'", "jobs": "'jobs'", "replace": "replace=True", "html": "'path'", "set": "'overrides'"}


@contextmanager
def _errors_of(function: str) -> Iterator[None]:
    """Make errors name the package that ``function`` needs, and parameters instead of options."""
    try:
        with python_names(**_PARAMETERS):
            yield
    except ModuleNotFoundError as error:
        missing = missing_package(error, function, "laboratory")
        if missing is None:
            raise
        raise missing from error
