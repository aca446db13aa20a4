"""Every status code of the edge, each with its reason, and the counters and log that the operator reads."""

import gzip
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
import zstandard

from fedping.protocol.documents import FRECENCY_UPDATE
from fedping.server_jobs.ingest.admission.body import JSON_TYPES
from fedping.server_jobs.ingest.settings import Limits
from tests.support.ingest_app import PATH, IngestApp, ingest_app, landed_ids
from tests.support.pings import ping_json

LIMITS = Limits(ping_bytes=10_000, batch_bytes=10_000, decompressed_bytes=30_000, batch_lines=50)


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path, limits=LIMITS)


def one(ingest: IngestApp, body: bytes | str, **kwargs: Any) -> Any:
    data = body.encode() if isinstance(body, str) else body
    return ingest.post(f"{PATH}/{uuid.uuid4()}", data, **kwargs)


def changed(**payload: Any) -> str:
    return json.dumps(ping_json(**payload))


def replaced(old: str, new: str) -> str:
    text = json.dumps(ping_json())
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("content_type", ["application/json", "text/plain; charset=utf-8", ""])
def test_a_ping_is_taken_and_landed_once(ingest: IngestApp, method: str, content_type: str) -> None:
    document = str(uuid.uuid4())
    body = json.dumps(ping_json()).encode()
    answer = ingest.client.open(f"{PATH}/{document}", method=method, data=body, content_type=content_type)
    assert (answer.status_code, answer.json) == (200, {"accepted": 1, "rejected": []})
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    ingest.land()
    assert landed_ids(ingest.settings.landing) == [document]


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("GZip", gzip.compress), ("zstd", zstandard.compress)]
)
def test_a_compressed_ping_is_taken(ingest: IngestApp, encoding: str, compress: Any) -> None:
    body = compress(json.dumps(ping_json()).encode())
    assert one(ingest, body, headers={"Content-Encoding": encoding}).status_code == 200


def test_gzip_members_one_after_the_other_are_one_body(ingest: IngestApp) -> None:
    text = json.dumps(ping_json()).encode()
    body = gzip.compress(text[:100]) + gzip.compress(text[100:])
    assert one(ingest, body, headers={"Content-Encoding": "gzip"}).status_code == 200


def test_zstd_of_an_unknown_size_is_one_body(ingest: IngestApp) -> None:
    body = zstandard.ZstdCompressor(write_content_size=False).compress(json.dumps(ping_json()).encode())
    assert one(ingest, body, headers={"Content-Encoding": "zstd"}).status_code == 200


BAD_PINGS = {
    "not JSON": ("{", "not_json"),
    "empty": ("", "not_json"),
    "two documents": (changed() + changed(), "not_json"),
    "an array": ("[]", "not_a_ping"),
    "null": ("null", "not_a_ping"),
    "NaN": (replaced('"loss": 12.5', '"loss": NaN'), "not_json"),
    "Infinity": (replaced('"loss": 12.5', '"loss": Infinity'), "not_json"),
    "-Infinity in the update": (replaced("-0.5", "-Infinity"), "not_json"),
    "1e400": (replaced('"loss": 12.5', '"loss": 1e400'), "not_a_ping"),
    "1e31": (replaced('"loss": 12.5', '"loss": 1e31'), "not_a_ping"),
    "2^63": (replaced('"num_chars_typed": 4', f'"num_chars_typed": {2**63}'), "not_a_ping"),
    "2^31": (replaced('"num_chars_typed": 4', f'"num_chars_typed": {2**31}'), "not_a_ping"),
    "five thousand digits": (replaced('"num_chars_typed": 4', '"num_chars_typed": ' + "9" * 5000), "not_a_ping"),
    "a fraction for a count": (replaced('"num_chars_typed": 4', '"num_chars_typed": 4.5'), "not_a_ping"),
    "a string for a number": (changed(loss="12.5"), "not_a_ping"),
    "true for a number": (changed(loss=True), "not_a_ping"),
    "null for a number": (changed(loss=None), "not_a_ping"),
    "an unknown field": (changed(query="secret words"), "not_a_ping"),
    "a missing field": (replaced('"loss": 12.5, ', ""), "not_a_ping"),
    "another type": (replaced("frecency-update", "main"), "not_a_ping"),
    "a client id that is none": (replaced("2a3f7f1e-7a52", "nobody"), "not_a_ping"),
    "nested in an unknown field": (replaced('"loss": 12.5', '"x": ' + "[" * 9000), "not_a_ping"),
    "nested in a known field": (replaced('"loss": 12.5', '"loss": ' + "[" * 9000), "not_a_ping"),
    "nested from the start": ("[" * 10_000, "not_a_ping"),
    "a key twice": (replaced('"loss": 12.5', '"loss": 12.5, "loss": 99'), "duplicate_key"),
    "a key twice, once escaped": (replaced('"loss": 12.5', '"loss": 12.5, "\\u006coss": 99'), "duplicate_key"),
    "a key twice, above": (replaced('"type"', '"type": "frecency-update", "type"'), "duplicate_key"),
    "a lone surrogate": (replaced('"autofill"', '"a\\ud800b"'), "not_json"),
    "invalid UTF-8": (changed(selected_style="?").encode().replace(b"?", b"\xff"), "not_utf8"),
    "a surrogate in UTF-8": (changed(selected_style="?").encode().replace(b"?", b"\xed\xa0\x80"), "not_utf8"),
    "UTF-16": (changed().encode("utf-16"), "not_json"),
    "an unknown arm": (changed(study_variation="nobody"), "unknown_arm"),
    "no update": (changed(update=None), "update_missing"),
    "an empty update": (changed(update=[]), "update_length"),
    "a short update": (changed(update=[1.0] * 21), "update_length"),
    "a long update": (changed(update=[1.0] * 23), "update_length"),
    "an update that is no list": (changed(update={"encoding": "dense"}), "not_a_ping"),
    "an update of a control arm": (changed(study_variation="control"), "update_not_expected"),
    "an update of an arm without a line": (changed(study_variation="plain", model_version=-1), "update_not_expected"),
    "a version of no line": (changed(study_variation="plain", update=None, model_version=0), "model_version"),
    "a version far ahead": (changed(model_version=2), "model_version"),
    "the version that the next round will publish": (changed(model_version=1), "model_version"),
    "a version below -1": (changed(model_version=-2), "not_a_ping"),
    "an update with nothing selected": (changed(rank_selected=-1, loss=0), "update_not_zero"),
    "a loss with nothing selected": (changed(rank_selected=-1, update=[0.0] * 22), "update_not_zero"),
}


