"""A ping counts only in its client's arm: at the edge, and in the round."""

import json
import uuid
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from fedping.protocol.enrolment import enrol
from fedping.protocol.study import Study
from fedping.server_jobs.round import NumpyEngine, RoundOptions, recompute, run_round
from tests.support.ingest_app import IngestApp, ingest_app, ingest_study
from tests.support.pings import ping_json
from tests.support.rounds import WHEN, crowd, id_of, land, store_with
from tests.support.versions import small_study

_ARMS = tuple(replace(arm, share=0.9 * arm.share) for arm in ingest_study().arms)
HASHED = replace(ingest_study(), name="hashed", arms=_ARMS, enrolment="hash")
PATH = f"/submit/{HASHED.name}/frecency-update/1"


def clients_of(study: Study, arm: str | None, n: int, *, seed: int = 0) -> list[str]:
    """Return the ids of clients of an arm, or of none."""
    rng = np.random.default_rng(seed)
    found: list[str] = []
    while len(found) < n:
        client = str(uuid.UUID(bytes=rng.bytes(16), version=4))
        dealt = enrol(study, client)
        if (dealt.name if dealt else None) == arm:
            found.append(client)
    return found


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path, others=(HASHED,))


def ping_of(client: str, arm: str = "treatment") -> dict[str, object]:
    update = {} if arm == "treatment" else {"update": None}
    version = {} if arm != "plain" else {"model_version": -1}
    return {**ping_json(study_variation=arm, **update, **version), "clientId": client}


@pytest.mark.parametrize("arm", ["treatment", "control", "plain"])
def test_ingest_takes_an_arms_own_clients_alone(ingest: IngestApp, arm: str) -> None:
    (mine,) = clients_of(HASHED, arm, 1)
    others = [clients_of(HASHED, each, 1)[0] for each in ("treatment", "control", "plain", None) if each != arm]
    answers = [
        ingest.post(f"{PATH}/{uuid.uuid4()}", json.dumps(ping_of(client, arm)).encode()) for client in (mine, *others)
    ]
    assert [answer.status_code for answer in answers] == [200, 400, 400, 400]
    assert f"is not assigned to arm '{arm}'" in answers[-1].json["error"]
    assert ingest.totals()["rejected.not_enrolled"] == 3


def test_in_a_batch_strangers_are_refused_line_by_line(ingest: IngestApp) -> None:
    clients = [*clients_of(HASHED, "treatment", 3), *clients_of(HASHED, None, 2)]
    lines = [json.dumps({**ping_of(client), "documentId": str(uuid.uuid4())}) for client in clients]
    answer = ingest.post(PATH, "\n".join(lines).encode())
    assert answer.json["accepted"] == 3
    assert [each["line"] for each in answer.json["rejected"]] == [4, 5]


def test_who_deals_arms_elsewhere_is_believed(ingest: IngestApp) -> None:
    (stranger,) = clients_of(HASHED, None, 1)
    body = json.dumps(ping_of(stranger)).encode()
    assert ingest.post(f"/submit/study/frecency-update/1/{uuid.uuid4()}", body).status_code == 200


def test_a_round_leaves_strangers_out_and_says_so(tmp_path: Path) -> None:
    """The file bypassed ingest; half of its 200 clients belong to another arm."""
    study = replace(small_study(min_clients=2), enrolment="hash")
    store, pings = store_with(tmp_path / "store", study), crowd(200)
    belongs = [enrol(study, str(uuid.UUID(bytes=id_of("client", p.client)))) == study.arms[0] for p in pings]
    land(tmp_path / "landing", pings)
    result = run_round(
        store,
        tmp_path / "landing",
        "study",
        "main",
        NumpyEngine(),
        RoundOptions(clock=lambda: WHEN, code_version="test"),
    )
    assert 50 < sum(belongs) < 190
    assert (result.counts["used"], result.counts["not_enrolled"]) == (sum(belongs), 200 - sum(belongs))
    head = store.head("study", "main")
    assert head.lineage.aggregate is not None
    updates = np.array([p.update for p, mine in zip(pings, belongs, strict=True) if mine])
    np.testing.assert_allclose(head.lineage.aggregate.mean, updates.mean(axis=0), rtol=1e-12)
    losses = [p.loss for p, mine in zip(pings, belongs, strict=True) if mine]
    assert head.lineage.arms["treatment"].loss == pytest.approx(np.mean(losses), rel=1e-12)
    assert recompute(store, tmp_path / "landing", "study", "main", 1, NumpyEngine()).identical
