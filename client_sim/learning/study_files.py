"""Reads study files whose specs leave out the blocks, which follow from the model's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from fedping.client_sim.learning.networks.own import OF_EVERY_NETWORK
from fedping.client_sim.learning.registry import is_examples_model, is_network, model_spec
from fedping.client_sim.models.ranking_model import CODE
from fedping.protocol import study as studies
from fedping.protocol.errors import InvalidSettings, sentences_with
from fedping.protocol.extensions import OddSettings, checked_at, registered
from fedping.protocol.settings_file import converted, validation_message
from fedping.protocol.study import Study
from fedping.protocol.training import Training


def study_from_toml(path: Path, *, new: bool = False) -> Study:
    """Read a study file; see :func:`fedping.protocol.study.study_from_toml`."""
    return studies.study_from_toml(path, new=new, filled_in=with_blocks)


def study_as_written(path: Path) -> Study:
    """Read a study file, including the parts that it turns off; see :func:`fedping.protocol.study.study_as_written`."""
    return studies.study_as_written(path, filled_in=with_blocks)


def with_blocks(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a study's tables, with blocks added to each spec without any, and the hash of a network's code.

    Raises:
        InvalidSettings: a setting of such a model is missing or invalid.
    """
    lines = raw.get("lines")
    if not isinstance(lines, list):
        return raw
    return {**raw, "lines": [_completed(each) if isinstance(each, Mapping) else each for each in lines]}


def _completed(line: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = line.get("spec")
    return {**line, "spec": spec_with_blocks(spec, line.get("training", {}))} if isinstance(spec, Mapping) else line


def spec_with_blocks(spec: Mapping[str, Any], training: Any) -> Mapping[str, Any]:
    """Return the table of a spec with the blocks that follow from its model, if it has neither weights nor blocks.

    Args:
        spec: the table.
        training: the table of the clients' training, which may keep blocks local, or add blocks.
    """
    name, settings = spec.get("model"), spec.get("settings", {})
    if not isinstance(name, str) or not isinstance(settings, Mapping) or spec.get("weights") or spec.get("blocks"):
        return spec
    if not is_examples_model(name):
        return spec
    where = f"[lines.spec] of model '{name}': "
    with sentences_with(where):
        if is_network(name):
            settings = _checked(name, settings)
        asked: Training = converted({"algorithm": "gradient", **training}, cast("Any", Training), "")
        made = model_spec(name, settings, training=asked)
    return {**spec, "settings": dict(settings), "blocks": msgspec.to_builtins(made.blocks)} if made.blocks else spec


def _checked(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an extension's network, checked and completed, with the hash of its code."""
    extension = registered("model", name)
    if extension is None:
        return dict(settings)
    others = {key: value for key, value in settings.items() if key in OF_EVERY_NETWORK}
    given = {key: value for key, value in settings.items() if key not in others or key in extension.keyword_names}
    try:
        own = checked_at(extension, given, ("settings",))
    except OddSettings as odd:
        raise InvalidSettings(validation_message(odd.error, {"settings": settings}, odd.kind, odd.place)) from odd
    return {CODE: extension.code, **own, **others}
