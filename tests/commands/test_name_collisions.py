"""Files with the names of fedping's packages, in the working directory and on PYTHONPATH.

Messages recommend both places for users' models. Importing any of these files raises, so a working command has imported
none.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedping.model_store.store import open_store
from fedping.protocol.landing import open_landing
from tests.support.dashboard_server import running_dashboard
from tests.support.ingest_server import ROOT, running_ingest
from tests.support.laboratory import small_file
from tests.support.processes import wait_until
from tests.support.rounds import crowd, land, store_with
from tests.support.small_experiment import experiment_file
from tests.support.traps import SPRUNG, traps
from tests.support.versions import small_study


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with a store and pings of version 0; it and PYTHONPATH are full of such files."""
    folder = traps(tmp_path / "here")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
    store_with(folder / "store", small_study())
    now = time.time_ns() // 1_000_000
    others = crowd(30, first_document=1000)
    controls = [replace(ping, client=ping.client + 1000, arm="control", update=None) for ping in others]
    for at, pings in enumerate((crowd(30), controls)):
        land(folder / "landing", pings, at_ms=now + at)
    return folder


def said_by(*command: object, program: tuple[str, ...] = (sys.executable, "-m", "fedping")) -> str:
    """Run a command to its end, and return its output."""
    ran = subprocess.run([*program, *map(str, command)], capture_output=True, text=True, timeout=280)
    assert (ran.returncode, SPRUNG in ran.stderr + ran.stdout) == (0, False), ran.stderr
    return ran.stdout


def test_the_traps_spring(here: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", "import protocol"], capture_output=True, text=True)
    assert SPRUNG in ran.stderr


def test_rounds_and_what_looks_at_a_store(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(said_by("round", "study", "--engine", "numpy", "--json"))
    assert "version 1 " in said_by("store", "recompute", "study", "main", "1")
    assert said_by("store", "history", "study", "main")
    monkeypatch.setenv("FEDPING_PYTHON", sys.executable)
    again = said_by("--", "round", "study", "--json", program=(str(ROOT / "spark-submit.sh"),))
    assert json.loads(again)["status"] == "nothing"  # which the script finds out without a JVM
    land(here / "landing", crowd(30, version=1), iteration=1)
    command = [sys.executable, "-m", "fedping", "schedule", "study", "--now", "--engine", "numpy"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert wait_until(lambda: 2 in open_store(here / "store").iterations("study", "main") or process.poll(), 60)
        process.terminate()
    assert open_store(here / "store").iterations("study", "main") == [0, 1, 2]


@pytest.mark.long
def test_simulated_studies_and_the_laboratory_with_processes_and_a_loss_of_the_users_own(here: Path) -> None:
    said_by("simulate", experiment_file(here, clients=60, iterations=1, ticks=1), "--out", "study")
    said_by("simulate", small_file(here), "--set", "rounds=2", "--out", "laboratory", "--jobs", "2")
    mine = "def predict(weights, x):\n    return x @ weights\n\n"
    (here / "mine.py").write_text(
        mine + "def loss(weights, x, y):\n    return ((predict(weights, x) - y) ** 2).mean()\n"
    )
    own = 'name = "own"\nfunction = "mine:loss"\npredict = "mine:predict"\nweights = 30\n'
    file = small_file(here / "own")
    text = file.read_text().replace('name = "logistic-regression"\nl2 = 1e-2', f'{own}gradient = "finite_differences"')
    file.write_text(text)
    changes = ("rounds=1", "evaluation.baselines=[]", "evaluation.task=regression")
    said_by("simulate", file, *(word for change in changes for word in ("--set", change)), "--jobs", "2")


def test_ingest_and_a_fleet(here: Path) -> None:
    experiment_file(here)
    said_by("study", "create", "study.toml")
    with running_ingest(here / "store", here / "landed", "--workers", "2", cwd=here) as server:
        said_by("fleet", server.url, "small", "--clients", "20", "--searches", "2", "2")
        server.flush()
    assert len(open_landing(here / "landed").all_files())


def test_the_pages(here: Path) -> None:
    with running_dashboard(here, cwd=here) as pages:
        assert [pages.get(path).status_code for path in ("/", "/runs/", "/results/")] == [200] * 3


@pytest.mark.long
@pytest.mark.spark
def test_a_round_on_spark_by_the_script(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPING_PYTHON", sys.executable)
    monkeypatch.setenv("FEDPING_SPARK_ARCHIVE", "off")
    script = (str(ROOT / "spark-submit.sh"),)
    assert json.loads(said_by("--master", "local[2]", "--", "round", "study", "--json", program=script))
    assert open_store(here / "store").iterations("study", "main") == [0, 1]


@pytest.mark.spark
@pytest.mark.long
def test_counting_with_spark(here: Path) -> None:
    assert json.loads(said_by("analyze", "study", "--json"))
