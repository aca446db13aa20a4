"""The private studies' guide, typed as written: from the shipped file to a round, its spent budget, and an audit."""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.landing import landed_files, partition
from tests.support.ingest_server import running_ingest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STUDY, LINE = "private-frecency", "main"
SMALLER = {"--clients 20000": "--clients 6000"}
"""Replacement in the guide's commands: 1 % of these clients count, of which 80 % submit, about the study's minimum."""


def commands() -> Iterator[str]:
    """Yield the commands of the guide, without comments."""
    for block in BLOCK.findall(GUIDE):
        for line in block.splitlines():
            yield line.partition("  #")[0].strip()


@pytest.mark.long
def test_the_guide_is_typed_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    said: dict[str, str] = {}
    with ExitStack() as running:
        server = None
        for command in commands():
            if command.endswith("&"):
                assert command == "fedping ingest --port 8080 &"
                server = running.enter_context(running_ingest(tmp_path / "store", tmp_path / "landing"))
                continue
            if command == "fedping landing flush":
                assert server is not None
                assert main(["landing", "flush", f"http://127.0.0.1:{server.operations_port}"]) == 0
                assert landed_files(partition(tmp_path / "landing", STUDY, LINE, 0))
                continue
            for whole, part in SMALLER.items():
                command = command.replace(whole, part)
            if command.startswith("fedping audit"):
                command += " --runs 20 --clients 500"
            if command.startswith("fedping simulate"):
                command += " --clients 3000 --iterations 2"
            if server is not None:
                command = command.replace("http://127.0.0.1:8080", server.url)
            program, *words = shlex.split(command)
            assert program == "fedping"
            capfd.readouterr()
            assert main(words) == 0, f"{command}\n{''.join(capfd.readouterr())}"
            said[" ".join(words[:2])] = capfd.readouterr().out

    assert said["privacy plan"] in GUIDE, "the plan is exact, and shown as it is printed"
    assert "(epsilon = 1, delta = 1e-06) differential privacy for an installation" in said["privacy card"]
    told = said["round private-frecency"]
    assert re.search(r"published version 1 from about \d+ clients \(noise of ± 4\)", told), told
    assert "epsilon 0.349 of 1 so far, and 136 rounds are left" in told
    assert f"{STUDY:<24}  {LINE:<16}  {1:>7}  {136:>7}" in said["privacy spent"]
    assert "bit-identical" in said["store recompute"]
    assert landed_files(partition(tmp_path / "landing", STUDY, LINE, 0)) == []
    event = open_store(tmp_path / "store").version(STUDY, LINE, 1).lineage.privacy
    assert event is not None
    assert f"`sigma` = {event.sigma:.0f}" in GUIDE
    left_out = [event.released[arm][place] for arm in event.released for place in (15, 16, 18)]
    assert set(left_out) == {0}
    simulated = said["simulate experiments/private_users.toml"]
    assert "Line main: 2 rounds, noise of ± 4 clients" in simulated
    assert "line main: version 2. Epsilon 0.408 of 1 is spent, by 2 rounds, and 135 rounds are left" in simulated
    assert "Reproducible noise protects no one." in simulated
    assert "is claimed (delta = 1e-06)" in said["audit experiments/private_study.toml"]


def test_the_card_of_the_shipped_study_says_in_json_what_it_says_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", "card", str(ROOT / "experiments" / "private_study.toml"), "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["lines"]
    assert (line["private"], line["epsilon"], line["delta"]) == (True, 1.0, 1e-6)
