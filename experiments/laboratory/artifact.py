"""Writes and reruns a folder for reviewers: an experiment's file, its data, packages, and the expected results.

``experiment.toml`` has all settings with their defaults, and the seeds. ``expected.json`` has digests of every file and
the final metrics of every run. Rerunning checks the digests first, then each figure.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fedping.experiments.laboratory.pool import Watch
from fedping.experiments.laboratory.results import Outcome, RunFolder, SplitMetrics, read_units
from fedping.experiments.laboratory.run import begun_in, digest_of_data, run_experiment
from fedping.experiments.laboratory.settings import Experiment, Setup, experiment_of
from fedping.experiments.laboratory.settings.experiment import ONLY_VARIANT, experiment_from_toml
from fedping.experiments.laboratory.summary import read_summary
from fedping.experiments.laboratory.units import units_of
from fedping.experiments.run_folder import (
    Environment,
    environment_here,
    environments_in,
    noted_of,
    read_whole,
    write_document,
    write_whole_bytes,
)
from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.settings_file import toml_text

FILE, EXPECTED, LOCK, README = "experiment.toml", "expected.json", "requirements.txt", "README.md"
DATA, RERUN = "data", "rerun"

MOST_COPIED = 2**28
"""Maximum bytes of a data file or folder for a copy; the reader has to supply larger ones."""

TOLERANCE = 1e-6
"""Allowed relative difference of a figure, as from another processor or library."""


class ExpectedRun(Struct, frozen=True, kw_only=True):
    """The final metrics of one run, by split and metric."""

    name: str
    seed: int
    fold: int | None
    final: SplitMetrics


class Expected(Struct, frozen=True, kw_only=True):
    """The results that a rerun must reproduce.

    Attributes:
        version: the version of fedping.
        files: SHA-256 of the folder's files, and digests of its data, by path.
        code: digests of the user's own modules and functions.
        environments: where the results were computed.
        runs: every run, baselines too.
    """

    version: str
    files: dict[str, str]
    code: dict[str, str]
    environments: tuple[Environment, ...]
    runs: tuple[ExpectedRun, ...]


@dataclass(frozen=True)
class _DataOf:
    """A setting's file or folder: its source, its path in the artifact, and whether it is its authors' original."""

    source: str
    place: str
    original: bool
    digest: str


def write_artifact(out: Path, to: Path) -> list[str]:
    """Write the folder ``to`` for the finished experiment in ``out``; return the data that the reader has to supply.

    Raises:
        FedpingError: the experiment isn't finished, its data are missing or changed, or the folder can't be written.
    """
    experiment, summary = begun_in(out), read_summary(out)
    if experiment is None or summary is None:
        raise FedpingError(f"{out} has no finished experiment of the laboratory. Run 'fedping simulate' first")
    if to.exists() and any(to.iterdir()) and not (to / EXPECTED).is_file():
        raise InvalidSettings(f"{to} has something else in it. Give --artifact a new folder")
    experiment = _in_order(experiment, out)
    noted = noted_of(out)
    data = {each.source: each for setup in experiment.variants.values() for each in _data_of(setup, noted)}
    text = _as_file(experiment, {source: each.place for source, each in data.items()})
    try:
        (to / DATA).mkdir(parents=True, exist_ok=True)
        left = [each.place for each in data.values() if not _copied(each, to)]
        write_whole_bytes(to / FILE, text.encode())
        write_whole_bytes(to / LOCK, "".join(f"{line}\n" for line in _installed()).encode())
        files = {
            FILE: _sha256(to / FILE),
            LOCK: _sha256(to / LOCK),
            **{each.place: each.digest for each in data.values()},
        }
        code = {name: digest for name, digest in noted.items() if name.startswith(("module ", "code of "))}
        expected = Expected(
            version=noted.get("version of fedping", __version__),
            files=files,
            code=code,
            environments=tuple(dict.fromkeys(_environments(experiment, out))),
            runs=tuple(_runs(experiment, out)),
        )
        write_document(to / EXPECTED, expected)
        write_whole_bytes(to / README, _readme(experiment, expected, left).encode())
    except OSError as error:
        raise FedpingError(f"cannot write {to}: {error.strerror}. Give another folder") from error
    return left


def _in_order(experiment: Experiment, out: Path) -> Experiment:
    """Return the experiment with its variants in the order of their runs; stored settings don't keep that order."""
    names = dict.fromkeys(unit.name for unit in read_units(out) or ())
    order = [name for name in names if name in experiment.variants]
    return msgspec.structs.replace(experiment, variants={name: experiment.variants[name] for name in order})


