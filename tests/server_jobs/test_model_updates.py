"""Pings of the type model-update end to end: admission, journal, Parquet, round; also together with the older type."""

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from fedping.protocol.arrow import landed_schema
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.personalization import FineTune, Vector
from fedping.protocol.ping import MODEL_UPDATE, ModelPayload
from fedping.protocol.study import public_study
from fedping.protocol.training import LocalSteps, OneGradient, Training
from fedping.server_jobs.ingest.admission import LineHead, study_rules
from fedping.server_jobs.ingest.answers import Rejection
from fedping.server_jobs.ingest.segments import CLOSED, segments
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.ingest_app import PATH as FRECENCY_PATH
from tests.support.ingest_app import IngestApp, ingest_app, landed_ids
from tests.support.model_updates import PATH, STUDY, model_lines, model_ping_json, model_study
from tests.support.pings import ping_json
from tests.support.versions import WHEN

TELLS = {"study_variation": "control", "update": None}
"""Payload fields of an arm that applies versions and doesn't submit."""


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path, others=[model_study()])


def post(ingest: IngestApp, ping: dict[str, Any], path: str = PATH, document: str | None = None) -> tuple[int, str]:
    """Post one ping; return the status and the reason, empty if it was accepted."""
    answer = ingest.post(f"{path}/{document or uuid.uuid4()}", json.dumps(ping).encode())
    return answer.status_code, answer.json.get("error", "")


