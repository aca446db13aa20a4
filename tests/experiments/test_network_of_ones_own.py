"""The networks of docs/extending.md run as written there."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import fedping
from fedping.experiments.laboratory.models import check_choices
from fedping.protocol import extensions

pytest.importorskip("jax")
pytest.importorskip("flax")

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
SECTION = re.split(r"\n##+ ", PAGE.partition("### A network\n")[2])[0]
BLOCKS = dict(re.findall(r"```(?:python|toml)\n# ([a-z_.]+)(.*?)```", SECTION, re.DOTALL))
LONGEST = 15


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(extensions, "_registered", dict(extensions._registered))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(f"# {name}{text}")
    yield tmp_path
    for name in BLOCKS:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_a_network_is_a_few_lines() -> None:
    lines = [line for line in BLOCKS["digits_net.py"].splitlines() if line.strip()]
    assert len(lines) <= LONGEST
    assert BLOCKS.keys() == {"digits_net.py", "digits.toml", "plain_net.py"}


def test_the_network_of_the_page_learns_digits(folder: Path) -> None:
    """Compiling it takes some seconds."""
    importlib.import_module("digits_net")
    results = fedping.run(folder / "digits.toml", overrides={"rounds": 4, "evaluation.every": 2}, folder=folder / "out")
    rows = [row for row in results.metrics().to_pylist() if row["split"] == "test" and row["metric"] == "accuracy"]
    found = {row["round"]: row["value"] for row in rows if row["variant"] == "federated"}
    assert found[4] > 0.8, found


def test_the_network_of_functions_on_the_page_is_a_model(folder: Path) -> None:
    importlib.import_module("plain_net")
    check_choices({"name": "plain-net", "noise": 0.2}, "digits")
    from fedping.client_sim.learning import model_spec

    spec = model_spec("plain-net", {"features": 64, "classes": 10})
    assert [(block.name, block.shape) for block in spec.blocks] == [("head.kernel", (64, 10))]
