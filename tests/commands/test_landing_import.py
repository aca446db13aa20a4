"""`fedping landing import`: rows of a product's own files become pings, and a repeated import adds none."""

import json
import signal
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedping.main import main
from fedping.protocol.outcomes import linked_id
from fedping.server_jobs.importing import IMPORT_LOCK
from fedping.server_jobs.processes import Lock
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.ingest_app import IngestApp, ingest_app, landed_ids
from tests.support.ingest_server import running_ingest
from tests.support.killed_command import killed_at
from tests.support.outcomes import SHOP, list_json, outcome_paths, post, shop_study
from tests.support.versions import WHEN

ROWS = 40
AT = datetime(2026, 11, 1, 12, tzinfo=UTC)


def rows(seed: int = 1, count: int = ROWS) -> list[dict[str, Any]]:
    """Return rows of a shop's events table, with its own column names."""
    rng = np.random.default_rng(seed)
    return [
        {
            "event": f"e{seed}-{number}",
            "visitor": str(uuid.UUID(bytes=rng.bytes(16), version=4)),
            "group": "treatment",
            "model_version": 0,
            "seen_at": AT,
            "gradient": [float(x) for x in rng.normal(size=3).astype(np.float32)],
            "loss": float(rng.gamma(2.0)),
            "place": int(rng.integers(1, 8)),
            "candidates": 8,
            "basket": bool(rng.random() < 0.3),
            "seconds": float(rng.integers(0, 50)) * 0.5,
            "device": "phone",
            "colour": "red",
        }
        for number in range(count)
    ]


PEAK = "print(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])"
"""Code that prints the process's peak memory in kilobytes, without its parent's."""

MAPPED = ["client_id=visitor", "study_variation=group", "received_at=seen_at", "update=gradient"]


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path, others=[shop_study()])


def command(ingest: IngestApp, *words: str, mapped: bool = True) -> list[str]:
    named = [word for each in MAPPED for word in ("--map", each)] if mapped else []
    places = ["--store", str(ingest.settings.store), "--landing", str(ingest.settings.landing)]
    return ["landing", "import", *words, "--study", SHOP, *named, *places, "--journal", str(ingest.settings.journal)]


def imported(ingest: IngestApp, *words: str, mapped: bool = True) -> int:
    return main(command(ingest, *words, mapped=mapped))


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def as_pandas(path: Path) -> None:
    pd.DataFrame(rows()).to_parquet(path)


def as_pandas_nullable(path: Path) -> None:
    frame = pd.DataFrame(rows()).convert_dtypes(dtype_backend="numpy_nullable")
    frame.astype({"place": "Float64", "basket": "boolean"}).to_parquet(path)


def as_bytes_and_int96(path: Path) -> None:
    table = pa.Table.from_pylist(rows())
    updates = [np.array(row["gradient"], "<f4").tobytes() for row in rows()]
    ids = [uuid.UUID(row["visitor"]).bytes for row in rows()]
    table = table.set_column(table.schema.get_field_index("gradient"), "gradient", pa.array(updates))
    table = table.set_column(table.schema.get_field_index("visitor"), "visitor", pa.array(ids, pa.binary(16)))
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)


def as_dictionaries_and_decimals(path: Path) -> None:
    table = pa.Table.from_pylist(rows())
    at = table.schema.get_field_index("seconds")
    table = table.set_column(at, "seconds", table["seconds"].cast(pa.decimal128(6, 1)))
    for name in ("group", "device"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].cast(pa.large_string()).dictionary_encode())
    pq.write_table(table, path, compression="gzip")


def as_lines(path: Path) -> None:
    path.write_text("\n".join(json.dumps(row | {"seen_at": AT.isoformat()}) for row in rows()) + "\n")


