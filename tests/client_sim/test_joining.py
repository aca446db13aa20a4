"""Institutions: `fedping join` in processes of their own, against a real ingest and real rounds."""

import json
import signal
from pathlib import Path

from fedping.main import main
from tests.support.ingest_server import running_ingest
from tests.support.institutions import STUDY, accuracy, agreed, joining, tables, tumours
from tests.support.rounds import store_with

ROUNDS = 3


def test_three_institutions_train_a_model_that_none_of_them_could(tmp_path: Path) -> None:
    store, landing = tmp_path / "store", tmp_path / "landing"
    store_with(store, tumours())
    columns = agreed(tmp_path / "columns.toml")
    with running_ingest(store, landing, "--workers", "1") as server:
        options = ("--columns", columns, "--yes", "--json", "--every", "0.2s")
        running = [
            joining(server.url, "--data", table, "--state", tmp_path / f"state-{number}", *options)
            for number, table in enumerate(tables(tmp_path))
        ]
        for version in range(ROUNDS):
            rows = [json.loads(process.stdout.readline()) for process in running if process.stdout]
            assert [row["version"] for row in rows] == [version] * 3
            assert {row["outcome"] for row in rows} == {"accepted"}
            server.flush()
            assert main(["round", STUDY, "--engine", "numpy", "--store", str(store), "--landing", str(landing)]) == 0
        for process, number in zip(running, (signal.SIGTERM, signal.SIGINT, signal.SIGTERM), strict=True):
            process.send_signal(number)
        codes = [process.wait(60) for process in running]
        said = [process.communicate() for process in running]
    assert codes == [143, 130, 143], said
    assert accuracy(store, 0) < 0.7
    assert accuracy(store, ROUNDS) > 0.93
