"""An experiment's file: variants of one setup, each trained once per seed, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import replace

from fedping.client_sim.data import DATASETS
from fedping.client_sim.learning.registry import LEARNERS
from fedping.client_sim.models.ranking_model import CODE
from fedping.experiments.laboratory.models import OfSpec
from fedping.experiments.laboratory.settings.merging import (
    LONGEST_NAME,
    Raw,
    assignments,
    laid_over,
    merged,
    nested,
    variants_of,
    with_grid,
)
from fedping.experiments.laboratory.settings.setup import Setup
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import Extension, OddSettings, checked_at, registered
from fedping.protocol.rules import check
from fedping.protocol.settings_file import converted, read_toml, validation_message
from fedping.protocol.spec import Name

DEFAULTS: Raw = {"server": {"optimizer": {"optimizer": "gradient_descent"}, "min_clients": 1, "weighting": "examples"}}
"""Defaults that differ from a study's: nobody's privacy is at stake, so one client is enough."""

ONLY_VARIANT = "federated"

# """Extensions named in tables without a union of settings: models that rank pages, and data sets."""


OF_EVERY_RANKING_MODEL = ("gradient", CODE)
"""The settings of a ranking model that are not the extension's own."""

Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Experiment(Struct, frozen=True, kw_only=True):
    """A whole experiment: ``seeds`` are the repetitions, ``variants`` what is compared, by name in the file's order."""

    digest_name: ClassVar[str] = "Experiment"

    name: Name
    seeds: tuple[Seed, ...]
    variants: dict[str, Setup]

    @property
    def digest(self) -> str:
        """SHA-256 of all the settings."""
        return digest_of(self)


class Head(Struct, frozen=True, kw_only=True):
    """The contents of a file besides the setup."""

    name: Name | None = None
    seeds: Annotated[int, Meta(ge=1, le=10_000)] | Annotated[tuple[Seed, ...], Meta(min_length=1)] = 1
    variants: tuple[dict[str, Any], ...] = ()


# """Reading an experiment's file."""


def experiment_from_toml(path: Path, changes: Sequence[str] = (), over: Sequence[str] = ()) -> Experiment:
    """Read a laboratory experiment; paths in it are relative to its file.

    Args:
        path: path of the file.
        changes: settings to change, such as "rounds=10"; a variant's own settings take precedence.
        over: axes of a grid, such as "training.rate=0.1,0.3"; each variant is run at every point of it.

    Raises:
        InvalidSettings: the file cannot be read, or has invalid settings.
    """
    raw = read_toml(path, "experiment file")
    try:
        _refuse_unheeded(raw, changes, over)
        changed = _changed(raw, changes, over)
        return experiment_of(changed, name=path.stem, folder=path.parent)
    except InvalidSettings as error:
        raise InvalidSettings(f"the experiment file {path}: {error}") from error


def _changed(raw: Raw, changes: Sequence[str], over: Sequence[str]) -> Raw:
    changed = laid_over(raw, assignments(changes))
    return with_grid(changed, over) if over else changed


def _refuse_unheeded(raw: Raw, changes: Sequence[str], over: Sequence[str]) -> None:
    """Raise if a change has no effect and is not what the file says anyway: a variant's own setting overrides it.

    If several changes concern one setting, the last counts.
    """
    texts = list({text.partition("=")[0].strip(): text for text in changes}.values())
    settings = _of_each_variant(_changed(raw, texts, over))
    for text in texts:
        without = _changed(raw, [other for other in texts if other != text], over)
        if _of_each_variant(without) == settings and laid_over(raw, assignments([text])) != raw:
            raise InvalidSettings(
                f"--set {text} changes nothing, for every variant says itself what it has there; change the variants "
                "in the file, or sweep over it: --over lies above what variants say"
            )


def _of_each_variant(raw: Raw) -> list[Raw]:
    """Return the merged settings of each variant, without names and not yet validated."""
    base = {key: value for key, value in raw.items() if key != "variants"}
    variants = variants_of(raw)
    if variants is None:
        return [raw]  # refused later, with a sentence
    changes = [{key: value for key, value in variant.items() if key != "name"} for variant in variants]
    return [laid_over(base, nested(change)) for change in changes]


