"""Runs a whole experiment: the unfinished units, then the tables and the summary.

To identify results, the folder records the settings, the data, and the user's code: models, extensions and the user's
modules that they import. So results of different code or data are never mixed. Runs whose inputs have changed can be
run again in the folder; the others stay.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pyarrow as pa

from fedping.client_sim.data.originals import files_of_original
from fedping.client_sim.learning.models.own_loss import named
from fedping.client_sim.learning.registry import NETWORKS, is_network
from fedping.client_sim.learning.settings import Settings
from fedping.client_sim.models.ranking_model import CODE
from fedping.experiments.laboratory.models import named_in_modules
from fedping.experiments.laboratory.pool import Progress, Watch, check_can_be_spread, run_units, run_units_on_spark
from fedping.experiments.laboratory.preparing import check_model
from fedping.experiments.laboratory.results import METRICS_SCHEMA, Outcome, write_table, write_units
from fedping.experiments.laboratory.rounds.inside import between, check_inside, resolved, said_between
from fedping.experiments.laboratory.settings import Experiment, Setup
from fedping.experiments.laboratory.settings.experiment import with_noise
from fedping.experiments.laboratory.summary import Criteria, Summary, summarised
from fedping.experiments.laboratory.units import Unit, problem_digest, units_of
from fedping.experiments.run_folder import NOTE, OtherRun, claim, noted_of, take_over, write_document
from fedping.experiments.run_process import forget_locks
from fedping.protocol import __version__, log
from fedping.protocol.digest import canonical_json
from fedping.protocol.errors import InvalidSettings, sentences_with
from fedping.protocol.extensions import Extension, Own, extension_of, recorded, with_recorded_code
from fedping.protocol.formats import without_format
from fedping.protocol.source_digest import digest_of_value, own_modules
from fedping.server_jobs.spark.session_pool import SessionPool


def run_experiment(
    experiment: Experiment,
    out: Path,
    jobs: int | None = None,
    watch: Watch = lambda _: None,
    replace: bool = False,
    spark: SessionPool | None = None,
) -> Summary:
    """Run the unfinished runs of an experiment, and return its summary, which is also in ``<out>/summary.json``.

    Args:
        experiment: the experiment.
        out: a new folder, or the folder of a run of the same experiment, which is then continued.
        jobs: the number of parallel runs; None for one, or for as many as there are cores if runs take seconds. The
            results do not depend on it.
        watch: called with the progress, run by run.
        replace: whether runs with other settings, code or data than before are run again in this folder; the rest
            stays.
        spark: sessions whose executors do the runs; all executors have to see the folder. None for processes of this
            machine. The results do not depend on it.

    Raises:
        InvalidSettings: the folder isn't an experiment's, or has results of other settings, code or data.
        FedpingError: the settings do not fit the data or the model, or a package is missing.
    """
    if spark is not None:
        check_can_be_spread(experiment.variants)
    begun = begun_in(out)
    experiment = _with_engines(with_recorded_code(with_noise(experiment), begun), begun)
    units = units_of(experiment)
    left = [unit for unit in units if unit.folder(out).finished() is None]
    _check_models(left)
    _check_engines(left)
    modules = OwnModules()
    settings, parts = msgspec.json.format(canonical_json(experiment)), code_identity(experiment, noted_of(out), modules)
    try:
        claim(out, settings, parts)
    except OtherRun as error:
        if not replace:
            error.args = (f"{error}, or add --replace to run again what has changed, in this folder",)
            raise
        forget_changed(experiment, out, parts, modules)
        take_over(out, settings, parts)
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
    """Remove finished runs with an AUC from bins if ``replace`` is set or other runs would be compared with them.

    They are then run again, with the same bits except for the AUC. If all runs are finished, nothing new is compared
    with them, and their notes describe the AUC.
    """
    finished = {unit: outcome for unit in units if (outcome := unit.folder(out).finished()) is not None}
    if replace or len(finished) < len(units):
        for unit, outcome in finished.items():
            if outcome.has_binned_auc:
                shutil.rmtree(unit.folder(out).path)


def _check_models(units: Iterable[Unit]) -> None:
    """Raise before the first run if a variant's network, or its split into shared and local weights, cannot work.

    The split names weights and blocks, which only the model knows, and the variant may start hours later.
    """
    left_to_models = {
        unit.name: unit
        for unit in units
        if unit.baseline is None
        and (getattr(unit.setup.training, "personal", None) is not None or _has_network(unit.setup))
    }
    for unit in left_to_models.values():
        with sentences_with(unit.where, kind=InvalidSettings):
            check_model(unit.setup, unit.seed)


def _has_network(setup: Setup) -> bool:
    return setup.model["name"] in NETWORKS or is_network(str(setup.model["name"]))


def _with_engines(experiment: Experiment, begun: Experiment | None) -> Experiment:
    """Return the experiment with a specific engine for each variant with ``auto``, the same as when the run began."""
    before = begun.variants if begun else {}
    variants = {name: resolved(setup, before.get(name)) for name, setup in experiment.variants.items()}
    return msgspec.structs.replace(experiment, variants=variants)


def _check_engines(units: Iterable[Unit]) -> None:
    """Raise before the first run if a variant's engine cannot compute its rounds; the message names the reason."""
    for unit in {unit.name: unit for unit in units if unit.baseline is None}.values():
        with sentences_with(unit.where, kind=InvalidSettings):
            check_inside(unit.setup)
        if unit.setup.engine == "jax" and between(unit.setup):
            log.tell(f"{unit.where}{said_between(unit.setup)}", "info")


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
    target = next(iter(experiment.variants.values())).evaluation.target
    criteria = Criteria(seeds=experiment.seeds, shown=first.shown, split=first.split, target=target)
    return summarised(
        name=experiment.name,
        digest=experiment.digest,
        criteria=criteria,
        variants=variants,
        baselines=baselines,
    )