class Reproduction(Struct, frozen=True, kw_only=True):
    """The result of a rerun.

    Attributes:
        runs: number of runs.
        figures: number of compared figures.
        same: number of figures whose bits are all equal.
        apart: each figure that differs by more than the tolerance: run, split and metric, expected and found.
        largest: the largest relative difference.
        same_environment: whether the rerun's environment is of the same kind as the original's.
        found: number of begun or finished runs that were already in the folder's ``rerun``. The author of the folder
            may have put them there.
    """

    runs: int
    figures: int
    same: int
    apart: tuple[tuple[str, float | None, float | None], ...]
    largest: float
    same_environment: bool
    found: int = 0


def reproduce(folder: Path, jobs: int | None = None, watch: Watch = lambda _: None) -> Reproduction:
    """Rerun the experiment of an artifact (:func:`write_artifact`) inside its folder, and compare the figures.

    Raises:
        FedpingError: the folder isn't an artifact or is of another version of fedping, a file is missing or changed, or
            the results would be written elsewhere.
    """
    expected = read_whole(folder / EXPECTED, Expected)
    if expected is None:
        raise FedpingError(f"{folder} has no {EXPECTED}. Name a folder of 'fedping export --artifact'")
    if expected.version != __version__:
        raise FedpingError(
            f"{folder} is of fedping {expected.version}, and this is {__version__}. Install the packages of "
            f"{folder / LOCK}"
        )
    for name in (FILE, LOCK):
        if not (folder / name).is_file() or _sha256(folder / name) != expected.files.get(name):
            raise FedpingError(f"{folder / name} is missing or has changed. Get the folder again")
    experiment = experiment_from_toml(folder / FILE)
    for setup in experiment.variants.values():
        for path in _paths_of(setup):
            if not Path(os.path.normpath(path)).is_relative_to(os.path.normpath(folder)):
                raise FedpingError(f"{folder / FILE} names data outside its folder, {path}. Get the folder again")
            place = Path(path).relative_to(folder).as_posix()
            if digest_of_data(path, setup) != expected.files.get(place):
                raise FedpingError(f"{path} is missing or has changed. Put the file there that {folder / README} names")
    rerun = folder / RERUN
    if link := next((each for each in (rerun, *rerun.rglob("*")) if each.is_symlink()), None):
        raise FedpingError(f"{link} is a link, and results would be written elsewhere. Remove {rerun}")
    before = sum(unit.folder(rerun).path.exists() for unit in units_of(experiment))
    run_experiment(experiment, rerun, jobs, watch)
    runs = {(run.name, run.seed, run.fold): run for run in _runs(experiment, rerun)}
    return _compared(expected, runs, before)


def _compared(
    expected: Expected, found: Mapping[tuple[str, int, int | None], ExpectedRun], before: int = 0
) -> Reproduction:
    figures, same, largest = 0, 0, 0.0
    apart: list[tuple[str, float | None, float | None]] = []
    for run in expected.runs:
        its = found.get((run.name, run.seed, run.fold))
        for split, metrics in run.final.items():
            for metric, value in metrics.items():
                other = None if its is None else its.final.get(split, {}).get(metric)
                figures += 1
                same += value == other
                difference = _difference(value, other)
                largest = max(largest, difference)
                if difference > TOLERANCE:
                    fold = "" if run.fold is None else f", fold {run.fold}"
                    apart.append((f"{run.name}, seed {run.seed}{fold}: {split} {metric}", value, other))
    return Reproduction(
        runs=len(expected.runs),
        figures=figures,
        same=same,
        apart=tuple(apart),
        largest=largest,
        same_environment=environment_here() in expected.environments,
        found=before,
    )


