"""The running demo: its page, and the rounds of its visitors' choices, until Ctrl-C."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import requests
from msgspec.structs import replace

from fedping.client_sim.fleet.fleet import join_study
from fedping.client_sim.fleet.members import FleetSettings
from fedping.client_sim.http import HttpTransport
from fedping.experiments.demo import (
    MIN_CLIENTS,
    PERSONALIZED,
    PLAYGROUND,
    STUDY,
    DemoServers,
    keep_rounds,
    page_address,
    playground,
)
from fedping.experiments.server_process import RunningIngest
from fedping.model_store.store import open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.study import study_from_toml
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import engine_named
from tests.support import forked
from tests.support.processes import left_over, new_mark, wait_until
from tests.support.versions import WHEN

ROOT = Path(__file__).parents[2]


def test_the_playground_is_the_same_study_with_rounds_of_few_clients() -> None:
    study = study_from_toml(STUDY)
    made = playground(study)
    arms = {arm.name: arm for arm in made.arms}
    own = arms.pop(PERSONALIZED)
    assert (made.name, list(arms)) == (PLAYGROUND, [arm.name for arm in study.arms])
    assert replace(own, name="treatment", personal=False) == arms["treatment"]
    assert sum(arm.share for arm in made.arms) == sum(arm.share for arm in study.arms)
    assert [line.spec for line in made.lines] == [line.spec for line in study.lines]
    assert [line.pipeline.min_clients for line in made.lines] == [MIN_CLIENTS]
    assert made.lines[0].pipeline.optimizer == study.lines[0].pipeline.optimizer


def test_the_address_names_the_study_and_how_often_rounds_run(tmp_path: Path) -> None:
    address = page_address(RunningIngest("http://127.0.0.1:99", "http://127.0.0.1:98", tmp_path), "demo", 20)
    assert address == "http://127.0.0.1:99/demo/?study=demo&every=20"


async def _search(address: str, clients: int) -> int:
    fleet = await join_study(HttpTransport(address), PLAYGROUND, FleetSettings(clients=clients, seed=77))
    try:
        return (await fleet.run_iteration()).pings.accepted
    finally:
        await fleet.close()


def test_rounds_follow_choices_until_ctrl_c_and_nothing_is_left_or_lost(tmp_path: Path) -> None:
    mark, out = new_mark(), tmp_path / "out"
    command = [sys.executable, "-m", "fedping", "demo", "--clients", "500", "--iterations", "1", "--engine", "numpy"]
    started = forked.Popen(
        [*command, "--stay", "--every", "1s", "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, **mark, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert started.stdout is not None
    said: list[str] = []
    while not (found := re.search(r"(http://127\.0\.0\.1:\d+)/demo/\?study=playground&every=1\b", "".join(said))):
        line = started.stdout.readline()
        assert line, said
        said.append(line)
    try:
        assert requests.get(f"{found[1]}/demo/", timeout=240).ok
        accepted = asyncio.run(_search(found[1], 60))
        newest = f"{found[1]}/models/{PLAYGROUND}/main/latest.json"
        assert wait_until(lambda: requests.get(newest, timeout=240).json()["iteration"] >= 1)
        states = {name: open_store(out / "store").studies.declared(name).state for name in ("demo", PLAYGROUND)}
        assert states == {"demo": "paused", PLAYGROUND: "running"}
    finally:
        os.killpg(started.pid, signal.SIGINT)  # a terminal sends it to the whole group
        rest, _ = started.communicate(timeout=240)
    assert started.returncode == 0, rest
    assert f"{PLAYGROUND}/main: published version 1 from" in rest
    assert rest.rstrip().endswith("everything that was accepted is in Parquet.")
    assert left_over(mark) == []
    assert {open_store(out / "store").studies.declared(name).state for name in ("demo", PLAYGROUND)} == {"ended"}
    landed = sum(pq.read_metadata(p).num_rows for p in (out / "landing" / f"study={PLAYGROUND}").rglob("*.parquet"))
    assert landed == accepted > 0


class _Turns:
    """A clock on which a number of rounds are due at once."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def now(self) -> float:
        return 0.0

    def wait_until(self, when: float) -> bool:
        self.turns -= 1
        return self.turns >= 0


def test_what_fails_is_told_once_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First ingest doesn't answer; then it does, but a foreign file is in the way; then there is nothing to do."""
    study = playground(study_from_toml(STUDY))
    store = open_store(tmp_path / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    landing = tmp_path / "landing"
    folder = landing / f"study={PLAYGROUND}" / "line=main" / "iteration=0"
    folder.mkdir(parents=True)
    (folder / "1-foreign.parquet").write_bytes(b"not parquet")
    away = FedpingError("ingest is away")
    turns = iter([away, away, None, None, "mended"])

    def flush(_: RunningIngest) -> None:
        turn = next(turns)
        if isinstance(turn, FedpingError):
            raise turn
        if turn == "mended":
            (folder / "1-foreign.parquet").unlink()

    monkeypatch.setattr(RunningIngest, "flush", flush)
    told: list[str] = []
    ingest = RunningIngest("http://127.0.0.1:1", "http://127.0.0.1:1", tmp_path / "log")
    with engine_named("numpy") as engine:
        keep_rounds(DemoServers(ingest, store, landing, engine), every=1, clock=_Turns(5), tell=told.append)
    assert told[0] == "ingest is away"
    assert "1-foreign.parquet" in told[1]
    assert len(told) == 2
