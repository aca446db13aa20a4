"""The reference names every option of `analyze` and `power`, and its experiment file is valid."""

import re
import tomllib
from pathlib import Path

import click
import msgspec
import pytest

from fedping.commands.analyze import analyze
from fedping.commands.power import power
from fedping.experiments.simulate import experiment_from_toml
from fedping.experiments.simulate.settings import FixedLength, LengthByClients, LengthBySigns
from fedping.protocol.stopping_settings import (
    EarlyStop,
    IterationByClients,
    IterationBySigns,
    IterationByTime,
    IterationLength,
)

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs/reference.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return REFERENCE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("command", [analyze, *(power.commands[name] for name in ("effect", "train"))])
def test_every_option_is_in_the_reference_and_no_other(command: click.Command) -> None:
    text = section("Options of `analyze` and `power`")
    have = {name for option in command.params if isinstance(option, click.Option) for name in option.opts}
    assert {name for name in have if f"`{name}" not in text} == set()
    known = {
        name
        for one in (analyze, *power.commands.values())
        for option in one.params
        if isinstance(option, click.Option)
        for name in option.opts
    }
    assert set(re.findall(r"`(--[a-z-]+)", text)) <= known


def test_the_experiment_file_of_the_reference_is_one(tmp_path: Path) -> None:
    shown = re.search(r"```toml\n(.*?)```", section("Experiment file"), re.DOTALL)
    assert shown is not None
    for name in ("firefox_2018.toml", "demo.toml"):
        (tmp_path / name).write_text((ROOT / "experiments" / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "mine.toml").write_text(shown[1], encoding="utf-8")
    read, _ = experiment_from_toml(tmp_path / "mine.toml")
    assert read.optimization.early_stopping == EarlyStop(arm="treatment")
    for written, rule in (
        ('{ by = "time", ticks = 1 }', FixedLength()),
        ('{ by = "clients", clients = 500, most = 48 }', LengthByClients(clients=500)),
        ('{ by = "signs", z = 2, share = 0.8, most = 48 }', LengthBySigns()),
    ):
        assert f"`{written}`" in section("Experiment file")
        changed = shown[1].replace('{ by = "time", ticks = 1 }', written)
        (tmp_path / "mine.toml").write_text(changed, encoding="utf-8")
        assert experiment_from_toml(tmp_path / "mine.toml")[0].optimization.length == rule


def test_the_rules_of_a_line_in_the_reference_are_read_as_they_are_told() -> None:
    text = section("Study file")
    defaults = (
        ('{ by = "time", minutes = 60 }', IterationByTime(minutes=60)),
        ('{ by = "clients", clients = 500, least = 0, most = 1440 }', IterationByClients(clients=500)),
        ('{ by = "signs", z = 2, share = 0.8, least = 0, most = 1440 }', IterationBySigns()),
    )
    for written, rule in defaults:
        assert f"`{written}`" in text
        assert msgspec.convert(tomllib.loads(f"length = {written}")["length"], IterationLength) == rule
    shown = re.search(r"^early_stopping = .*$", text.partition("### When it ends")[2], re.MULTILINE)
    assert shown is not None
    given = msgspec.convert(tomllib.loads(shown[0])["early_stopping"], EarlyStop)
    assert given == EarlyStop(arm="treatment", rise=0.1, examples=1000)
    assert dict(re.findall(r"^\| `(patience|smooth|examples)` \| (\d+) \|", text, re.MULTILINE)) == {
        name: str(getattr(EarlyStop(arm="a"), name)) for name in ("patience", "smooth", "examples")
    }
