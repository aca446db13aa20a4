"""Extensions named in tables without a union of settings: models that rank pages, and data sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedping.client_sim.data import DATASETS
from fedping.client_sim.learning.registry import LEARNERS
from fedping.client_sim.models.own import CODE
from fedping.experiments.laboratory.models import OfSpec
from fedping.experiments.laboratory.settings.merging import Raw
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import Extension, OddSettings, checked_at, registered
from fedping.protocol.validation_messages import validation_message

OF_EVERY_RANKING_MODEL = ("gradient", CODE)
"""The settings of a ranking model that are not the extension's own."""


def with_code(tables: Raw) -> Raw:
    """Return an experiment's tables with the code's hash in [model] and [data] if they name extensions.

    Their settings are checked and completed. An existing hash is kept: it is checked where the code is used.

    Args:
        tables: not yet validated.

    Raises:
        InvalidSettings: an extension cannot be imported, or does not have these settings.
    """
    model, data = tables.get("model"), tables.get("data")
    try:
        if isinstance(model, Mapping) and (extension := _extension("ranking_model", model, LEARNERS)):
            tables = {**tables, "model": _model(extension, model)}
        if isinstance(data, Mapping) and (extension := _extension("data_set", data, DATASETS)):
            settings = checked_at(extension, data.get("settings", {}), ("data", "settings"))
            tables = {**tables, "data": {CODE: extension.code, **data, "settings": settings}}
    except OddSettings as odd:
        raise InvalidSettings(validation_message(odd.error, tables, odd.kind, odd.place)) from odd
    return tables


def _extension(kind: Any, table: Mapping[str, Any], built_in: Mapping[str, Any]) -> Extension | None:
    name = table.get("name")
    return None if not isinstance(name, str) or name in built_in else registered(kind, name)


def _model(extension: Extension, table: Mapping[str, Any]) -> dict[str, Any]:
    others = (*OfSpec.__struct_fields__, *OF_EVERY_RANKING_MODEL)
    own = checked_at(extension, {key: each for key, each in table.items() if key not in others}, ("model",))
    odd = next((name for name, each in own.items() if not isinstance(each, bool | int | float | str)), None)
    if odd is not None:
        raise InvalidSettings(
            f"the setting '{odd}' of {extension} is {own[odd]!r}; a model's settings are numbers, texts, true or false"
        )
    return {CODE: extension.code, **table, **own}