_OF_ALL = ("metrics.parquet", "summary.json", "report.html")
"""The files of an experiment's folder that are computed from all runs."""


class OwnModules(dict[str, dict[str, str]]):
    """The results of :func:`own_modules` by module; each is computed once, when it is first needed."""

    def __missing__(self, module: str) -> dict[str, str]:
        self[module] = own_modules(module)
        return self[module]


def code_identity(
    experiment: Experiment, noted: Mapping[str, str] = MappingProxyType({}), modules: OwnModules | None = None
) -> dict[str, str]:
    """Return digests of the inputs of an experiment's results other than its settings, and fedping's version, by name.

    Args:
        experiment: the experiment.
        noted: the digests that a folder has recorded. If it has the digest that an earlier version of fedping computed
            of the same code, that digest is returned.
        modules: known digests of the user's own modules; further ones are added.

    Raises:
        InvalidSettings: a model's code cannot be imported.
    """
    parts = {"version of fedping": __version__}
    modules = OwnModules() if modules is None else modules
    for setup in experiment.variants.values():
        for name in sorted(_parts_of(setup) - parts.keys()):
            parts[name] = _digest(name, setup)
            if name in noted and noted[name] == _digest(name, setup, as_written=True):
                parts[name] = noted[name]
        parts |= _modules_of(setup, modules)
    return parts


