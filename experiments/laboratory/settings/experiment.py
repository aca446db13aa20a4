"""Reads an experiment's file: variants of one setup, each trained once per seed.

A file has the settings of a line in its own tables, such as [training] and [server], or writes them as a study does, in
[line]. Both are read as the same :class:`Setup`. They differ in defaults: a [line] has a study's defaults.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from msgspec import Meta, Struct, to_builtins
from msgspec.structs import replace

from fedping.client_sim.data import DATASETS
from fedping.client_sim.learning.networks.own import FROM_DATA, OF_EVERY_NETWORK
from fedping.client_sim.learning.registry import LEARNERS
from fedping.client_sim.learning.settings import Setting
from fedping.client_sim.models.ranking_model import CODE
from fedping.experiments.laboratory.models import OfSpec
from fedping.experiments.laboratory.settings.merging import (
    LINE_TABLE,
    LONGEST_NAME,
    SETTINGS_OF_LINE,
    Raw,
    assignments,
    laid_over,
    merged,
    nested,
    of_file,
    variants_of,
    with_grid,
)
from fedping.experiments.laboratory.settings.setup import Setup
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import InvalidSettings, sentences_with
from fedping.protocol.extensions import Extension, OddSettings, checked_at, registered
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.rules import check
from fedping.protocol.settings_file import converted, read_toml, validation_message
from fedping.protocol.spec import Name

DEFAULTS: Raw = {"server": {"optimizer": {"optimizer": "gradient_descent"}, "min_clients": 1, "weighting": "examples"}}
"""Defaults of a file without a [line] that differ from a study's: one client is enough, since no data are private."""

DEFAULTS_OF_LINE: Raw = {"server": {key: to_builtins(getattr(Pipeline(), key)) for key in DEFAULTS["server"]}}
"""The defaults of the same settings in a file with a [line], which are a study's."""

ONLY_VARIANT = "federated"

OF_EVERY_RANKING_MODEL = ("gradient", CODE)
"""The settings that every ranking model has, in addition to an extension's own."""

Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Experiment(Struct, frozen=True, kw_only=True):
    """A whole experiment: ``seeds`` are its repetitions, ``variants`` the compared setups, in the file's order."""

    digest_name: ClassVar[str] = "Experiment"

    name: Name
    seeds: tuple[Seed, ...]
    variants: dict[str, Setup]

    @property
    def digest(self) -> str:
        """SHA-256 of all the settings."""
        return digest_of(self)


class Head(Struct, frozen=True, kw_only=True):
    """The settings in an experiment's file other than the setup."""

    name: Name | None = None
    seeds: Annotated[int, Meta(ge=1, le=10_000)] | Annotated[tuple[Seed, ...], Meta(min_length=1)] = 1
    variants: tuple[dict[str, Any], ...] = ()


def experiment_from_toml(path: Path, changes: Sequence[str] = (), over: Sequence[str] = ()) -> Experiment:
    """Read a laboratory experiment; paths in it are relative to its file.

    Args:
        path: path of the file.
        changes: settings to change, such as "rounds=10"; a variant's own settings take precedence.
        over: axes of a grid, such as "training.rate=0.1,0.3"; each variant is run at every point of it.

    Raises:
        InvalidSettings: the file cannot be read, or has invalid settings.
    """
    tables = read_toml(path, "experiment file")
    with sentences_with(f"the experiment file {path}: "):
        raw = of_file(tables)
        _refuse_unheeded(raw, changes, over)
        changed = _changed(raw, changes, over)
        return experiment_of(changed, name=path.stem, folder=path.parent)


def _changed(raw: Raw, changes: Sequence[str], over: Sequence[str]) -> Raw:
    changed = laid_over(raw, assignments(changes))
    return with_grid(changed, over) if over else changed


