"""Simulations on a real standalone cluster, whose executors have only the code sent to them, and are killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_jobs.standalone import QUICK_EXECUTORS, Cluster
from tests.support.laboratory import small_file
from tests.support.processes import PATIENCE, new_mark, wait_until
from tests.support.small_experiment import contents, experiment_file

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def executors(cluster: Cluster) -> dict[int, str]:
    """Return the JVMs of running executors, with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "CoarseGrainedExecutorBackend" in command and str(cluster.folder) in str((folder / "cwd").readlink()):
            found[int(folder.name)] = command
    return found


def start(cluster: Cluster, folder: Path, words: list[str]) -> "subprocess.Popen[bytes]":
    """Start a command on the cluster, with its output in the file ``said``."""
    options = [word for key, value in QUICK_EXECUTORS.items() for word in ("--conf", f"{key}='{value}'")]
    made = os.environ | new_mark() | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    made |= {"PYSPARK_SUBMIT_ARGS": " ".join([*options, "pyspark-shell"]), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "fedping", *words, "--engine", "spark", "--master", cluster.master]
    with open(folder / "said", "w") as out:
        return subprocess.Popen(command, cwd=folder, env=made, stdout=out, stderr=out)


def local(words: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "fedping", *words]
    ran = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.long
def test_a_study_comes_to_the_same_bytes_though_its_executors_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    file = experiment_file(tmp_path, clients=6000, iterations=2, ticks=4)
    words = ["simulate", str(file), "--out"]
    landing = tmp_path / "there" / "landing"
    with start(cluster, tmp_path, [*words, "there"]) as process:
        try:
            assert wait_until(lambda: any(landing.rglob("[0-9]*.parquet")) or process.poll() is not None)
            assert process.poll() is None, (tmp_path / "said").read_text()
            killed = executors(cluster)
            assert killed
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            assert process.wait(2 * PATIENCE) == 0, (tmp_path / "said").read_text()
        finally:
            process.kill()
    local([*words, "here"], tmp_path)
    there = contents(tmp_path / "there")
    assert {name: data for name, data in there.items() if not name.endswith(".tmp")} == contents(tmp_path / "here")


OWN = """
import os, signal, sys
from pathlib import Path
from beside_it import half

CALLS = 0

def loss(weights, x, y):
    return half(((x @ weights - y) ** 2).mean())

def predict(weights, x):
    global CALLS
    CALLS += 1
    killed = Path({killed!r})
    if CALLS == 8 and "pyspark.worker" in sys.modules and not killed.exists():
        killed.touch()
        daemon = Path(f"/proc/{{os.getppid()}}/stat").read_text()
        os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
    return x[:, 0] * 0
"""


@pytest.mark.long
def test_runs_go_on_when_one_of_them_kills_its_executor(cluster: Cluster, tmp_path: Path) -> None:
    file = small_file(tmp_path / "mine")
    (file.parent / "cluster_loss.py").write_text(OWN.format(killed=str(tmp_path / "killed")))
    (file.parent / "beside_it.py").write_text("def half(x):\n    return x / 2\n")
    names = 'function = "cluster_loss:loss", predict = "cluster_loss:predict"'
    words = ["simulate", str(file), "--set", f'model={{ name = "own", weights = 30, {names} }}', "--set", "rounds=20"]
    words += ["--set", "evaluation.baselines=[]", "--set", "server.optimizer.rate=0.001", "--out"]
    with start(cluster, tmp_path, [*words, "there"]) as process:
        try:
            assert process.wait(2 * PATIENCE) == 0, (tmp_path / "said").read_text()
        finally:
            process.kill()
    assert (tmp_path / "killed").exists()
    local([*words, "here"], tmp_path)
    found = [contents(tmp_path / name) for name in ("here", "there")]
    for one in found:
        for name in [name for name in one if name.endswith("run.json")]:
            one[name] = json.dumps({**json.loads(one[name]), "seconds": 0}).encode()
    assert found[0] == found[1]
