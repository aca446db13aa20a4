"""Checks of a description with the code of the command that will run it, and the presets."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from fedping import experiments
from fedping.experiments.laboratory.models import check_choices, named_in_modules
from fedping.experiments.laboratory.settings import Experiment, Setup, experiment_of
from fedping.experiments.laboratory.settings.merging import CHOICES, nested, variants_of
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import MODULES, loaded_modules
from fedping.protocol.location import local_path
from fedping.protocol.settings_file import NotToml, tables_in, toml_text

NAME = "experiment"
"""The default name of an experiment."""

SHIPPED = frozenset({"fedping.experiments.papers.uses"})
"""Modules with models of shipped experiments."""

_VARIANT = re.compile(r"^variant '(?P<name>.*?)': (?P<rest>.*)$", re.DOTALL)
_PLACES = (
    re.compile(r"'(?P<key>[\w-]+)' in \[(?P<table>[\w.]+)\]"),
    re.compile(r"\[(?P<table>[\w.]+)\] needs the setting '(?P<key>[\w-]+)'"),
    re.compile(r"\[(?P<table>[\w.]+)\] has no setting '(?P<key>[\w-]+)'"),
    re.compile(r"^(?:the setting )?'(?P<key>[\w-]+)' is "),
    re.compile(r"\[(?P<table>data)\] has '(?P<key>[\w-]+)'"),
)
_OF_MODEL = (
    re.compile(r"the setting '(?P<key>[\w-]+)' of the model '"),
    re.compile(r"the model '[^']*' (?:needs the|has no) setting '(?P<key>[\w-]+)'"),
)
_NOT_THERE = re.compile(r"^there is no (?P<what>data set|model) '")
_TABLE = re.compile(r"\[(?P<table>[a-z_.]+)\]")


@dataclass(frozen=True)
class Judged:
    """A valid description: kind, name, variants and number of seeds."""

    kind: Literal["laboratory", "study"]
    name: str
    variants: tuple[str, ...] = ()
    seeds: int = 1
    beside: Mapping[str, bytes] | None = None


@dataclass(frozen=True)
class Problem:
    """The reason why a description cannot be run, and the place of the problem, if known.

    ``path`` is the dotted name of a setting or a table, ``variant`` the name of the variant that contains it.
    """

    sentence: str
    path: str | None = None
    variant: str | None = None


def judge(text: str, data: Sequence[Path] = ()) -> Judged | Problem:
    """Return the checked description, or its problem.

    Descriptions may come from any user who can reach the dashboard. So a file that a description names must be in one
    of the folders ``data``, and a function must be in a module that the operator has loaded as an extension.
    """
    try:
        tables = tables_in(text, "this")
        return _study(text, tables, data) if "study" in tables else _laboratory(tables, data)
    except NotToml as error:
        return Problem(str(error))
    except InvalidSettings as error:
        return problem_of(str(error), tables)


MOST_PROBLEMS = 8
"""Maximum number of a description's problems that are reported at once."""


def judge_all(text: str, data: Sequence[Path] = ()) -> Judged | list[Problem]:
    """Return the checked description, or all problems that can be distinguished, in order.

    To find the next problem, the setting with the previous one is removed.
    """
    judged = judge(text, data)
    problems: list[Problem] = []
    while isinstance(judged, Problem) and len(problems) < MOST_PROBLEMS:
        if any((each.path, each.variant) == (judged.path, judged.variant) for each in problems):
            break  # it is a required setting
        problems.append(judged)
        rest = _without(judged, text)
        if rest is None:
            break
        text = rest
        judged = judge(text, data)
    return judged if isinstance(judged, Judged) and not problems else problems


def _without(problem: Problem, text: str) -> str | None:
    """Return a description without the setting that has a problem; None if it has no such setting."""
    try:
        tables = tables_in(text, "this")
    except NotToml:
        return None
    where: Any = tables
    if problem.variant is not None:
        variants = tables.get("variants", ())
        where = next((each for each in variants if each.get("name") == problem.variant), None)
    *outer, setting = (problem.path or "").split(".")
    for step in outer:
        where = where.get(step) if isinstance(where, dict) else None
    if not isinstance(where, dict) or setting not in where:
        return None
    del where[setting]
    return toml_text(tables)


def _laboratory(tables: Mapping[str, Any], data: Sequence[Path]) -> Judged:
    if tables.keys().isdisjoint({"model", "line"}):
        raise InvalidSettings(
            'this is not an experiment: add [model] or [line] for a laboratory experiment, or study = "..." to '
            "simulate a study file"
        )
    experiment = _experiment(tables)
    for name, setup in experiment.variants.items():
        try:
            _check(setup, data)
        except InvalidSettings as error:
            if tables.get("variants"):
                error.locate(f"variant '{name}'")
            raise
    return Judged("laboratory", experiment.name, tuple(experiment.variants), len(experiment.seeds))


