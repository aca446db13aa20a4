"""`fedping fleet --replay` posts lists and later outcomes again with their types, linked ones with their choice."""

import json
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedping.main import main
from fedping.protocol.outcomes import linked_id
from tests.support.ingest_app import ingest_app, landed_ids, make_store
from tests.support.ingest_server import running_ingest
from tests.support.outcomes import SHOP, list_json, outcome_json, outcome_paths, paid_json, post, shop_study


def test_lists_and_outcomes_are_posted_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = ingest_app(tmp_path / "recorded", others=[shop_study()])
    choice = str(uuid.uuid4())
    assert post(recorded, list_json(basket=True, device="phone"), choice) == (200, "")
    assert post(recorded, *paid_json(choice)) == (200, "")
    assert post(recorded, outcome_json(returned=True)) == (200, "")
    recorded.land()
    make_store(tmp_path / "store", others=[shop_study()])
    capsys.readouterr()
    with running_ingest(tmp_path / "store", tmp_path / "landing") as ingest:
        again = ["fleet", ingest.url, SHOP, "--replay", str(recorded.settings.landing), "--iterations", "2", "--json"]
        assert main(again) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(one["pings"]["accepted"], one["skipped_by_reason"]) for one in told] == [(3, {})] * 2
        assert ingest.operator_asks("/__flush__", "POST")["flushed"]
    assert len(set(landed_ids(tmp_path / "landing"))) == 6
    lists = [row for path in (tmp_path / "landing").glob("study=shop/*/*/*.parquet") for row in rows(path)]
    outcomes = [row for path in outcome_paths(tmp_path / "landing") for row in rows(path)]
    assert {(row["basket"], row["device"]) for row in lists} == {(True, "phone")}
    chosen = {uuid.UUID(bytes=row["document_id"]) for row in lists}
    linked = [row for row in outcomes if row["choice"] is not None]
    assert {uuid.UUID(bytes=row["choice"]) for row in linked} == chosen
    assert all(
        uuid.UUID(bytes=row["document_id"]) == linked_id(uuid.UUID(bytes=row["choice"]), "paid") for row in linked
    )
    assert sorted(str(row["returned"]) for row in outcomes) == ["None", "None", "True", "True"]


def rows(path: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pq.ParquetFile(path).read().to_pylist()
    return found


def test_simulated_clients_send_lists_of_items_with_features_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path / "store", others=[shop_study()])
    with running_ingest(tmp_path / "store", tmp_path / "landing") as ingest:
        assert main(["fleet", ingest.url, SHOP, "--clients", "3", "--iterations", "1"]) == 2
    assert "simulated clients see lists of items with features, and the model 'linear-15'" in capsys.readouterr().err