def _refuse_unheeded(raw: Raw, changes: Sequence[str], over: Sequence[str]) -> None:
    """Raise if a change has no effect because the variants' own settings override it.

    A change to the value that the file already has is allowed. If several changes concern one setting, the last counts.
    """
    texts = list({text.partition("=")[0].strip(): text for text in changes}.values())
    settings = _of_each_variant(_changed(raw, texts, over))
    for text in texts:
        without = _changed(raw, [other for other in texts if other != text], over)
        if _of_each_variant(without) == settings and laid_over(raw, assignments([text])) != raw:
            raise InvalidSettings(
                f"--set {text} changes nothing, because every variant has its own value there. Change the variants in "
                "the file, or sweep over it: --over overrides variants"
            )


def _of_each_variant(raw: Raw) -> list[Raw]:
    """Return the merged settings of each variant, without names and not yet validated."""
    base = {key: value for key, value in raw.items() if key != "variants"}
    variants = variants_of(raw)
    if variants is None:
        return [raw]  # rejected later, with a message
    changes = [{key: value for key, value in variant.items() if key != "name"} for variant in variants]
    return [laid_over(base, nested(change)) for change in changes]


def experiment_of(raw: Mapping[str, Any], *, name: str, folder: Path) -> Experiment:
    """Return the experiment described by TOML tables.

    Args:
        raw: the tables, as TOML gives them.
        name: the experiment's name if the tables don't have one.
        folder: the folder that paths in the tables are relative to.

    Raises:
        InvalidSettings: a setting is invalid; the message names its table and key.
    """
    with _as_written(raw):
        return _experiment(of_file(raw), name, folder)


@contextmanager
def _as_written(raw: Mapping[str, Any]) -> Iterator[None]:
    """Make errors name the tables as in the file, inside [line] if it has one."""
    try:
        yield
    except InvalidSettings as error:
        if LINE_TABLE in raw:
            error.args = (_TABLE_OF_LINE.sub(lambda found: f"[line.{_IN_LINE[found[1]]}", str(error)),)
        raise


_IN_LINE = {name: key for key, name in SETTINGS_OF_LINE.items()}
_TABLE_OF_LINE = re.compile(rf"\[({'|'.join(_IN_LINE)})\b")


def _experiment(raw: Raw, name: str, folder: Path) -> Experiment:
    head = converted(raw, Head, "")
    tables = {key: value for key, value in raw.items() if key not in (LINE_TABLE, *Head.__struct_fields__)}
    base = merged(DEFAULTS_OF_LINE if LINE_TABLE in raw else DEFAULTS, tables)
    seeds = tuple(range(1, head.seeds + 1)) if isinstance(head.seeds, int) else head.seeds
    repeated = [seed for seed in seeds if seeds.count(seed) > 1]
    if repeated:
        raise InvalidSettings(f"seed {repeated[0]} is listed twice; a repetition with the same seed adds nothing new")
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
            f"a variant is named '{name}', like the baseline next to it. Rename the variant, or remove the baseline "
            "from 'baselines' in [evaluation]"
        )


def _variants(base: Raw, variants: tuple[dict[str, Any], ...]) -> dict[str, Setup]:
    if not variants:
        return {ONLY_VARIANT: _setup(base)}
    setups: dict[str, Setup] = {}
    for number, variant in enumerate(variants, 1):
        name = variant.get("name")
        if not isinstance(name, str):
            raise InvalidSettings(f"variant {number} has no name; give each of [[variants]] one")
        if "/" in name or name != name.strip() or name.startswith(".") or len(name) > LONGEST_NAME:
            raise InvalidSettings(
                f"variant {number} is named '{name}', which cannot be a folder's name. Use at most {LONGEST_NAME} "
                "letters, without '/', and no '.' in front"
            )
        if name in setups:
            raise InvalidSettings(f"two variants are named '{name}'; rename one of them")
        changes = nested({key: value for key, value in variant.items() if key != "name"})
        setups[name] = _variant(name, base, changes)
        if "server" in changes:
            check("server of a file", setups[name].parts, f"variant '{name}': ")
    return setups


def _variant(name: str, base: Raw, changes: Raw) -> Setup:
    """Return the setup of a variant; an error names the variant unless the shared tables have the same error."""
    try:
        return _setup(laid_over(base, changes))
    except InvalidSettings as error:
        if _trouble(base) != str(error):
            error.args = (f"variant '{name}': {error}",)
        raise