def _experiment(tables: Mapping[str, Any]) -> Experiment:
    """Return the experiment; an error in only one variant is reported with its name."""
    try:
        return experiment_of(tables, name=NAME, folder=Path())
    except InvalidSettings as error:
        sentence = str(error)
        if not _VARIANT.match(sentence) and _fault({**tables, "variants": []}) != sentence:
            for variant in variants_of(tables) or ():
                if _fault({**tables, "variants": [variant]}) == sentence:
                    error.locate(f"variant '{variant.get('name')}'")
                    break
        raise


def _fault(tables: Mapping[str, Any]) -> str | None:
    try:
        experiment_of(tables, name=NAME, folder=Path())
    except InvalidSettings as error:
        return str(error)
    return None


def _check(setup: Setup, data: Sequence[Path]) -> None:
    check_choices(setup.model, setup.data.name if setup.data.folder is None else None)
    _check_functions(setup.model)
    if setup.data.file is not None:
        _check_file(setup.data.file, "'file' in [data]", data)
    if setup.data.folder is not None:
        _check_file(setup.data.folder, "'folder' in [data]", data, is_folder=True)


def _check_file(said: str, where: str, data: Sequence[Path], *, is_folder: bool = False) -> None:
    """Raise if a description may not name a file, without revealing whether it exists, or if the file is missing."""
    file = Path(said)
    if not file.is_absolute():
        raise InvalidSettings(f"{where} is '{said}'; give its absolute path, such as /home/me/{file.name}")
    try:
        real = file.resolve()  # a link may lead anywhere
        is_below = any(real.is_relative_to(folder.resolve()) for folder in data)
        is_there, is_file = is_below and real.exists(), is_below and (real.is_dir() if is_folder else real.is_file())
        leads_out = not is_below and any(_within(file, folder) for folder in data)
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidSettings(f"{where} is '{said[:200]}', which cannot be a path; check it") from error
    if not is_below:
        folders = f"only below {', '.join(map(str, data))}" if data else "below no folder yet"
        may, start = f"descriptions may name files {folders}", "start the dashboard with --data"
        if leads_out:
            raise InvalidSettings(
                f"{where} is '{said}', a link to a place outside, but {may}; give the link's target, and {start} "
                "with the target's folder"
            )
        raise InvalidSettings(
            f"{where} is '{said}', but {may}; {start} {file.parent}, or run the experiment from the command line"
        )
    if not is_there:
        raise InvalidSettings(f"{where} is '{said}', which does not exist; check the path")
    if not is_file:
        raise InvalidSettings(f"{where} is '{said}', which is not a {'folder' if is_folder else 'file'}; give one")


def _within(file: Path, folder: Path) -> bool:
    """Return whether a path is textually below a folder, without revealing anything about other files."""
    return Path(os.path.normpath(file)).is_relative_to(os.path.normpath(folder.absolute()))


def _check_functions(model: Mapping[str, Any]) -> None:
    for setting, said in named_in_modules(model).items():
        module, _, name = said.partition(":")
        whose = f"the setting '{setting}' of the model '{model['name']}' is '{said}'"
        if module in SHIPPED:
            import_module(module)
        elif module not in loaded_modules():
            raise InvalidSettings(
                f"{whose}, but descriptions may use only functions of modules that the dashboard was started with; "
                f"start it with {MODULES}={module or 'my_module'}, or run the experiment from the command line"
            )
        there = getattr(sys.modules.get(module), name, None)
        if callable(there) and getattr(there, "__module__", module) != module:
            raise InvalidSettings(f"{whose}, which '{module}' only imports; name one that it defines itself")


def _study(text: str, tables: Mapping[str, Any], data: Sequence[Path]) -> Judged:
    """Return the checked experiment of a study; a shipped study is copied next to it."""
    from fedping.experiments.simulate.settings import experiment_from_toml

    beside = _beside(tables.get("study"), data)
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{NAME}.toml"
        file.write_text(text, encoding="utf-8")
        for name, content in beside.items():
            (Path(folder) / name).write_bytes(content)
        try:
            _, study = experiment_from_toml(file)
        except InvalidSettings as error:
            error.args = (str(error).replace(f"the experiment file {file}: ", "").replace(f"{folder}/", ""),)
            raise
    return Judged("study", study.name, tuple(arm.name for arm in study.arms), 1, beside)


def _beside(study: Any, data: Sequence[Path]) -> Mapping[str, bytes]:
    if not isinstance(study, str):
        return {}
    if (file := local_path(study)).is_absolute():
        _check_file(str(file), "'study'", data)
        return {}
    shipped = next((file for file in EXPERIMENTS.iterdir() if file.name == study and file.is_file()), None)
    if shipped is None:
        raise InvalidSettings(
            f"'study' is '{study}', which is not shipped with fedping; give the absolute path of your study's file"
        )
    return {study: shipped.read_bytes()}


