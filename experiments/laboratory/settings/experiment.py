"""An experiment: variants of one setup, each trained once per seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from msgspec import Meta, Struct

from fedping.experiments.laboratory.settings.extensions import with_code
from fedping.experiments.laboratory.settings.merging import LONGEST_NAME, Raw, laid_over, merged, nested
from fedping.experiments.laboratory.settings.setup import Setup
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.settings_file import converted
from fedping.protocol.spec import Name

DEFAULTS: Raw = {"server": {"optimizer": {"optimizer": "gradient_descent"}, "min_clients": 1, "weighting": "examples"}}
"""Defaults that differ from a study's: nobody's privacy is at stake, so one client is enough."""

ONLY_VARIANT = "federated"

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
    idle = [_idle_server(setup) for setup in variants.values()]
    if "server" in raw and all(idle):
        raise InvalidSettings(idle[0])
    own = converted(head.name or name, Name, "the experiment's name (in the file, or the file's own): ")
    return Experiment(name=own, seeds=seeds, variants={each: setup.at(folder) for each, setup in variants.items()})


def _idle_server(setup: Setup) -> str:
    """Return why a [server] would have nothing to do; empty if it has."""
    if setup.co_op:
        return "[co_op] merges clients one by one, without the steps of a [server]; leave out one of them"
    return "[gossip] averages models among clients, without a [server]; leave out one of them" if setup.gossip else ""


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
        if "server" in changes and (idle := _idle_server(found[name])):
            raise InvalidSettings(f"variant '{name}': {idle}")
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
