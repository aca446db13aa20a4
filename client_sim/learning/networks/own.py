"""Networks from a user's package: functions that return a :class:`Network`, registered by ``fedping.model``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec

from fedping.client_sim.learning.models.arrays import Precision
from fedping.client_sim.learning.networks.network import Network
from fedping.client_sim.learning.networks.tree_model import TreeModel, outputs_of, tree_model
from fedping.client_sim.learning.settings import Setting, Settings
from fedping.client_sim.models.ranking_model import CODE
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import Extension, ExtensionFailed, all_of, recorded, registered

OF_EVERY_NETWORK = ("seed", "precision", CODE)
"""The settings of every network, in addition to its function's."""

FROM_DATA = ("features", "classes")
"""The settings of a network's function that an experiment derives from its data."""


def own_networks() -> tuple[str, ...]:
    """Return the names of the networks of extensions."""
    return tuple(each.name for each in all_of("model"))


def derived_settings(name: str) -> tuple[str, ...]:
    """Return the settings of an extension's network that an experiment derives from data and seed; else empty."""
    extension = registered("model", name)
    return () if extension is None else (*(each for each in FROM_DATA if each in extension.keyword_names), "seed")


def own_network(name: str, settings: Mapping[str, Setting]) -> TreeModel:
    """Return the network of an extension as a model.

    Args:
        name: the network's name.
        settings: the settings of the network's function; ``seed``, ``precision``, and the hash of the code.

    Raises:
        InvalidSettings: no extension has this name, its code differs, or a setting is invalid.
        ExtensionFailed: the extension raises an error, or returns something else.
    """
    extension = recorded("model", name, str(settings.get(CODE, "")))
    ours = Settings(name, {key: value for key, value in settings.items() if key in ("seed", "precision")})
    own = {key: value for key, value in settings.items() if key not in OF_EVERY_NETWORK}
    if "seed" in extension.keyword_names and "seed" in settings:
        own["seed"] = settings["seed"]
    with extension.guarded():
        network = _made(extension, msgspec.json.encode(own, order="sorted"))
        precision = cast("Precision", ours.choice("precision", ("float32", "float64")))
        model = tree_model(name, network, ours.whole("seed", 0, least=0), precision)
    _check_classes(model, own.get("classes"))
    return model


@lru_cache(maxsize=32)
def _made(extension: Extension, settings: bytes) -> Network:
    """Return an extension's network; all seeds share it, so that it is compiled once."""
    found = extension.made(msgspec.json.decode(settings))
    if not isinstance(found, Network):
        raise ExtensionFailed(
            f"{extension}, an extension, returned a {type(found).__name__}; return a fedping.Network, or what "
            "fedping.flax_network and fedping.equinox_network make of a module"
        )
    return found


def _check_classes(model: TreeModel, classes: Any) -> None:
    """Raise unless the network predicts the required number of classes."""
    outputs = outputs_of(model.network)[1:]
    if isinstance(classes, int) and (outputs != (classes,)) and not (classes == 2 and not outputs):
        raise InvalidSettings(
            f"the model '{model.name}' has classes = {classes}, but predicts {outputs[0] if outputs else 'one'} "
            f"number{'s' if outputs else ''} for an example; give it an output for each class"
        )
