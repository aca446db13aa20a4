"""Exported files, read like other tools: by their own readers if installed, otherwise by the format."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fedping.experiments.laboratory.exporting import _checksum, write_mlflow, write_tensorboard
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.main import main
from fedping.protocol.errors import FedpingError
from tests.support.laboratory import small_file

Points = dict[str, dict[int, float]]
"""Values by "split/metric" and round."""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    file = small_file(folder)
    run_experiment(
        experiment_from_toml(file, ["rounds=3", "seeds=1", "evaluation.baselines=['start']"]), folder / "out", 1
    )
    return folder / "out"


def measured(run: Path) -> Points:
    table = pq.read_table(run / "metrics.parquet", partitioning=None)
    found: Points = {}
    for row in table.filter(pc.is_finite(table["value"])).to_pylist():
        found.setdefault(f"{row['split']}/{row['metric']}", {})[row["round"]] = row["value"]
    return found


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protocol buffer message, by the specification."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, data[at : at + size]
        at += size


def records(data: bytes) -> Iterator[bytes]:
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + length]
        assert data[8:12] == _checksum(data[:8])
        assert data[12 + length : 16 + length] == _checksum(body)
        yield body
        data = data[16 + length :]


def test_the_checksum_is_that_of_the_specification() -> None:
    """CRC-32C of "123456789" is e3069283 (RFC 3720); the masked checksum is rotated by 15 bits, plus a constant."""
    crc = 0xE3069283
    expected = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert _checksum(b"123456789") == struct.pack("<I", expected)


def test_event_files_have_every_finite_number_at_its_round(out: Path, tmp_path: Path) -> None:
    assert write_tensorboard(out, tmp_path) == 3
    assert write_tensorboard(out, tmp_path) == 3, "written again, it replaces what was there"
    [file] = (tmp_path / "small/gradient/seed-1").iterdir()
    events = [dict(fields(record)) for record in records(file.read_bytes())]
    assert events[0][3] == b"brain.Event:2"
    found: Points = {}
    for event in events[1:]:
        for _, value in fields(event[5]):
            said = dict(fields(value))
            found.setdefault(said[1].decode(), {})[event[2]] = struct.unpack("<f", said[2])[0]
    expected = measured(out / "runs/gradient/seed-1")
    assert found.keys() == expected.keys()
    for name, points in expected.items():
        assert found[name] == {round_: pytest.approx(value, rel=1e-6) for round_, value in points.items()}


def test_tensorboard_reads_them(out: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_tensorboard(out, tmp_path)
    read = EventAccumulator(str(tmp_path / "small/local, three/seed-1"))
    read.Reload()
    expected = measured(out / "runs/local, three/seed-1")
    assert set(read.Tags()["scalars"]) == expected.keys()
    found = {point.step: point.value for point in read.Scalars("test/accuracy")}
    assert found == {round_: pytest.approx(value) for round_, value in expected["test/accuracy"].items()}


def test_the_file_store_has_runs_with_metrics_parameters_and_tags(out: Path, tmp_path: Path) -> None:
    assert write_mlflow(out, tmp_path) == 3
    assert write_mlflow(out, tmp_path) == 3
    [experiment] = tmp_path.iterdir()
    assert experiment.name.isdigit()
    assert 'name: "small"\n' in (experiment / "meta.yaml").read_text()
    runs = {(run / "tags/mlflow.runName").read_text(): run for run in experiment.iterdir() if run.is_dir()}
    assert runs.keys() == {"gradient/seed-1", "local, three/seed-1", "start/seed-1"}
    run = runs["local, three/seed-1"]
    lines = [line.split(" ") for line in (run / "metrics/test/accuracy").read_text().splitlines()]
    expected = measured(out / "runs/local, three/seed-1")["test/accuracy"]
    assert {int(step): float(value) for _, value, step in lines} == expected
    assert (run / "params/training.epochs").read_text() == "2"
    assert f'run_id: "{run.name}"' in (run / "meta.yaml").read_text()


def test_mlflow_reads_it(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    write_mlflow(out, tmp_path)
    client = MlflowClient(tracking_uri=tmp_path.as_uri())
    found = client.get_experiment_by_name("small")
    runs = {run.info.run_name: run for run in client.search_runs([found.experiment_id])}
    run = runs["gradient/seed-1"]
    expected = measured(out / "runs/gradient/seed-1")["test/accuracy"]
    history = client.get_metric_history(run.info.run_id, "test/accuracy")
    assert {point.step: point.value for point in history} == expected
    assert run.data.params["rounds"] == "3"


def test_the_command_says_where_they_are_and_what_it_needs(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["--tensorboard", str(tmp_path / "events"), "--mlflow", str(tmp_path / "mlruns")]
    assert main(["export", str(out), *both]) == 0
    assert capsys.readouterr().out.count("3 runs are in ") == 2
    assert main(["export", str(out)]) == 2
    assert "give --tensorboard, --mlflow" in capsys.readouterr().err
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "experiment.json").write_bytes(b'{"name": "mi\xffe"}')
    for folder in (tmp_path, tmp_path / "damaged"):
        with pytest.raises(FedpingError, match="holds no experiment of the laboratory"):
            write_mlflow(folder, tmp_path / "none")