def rows_of(ingest: IngestApp, study: str = STUDY) -> list[dict[str, Any]]:
    ingest.land()
    files = sorted(ingest.settings.landing.glob(f"study={study}/line=*/iteration=*/*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def test_a_ping_lands_as_it_was_sent(ingest: IngestApp) -> None:
    document = str(uuid.uuid4())
    assert post(ingest, model_ping_json(), document=document) == (200, "")
    [row] = rows_of(ingest)
    assert np.frombuffer(row.pop("update"), "<f4").tolist() == [0.0, 0.5, 1.0]
    assert str(uuid.UUID(bytes=row.pop("document_id"))) == document
    del row["client_id"], row["received_at"]
    expected = {"model_version": 0, "study_variation": "treatment", "update_encoding": "dense", "loss": 1.5}
    assert row == {**expected, "examples": 7, "confusion": None}


def test_what_was_taken_for_what_lands_beside_pings_that_do_not_tell(ingest: IngestApp) -> None:
    told = model_ping_json(study_variation="control", update=None, confusion=[3, 1, 0, 3])
    assert post(ingest, told) == (200, "")
    assert post(ingest, model_ping_json()) == (200, "")
    assert sorted((row["confusion"] or [] for row in rows_of(ingest)), key=len) == [[], [3, 1, 0, 3]]


def test_files_have_the_schema_of_their_type(ingest: IngestApp) -> None:
    post(ingest, model_ping_json())
    ingest.land()
    [file] = landed_files(partition(ingest.settings.landing, STUDY, "main", 0))
    schema = pq.ParquetFile(file).schema_arrow
    assert schema.remove_metadata().equals(landed_schema(MODEL_UPDATE).remove_metadata())


@pytest.mark.parametrize(
    "payload",
    [
        {"study_variation": "control", "update": None},
        {"study_variation": "plain", "update": None, "model_version": -1},
        {"examples": 0, "loss": 0, "update": [0, 0.0, -0.0]},
        {"examples": 2**31 - 1},
        {"model_version": -1},
    ],
)
def test_what_an_arm_may_send_is_taken(ingest: IngestApp, payload: dict[str, Any]) -> None:
    assert post(ingest, model_ping_json(**payload)) == (200, "")
    assert len(rows_of(ingest)) == 1


@pytest.mark.parametrize(
    ("payload", "reason", "words"),
    [
        ({"update": [1.0, 2.0]}, "update_length", "the update has 2 numbers and the model 3 weights"),
        ({"update": None}, "update_missing", "submits updates"),
        ({"study_variation": "control"}, "update_not_expected", 'send "update": null'),
        ({"study_variation": "nobody"}, "unknown_arm", "has no arm 'nobody'"),
        ({"examples": 0}, "update_not_zero", "there was no example (examples 0)"),
        ({"examples": 0, "loss": 0}, "update_not_zero", "must be zero"),
        ({"examples": -1}, "not_a_ping", "$.payload.examples"),
        ({"examples": 1.5}, "not_a_ping", "$.payload.examples"),
        ({"examples": None}, "not_a_ping", "$.payload.examples"),
        ({"examples": 2**31}, "not_a_ping", "$.payload.examples"),
        ({"rank_selected": 0}, "not_a_ping", "rank_selected"),
        ({"update": [1, 2, 1e31]}, "not_a_ping", "$.payload.update"),
        ({"loss": 1e31}, "not_a_ping", "$.payload.loss"),
        ({"model_version": 1}, "model_version", "has not been published"),
        ({"confusion": [7]}, "not_a_ping", "leave out it, or the update"),
        ({**TELLS, "confusion": [3, 4]}, "not_a_ping", "has 2 numbers, which is not a square"),
        ({**TELLS, "confusion": [3, 1, 0, 4]}, "not_a_ping", "counts 8 examples, and `examples` is 7"),
        ({**TELLS, "confusion": [8, 0, 0, -1]}, "not_a_ping", "$.payload.confusion"),
        ({**TELLS, "confusion": [1] * 1089}, "not_a_ping", "$.payload.confusion"),
        ({**TELLS, "confusion": None}, "not_a_ping", "$.payload.confusion"),
    ],
)
def test_what_an_arm_may_not_send_is_refused(
    ingest: IngestApp, payload: dict[str, Any], reason: str, words: str
) -> None:
    status, sentence = post(ingest, model_ping_json(**payload))
    assert status == 400
    assert words in sentence
    assert ingest.totals()[f"rejected.{reason}"] == 1


@pytest.mark.parametrize(
    ("training", "first"),
    [
        (OneGradient(personal=FineTune(rate=1.0, from_version=4)), None),
        (OneGradient(personal=FineTune(rate=1.0, shares=False)), 0),
        (OneGradient(personal=FineTune(rate=1.0, from_version=4, shares=False)), 4),
        (LocalSteps(rate=1.0, steps=2, personal=Vector(rate=1.0, from_version=4)), 4),
    ],
)
def test_an_update_may_be_missing_from_the_version_on_whose_clients_train_for_themselves_alone(
    training: Training, first: int | None
) -> None:
    made = model_study()
    line = replace(made.lines[0], training=training)
    own = replace(made.arms[0], name="own", share=0.2, personal=True)
    study = replace(made, arms=(replace(made.arms[0], share=0.2), own, *made.arms[1:]), lines=(line,))
    arms = study_rules(study, {"main": LineHead(9, lambda known: known)}).arms

    def taken(arm: str, version: int) -> bool:
        payload = ModelPayload(model_version=version, study_variation=arm, update=None, loss=1.5, examples=7)
        try:
            arms[arm].check(payload, 0)
        except Rejection as refused:
            return refused.reason != "update_missing"
        return True

    versions = range(-1, 9)
    expected = [] if first is None else [*range(first, 9)]
    assert [version for version in versions if taken("own", version)] == expected
    assert not any(taken("treatment", version) for version in versions)


def test_a_study_refuses_the_other_type(ingest: IngestApp) -> None:
    of_models = f"/submit/{STUDY}/frecency-update/1"
    of_frecency = FRECENCY_PATH.replace("frecency-update", "model-update")
    status, sentence = post(ingest, ping_json(m=3), of_models)
    where = f"/submit/{STUDY}/model-update/1/<document id>"
    assert (status, sentence) == (404, f"study '{STUDY}' accepts documents of type model-update; send them to {where}")
    assert post(ingest, model_ping_json(22), of_frecency)[0] == 404
    assert ingest.totals()["rejected.unknown_type"] == 2
    assert post(ingest, model_ping_json(), f"/submit/{STUDY}/model-update/2")[0] == 404
    assert post(ingest, ping_json(m=3))[0] == 400, "a ping of another type on the right path"


def test_a_key_that_is_there_twice_is_refused(ingest: IngestApp) -> None:
    body = json.dumps(model_ping_json()).replace('"examples": 7', '"examples": 7, "examples": 8').encode()
    answer = ingest.post(f"{PATH}/{uuid.uuid4()}", body)
    assert "has a key twice" in answer.json["error"]


def test_a_batch_is_answered_line_by_line(ingest: IngestApp) -> None:
    lines = model_lines(5)
    lines[2] = lines[2].replace(b'"examples"', b'"exemples"')
    answer = ingest.post(PATH, b"\n".join(lines))
    assert answer.json["accepted"] == 4
    assert [refused["line"] for refused in answer.json["rejected"]] == [3]
    ingest.post(PATH, b"\n".join(model_lines(5)))
    ingest.land()
    assert landed_ids(ingest.settings.landing) == [str(uuid.UUID(int=k)) for k in range(5)]


def test_both_types_go_through_one_journal_at_the_same_time(ingest: IngestApp) -> None:
    for k in range(6):
        assert post(ingest, model_ping_json(examples=k + 1))[0] == 200
        assert post(ingest, ping_json(num_chars_typed=k), FRECENCY_PATH)[0] == 200
        if k % 2:
            ingest.services.journals.roll()
    assert len(segments(ingest.settings.journal, CLOSED)) == 6
    assert sorted(row["examples"] for row in rows_of(ingest)) == [1, 2, 3, 4, 5, 6]
    assert sorted(row["num_chars_typed"] for row in rows_of(ingest, "study")) == [0, 1, 2, 3, 4, 5]
    assert ingest.totals()["quarantined"] == 0


def test_a_segment_of_the_time_before_types_lands_and_one_of_a_later_type_waits(ingest: IngestApp) -> None:
    for _ in range(2):
        post(ingest, ping_json(), FRECENCY_PATH)
        ingest.services.journals.roll()
    old, new = segments(ingest.settings.journal, CLOSED)
    old.rename(old.with_name(old.name.replace(".frecency-update.2", "")))
    unknown = new.rename(new.with_name(new.name.replace("frecency", "unheard-of")))
    assert len(rows_of(ingest, "study")) == 1
    assert segments(ingest.settings.journal, CLOSED) == [unknown]


def test_a_line_of_another_type_in_a_segment_is_set_aside(ingest: IngestApp) -> None:
    post(ingest, ping_json(), FRECENCY_PATH)
    ingest.services.journals.roll()
    post(ingest, model_ping_json())
    ingest.services.journals.roll()
    [of_frecency] = [path for path in segments(ingest.settings.journal, CLOSED) if "frecency" in path.name]
    of_frecency.rename(of_frecency.with_name(of_frecency.name.replace("frecency-update.2", "model-update")))
    assert len(rows_of(ingest)) == 1
    assert ingest.totals()["quarantined"] == 1


def test_clients_learn_the_type_from_the_public_study() -> None:
    assert public_study(model_study()).pings == "model-update"


def test_a_round_weighs_pings_by_their_examples_and_tells_the_loss_of_the_examples(ingest: IngestApp) -> None:
    sent = [
        {"update": [1, 0, 2], "examples": 1, "loss": 4},
        {"update": [0, 1, -2], "examples": 3, "loss": 8},
        {"update": [0, 0, 0], "examples": 0, "loss": 0},
        {"update": None, "study_variation": "control", "examples": 2, "loss": 1},
        {"update": None, "study_variation": "control", "examples": 6, "loss": 5},
    ]
    for payload in sent:
        assert post(ingest, model_ping_json(**payload)) == (200, "")
    ingest.land()
    result = run_round(
        ingest.services.store,
        ingest.settings.landing,
        STUDY,
        "main",
        NumpyEngine(),
        RoundOptions(clock=lambda: WHEN, code_version="test"),
    )
    assert result.status == "published", result.sentence
    assert {name: count for name, count in result.counts.items() if count} == {
        "used": 2,
        "no_example": 1,
        "other_arm": 2,
    }
    treatment, control = result.arms["treatment"], result.arms["control"]
    assert (treatment.pings, treatment.examples, treatment.loss, treatment.rank_selected) == (3, 4, 7.0, None)
    assert (control.pings, control.examples, control.loss, control.rank_selected) == (2, 8, 4.0, None)
    before, after = (ingest.services.store.version(STUDY, "main", n).weights for n in (0, 1))
    np.testing.assert_allclose(np.subtract(after, before), [0.25, 0.75, -1.0], rtol=1e-15)


def test_a_round_names_a_file_of_the_other_type(ingest: IngestApp) -> None:
    post(ingest, ping_json(), FRECENCY_PATH)
    ingest.land()
    [file] = landed_files(partition(ingest.settings.landing, "study", "main", 0))
    folder = partition(ingest.settings.landing, STUDY, "main", 0)
    folder.mkdir(parents=True)
    file.rename(folder / file.name)
    with pytest.raises(Exception, match=r"is not a file of landed model-update pings \(it has no column 'examples'"):
        run_round(
            ingest.services.store,
            ingest.settings.landing,
            STUDY,
            "main",
            NumpyEngine(),
            RoundOptions(clock=lambda: WHEN, code_version="test"),
        )