WRITERS = {
    "pandas.parquet": as_pandas,
    "nullable.parquet": as_pandas_nullable,
    "int96.parquet": as_bytes_and_int96,
    "arrow.parquet": as_dictionaries_and_decimals,
    "lines.ndjson": as_lines,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_writers_file_makes_the_same_version_and_twice_is_once(
    name: str, ingest: IngestApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    WRITERS[name](tmp_path / name)
    words = [str(tmp_path / name), "--key", "event", "--json"]
    assert imported(ingest, *words, "--dry-run") == 0
    first = told(capsys)
    assert (first["pings"], first["left_out"], first["imported"]) == (ROWS, {}, False)
    assert landed_ids(ingest.settings.landing) == []
    assert imported(ingest, *words) == 0
    assert told(capsys) == {**first, "imported": True}
    assert first["ignored"] == ["colour"]
    landed = landed_ids(ingest.settings.landing)
    assert len(set(landed)) == ROWS
    assert imported(ingest, *words) == 0
    again = told(capsys)
    assert (again["pings"], again["known"]) == (0, ROWS)
    assert landed_ids(ingest.settings.landing) == landed
    [path] = ingest.settings.landing.glob(f"study={SHOP}/*/*/*.parquet")
    table = pq.ParquetFile(path).read()
    assert set(table["received_at"].to_pylist()) == {AT}
    done = run_round(
        ingest.services.store,
        ingest.settings.landing,
        SHOP,
        "main",
        NumpyEngine(),
        RoundOptions(clock=lambda: WHEN, code_version="test"),
    )
    assert done.status == "published"
    weights = ingest.services.store.head(SHOP, "main").weights
    expected = np.sign(np.mean([row["gradient"] for row in rows()], axis=0))
    assert np.array_equal(np.sign(np.array(weights) - [10.0, 11.0, 12.0]), expected)


def test_an_import_that_is_killed_at_any_write_and_repeated_has_every_row_once(
    ingest: IngestApp, tmp_path: Path
) -> None:
    as_lines(tmp_path / "lines.ndjson")
    words = command(ingest, str(tmp_path / "lines.ndjson"), "--key", "event")
    kills = 0
    while (ended := killed_at(kills + 1, *words)) != 0:
        assert ended == -signal.SIGKILL
        kills += 1
    assert kills >= 2, "the segment that is closed, and the file that lands"
    landed = landed_ids(ingest.settings.landing)
    assert len(landed) == len(set(landed)) == ROWS


def test_a_small_file_of_large_repeated_texts_is_imported_in_bounded_memory(ingest: IngestApp, tmp_path: Path) -> None:
    table = pa.Table.from_pylist(rows(count=2000))
    once = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), pa.array(["x" * 300_000]))
    for name in ("junk", "more junk"):
        table = table.append_column(name, once)
    table = table.set_column(table.schema.get_field_index("event"), "event", pa.array([f"e{n}" for n in range(2000)]))
    pq.write_table(table.append_column("order", once), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 2**20
    words = command(ingest, str(tmp_path / "bomb.parquet"), "--key", "event", "--key", "order", "--dry-run")
    script = "import re, sys; from fedping.main import main; main(sys.argv[1:]); " + PEAK
    measured = subprocess.run([sys.executable, "-c", script, *words], check=True, capture_output=True, text=True)
    assert int(measured.stdout.splitlines()[-1]) < 600 * 2**10


def test_one_import_runs_at_a_time(ingest: IngestApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_lines(tmp_path / "lines.ndjson")
    lock = Lock(ingest.settings.journal / IMPORT_LOCK)
    assert lock.take()
    assert imported(ingest, str(tmp_path / "lines.ndjson"), "--key", "event") == 75
    assert "another import" in capsys.readouterr().err
    lock.release()
    assert imported(ingest, str(tmp_path / "lines.ndjson"), "--key", "event") == 0


def test_a_running_ingest_lands_an_import(
    ingest: IngestApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_pandas(tmp_path / "events.parquet")
    landing = tmp_path / "live"
    with running_ingest(ingest.settings.store, landing):
        places = ["--store", str(ingest.settings.store), "--landing", str(landing)]
        named = [word for each in MAPPED for word in ("--map", each)]
        words = [
            "landing",
            "import",
            str(tmp_path / "events.parquet"),
            "--study",
            SHOP,
            "--key",
            "event",
            *named,
            *places,
        ]
        assert main([*words, "--json"]) == 0
        assert told(capsys)["pings"] == ROWS
        assert len(landed_ids(landing)) == ROWS
        assert main([*words, "--json"]) == 0
        assert told(capsys)["known"] == ROWS


def test_what_does_not_fit_is_counted_by_reason_and_strict_imports_nothing(
    ingest: IngestApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad: list[dict[str, Any]] = [
        {"device": "tv"},
        {"seconds": 601.0},
        {"seconds": 0.3},
        {"place": 2.5},
        {"place": 9},
        {"visitor": "me"},
        {"gradient": [1.0]},
        {"gradient": None},
        {"group": "other"},
        {"loss": float("nan")},
        {"seen_at": datetime(2999, 1, 1, tzinfo=UTC).isoformat()},
        {"model_version": 7},
        {"event": None},
    ]
    made = [row | {"seen_at": AT.isoformat()} for row in rows(count=len(bad) + 1)]
    lines = [json.dumps(row | change) for row, change in zip(made, [*bad, {}], strict=True)]
    lines.append(lines[-1])
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(line.replace("NaN", "null") for line in lines))
    assert imported(ingest, str(file), "--key", "event", "--strict", "--json") == 1
    found = json.loads(capsys.readouterr().out.splitlines()[0])
    assert found["left_out"] == {
        "outcome_bounds": 3,
        "not_a_ping": 2,
        "not_whole": 1,
        "no_uuid": 1,
        "update_length": 1,
        "update_missing": 1,
        "unknown_arm": 1,
        "received_in_future": 1,
        "model_version": 1,
        "no_key": 1,
    }
    assert (found["rows"], found["pings"], found["known"], found["imported"]) == (len(bad) + 2, 1, 1, False)
    assert found["examples"]["outcome_bounds"].startswith(f"{file} row 1: the outcome 'device'")
    assert landed_ids(ingest.settings.landing) == []
    assert imported(ingest, str(file), "--key", "event") == 0
    assert "3 skipped, outcome_bounds" in capsys.readouterr().out
    assert len(landed_ids(ingest.settings.landing)) == 1


def test_later_outcomes_are_imported_one_a_value_and_linked_to_their_choices(
    ingest: IngestApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = str(uuid.uuid4())
    assert post(ingest, list_json(), choice) == (200, "")
    ingest.land()
    orders = [
        {"order": "a", "visitor": str(uuid.uuid4()), "list": choice, "age": 3, "paid": 49.9, "returned": False},
        {
            "order": "b",
            "visitor": str(uuid.uuid4()),
            "list": str(uuid.uuid4()),
            "age": 60,
            "paid": 12.0,
            "returned": None,
        },
    ]
    made = [row | {"study_variation": "control", "model_version": 0} for row in orders]
    pd.DataFrame(made).to_parquet(tmp_path / "orders.parquet")
    named = ["--map", "client_id=visitor", "--map", "choice=list"]
    words = [str(tmp_path / "orders.parquet"), "--key", "order", "--json", *named]
    assert imported(ingest, *words, mapped=False) == 0
    assert (found := told(capsys))["left_out"] == {"outcome_late": 1}
    assert found["pings"] == 2
    landed = [row for path in outcome_paths(ingest.settings.landing) for row in pq.ParquetFile(path).read().to_pylist()]
    [paid] = [row for row in landed if row["paid"] is not None]
    assert uuid.UUID(bytes=paid["document_id"]) == linked_id(uuid.UUID(choice), "paid")
    [returned] = [row for row in landed if row["returned"] is not None]
    assert returned["choice"] is None
    assert imported(ingest, *words, mapped=False) == 0
    assert told(capsys)["known"] == 2


WRONG = {
    "--key order": (["--key", "order"], "--key names 'order'"),
    "no key": ([], "Give --key"),
    "no column": (["--key", "event", "--map", "loss=lost"], "has no column 'lost'"),
    "no field": (["--key", "event", "--map", "colours=colour"], "have no field 'colours'"),
    "no equals": (["--key", "event", "--map", "loss"], "has no '='"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_option_has_a_sentence(
    what: str, ingest: IngestApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_pandas(tmp_path / "events.parquet")
    words, said = WRONG[what]
    assert imported(ingest, str(tmp_path / "events.parquet"), *words) == 2
    assert said in capsys.readouterr().err


def test_a_column_of_another_type_in_the_second_file_is_told_before_anything_lands(
    ingest: IngestApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_pandas(tmp_path / "a.parquet")
    pd.DataFrame([row | {"loss": str(row["loss"])} for row in rows(2)]).to_parquet(tmp_path / "b.parquet")
    assert imported(ingest, str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"), "--key", "event") == 2
    assert "the column 'loss' is a text in" in capsys.readouterr().err
    (tmp_path / "c.parquet").write_bytes(b"no Parquet")
    assert imported(ingest, str(tmp_path / "c.parquet"), "--key", "event") == 1
    assert "can't be read as Parquet" in capsys.readouterr().err
    assert landed_ids(ingest.settings.landing) == []


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("place", [1], "no_number"),
        ("loss", {"a": 1}, "no_number"),
        ("seen_at", -(10**19), "received_before_1970"),
        ("seen_at", -1e30, "received_before_1970"),
        ("update_encoding", "signs", "update_bytes"),
    ],
)
def test_a_hostile_row_is_left_out_and_the_others_land(
    ingest: IngestApp, tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, value: Any, reason: str
) -> None:
    lines = [{**row, "seen_at": 1_700_000_000_000} for row in rows(count=3)]
    lines[2] |= {column: value}
    path = tmp_path / "hostile.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    assert imported(ingest, str(path), "--key", "event", "--json") == 0
    found = told(capsys)
    assert (found["pings"], found["left_out"]) == (2, {reason: 1})
    assert len(landed_ids(ingest.settings.landing)) == 2


@pytest.mark.parametrize("times", [pa.array([-(2**62)], pa.timestamp("us")), pa.array([0], pa.timestamp("us", "No/W"))])
def test_times_that_python_does_not_hold_are_told(ingest: IngestApp, tmp_path: Path, times: pa.Array) -> None:
    table = pa.Table.from_pylist(rows(count=1))
    pq.write_table(table.set_column(table.schema.get_field_index("seen_at"), "seen_at", times), tmp_path / "a.parquet")
    assert imported(ingest, str(tmp_path / "a.parquet"), "--key", "event") == 1


def test_json_of_any_depth_is_refused(ingest: IngestApp, tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text('{"event": ' + "[" * 100_000 + "]" * 100_000 + "}")
    assert imported(ingest, str(tmp_path / "deep.jsonl"), "--key", "event", mapped=False) == 1