def problem_of(sentence: str, tables: Mapping[str, Any]) -> Problem:
    """Return the problem that an error sentence describes, with its place in the file: a variant, or all variants."""
    of_variant = _VARIANT.match(sentence)
    if of_variant is None:
        return Problem(sentence, _path(sentence))
    path = _path(of_variant["rest"])
    if path is not None and not _says(of_variant["name"], path, tables):
        return Problem(of_variant["rest"], path)
    return Problem(sentence, path, of_variant["name"])


def _says(variant: str, path: str, tables: Mapping[str, Any]) -> bool:
    """Return whether a variant itself has a setting, or has the table in which the setting is missing."""
    changes: Mapping[str, Any] = next((each for each in tables.get("variants", ()) if each.get("name") == variant), {})
    found: Any = nested({key: value for key, value in changes.items() if key != "name"})
    *tables_of_it, setting = path.split(".")
    for step in tables_of_it:
        found = found.get(step) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        return False
    choice = CHOICES.get(tables_of_it[-1]) if tables_of_it else None
    return setting in found or choice in found


def _path(sentence: str) -> str | None:
    for pattern in _OF_MODEL:
        if match := pattern.search(sentence):
            return f"model.{match['key']}"
    for pattern in _PLACES:
        if match := pattern.search(sentence):
            table = match.groupdict().get("table")
            return f"{table}.{match['key']}" if table else match["key"]
    if match := _NOT_THERE.match(sentence):
        return "model.name" if match["what"] == "model" else "data.name"
    match = _TABLE.search(sentence)
    return match["table"] if match else None


EXPERIMENTS = Path(experiments.__file__).parent

SECONDS: dict[str, int] = {
    "breast_cancer": 10,
    "fritsch_2018_figure_6": 100,
    "fritsch_2018_figure_6_movielens": 35,
    "fritsch_2018_figure_7": 100,
    "fritsch_2018_figure_8": 200,
    "fritsch_2018_figure_9": 60,
    "fritsch_2018_figure_9_logistic": 45,
    "fritsch_2018_coefficients": 15,
    "rodriguez_barroso_2020_table_4": 250,
    "rodriguez_barroso_2020_table_6": 15,
    "rodriguez_barroso_2020_k_means": 20,
    "zhang_2018_k_means": 20,
    "jiang_2019_movielens": 50,
    "demo_study": 60,
    "notebooks": 10,
    "firefox_study": 240,
    "private_users": 35,
}
"""Measured processor time of shipped experiments in seconds, approximate (docs/experiments.md)."""


@dataclass(frozen=True)
class Preset:
    """A shipped experiment.

    Attributes:
        id: its file name without the suffix.
        path: the path of the file.
        source: the folder and name as in the documentation.
        kind: an experiment of the laboratory or of a study.
        about: the first sentences of the file.
        seconds: see :data:`SECONDS`; None if unknown.
    """

    id: str
    path: Path
    source: str
    kind: Literal["laboratory", "study"]
    about: str
    seconds: int | None

    @property
    def text(self) -> str:
        """The contents of the file."""
        return self.path.read_text(encoding="utf-8")


@cache
def presets() -> tuple[Preset, ...]:
    """Return the shipped experiments: first those of the laboratory, then those of studies."""
    files = [*sorted(EXPERIMENTS.glob("*.toml")), *sorted((EXPERIMENTS / "papers").glob("*.toml"))]
    known_presets = [preset for preset in map(_preset, files) if preset is not None]
    return tuple(sorted(known_presets, key=lambda preset: (preset.kind, preset.path.parent.name)))


def preset(id: str) -> Preset:
    """Return a shipped experiment.

    Raises:
        FedpingError: no shipped experiment has this id.
    """
    for each in presets():
        if each.id == id:
            return each
    raise FedpingError(f"no experiment named '{id[:80]}' is shipped; choose one from the list")


def _preset(path: Path) -> Preset | None:
    text = path.read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    if tables.keys().isdisjoint({"model", "line", "study"}):
        return None
    return Preset(
        id=path.stem,
        path=path,
        source=str(Path("experiments") / path.relative_to(EXPERIMENTS)),
        kind="study" if "study" in tables else "laboratory",
        about=_about(text.splitlines()),
        seconds=SECONDS.get(path.stem),
    )


def _about(lines: Iterable[str]) -> str:
    """Return the first paragraph of the comment at the beginning of a file."""
    words = []
    for line in lines:
        if not line.startswith("#") or not line.strip("# "):
            break
        words.append(line.strip("# "))
    return " ".join(words)