def forget_changed(experiment: Experiment, out: Path, now: Mapping[str, str], modules: OwnModules) -> None:
    """Remove a folder's runs whose settings, code or data have changed, and the files computed from all runs.

    Args:
        experiment: the current experiment.
        out: the folder.
        now: the result of :func:`code_identity`.
        modules: the ``modules`` given to that function.
    """
    before = begun_in(out)
    noted = noted_of(out)
    changed = {name for name, digest in now.items() if noted.get(name, digest) != digest}
    known = {} if before is None else {unit.folder(out).path: _identity(unit) for unit in units_of(before)}
    unchanged = {
        unit.folder(out).path
        for unit in units_of(experiment)
        if known.get(unit.folder(out).path) == _identity(unit)
        and not changed & {"version of fedping", *_parts_of(unit.setup), *_modules_of(unit.setup, modules)}
    }
    for path in [*out.glob("runs/*/*"), *out.glob("baselines/*/*")]:
        if path not in unchanged:
            shutil.rmtree(path)
            with suppress(OSError):  # the folder has other runs of the variant
                path.parent.rmdir()
    for name in _OF_ALL:
        (out / name).unlink(missing_ok=True)


def begun_in(out: Path) -> Experiment | None:
    """Return the experiment recorded in a folder; None if there is none, or it can't be read."""
    try:
        return msgspec.json.decode(without_format((out / NOTE).read_bytes(), f"the file {out / NOTE}"), type=Experiment)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _identity(unit: Unit) -> tuple[str | None, Setup | str]:
    """Return the settings on which a run's results depend; for a baseline, only those of the problem."""
    return unit.baseline, unit.setup if unit.baseline is None else problem_digest(unit.setup)


def _parts_of(setup: Setup) -> set[str]:
    parts = {f"file {file}" for file in _files_of(setup)}
    return parts | {f"code of {text}" for text in named_in_modules(setup.model).values() if ":" in text}


def _modules_of(setup: Setup, modules: OwnModules) -> dict[str, str]:
    """Return digests of the user's modules with models and extensions, and of the user's modules that these import."""
    homes = {text.partition(":")[0] for text in named_in_modules(setup.model).values() if ":" in text}
    homes |= {extension.make.__module__ for extension in _extensions_of(setup)}
    return {f"module {name}": digest for home in sorted(homes) for name, digest in modules[home].items()}


def _extensions_of(setup: Setup) -> Iterator[Extension]:
    if CODE in setup.model:
        name = setup.model["name"]
        yield recorded("model" if is_network(name) else "ranking_model", name, "")
    if setup.data.code:
        yield recorded("data_set", str(setup.data.name), "")
    yield from map(extension_of, _own_in(setup))


def _own_in(value: Any) -> Iterator[Own]:
    """Yield the extensions that settings name."""
    if isinstance(value, Own):
        yield value
    elif isinstance(value, msgspec.Struct):
        yield from _own_in([getattr(value, name) for name in value.__struct_fields__])
    elif isinstance(value, Mapping):
        yield from _own_in([*value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _own_in(each)


def _files_of(setup: Setup) -> list[str]:
    lists = setup.data.lists
    tables = (lists.items, lists.queries) if lists else ()
    files = (setup.data.file, setup.data.folder, setup.gossip.file if setup.gossip else None, *tables)
    return [file for file in files if file is not None]


def _digest(part: str, setup: Setup, *, as_written: bool = False) -> str:
    for file in _files_of(setup):
        if part == f"file {file}":
            return digest_of_data(file, setup)
    text = part.removeprefix("code of ")
    value = named(Settings(setup.model["name"], {"function": text}), "function", "my_module:my_loss")
    return digest_of_value(value, as_written=as_written)


def digest_of_data(path: str, setup: Setup) -> str:
    """Return the digest of a file or folder that a setting names, as recorded in a results folder."""
    if path == setup.data.folder:
        return _of_contents(files_of_original(setup.data.name or "", Path(path)))
    return _of_files(Path(path))


def _of_files(path: Path) -> str:
    """Return a digest of a file's contents, or of all files in a folder; without any, the digest of empty input."""
    return _of_contents(sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path])


def _of_contents(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        if not file.is_file():  # a pipe or a device may have no end; the reader of the data reports the problem
            continue
        with suppress(OSError), file.open("rb") as source:  # the reader of the data reports the error
            digest.update(hashlib.file_digest(source, "sha256").digest())
    return digest.hexdigest()