def _setup(tables: Raw) -> Setup:
    spec = tables.get("spec")
    if not isinstance(spec, Mapping):
        return converted(with_code(tables), Setup, "")
    if "model" in tables:
        raise InvalidSettings("[model] and [line.spec] both describe the model. Remove one of them")
    settings = spec.get("settings", {})
    model = {"name": spec.get("model"), **(settings if isinstance(settings, Mapping) else {})}
    coded = with_code({**tables, "model": model})
    if isinstance(settings, Mapping):
        settings = {key: value for key, value in coded["model"].items() if key != "name"}
    return converted({**coded, "spec": {**spec, "settings": settings}}, Setup, "")


def _trouble(tables: Raw) -> str | None:
    """Return the error of the tables that all variants share; None if they are valid by themselves."""
    try:
        _setup(tables)
    except InvalidSettings as error:
        return str(error)
    return None


def with_code(tables: Raw) -> Raw:
    """Return an experiment's tables with the code's hash in [model] and [data] if they name extensions.

    The extensions' settings are checked and completed. An existing hash is kept; it is checked when the code is used.

    Args:
        tables: the tables, not yet validated.

    Raises:
        InvalidSettings: an extension cannot be imported, or does not have these settings.
    """
    model, data = tables.get("model"), tables.get("data")
    try:
        if isinstance(model, Mapping) and (extension := _extension("ranking_model", model, LEARNERS)):
            tables = {**tables, "model": _model(extension, model, OF_EVERY_RANKING_MODEL, {})}
        elif isinstance(model, Mapping) and (extension := _extension("model", model, LEARNERS)):
            asked = [name for name in FROM_DATA if name in extension.keyword_names]
            tables = {**tables, "model": _model(extension, model, OF_EVERY_NETWORK, dict.fromkeys(asked, 2))}
        from_folder = isinstance(data, Mapping) and "folder" in data
        if isinstance(data, Mapping) and not from_folder and (extension := _extension("data_set", data, DATASETS)):
            settings = checked_at(extension, data.get("settings", {}), ("data", "settings"))
            tables = {**tables, "data": {CODE: extension.code, **data, "settings": settings}}
    except OddSettings as odd:
        raise InvalidSettings(validation_message(odd.error, tables, odd.kind, odd.place)) from odd
    return tables


def _extension(kind: Any, table: Mapping[str, Any], built_in: Mapping[str, Any]) -> Extension | None:
    name = table.get("name")
    return None if not isinstance(name, str) or name in built_in else registered(kind, name)


def _model(
    extension: Extension, table: Mapping[str, Any], of_every: Collection[str], derived: Mapping[str, Setting]
) -> dict[str, Any]:
    """Return the table [model] of an extension, checked and completed; ``derived`` settings may be left out."""
    others = (*OfSpec.__struct_fields__, *of_every)
    given = {key: each for key, each in table.items() if key not in others}
    own = checked_at(extension, {**derived, **given}, ("model",))
    own = {key: each for key, each in own.items() if (key in given or key not in derived) and key not in others}
    odd = next((name for name, each in own.items() if not isinstance(each, bool | int | float | str)), None)
    if odd is not None:
        raise InvalidSettings(
            f"the setting '{odd}' of {extension} is {own[odd]!r}; a model's settings are numbers, texts, true or false"
        )
    return {CODE: extension.code, **table, **own}


def with_noise(experiment: Experiment) -> Experiment:
    """Return the experiment with the noise that its private variants need for their guarantees.

    The computation takes seconds for each variant with sampling and without a given noise multiplier.

    Raises:
        InvalidSettings: a given noise multiplier is too small.
        FedpingError: no noise multiplier is large enough.
    """
    from fedping.server_jobs.privacy.budget import privacy_with_noise

    variants = {
        name: setup if setup.privacy is None else replace(setup, privacy=privacy_with_noise(setup.privacy, name))
        for name, setup in experiment.variants.items()
    }
    return replace(experiment, variants=variants)