def experiment_of(raw: Mapping[str, Any], *, name: str, folder: Path) -> Experiment:
    """Return the experiment that tables describe.

    Args:
        raw: the tables, as TOML gives them.
        name: the name of the experiment if the tables give none.
        folder: the folder that paths in the tables are relative to.

    Raises:
        InvalidSettings: a setting is invalid; the sentence says where.
    """
    head = converted(raw, Head, "")
    base = merged(DEFAULTS, {key: value for key, value in raw.items() if key not in Head.__struct_fields__})
    seeds = tuple(range(1, head.seeds + 1)) if isinstance(head.seeds, int) else head.seeds
    repeated = [seed for seed in seeds if seeds.count(seed) > 1]
    if repeated:
        raise InvalidSettings(f"seed {repeated[0]} is listed twice; a repetition with the same seed tells nothing new")
    variants = _variants(base, head.variants)
    _refuse_names_of_baselines(variants)
    if "server" in raw and all(setup.parts.has_any("co_op", "gossip") for setup in variants.values()):
        check("server of a file", next(iter(variants.values())).parts)
    own = converted(head.name or name, Name, "the experiment's name (in the file, or the file's own): ")
    return Experiment(name=own, seeds=seeds, variants={each: setup.at(folder) for each, setup in variants.items()})


def _refuse_names_of_baselines(variants: Mapping[str, Setup]) -> None:
    baselines = {baseline for setup in variants.values() for baseline in setup.evaluation.baselines}
    for name in baselines & variants.keys():
        raise InvalidSettings(
            f"a variant is named '{name}', as the baseline is that stands beside it; rename the variant, or leave the "
            "baseline out of 'baselines' in [evaluation]"
        )


def _variants(base: Raw, variants: tuple[dict[str, Any], ...]) -> dict[str, Setup]:
    if not variants:
        return {ONLY_VARIANT: _setup(base)}
    found: dict[str, Setup] = {}
    for number, variant in enumerate(variants, 1):
        name = variant.get("name")
        if not isinstance(name, str):
            raise InvalidSettings(f"variant {number} has no name; give each of [[variants]] one")
        if "/" in name or name != name.strip() or name.startswith(".") or len(name) > LONGEST_NAME:
            raise InvalidSettings(
                f"variant {number} is named '{name}', which is no name for a folder; use {LONGEST_NAME} "
                "letters at most, without '/', and no '.' in front"
            )
        if name in found:
            raise InvalidSettings(f"two variants are named '{name}'; rename one of them")
        changes = nested({key: value for key, value in variant.items() if key != "name"})
        try:
            found[name] = _setup(laid_over(base, changes))
        except InvalidSettings as error:
            whose = "" if _trouble(base) == str(error) else f"variant '{name}': "
            raise InvalidSettings(f"{whose}{error}") from error
        if "server" in changes:
            check("server of a file", found[name].parts, f"variant '{name}': ")
    return found


def _setup(tables: Raw) -> Setup:
    return converted(with_code(tables), Setup, "")


def _trouble(tables: Raw) -> str | None:
    """Return what is wrong with the tables that variants have in common; they need not be whole without these."""
    try:
        _setup(tables)
    except InvalidSettings as error:
        return str(error)
    return None


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


def with_noise(experiment: Experiment) -> Experiment:
    """Return an experiment each private variant of which has the noise that keeps its guarantee.

    It takes seconds for each variant with sampling that does not give its noise.

    Raises:
        InvalidSettings: a noise multiplier is given that is too small.
        FedpingError: none is large enough.
    """
    from fedping.server_jobs.privacy.budget import privacy_with_noise

    variants = {
        name: setup if setup.privacy is None else replace(setup, privacy=privacy_with_noise(setup.privacy, name))
        for name, setup in experiment.variants.items()
    }
    return replace(experiment, variants=variants)
