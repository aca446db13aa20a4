"""The guide to small updates, typed as written: plans, the shipped experiment, and a comparison in bytes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedping.main import main

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "compression.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> Iterator[list[str]]:
    """Yield the commands of the guide, without comments."""
    for block in BLOCK.findall(GUIDE):
        yield from (shlex.split(line, comments=True) for line in block.splitlines())


@pytest.mark.long
def test_the_guide_is_typed_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    said = []
    for program, *words in commands():
        assert program == "fedping"
        if words[0] == "simulate":
            words += ["--set", "rounds=2", "--set", "seeds=2"]
        capfd.readouterr()
        assert main(words) == 0, words
        said.append(capfd.readouterr().out)
    small, large, _, differences = said
    assert "take none: a ping of 229 bytes" in small
    assert "★ steps size = 2.0" in large
    assert re.search(r"bytes +posted .* −9\d", differences), "a dense ping shrinks by nine tenths and more"


def test_names_of_bytes_in_the_guide_are_those_of_the_program() -> None:
    for name in ("update_bytes", "posted_bytes", "fetched_bytes"):
        assert GUIDE.count(name) >= 3
