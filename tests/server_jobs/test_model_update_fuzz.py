"""Fuzzing of model updates: no 5xx for any input, and every ping answered with 200 lands unchanged."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.effort import few_or_all
from tests.support.ingest_app import IngestApp, ingest_app
from tests.support.model_updates import PATH, STUDY, model_ping_json, model_study
from tests.support.mutations import changed_pings, spoiled

pytestmark = pytest.mark.thorough
QUICK = settings(
    max_examples=few_or_all(200, 600),
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)

VALID_TOGETHER = [
    {"study_variation": "control", "update": None},
    {"study_variation": "control", "update": None, "confusion": [4, 0, 1, 2]},
    {"examples": 0},
    {"examples": 0, "loss": 0, "update": [0, 0, 0]},
]


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Draw a valid ping with a few changed fields or bytes."""
    data = json.dumps(draw(changed_pings(model_ping_json(), 3, VALID_TOGETHER))).encode()
    return spoiled(data, draw) if draw(st.integers(0, 4)) == 0 else data


SENT: dict[str, bytes] = {}


@pytest.fixture(scope="module")
def ingest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestApp]:
    """Give one ingest for all inputs; at the end, check that every accepted ping is unchanged in Parquet."""
    made = ingest_app(tmp_path_factory.mktemp("fuzz"), others=[model_study()], roll_bytes=20_000)
    yield made
    made.land()
    sums = made.totals()
    assert (sums["quarantined"], sums["duplicates"], sums["landed"]) == (0, 0, sums["accepted"])
    files = made.settings.landing.glob(f"study={STUDY}/line=*/iteration=*/*.parquet")
    rows = {
        str(uuid.UUID(bytes=row["document_id"])): row for f in files for row in pq.ParquetFile(f).read().to_pylist()
    }
    assert rows.keys() == SENT.keys()
    assert len(rows) > few_or_all(50, 150), "hardly anything was accepted: the inputs do not reach the landing"
    for document, row in rows.items():
        check_row(row, json.loads(SENT[document])["payload"])


def check_row(row: dict[str, Any], payload: dict[str, Any]) -> None:
    assert (row["examples"], row["loss"]) == (payload["examples"], float(payload["loss"]))
    assert row["confusion"] == payload.get("confusion")
    if payload["update"] is None:
        assert (row["update"], row["update_encoding"]) == (None, None)
    else:
        np.testing.assert_array_equal(np.frombuffer(row["update"], "<f4"), np.array(payload["update"], np.float32))


@QUICK
@given(body=documents())
def test_any_document_is_answered_and_what_is_accepted_lands(ingest: IngestApp, body: bytes) -> None:
    document = str(uuid.uuid4())
    answer = ingest.post(f"{PATH}/{document}", body)
    assert answer.status_code in (200, 400), answer.json
    if answer.status_code == 200:
        SENT[document] = body


@QUICK
@given(lines=st.lists(documents().filter(lambda line: b"\n" not in line), max_size=4))
def test_any_batch_is_answered_line_by_line(ingest: IngestApp, lines: list[bytes]) -> None:
    ids = [str(uuid.uuid4()) for _ in lines]
    named = [b'{"documentId":"%s",%s' % (i.encode(), line[1:]) for i, line in zip(ids, lines, strict=True)]
    answer = ingest.post(PATH, b"\n".join(named))
    assert answer.status_code in (200, 400)
    refused = {line["line"] - 1 for line in answer.json["rejected"]}
    assert answer.json["accepted"] + len(refused) == len(lines)
    SENT.update({ids[k]: named[k] for k in range(len(lines)) if k not in refused})