@pytest.mark.parametrize("case", BAD_PINGS)
def test_a_bad_ping_is_refused_with_a_reason(ingest: IngestApp, case: str) -> None:
    body, reason = BAD_PINGS[case]
    answer = one(ingest, body)
    assert answer.status_code == 400
    assert len(answer.json["error"]) > 20
    assert ingest.totals()[f"rejected.{reason}"] == 1, answer.json
    assert one(ingest, changed()).status_code == 200
    assert ingest.totals()["accepted"] == 1


@pytest.mark.parametrize(
    "payload",
    [
        {"study_variation": "control", "update": None},
        {"study_variation": "plain", "update": None, "model_version": -1},
        {"rank_selected": -1, "loss": 0, "update": [0.0] * 22},
        {"model_version": -1},
        {"selected_style": 'a:b "c" \\ \n \u2028 \x00 \U0001f600'},
        {"loss": 3, "update": [1] * 22},
        {"update": [1e30, -1e30, 1e-320, -0.0] + [0.1] * 18},
    ],
)
def test_what_an_arm_may_send_is_taken_and_landed(ingest: IngestApp, payload: dict[str, Any]) -> None:
    assert one(ingest, changed(**payload)).status_code == 200
    ingest.land()
    assert len(landed_ids(ingest.settings.landing)) == 1
    assert ingest.totals()["quarantined"] == 0


GOOD = json.dumps(ping_json()).encode()
ID = str(uuid.UUID(int=7))


def length(told: str) -> dict[str, Any]:
    """Return a request that says this of its length, whatever it is."""
    return {"environ_overrides": {"CONTENT_LENGTH": told}}


REQUESTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "no document id": (400, f"{PATH}/", {}),
    "a document id that is none": (400, f"{PATH}/42", {}),
    "a document id in braces": (400, f"{PATH}/{{{ID}}}", {}),
    "an unknown study": (404, f"/submit/other/frecency-update/1/{ID}", {}),
    "an unknown type": (404, f"/submit/study/main/1/{ID}", {}),
    "an unknown version": (404, f"/submit/study/frecency-update/2/{ID}", {}),
    "too short a path": (404, "/submit/study", {}),
    "too deep a path": (404, f"{PATH}/{ID}/more", {}),
    "another page": (404, "/nothing", {}),
    "GET": (405, f"{PATH}/{ID}", {"method": "GET"}),
    "DELETE": (405, f"{PATH}/{ID}", {"method": "DELETE"}),
    "POST to a model": (405, "/models/study/main/latest.json", {}),
    "no length": (411, f"{PATH}/{ID}", length("")),
    "a large body": (413, f"{PATH}/{ID}", {"data": b"x" * 20_001}),
    "a large length": (413, f"{PATH}/{ID}", length("9" * 40)),
    "a large batch": (413, PATH, {"data": b"x" * 10_001}),
    "many lines": (413, PATH, {"data": b"\n" * 51}),
    "a gzip bomb": (413, PATH, {"data": gzip.compress(bytes(10**6)), "headers": {"Content-Encoding": "gzip"}}),
    "a zstd bomb": (413, PATH, {"data": zstandard.compress(bytes(10**6)), "headers": {"Content-Encoding": "zstd"}}),
    "a zstd bomb of unknown size": (
        413,
        PATH,
        {
            "data": zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10**6)),
            "headers": {"Content-Encoding": "zstd"},
        },
    ),
    "a small ping that unpacks large": (
        413,
        f"{PATH}/{ID}",
        {"data": gzip.compress(b" " * 20_001), "headers": {"Content-Encoding": "gzip"}},
    ),
    "a long path": (414, f"{PATH}/{ID}" + "x" * 1024, {}),
    "a long query": (414, f"{PATH}/{ID}?" + "x" * 1024, {}),
    "an encoding that is not known": (415, f"{PATH}/{ID}", {"headers": {"Content-Encoding": "br"}}),
    "two encodings": (415, f"{PATH}/{ID}", {"headers": {"Content-Encoding": "gzip, gzip"}}),
    "a form": (415, f"{PATH}/{ID}", {"content_type": "application/x-www-form-urlencoded"}),
    "a large header": (431, f"{PATH}/{ID}", {"headers": {"X-Long": "x" * 1025}}),
    "a large header elsewhere": (431, "/__lbheartbeat__", {"method": "GET", "headers": {"X-Long": "x" * 1025}}),
    "a body cut short": (400, f"{PATH}/{ID}", length(str(len(GOOD) + 1))),
    "gzip that is none": (400, f"{PATH}/{ID}", {"headers": {"Content-Encoding": "gzip"}}),
    "gzip cut short": (
        400,
        f"{PATH}/{ID}",
        {"data": gzip.compress(GOOD)[:-9], "headers": {"Content-Encoding": "gzip"}},
    ),
    "empty gzip": (400, f"{PATH}/{ID}", {"data": b"", "headers": {"Content-Encoding": "gzip"}, **length("0")}),
    "zstd that is none": (400, f"{PATH}/{ID}", {"headers": {"Content-Encoding": "zstd"}}),
    "zstd cut short": (400, PATH, {"data": zstandard.compress(GOOD)[:-3], "headers": {"Content-Encoding": "zstd"}}),
}


def test_a_type_that_is_not_taken_is_answered_with_all_that_are(ingest: IngestApp) -> None:
    answer = ingest.client.post(PATH, data=GOOD, content_type="application/x-www-form-urlencoded")
    assert all(kind in answer.json["error"] for kind in JSON_TYPES)


@pytest.mark.parametrize("case", REQUESTS)
def test_a_request_that_is_not_taken_says_why(ingest: IngestApp, case: str) -> None:
    status, path, request = REQUESTS[case]
    request = {"method": "POST", "data": GOOD, **request}
    answer = ingest.client.open(path, **request)
    assert answer.status_code == status
    assert len(answer.json["error"]) > 20
    assert ("Allow" in answer.headers) == (status == 405)
    assert one(ingest, changed()).status_code == 200


def test_a_header_and_a_path_at_their_limits_are_taken(ingest: IngestApp) -> None:
    assert one(ingest, GOOD, headers={"X-Long": "x" * 1024}).status_code == 200
    path = f"{PATH}/{uuid.uuid4()}"
    assert ingest.post(f"{path}?{'x' * (1024 - len(path))}", GOOD).status_code == 200


def test_a_preflight_is_answered(ingest: IngestApp) -> None:
    answer = ingest.client.options(f"{PATH}/{ID}", headers={"Origin": "https://example.org"})
    assert answer.status_code == 204
    assert "PUT" in answer.headers["Access-Control-Allow-Methods"]
    assert "Content-Encoding" in answer.headers["Access-Control-Allow-Headers"]


def batch(*lines: Any) -> bytes:
    return b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)


def batched(**payload: Any) -> dict[str, Any]:
    return {"documentId": str(uuid.uuid4()), **ping_json(**payload)}


def test_a_batch_takes_the_good_lines_and_names_the_others(ingest: IngestApp) -> None:
    good = [batched(), batched()]
    body = batch(good[0], b"", b"nonsense", batched(update=[1.0]), good[1], ping_json(), b"")
    answer = ingest.post(PATH, body)
    assert answer.status_code == 200
    assert answer.json["accepted"] == 2
    assert [r["line"] for r in answer.json["rejected"]] == [3, 4, 6]
    assert all(len(r["reason"]) > 20 for r in answer.json["rejected"])
    ingest.land()
    assert landed_ids(ingest.settings.landing) == sorted(ping["documentId"] for ping in good)