def _difference(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    return 0.0 if one == other else abs(one - other) / max(abs(one), abs(other), 1e-3)


def _runs(experiment: Experiment, out: Path) -> Iterator[ExpectedRun]:
    for unit in units_of(experiment):
        outcome: Outcome | None = RunFolder(unit.folder(out).path).finished()
        if outcome is None:
            raise FedpingError(f"a run of '{unit.name}' in {out} is not finished. Let 'fedping simulate' continue it")
        yield ExpectedRun(name=unit.name, seed=unit.seed, fold=unit.fold, final=outcome.final)


def _environments(experiment: Experiment, out: Path) -> Iterator[Environment]:
    for unit in units_of(experiment):
        yield from environments_in(unit.folder(out).path)


def _as_file(experiment: Experiment, places: Mapping[str, str]) -> str:
    """Return an experiment as TOML with all its settings, with the paths of files as in ``places``.

    Raises:
        FedpingError: reading it would not give the same experiment.
    """
    moved = {name: _moved(msgspec.to_builtins(setup), places) for name, setup in experiment.variants.items()}
    wanted = msgspec.structs.replace(
        experiment, variants={name: msgspec.convert(setup, Setup) for name, setup in moved.items()}
    )
    for setup in moved.values():
        setup.pop("model" if setup.get("spec") is not None else "spec", None)
    head = {"name": experiment.name, "seeds": list(experiment.seeds)}
    if list(moved) == [ONLY_VARIANT]:
        tables = {**head, **moved[ONLY_VARIANT]}
    else:
        tables = {**head, "variants": [{"name": name, **setup} for name, setup in moved.items()]}
    text = toml_text(_without_none(tables))
    if experiment_of(tomllib.loads(text), name=experiment.name, folder=Path()) != wanted:
        raise FedpingError(f"the settings of '{experiment.name}' cannot be written as a file. Add its own file by hand")
    return text


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value


_WITH_FILES = (
    ("data", "file"),
    ("data", "folder"),
    ("gossip", "file"),
    ("data", "lists", "items"),
    ("data", "lists", "queries"),
)


def _at(tables: Any, place: tuple[str, ...]) -> tuple[Any, Any]:
    """Return the innermost table of the setting at ``place``, and the setting's value; None if a table is absent."""
    for step in place[:-1]:
        tables = tables.get(step) if isinstance(tables, dict) else None
    return tables, tables.get(place[-1]) if isinstance(tables, dict) else None


def _paths_of(setup: Setup) -> list[str]:
    tables = msgspec.to_builtins(setup)
    return [value for place in _WITH_FILES if isinstance(value := _at(tables, place)[1], str)]


def _moved(tables: dict[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    for place in _WITH_FILES:
        table, value = _at(tables, place)
        if isinstance(value, str):
            table[place[-1]] = places[value]
    return tables


def _data_of(setup: Setup, noted: Mapping[str, str]) -> Iterator[_DataOf]:
    for source in _paths_of(setup):
        digest = digest_of_data(source, setup)
        if not Path(source).exists() or noted.get(f"file {source}", digest) != digest:
            raise FedpingError(
                f"the data in {source} are missing or have changed since the runs. Restore them, and run this command "
                "in the folder where 'fedping simulate' ran"
            )
        unique = hashlib.sha256(source.encode()).hexdigest()[:6]
        place = f"{DATA}/{unique}-{Path(source).name}"
        yield _DataOf(source, place, source == setup.data.folder, digest)


def _copied(data: _DataOf, to: Path) -> bool:
    """Copy data, unless they are too large or belong to their authors; return whether they are in the folder."""
    source, place = Path(data.source), to / data.place
    files = [each for each in source.rglob("*") if each.is_file()] if source.is_dir() else [source]
    if data.original or sum(each.stat().st_size for each in files) > MOST_COPIED:
        return False
    copy: Callable[..., Any] = shutil.copyfile
    if source.is_dir():
        shutil.rmtree(place, ignore_errors=True)
        copy = shutil.copytree
    copy(source, place)
    return True


def _installed() -> list[str]:
    found = {each.metadata["Name"]: each.version for each in distributions() if each.metadata["Name"]}
    return sorted(f"{name}=={version}" for name, version in found.items())


def _sha256(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _readme(experiment: Experiment, expected: Expected, left: list[str]) -> str:
    seeds = ", ".join(map(str, experiment.seeds))
    lines = [
        f"# {experiment.name}",
        "",
        f"The experiment of fedping {expected.version} in `{FILE}`: {len(expected.runs)} runs, seeds {seeds}.",
        "",
        "```",
        f"pip install -r {LOCK}",
        "fedping reproduce .",
        "```",
        "",
        f"This checks the digests in `{EXPECTED}`, runs everything again into `{RERUN}`, and compares each run's "
        "final metrics with the expected ones. They are equal to the bit on processors of the same kind; on others a "
        f"relative difference of {TOLERANCE:g} is accepted. If it is stopped, the same command continues.",
    ]
    if left:
        lines += ["", "Put these data there first; they are too large to be copied, or their authors publish them:", ""]
        lines += [f"- `{place}`, digest `{expected.files[place]}`" for place in left]
    if expected.code:
        lines += ["", f"Put the experiment's own code next to `{FILE}`, so that it can be imported:", ""]
        lines += [f"- {name}, digest `{digest}`" for name, digest in expected.code.items()]
    lines += ["", "Computed on:", ""]
    lines += [
        f"- {each.machine}, Python {each.python}, NumPy {each.numpy}"
        + (f", {', '.join(each.blas)}" if each.blas else "")
        for each in expected.environments
    ]
    return "\n".join(lines) + "\n"
