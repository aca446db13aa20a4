"""The metrics of an experiment in the formats of other tools: TensorBoard's event files, and MLflow's file store.

Neither tool is needed to write them. Writing again replaces the earlier files, because their names follow from the
experiment.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedping.experiments.laboratory.results import RunFolder, read_units
from fedping.experiments.run_folder import NOTE, write_whole_bytes
from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import without_format

LONGEST_PARAMETER = 500
"""Maximum characters of a parameter that all versions of MLflow accept."""


@dataclass(frozen=True)
class Run:
    """One finished run: its variant or baseline, its folder below the experiment's, and its measurements.

    ``points`` are (round, split, metric, value), by rounds, without those that are not finite; ``ended`` is in seconds
    since 1970, ``settings`` are its variant's, by dotted name; none for a baseline.
    """

    name: str
    folder: str
    points: list[tuple[int, str, str, float]]
    ended: float
    settings: Mapping[str, str]


def write_tensorboard(out: Path, to: Path) -> int:
    """Write the finished runs of an experiment in folder ``out`` as event files below ``to``; return their number.

    Each run has a folder, and each metric is a scalar whose name begins with its split, as in "test/accuracy".

    Raises:
        FedpingError: there are no finished runs, or the files cannot be written.
    """
    name, runs = _runs(out)
    with _writing_to(to):
        for run in runs:
            folder = to / name / Path(run.folder).relative_to(Path(run.folder).parts[0])
            folder.mkdir(parents=True, exist_ok=True)
            data = b"".join(_record(event) for event in _events(run))
            write_whole_bytes(folder / f"events.out.tfevents.{int(run.ended):010d}.fedping", data)
    return len(runs)


def write_mlflow(out: Path, to: Path) -> int:
    """Write the finished runs of an experiment in folder ``out`` into a file store, as ``mlruns``; return their number.

    Raises:
        FedpingError: there are no finished runs, or the files cannot be written.
    """
    name, runs = _runs(out)
    number = str(int(_digest(name)[:15], 16))
    with _writing_to(to):
        where = to.resolve() / number
        where.mkdir(parents=True, exist_ok=True)
        times = [int(1000 * run.ended) for run in runs]
        about = {
            "artifact_location": where.as_uri(),
            "creation_time": min(times),
            "experiment_id": number,
            "last_update_time": max(times),
            "lifecycle_stage": "active",
            "name": name,
        }
        write_whole_bytes(where / "meta.yaml", _yaml(about))
        for run in runs:
            _write_mlflow_run(run, _digest(f"{name}\0{run.folder}")[:32], number, where)
    return len(runs)


def _runs(out: Path) -> tuple[str, list[Run]]:
    """Return an experiment's name and its finished runs."""
    try:
        settings = msgspec.json.decode(without_format((out / NOTE).read_bytes(), f"the file {out / NOTE}"))
        units = read_units(out) or []
        runs = [_run(out, unit.name, unit.folder, settings["variants"]) for unit in units]
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise FedpingError(
            f"{out} holds no experiment of the laboratory; give the folder of a 'fedping simulate' or 'sweep'"
        ) from error
    finished = [run for run in runs if run is not None]
    if not finished:
        raise FedpingError(f"no run in {out} is finished. Continue it with 'fedping simulate'")
    return str(settings["name"]), finished


def _run(out: Path, name: str, folder: str, variants: Mapping[str, Any]) -> Run | None:
    path = out / folder
    if RunFolder(path).finished() is None:
        return None
    table = RunFolder(path).metrics()
    columns = (table[column].to_pylist() for column in ("round", "split", "metric", "value"))
    points = [row for row in zip(*columns, strict=True) if row[3] is not None and np.isfinite(row[3])]
    settings = dict(_flat(variants.get(name, {}), "")) if folder.startswith("runs/") else {}
    return Run(name, folder, sorted(points, key=lambda row: row[0]), (path / "run.json").stat().st_mtime, settings)


def _flat(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{name}.{key}" if name else key)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


@contextmanager
def _writing_to(to: Path) -> Iterator[None]:
    """Turn a system error from writing to ``to`` into a :class:`FedpingError`."""
    try:
        yield
    except OSError as error:
        raise FedpingError(f"cannot write to {to}: {error.strerror}; give another folder") from error


# --- TensorBoard: records of TFRecord, each an `Event` in the encoding of protocol buffers ---


def _events(run: Run) -> Iterator[bytes]:
    """Yield the events of a run: the version of the format, then one per round with everything measured after it."""
    time = _field(1, 1, struct.pack("<d", run.ended))
    yield time + _field(3, 2, b"brain.Event:2")
    for round_, points in groupby(run.points, key=lambda row: row[0]):
        values = b"".join(
            _field(1, 2, _field(1, 2, f"{split}/{metric}".encode()) + _field(2, 5, struct.pack("<f", value)))
            for _, split, metric, value in points
        )
        yield time + _field(2, 0, _varint(round_)) + _field(5, 2, values)


def _field(number: int, kind: int, value: bytes) -> bytes:
    """Return a protobuf field. Kind 0 is a varint, 1 eight bytes, 2 bytes preceded by their length, 5 four bytes."""
    return _varint(number << 3 | kind) + (_varint(len(value)) if kind == 2 else b"") + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C that TFRecord files use."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC = [_crc_of_byte(byte) for byte in range(256)]


# --- MLflow: a folder per experiment, in it a folder per run, in it a file per metric, parameter and tag ---


def _write_mlflow_run(run: Run, id_: str, experiment: str, where: Path) -> None:
    folder, time = where / id_, int(1000 * run.ended)
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("metrics", "params", "tags", "artifacts"):
        (folder / part).mkdir(parents=True)
    called = run.folder.partition("/")[2]
    about = {
        "artifact_uri": (folder / "artifacts").as_uri(),
        "end_time": time,
        "entry_point_name": "",
        "experiment_id": experiment,
        "lifecycle_stage": "active",
        "run_id": id_,
        "run_name": called,
        "run_uuid": id_,
        "source_name": "",
        "source_type": 4,
        "source_version": "",
        "start_time": time,
        "status": 3,
        "tags": [],
        "user_id": "",
    }
    for (split, metric), points in groupby(sorted(run.points, key=lambda row: row[1:3]), key=lambda row: row[1:3]):
        (folder / "metrics" / split).mkdir(exist_ok=True)
        lines = "".join(f"{time} {value!r} {round_}\n" for round_, _, _, value in points)
        (folder / "metrics" / split / metric).write_text(lines, encoding="utf-8")
    for name, text in run.settings.items():
        (folder / "params" / name).write_text(text[:LONGEST_PARAMETER], encoding="utf-8")
    for name, text in (("mlflow.runName", called), ("variant", run.name)):
        (folder / "tags" / name).write_text(text, encoding="utf-8")
    write_whole_bytes(folder / "meta.yaml", _yaml(about))  # last, because a run without it doesn't exist


def _yaml(about: Mapping[str, Any]) -> bytes:
    """Return a flat mapping as YAML, with its values as JSON, a subset of YAML."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in about.items()).encode()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