@pytest.mark.parametrize("body", [b"", b"\n", b" \n\r\n\t"])
def test_an_empty_batch_is_fine(ingest: IngestApp, body: bytes) -> None:
    answer = ingest.post(PATH, body)
    assert (answer.status_code, answer.json) == (200, {"accepted": 0, "rejected": []})


def test_a_batch_without_a_good_line_is_refused(ingest: IngestApp) -> None:
    answer = ingest.post(PATH, batch(batched(loss="x"), batched(study_variation="nobody")))
    assert answer.status_code == 400
    assert answer.json["accepted"] == 0
    assert [r["line"] for r in answer.json["rejected"]] == [1, 2]


def test_the_lines_of_a_batch_with_a_repeated_key_are_refused_alone(ingest: IngestApp) -> None:
    twice = json.dumps(batched()).replace('"loss": 12.5', '"loss": 1, "loss": 2').encode()
    answer = ingest.post(PATH, batch(batched(), twice))
    assert answer.json["accepted"] == 1
    assert answer.json["rejected"][0]["line"] == 2


def test_carriage_returns_and_a_colon_in_a_text_do_no_harm(ingest: IngestApp) -> None:
    body = b"\r\n".join(json.dumps(batched(selected_style="a:b")).encode() for _ in range(3))
    assert ingest.post(PATH, body).json == {"accepted": 3, "rejected": []}


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress), ("identity", bytes)]
)
def test_a_batch_may_be_compressed(ingest: IngestApp, encoding: str, compress: Any) -> None:
    body = compress(batch(batched(), batched(), batched()))
    assert ingest.post(PATH, body, headers={"Content-Encoding": encoding}).json["accepted"] == 3


def test_reasons_are_logged_without_anything_that_was_sent(ingest: IngestApp) -> None:
    secret = "verysecret"
    one(ingest, changed(selected_style=secret, loss=secret))
    one(ingest, changed(study_variation=secret))
    one(ingest, json.dumps(ping_json() | {secret: 1}))
    one(ingest, changed(**{secret: 1}))
    one(ingest, changed(enter_was_pressed=secret))
    one(ingest, replaced("2a3f7f1e-7a52", secret))
    one(ingest, secret, headers={"Origin": secret, "Content-Encoding": secret})
    ingest.post(f"/submit/{secret}/{secret}/1/{secret}", GOOD)
    ingest.post(f"{PATH}/{secret}", GOOD)
    ingest.services.rejections.flush()
    text = (ingest.settings.rejected / "worker-0.jsonl").read_text()
    entries = [json.loads(line) for line in text.splitlines()]
    assert len(entries) == 9
    assert secret not in text
    assert "2a3f7f1e" not in text
    assert all(set(e) == {"format", "time", "study", "status", "reason", "detail"} for e in entries)
    assert entries[0]["detail"] == "Expected `float`, got `str` - at `$.payload.loss`"
    assert [e["study"] for e in entries] == ["study"] * 7 + ["", "study"]


def test_a_flood_of_refusals_is_bounded_in_the_log_and_not_in_the_counters(ingest: IngestApp) -> None:
    for _ in range(600):
        one(ingest, b"x")
    ingest.services.rejections.flush()
    entries = (ingest.settings.rejected / "worker-0.jsonl").read_text().splitlines()
    assert len(entries) == 501
    assert json.loads(entries[-1])["left_out"] == 100
    assert ingest.totals()["rejected.not_json"] == 600


def test_a_defect_of_ours_answers_500_and_says_nothing_of_the_ping(
    ingest: IngestApp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "what was " + "sent"

    def broken(*_: Any) -> None:
        raise RuntimeError(secret)

    monkeypatch.setattr(ingest.services.journals.of(FRECENCY_UPDATE), "append", broken)
    answer = one(ingest, changed())
    assert answer.status_code == 500
    told = capsys.readouterr().err
    assert "RuntimeError" in told
    assert secret not in told + answer.json["error"]


def test_what_a_page_refuses_is_counted_too(ingest: IngestApp) -> None:
    assert ingest.client.get("/models/none/study.json").status_code == 404
    assert ingest.client.get("/models/study/main/" + "9" * 2000).status_code == 414
    assert ingest.client.get("/__version__", content_type="x" * 2000).status_code == 431
    refused = {name: number for name, number in ingest.totals().items() if name.startswith("rejected.") and number}
    assert refused == {"rejected.page": 3}, "and not as a ping, whatever the reason"
