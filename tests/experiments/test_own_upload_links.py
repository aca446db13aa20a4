"""A codec and a linear link from outside the project: through memory, HTTP, Parquet, NumPy and Spark."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.model_store.store import open_store
from tests.support.effort import in_full

MODULE = """
import numpy as np
import pyarrow as pa

import fedping


@fedping.upload_link("half")
def half():
    def encode(updates, keys):
        return pa.array([row.tobytes() for row in np.asarray(updates, "<f2")], pa.binary())

    def decode(payloads, m):
        whole = np.array([p is not None and len(p) == 2 * m for p in payloads.to_pylist()], bool)
        rows = [p if good else bytes(2 * m) for p, good in zip(payloads.to_pylist(), whole)]
        return np.frombuffer(b"".join(rows), "<f2").reshape(-1, m).astype(np.float32), whole

    return (
        fedping.ClientEnd(encode=encode),
        fedping.ServerEnd(decode=decode, lengths=lambda m: (2 * m, 2 * m)),
    )


@fedping.upload_link("times")
class Times:
    def __init__(self, *, by: float):
        self.by = by

    def transform(self, updates, keys):
        return updates * self.by

    def undo_sum(self, spec, direction):
        return direction / self.by
"""

EXPERIMENT = """
rounds = 3
seeds = 1
[model]
name = "logistic-regression"
[data]
name = "breast-cancer"
standardise = true
[partition]
partition = "iid"
clients = 8
[server]
optimizer = { optimizer = "gradient_descent", rate = 1.0 }
[evaluation]
baselines = []
[[variants]]
name = "dense"
[[variants]]
name = "memory"
upload = UPLOAD
[[variants]]
name = "files"
upload = UPLOAD
where = "files"
[[variants]]
name = "http"
upload = UPLOAD
where = "http"
engine = "ENGINE"
"""
UPLOAD = '[{ link = "times", by = 4.0 }, { link = "half" }]'


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a user whose module is on the path and named in the documented variable."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "half_links.py").write_text(MODULE)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "FEDPING_EXTENSIONS": "half_links"}


@pytest.fixture(scope="module")
def ran(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an experiment with these links, run everywhere; their module is only next to its file."""
    folder = tmp_path_factory.mktemp("run")
    beside = folder / "experiment"
    beside.mkdir()
    (beside / "own.toml").write_text(
        EXPERIMENT.replace("UPLOAD", UPLOAD).replace("ENGINE", "spark" if in_full() else "numpy")
    )
    (beside / "half_links.py").write_text(MODULE)
    without = {**environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = fedping(["simulate", "experiment/own.toml", "--out", "out", "--jobs", "1"], folder, without)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


def fedping(arguments: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedping", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def unit(out: Path, variant: str) -> Path:
    [store] = out.glob(f"**/{variant}/**/store")
    return store.parent


def outcome(out: Path, variant: str) -> dict[str, Any]:
    [found] = [
        told
        for file in out.glob("**/*.json")
        if isinstance(told := json.loads(file.read_text()), dict) and told.get("variant") == variant
    ]
    return found


@pytest.mark.long
@pytest.mark.thorough
def test_memory_files_and_http_come_to_the_same_model(ran: Path) -> None:
    models = {name: open_store(unit(ran, name) / "store").head("laboratory", "main") for name in ("files", "http")}
    assert models["files"].iteration == models["http"].iteration == 3
    # Ingest lands pings in different files, whose parts are merged in another order.
    np.testing.assert_allclose(models["files"].weights, models["http"].weights, rtol=1e-12)
    finals = {name: outcome(ran, name) for name in ("dense", "memory", "files", "http")}
    assert finals["memory"]["final"] == finals["files"]["final"]
    assert finals["dense"]["final"] != finals["memory"]["final"]
    loss = {name: told["final"]["test"]["loss"] for name, told in finals.items()}
    assert abs(loss["dense"] - loss["memory"]) < 1e-3
    sent = {name: told["update_bytes"] for name, told in finals.items()}
    assert sent["memory"] == sent["files"] == sent["http"] == sent["dense"] // 2


def test_what_landed_over_http_is_what_the_codec_made(ran: Path) -> None:
    files = list((unit(ran, "http") / "landing").glob("study=*/line=*/iteration=*/*.parquet"))
    rows = [row for file in files for row in pq.ParquetFile(file).read(["update", "update_encoding"]).to_pylist()]
    assert len(rows) == 3 * 8
    assert {(row["update_encoding"], len(row["update"])) for row in rows} == {("half", 2 * 31)}


@pytest.mark.thorough
def test_the_rounds_over_http_are_recomputed_to_the_bit_by_numpy(ran: Path, environment: dict[str, str]) -> None:
    told = fedping(["store", "recompute", "laboratory", "main", "3"], unit(ran, "http"), environment)
    assert told.returncode == 0, told.stdout + told.stderr


def test_without_the_module_one_sentence_says_what_is_missing(ran: Path, environment: dict[str, str]) -> None:
    without = {name: value for name, value in environment.items() if name != "FEDPING_EXTENSIONS"}
    folder = unit(ran, "http")
    commands = [
        ["round", "laboratory", "main", "--engine", "numpy"],
        ["store", "recompute", "laboratory", "main", "3"],
        ["ingest"],
    ]
    for command in commands:
        told = fedping(command, folder, without)
        assert told.returncode not in (0, None)
        assert "Traceback" not in told.stderr
        assert told.stderr.count("\n") <= 2
        assert "is an extension that is not loaded; install the package" in told.stderr
