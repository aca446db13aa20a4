"""The guides' commands for fleets and replays, typed as written: from a study file to a verdict."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedping.commands.fleet import fleet
from fedping.main import main
from tests.support.ingest_server import running_ingest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.spark


def section(page: str, title: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.split(r"^##+ ", text.split(f" {title}\n", 1)[1], flags=re.MULTILINE)[0]


def commands(text: str) -> list[str]:
    return [line for language, block in BLOCK.findall(text) if language == "sh" for line in block.splitlines()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a user's working folder, with places for a store and pings."""
    monkeypatch.chdir(tmp_path)
    for name in ("store", "landing"):
        monkeypatch.setenv(f"FEDPING_{name.upper()}", str(tmp_path / name))
    return tmp_path


@pytest.mark.long
@pytest.mark.usefixtures("warm_commands")
def test_a_model_of_any_kind_from_a_study_file_to_a_verdict_and_a_load_test(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(command: str, *more: str) -> str:
        """Type a command of the guides, with the test ingest's port."""
        program, *words = shlex.split(command.replace("http://127.0.0.1:8080", server.url))
        assert program == "fedping"
        capfd.readouterr()
        assert main([*words, *more]) == 0, f"$ {command}\n{''.join(capfd.readouterr())}"
        return capfd.readouterr().out

    text = section("researchers.md", "Any other model")
    ((name, study),) = re.findall(r"```toml\n# file: (\S+)\n(.*?)```", text, re.DOTALL)
    (here / name).write_text(study, encoding="utf-8")
    create, ingest, first, round_, second, analyze = commands(text)
    assert ingest == "fedping ingest --compact-every 1 &"
    assert main(shlex.split(create)[1:]) == 0
    (replay,) = commands(section("operators.md", "Load test"))
    with running_ingest(here / "store", here / "landing", "--workers", "1") as server:
        sums = []
        for command in (first, second):
            said = run(command)
            total = re.search(r"^([\d,]+) pings: \1 accepted, 0 rejected", said, re.MULTILINE)
            assert total is not None, said
            sums.append(int(total[1].replace(",", "")))
            server.flush()
            if command == first:
                assert "published" in run(round_)
        found = json.loads(run(analyze, "--json"))
        check_verdict(found, sum(sums))
        os.rename(here / "landing" / "study=tumours", here / "recording")
        assert replay.endswith("--replay recording --rate 200 --duration 10m --to-current-version")
        once = replay.replace("--duration 10m", "--iterations 1").replace("--rate 200", "--rate 1000")
        replayed = json.loads(run(once, "--json"))
    assert replayed["skipped_by_reason"] == replayed["pings"]["rejected_by_reason"] == {}
    assert replayed["pings"]["accepted"] == sum(sums)


def check_verdict(found: dict[str, Any], pings: int) -> None:
    assert sum(arm["pings"] for arm in found["arms"].values()) == pings
    assert not found["sample_ratio"]["mismatch"]
    compared = {(one["metric"], *one["pair"]): one for one in found["comparisons"]}
    assert len(compared) == 6
    for arm in ("trained", "applied"):
        assert compared["loss", arm, "plain"]["finding"] == "less"
        assert not compared["loss", arm, "plain"]["worse"]
    assert compared["loss", "trained", "applied"]["finding"] == "inconclusive"
    assert {one["role"] for (metric, *_), one in compared.items() if metric == "loss"} == {"guardrail"}
    assert all(one["finding"] == "inconclusive" for (metric, *_), one in compared.items() if metric == "examples")


def test_the_reference_names_every_option_of_fleet_and_no_other() -> None:
    text = section("reference.md", "Options of `fleet`")
    have = {name for option in fleet.params for name in option.opts if name.startswith("--")}
    assert set(re.findall(r"`(--[a-z-]+)", text)) == have
