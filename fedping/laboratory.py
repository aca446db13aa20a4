"""Laboratory experiments from a program or a notebook: run one, follow it, go on with it, read and compare results."""

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


@dataclass(frozen=True)
class Round:
    """One round of one run of an experiment, as ``on_round`` is told of it.

    Attributes:
        variant: whose round it is.
        seed: of which repetition.
        fold: of cross-validation; None without it.
        number: how many rounds of the run are over; 0 when its start model has been measured.
        metrics: by split, then by metric, what was measured: of "train" the loss and the number of clients of this
            round, and the bytes that travelled (``update_bytes``, ``posted_bytes``, ``fetched_bytes``); of
            "validation" and "test" in rounds that are evaluated (``evaluation.every``).
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
        folder: where its results lie.
        summary: names of variants and baselines, means with 95 % intervals over the seeds, the best variant.
    """

    folder: Path
    summary: Summary

    def metrics(self) -> pa.Table:
        """Return all that was measured: variant, seed, fold, round, split, metric, value; a row a number."""
        import pyarrow.parquet as pq

        return pq.read_table(self.folder / "metrics.parquet", partitioning=None)

    def to_pandas(self) -> pd.DataFrame:
        """Return :meth:`metrics` as a data frame.

        Raises:
            MissingPackage: pandas is not installed.
        """
        with _told_in_python("Results.to_pandas"):
            return self.metrics().to_pandas()

    def weights(
        self, variant: str | None = None, *, seed: int | None = None, fold: int | None = None, last: bool = False
    ) -> NDArray[np.float64]:
        """Return the weights of one run, shape (m,).

        Args:
            variant: a variant or a baseline; None for the best variant, or the only one.
            seed: of which repetition; None for the first.
            fold: of cross-validation; None for the first.
            last: of the last round, not of the version that was tested (they differ by early stopping).

        Raises:
            InvalidSettings: there is no such run.
        """
        name = variant or self.summary.best or next(iter(self.summary.variants))
        for unit in read_units(self.folder) or ():
            if unit.name == name and seed in (None, unit.seed) and fold in (None, unit.fold):
                weights: NDArray[np.float64] = np.load(self.folder / unit.folder / f"{'last' if last else 'best'}.npy")
                return weights
        known = ", ".join([*self.summary.variants, *self.summary.baselines])
        seeds = ", ".join(map(str, self.summary.seeds))
        raise InvalidSettings(
            f"{self.folder} has no run of '{name}' with seed {seed} and fold {fold}; it has {known}, seeds {seeds}"
        )

    def write_report(self, path: str | Path | None = None) -> Path:
        """Write the page with curves, intervals and the table; to ``report.html`` of the folder if None.

        Raises:
            FedpingError: it cannot be written, or matplotlib is missing.
        """
        from fedping.experiments.laboratory.report import write_report

        with _told_in_python("Results.write_report"):
            return write_report(self.folder, self.folder / "report.html" if path is None else Path(path))


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

    A loss, prediction or start of the model's own (``model.function``, ``predict``, ``start``) may be given as the
    function itself, such as one defined in a cell of a notebook; it has to be at the top level of its module.

    Args:
        experiment: an experiment's file, or its tables as a mapping. Paths in a file are relative to it, in a mapping
            to the working directory; so are the modules that they name.
        overrides: settings by dotted name, such as ``{"training.rate": 0.1}``. They lie above what variants say.
        folder: where the results go; ``simulated/<name>`` if None.
        resume: go on with what is finished in the folder, which has to be of this very experiment; otherwise the
            folder has to be new.
        replace: where the folder is of other settings, code, data or version of fedping, run anew what has changed; the
            rest stays.
        jobs: how many runs at a time, each in a process of its own; 1 runs all in this process, on all cores. The
            results do not depend on it. With functions of ``__main__`` it is always 1.
        on_round: called after each round of a variant. What it raises ends the run. With several jobs it is called in
            another thread.

    Raises:
        InvalidSettings: the experiment cannot be meant, or the folder is another's.
        FedpingError: the settings do not fit the data or the model; a function of one's own failed.
        MissingPackage: the extra ``laboratory`` is not installed.
    """
    if jobs < 1:
        raise InvalidSettings(f"jobs is {jobs}; it has to be at least 1")
    functions: dict[str, Callable[..., Any]] = {}
    settings, beside = _experiment(experiment, overrides or {}, functions)
    out = Path("simulated") / settings.name if folder is None else Path(folder)
    if not resume and out.exists():
        raise InvalidSettings(f"{out} exists; give another folder, or resume=True to go on with what is in it")
    if beside not in sys.path:  # last: a file of somebody's that is named as a module of Python's takes no place
        sys.path.append(beside)
    if any(name.startswith("__main__:") for name in functions):
        jobs = 1
    with _told_in_python("fedping.run"):
        return Results(out, run_experiment(settings, out, jobs, _watching(on_round), replace))


def open_results(folder: str | Path) -> Results:
    """Return the results of an experiment that was run before, by :func:`run` or `fedping simulate` or `sweep`.

    Raises:
        FedpingError: the folder has no finished experiment of the laboratory.
    """
    summary = read_summary(Path(folder))
    if summary is None:
        raise FedpingError(f"{folder} has no finished experiment; run it, or go on with it, by fedping.run")
    return Results(Path(folder), summary)


Compared: TypeAlias = "str | Path | Results | tuple[str | Path | Results, str]"
"""A results folder or results with one variant; or a pair of either and the name of a variant or a baseline."""


def compare(a: Compared, b: Compared) -> Comparison:
    """Return how b differs from a, paired by seed, with the 95 % t interval of the mean difference.

    ``differences`` has a row for each split and metric that both have: the means of a and b, ``difference`` (``mean``,
    ``half`` the interval) of b - a, and which is ``better`` where the interval leaves out 0.

    Raises:
        InvalidSettings: there are no such results, several variants to choose from, or no seed in common.
    """
    with _told_in_python("fedping.compare"):
        return compared(chosen(_named(a)), chosen(_named(b)))


def _named(one: Compared) -> str:
    if isinstance(one, tuple):
        return f"{_named(one[0])}:{one[1]}"
    return str(one.folder if isinstance(one, Results) else one)


def _experiment(
    experiment: str | Path | Mapping[str, Any], overrides: Mapping[str, Any], functions: dict[str, Callable[..., Any]]
) -> tuple[Experiment, str]:
    """Return an experiment, and the folder that its modules may lie in; note in ``functions`` those it was given."""
    if isinstance(experiment, Mapping):
        raw = _overridden(of_file(experiment), overrides)
        return experiment_of(_by_name(raw, functions), name="experiment", folder=Path()), str(Path().resolve())
    file = Path(experiment)
    tables = read_toml(file, "experiment file")
    if "study" in tables and tables.keys().isdisjoint({"model", "line"}):
        raise InvalidSettings(f"{file} is the experiment of a study; run it by `fedping simulate {file}`")
    with sentences_with(f"the experiment file {file}: "):
        raw = _overridden(of_file(tables), overrides)
        return experiment_of(_by_name(raw, functions), name=file.stem, folder=file.parent), str(file.parent.resolve())


def _overridden(raw: Mapping[str, Any], overrides: Mapping[str, Any]) -> Raw:
    """Return the tables with the overrides above them, and above what each variant changes."""
    changes = nested(overrides)
    changed = merged(raw, changes)
    ours = {key: value for key, value in changes.items() if key not in Head.__struct_fields__}
    if raw.get("variants") and "variants" not in changes and (variants := variants_of(raw)) is not None:
        changed["variants"] = [merged(_tables(variant), ours) for variant in variants]
    return changed


def _tables(variant: Mapping[str, Any]) -> Raw:
    name = {key: value for key, value in variant.items() if key == "name"}
    return name | nested({key: value for key, value in variant.items() if key != "name"})


def _by_name(value: Any, functions: dict[str, Callable[..., Any]]) -> Any:
    """Return settings with each function in them replaced by its name, "module:function".

    Raises:
        InvalidSettings: a function cannot be found by its name, as one inside another.
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
            f"the function {name or function!r} cannot be found by a name: define it with def in a module or a cell, "
            "not inside another function, and give the newest definition"
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
def _told_in_python(who: str) -> Iterator[None]:
    """Have errors name the package that is missing for ``who``, and parameters where they name options."""
    try:
        with python_names(**_PARAMETERS):
            yield
    except ModuleNotFoundError as error:
        missing = missing_package(error, who, "laboratory")
        if missing is None:
            raise
        raise missing from error
