"""`docs/reference.md` lists exactly the existing partitions, samplings and data sets."""

import tomllib
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest

from fedping.client_sim.data import DATASETS, ORIGINALS, Partition, load
from fedping.client_sim.sampling import Sampling, sampler_for
from fedping.protocol.extensions import Own

TEXT = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()


def settings_in_toml(name: str, kinds: object) -> list[msgspec.Struct]:
    lines = [line for line in TEXT.splitlines() if line.startswith(f"{name} = {{ {name} = ")]
    return [msgspec.convert(tomllib.loads(line)[name], kinds) for line in lines]


@pytest.mark.parametrize(("name", "kinds"), [("partition", Partition), ("sampling", Sampling)])
def test_every_kind_stands_there_with_its_defaults(name: str, kinds: object) -> None:
    told = settings_in_toml(name, kinds)
    ours = {kind for kind in get_args(kinds) if not issubclass(kind, Own)}  # those of extensions: docs/extending.md
    assert {type(each) for each in told} == ours
    for each in told:
        needed = {field.name: getattr(each, field.name) for field in msgspec.structs.fields(each) if field.required}
        assert type(each)(**needed) == each


def test_every_data_set_stands_there_with_its_size() -> None:
    for name in DATASETS:
        data = load(name)
        rows = f"{len(data):,}"
        if data.choice is not None:
            choices = len(np.unique(data.choice))
            rows = f"{choices:,} of {len(data) // choices}"
        assert f"| `{name}` | {rows} × {data.x.shape[1]} |" in TEXT


def test_the_table_of_estimates_is_what_the_samplers_say() -> None:
    sizes, groups = np.arange(1, 121), np.repeat(np.arange(40), 3)
    for kind in settings_in_toml("sampling", Sampling):
        sampler = sampler_for(kind, sizes, 0, groups)  # type: ignore[arg-type]
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{sampler.name}` |"))
        cell = row.split("|")[3]
        if sampler.name == "cluster":
            cell = "`client`, `ping`: clients"  # its groups are equal in clients here, not in examples
        told = {
            weighting.strip("` "): {full.strip().replace("clients", "client")}
            for part in cell.split(";")
            for weightings, full in [part.split(":")]
            for weighting in weightings.split(",")
        }
        for weighting in ("client", "ping", "examples"):
            assert sampler.estimates(weighting) == told.get(weighting, set()), (sampler.name, weighting)  # type: ignore[arg-type]


def test_every_original_stands_there_with_its_classes() -> None:
    for name in ORIGINALS:
        assert f"| `{name}` |" in TEXT
