"""A whole experiment: run what has not been run yet, then put everything together."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from fedping.experiments.laboratory.on_spark import check_can_be_spread, run_units_on_spark
from fedping.experiments.laboratory.pool import Progress, Watch, run_units
from fedping.experiments.laboratory.preparing import check_model
from fedping.experiments.laboratory.results import METRICS_SCHEMA, Outcome, Summary, summarised, write_units
from fedping.experiments.laboratory.results.folder import write_table
from fedping.experiments.laboratory.run_identity import OwnModules, begun_in, code_identity, forget_changed
from fedping.experiments.laboratory.settings import Experiment
from fedping.experiments.laboratory.settings.private import with_noise
from fedping.experiments.laboratory.units import Unit, units_of
from fedping.experiments.on_executors import forget_locks
from fedping.experiments.run_folder import OtherRun, claim, noted_of, take_over, write_document
from fedping.protocol.digest import canonical_json
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import with_recorded_code
from fedping.server_jobs.spark.session_pool import SessionPool


def run_experiment(
    experiment: Experiment,
    out: Path,
    jobs: int | None = None,
    watch: Watch = lambda _: None,
    replace: bool = False,
    spark: SessionPool | None = None,
) -> Summary:
    """Run what has not been run yet, and return the summary, which is also written to ``<out>/summary.json``.

    Args:
        experiment: what to run.
        out: a new folder, or that of a run of the same experiment, which is then continued.
        jobs: the number of parallel runs; None for one, or as many as there are cores where runs take seconds. The
            results do not depend on it.
        watch: is told of the progress, run by run.
        replace: run again, in this folder, whatever has other settings, code or data than before; the rest stays.
        spark: lets its executors do the runs, who all have to see the folder; None for processes of this machine. The
            results do not depend on it.

    Raises:
        InvalidSettings: the folder holds something else, or results of other settings, code or data.
        FedpingError: the settings do not fit the data or the model, or a package is missing.
    """
    if spark is not None:
        check_can_be_spread(experiment.variants)
    experiment = with_recorded_code(with_noise(experiment), begun_in(out))
    units = units_of(experiment)
    _check_models([unit for unit in units if unit.folder(out).finished() is None])
    modules = OwnModules()
    said, parts = msgspec.json.format(canonical_json(experiment)), code_identity(experiment, noted_of(out), modules)
    try:
        claim(out, said, parts)
    except OtherRun as error:
        if not replace:
            raise OtherRun(f"{error}, or add --replace to run what has changed anew in this folder") from error
        forget_changed(experiment, out, parts, modules)
        take_over(out, said, parts)
    _forget_binned_auc(units, out, replace)
    write_units(out, [unit.note for unit in units])
    outcomes: dict[Unit, Outcome] = {}

    def finished(unit: Unit, outcome: Outcome) -> None:
        outcomes[unit] = outcome
        watch(Progress(unit, outcome.rounds, finished=True))

    for unit in units:
        if (outcome := unit.folder(out).finished()) is not None:
            finished(unit, outcome)
    left = [unit for unit in units if unit not in outcomes]
    if spark is not None:
        run_units_on_spark(left, out, spark, watch, finished)
    else:
        run_units(left, out, _jobs(experiment, jobs), watch, finished)
    forget_locks(out)
    write_table(out / "metrics.parquet", _metrics(units, out))
    summary = _summary(experiment, units, outcomes)
    write_document(out / "summary.json", summary)
    return summary


def _forget_binned_auc(units: Sequence[Unit], out: Path, replace: bool) -> None:
    """Remove finished runs whose AUC is of bins if they are to be replaced, or others would stand beside them.

    They are then run again, to the same bits but for the AUC. Where all runs are finished nothing would stand beside
    them, and their notes say what they are.
    """
    finished = {unit: outcome for unit in units if (outcome := unit.folder(out).finished()) is not None}
    if replace or len(finished) < len(units):
        for unit, outcome in finished.items():
            if outcome.has_binned_auc:
                shutil.rmtree(unit.folder(out).path)


def _check_models(units: Iterable[Unit]) -> None:
    """Raise before the first run if what a variant leaves to its clients does not fit its model.

    It names weights and blocks, which only the model knows, and the variant's turn may come after hours.
    """
    personal = {
        unit.name: unit
        for unit in units
        if unit.baseline is None and getattr(unit.setup.training, "personal", None) is not None
    }
    for unit in personal.values():
        try:
            check_model(unit.setup, unit.seed)
        except InvalidSettings as error:
            raise InvalidSettings(f"{unit.where}{error}") from error


def _jobs(experiment: Experiment, jobs: int | None) -> int | None:
    """Return the number of parallel runs: one if they share a Spark session or this machine's ports."""
    if any(setup.where == "http" or setup.engine == "spark" for setup in experiment.variants.values()):
        return 1
    return jobs


def _metrics(units: Sequence[Unit], out: Path) -> pa.Table:
    return pa.concat_tables([unit.folder(out).metrics() for unit in units] or [METRICS_SCHEMA.empty_table()])


def _summary(experiment: Experiment, units: Sequence[Unit], outcomes: Mapping[Unit, Outcome]) -> Summary:
    variants: dict[str, list[Outcome]] = {}
    baselines: dict[str, list[Outcome]] = {}
    for unit in units:
        rows = baselines if unit.baseline else variants
        rows.setdefault(unit.name, []).append(outcomes[unit])
    first = next(iter(outcomes.values()))
    return summarised(
        name=experiment.name,
        digest=experiment.digest,
        seeds=experiment.seeds,
        shown=first.shown,
        split=first.split,
        variants=variants,
        baselines=baselines,
        target=next(iter(experiment.variants.values())).evaluation.target,
    )
