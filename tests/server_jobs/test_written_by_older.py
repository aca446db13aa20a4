"""The current ingest takes over an older one's accepted and landed pings.

Each folder below `written_by_older` is as fedping left it at the time; never rewrite one. Its ingest had landed six
pings, had rolled a segment of four more and a duplicate of an earlier one, and was killed while writing the next,
which has four and two duplicates. `answered.json` has the documents that were answered with 200.

`before_numbers` is from before segments' names contained the format of their pings; `with_numbers` is from after.
`test_version_skew.py` runs the older programs themselves.
"""

import http.client
import json
import shutil
import uuid
from pathlib import Path

import pytest

from fedping.model_store import open_store
from fedping.protocol.landed_file import open_landed
from fedping.protocol.landing import open_landing
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.ingest_app import landed_ids
from tests.support.ingest_server import running_ingest
from tests.support.pings import ping_json
from tests.support.rounds import WHEN

KEPT = Path(__file__).parent / "written_by_older"


def clients_of(landing: Path) -> dict[str, str]:
    """Return the client of each landed document."""
    batches = (
        batch
        for file in open_landing(landing).all_files()
        for batch in open_landed(file).batches(["document_id", "client_id"])
    )
    rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return {str(uuid.UUID(bytes=document)): str(uuid.UUID(bytes=client)) for document, client in rows}


@pytest.mark.parametrize("kept", ["before_numbers", "with_numbers"])
def test_a_journal_of_an_older_ingest_lands_and_each_of_its_pings_counts_once(kept: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(KEPT / kept, tmp_path / "kept"))
    answered = json.loads((folder / "answered.json").read_bytes())
    landing = folder / "landing"
    assert len(answered) == 14
    assert len(landed_ids(landing)) == 6
    assert len([*(landing / ".journal").glob("*.open"), *(landing / ".journal").glob("*.closed")]) == 2

    with running_ingest(folder / "store", landing, "--workers", "1") as server:
        status = server.flush()
        assert (status["missing"], status["quarantined"], status["pending"]) == (0, 0, 0)
        assert set(landed_ids(landing)) == set(answered)
        clients = clients_of(landing)
        for document in (answered[0], answered[-1]):  # sent again, because the answer was lost
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
            body = json.dumps({**ping_json(2), "clientId": clients[document]})
            connection.request(
                *("POST", f"/submit/study/frecency-update/1/{document}", body), {"Content-Type": "application/json"}
            )
            assert connection.getresponse().status == 200
            connection.close()
    assert list((landing / ".journal").glob("quarantine/*")) == []
    assert set(landed_ids(landing)) == set(answered)

    store = open_store(folder / "store")
    made = run_round(store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="t"))
    assert (made.status, made.counts["used"]) == ("published", len(answered))
    assert made.counts["duplicate"] == len(landed_ids(landing)) - len(answered)
    for number in (0, 1):
        assert recompute(store, landing, "study", "main", number, NumpyEngine()).identical
