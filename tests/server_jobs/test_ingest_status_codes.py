"""Every status code of the edge, each with its reason, and the operator's counters and log."""

import contextlib
import gzip
import json
import random
import re
import uuid
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.dataset as ds
import pytest
import zstandard

from fedping.dashboard.application import create_application
from fedping.dashboard.settings import DashboardSettings
from fedping.protocol.ping import FRECENCY_UPDATE
from fedping.server_jobs.ingest.answers import Rejection
from fedping.server_jobs.ingest.body import JSON_TYPES, Room, gunzip, unzstd
from fedping.server_jobs.ingest.settings import MIB, Limits
from tests.support.ingest_app import PATH, IngestApp, ingest_app, landed_ids
from tests.support.pings import ping_json

LIMITS = Limits(ping_bytes=10_000, batch_bytes=10_000, decompressed_bytes=30_000, batch_lines=50)


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path, limits=LIMITS)


def one(ingest: IngestApp, body: bytes | str, **kwargs: Any) -> Any:
    data = body.encode() if isinstance(body, str) else body
    return ingest.post(f"{PATH}/{uuid.uuid4()}", data, **kwargs)


def landed_rows(landing: Path) -> list[dict[str, Any]]:
    files = [str(file) for file in landing.glob("study=*/**/*.parquet")]
    return ds.dataset(files, partitioning=None).to_table().to_pylist()


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


def skippable(size: int, kind: int = 0) -> bytes:
    """Return a skippable zstd frame (RFC 8878, 3.1.2)."""
    return bytes([0x50 + kind]) + b"\x2a\x4d\x18" + size.to_bytes(4, "little") + b"x" * size


ZSTD = {"Content-Encoding": "zstd"}
UNSIZED = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True)
HALVES = (json.dumps(ping_json()).encode()[:100], json.dumps(ping_json()).encode()[100:])


@pytest.mark.parametrize(
    ("encoding", "body"),
    {
        "frames": ("zstd", b"".join(map(zstandard.compress, HALVES))),
        "a skippable frame first": ("zstd", skippable(4) + zstandard.compress(b"".join(HALVES))),
        "a skippable frame last": ("zstd", zstandard.compress(b"".join(HALVES)) + skippable(0, 15)),
        "frames of unknown sizes": ("zstd", UNSIZED.compress(HALVES[0]) + skippable(9) + UNSIZED.compress(HALVES[1])),
        "an empty frame": ("zstd", zstandard.compress(b"") + UNSIZED.compress(b"".join(HALVES))),
        "padded gzip": ("gzip", gzip.compress(b"".join(HALVES)) + bytes(512)),
        "padded beyond what is read at a time": ("gzip", gzip.compress(b"".join(HALVES)) + bytes(9000)),
        "padded members": ("gzip", b"".join(gzip.compress(half, mtime=0) + bytes(7) for half in HALVES)),
    }.values(),
)
def test_every_valid_form_of_an_encoding_is_taken(ingest: IngestApp, encoding: str, body: bytes) -> None:
    assert one(ingest, body, headers={"Content-Encoding": encoding}).status_code == 200
    assert ingest.services.memory.working.taken == 0


def test_frames_of_zstd_unpack_to_what_each_does_and_no_less(ingest: IngestApp) -> None:
    """Compared with zstandard, one frame at a time; data cut within a frame are rejected."""
    draws = random.Random(26)
    texts = [b"", b"abc" * 100, bytes(draws.randbytes(300_000)), b"1" * 400_000]
    flushed = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    blocks = flushed.compress(texts[1]) + flushed.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    blocks += flushed.compress(texts[3]) + flushed.flush()
    frames = [(blocks, texts[1] + texts[3]), (skippable(5), b""), (skippable(0), b"")]
    frames += [(compressor.compress(text), text) for text in texts for compressor in (UNSIZED, zstandard)]
    for _ in range(60):
        chosen = draws.choices(frames, k=draws.randint(1, 4))
        body = b"".join(frame for frame, _ in chosen)
        assert bytes(unpacked_zstd(ingest, body)) == b"".join(text for _, text in chosen)
        ends = {sum(len(frame) for frame, _ in chosen[:number]) for number in range(1, len(chosen) + 1)}
        for cut in {0, *(draws.randrange(len(body)) for _ in range(6))} - ends:
            with pytest.raises(Rejection) as refused:
                unpacked_zstd(ingest, body[:cut])
            assert refused.value.reason == "decompression"


def unpacked_zstd(ingest: IngestApp, body: bytes) -> bytes:
    return unpacked_by(unzstd, ingest, body)


def unpacked_by(unpack: Any, ingest: IngestApp, body: bytes) -> bytes:
    with contextlib.ExitStack() as held:
        unpacked: bytes = unpack(body, 4 * MIB, Room(ingest.services.memory.working, lambda size: 0, held))
        return unpacked


@pytest.mark.parametrize(
    ("unpack", "body"),
    {
        "blocks": (unzstd, b"\x28\xb5\x2f\xfd\0\0" + bytes(30_000) + b"\1\0\0"),
        "frames": (unzstd, zstandard.compress(b"") * 4_000),
        "skippable frames": (unzstd, skippable(0) * 4_000),
        "members": (gunzip, gzip.compress(b"", mtime=0) * 4_000),
    }.values(),
    ids=["blocks", "frames", "skippable frames", "members"],
)
def test_a_body_of_countless_empty_parts_is_refused(ingest: IngestApp, unpack: Any, body: bytes) -> None:
    """Each takes as long as many bytes, and no sender needs them."""
    with pytest.raises(Rejection, match="members, frames and blocks") as refused:
        unpacked_by(unpack, ingest, body)
    assert refused.value.reason == "decompression"
    assert ingest.services.memory.working.taken == 0


def test_each_line_of_a_long_batch_may_be_packed_alone(ingest: IngestApp) -> None:
    lines = [json.dumps(batched()).encode() + b"\n" for _ in range(3_000)]
    flushed = zstandard.ZstdCompressor().compressobj()
    blocks = [flushed.compress(line) + flushed.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for line in lines]
    bodies = [
        (unzstd, [*blocks, flushed.flush()]),
        (unzstd, map(zstandard.compress, lines)),
        (gunzip, map(gzip.compress, lines)),
    ]
    for unpack, parts in bodies:
        assert bytes(unpacked_by(unpack, ingest, b"".join(parts))) == b"".join(lines)


@pytest.mark.parametrize(
    "body",
    [gzip.compress(b"{}") + bytes(9) + b"x", bytes(9), bytes(9) + gzip.compress(b"{}")],
    ids=["a byte behind", "nothing but", "before"],
)
def test_what_only_looks_like_padding_is_refused(ingest: IngestApp, body: bytes) -> None:
    assert one(ingest, body, headers={"Content-Encoding": "gzip"}).status_code == 400
    assert ingest.totals()["rejected.decompression"] == 1


def as_floats(value: Any, text: str = "{}.0") -> Any:
    """Return a document with its integers replaced by marked texts, to write them differently in JSON."""
    if isinstance(value, dict):
        return {key: as_floats(each, text) for key, each in value.items()}
    if isinstance(value, list):
        return value
    return f"@{text.format(value)}@" if type(value) is int else value


def written(ping: Any, text: str) -> bytes:
    return re.sub(r'"@([^@]*)@"', r"\1", json.dumps(as_floats(ping, text))).encode()


SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"


@pytest.mark.parametrize("text", ["{}.0", "{}e0", "{}.00E+0"])
def test_an_integer_may_be_written_as_the_schema_admits(ingest: IngestApp, text: str) -> None:
    schema = json.loads((SCHEMAS / "ping.json").read_bytes())
    body = written(ping_json(loss=12.5), text)
    jsonschema.validate(json.loads(body), schema)
    assert one(ingest, body).status_code == 200
    batched_body = written(batched(loss=12.5), text)
    assert ingest.post(PATH, b"\n".join([batched_body, json.dumps(batched(loss=12.5)).encode()])).json["accepted"] == 2
    ingest.land()
    rows = landed_rows(ingest.settings.landing)
    assert len(rows) == 3
    ids = ("document_id", "received_at")
    assert len({str({name: row[name] for name in row if name not in ids}) for row in rows}) == 1


@pytest.mark.parametrize("name", sorted(k for k, v in ping_json()["payload"].items() if type(v) is int))
@pytest.mark.parametrize("value", [0.5, 1e300, 2.0**31, "1", True, None, [1.0], -2.0])
def test_what_is_no_integer_is_none_for_the_schema_and_for_ingest(ingest: IngestApp, name: str, value: Any) -> None:
    schema = json.loads((SCHEMAS / "ping.json").read_bytes())
    ping = ping_json(**{name: value})
    try:
        jsonschema.validate(ping, schema)
    except jsonschema.ValidationError:
        assert one(ingest, json.dumps(ping)).status_code == 400
    else:
        assert one(ingest, json.dumps(ping)).status_code == 200


def test_a_repeated_key_is_seen_where_an_integer_is_written_as_a_float(ingest: IngestApp) -> None:
    body = replaced('"num_chars_typed": 4', '"num_chars_typed": 4.0, "num_chars_typed": 5.0')
    assert one(ingest, body).status_code == 400
    assert ingest.totals()["rejected.duplicate_key"] == 1


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
    """Return a request with this Content-Length, regardless of its real length."""
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
    "a zstd bomb of frames": (413, PATH, {"data": zstandard.compress(bytes(9000)) * 9, "headers": ZSTD}),
    "a zstd bomb of frames of unknown sizes": (413, PATH, {"data": UNSIZED.compress(bytes(9000)) * 9, "headers": ZSTD}),
    "a skippable frame that says too much": (400, PATH, {"data": skippable(9)[:-1], "headers": ZSTD}),
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
    "a large header": (431, f"{PATH}/{ID}", {"headers": {"Content-Encoding": "x" * 1025}}),
    "a large header elsewhere": (431, "/__lbheartbeat__", {"method": "GET", "headers": {"If-None-Match": "x" * 1025}}),
    "a body cut short": (400, f"{PATH}/{ID}", length(str(len(GOOD) + 1))),
    "gzip that is none": (400, f"{PATH}/{ID}", {"headers": {"Content-Encoding": "gzip"}}),
    "gzip cut short": (
        400,
        f"{PATH}/{ID}",
        {"data": gzip.compress(GOOD, mtime=0)[:-9], "headers": {"Content-Encoding": "gzip"}},
    ),
    "empty gzip": (400, f"{PATH}/{ID}", {"data": b"", "headers": {"Content-Encoding": "gzip"}, **length("0")}),
    "zstd that is none": (400, f"{PATH}/{ID}", {"headers": {"Content-Encoding": "zstd"}}),
    "zstd cut short": (400, PATH, {"data": zstandard.compress(GOOD)[:-3], "headers": {"Content-Encoding": "zstd"}}),
}


@pytest.mark.parametrize("path", [f"/submit/other/frecency-update/1/{ID}", "/models/other/study.json"])
def test_nobody_learns_the_names_of_studies_by_asking_for_others(ingest: IngestApp, path: str) -> None:
    answer = ingest.client.open(path, method="POST" if "submit" in path else "GET", data=GOOD)
    assert answer.status_code == 404
    assert answer.json["error"] == (
        "unknown study 'other'; put the name of one of this server's studies into the path; its operator knows them"
    )


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
    assert ingest.client.get("/__lbheartbeat__", headers={"If-None-Match": "x" * 1024}).status_code == 200
    path = f"{PATH}/{uuid.uuid4()}"
    assert ingest.post(f"{path}?{'x' * (1024 - len(path))}", GOOD).status_code == 200


@pytest.mark.parametrize(
    "name", ["Cookie", "X-Forwarded-Client-Cert", "Traceparent", "Authorization", "X-Forwarded-For"]
)
def test_a_header_that_is_not_read_may_be_long(ingest: IngestApp, name: str) -> None:
    headers = {name: "x" * 20_000}
    assert one(ingest, GOOD, headers=headers).status_code == 200
    assert ingest.client.get("/models/study/main/latest.json", headers=headers).status_code == 200


def test_a_ping_may_be_as_large_alone_as_in_a_batch(tmp_path: Path) -> None:
    for ping_bytes, size, status in ((None, 30_000, 200), (20_000, 20_000, 200), (20_000, 20_001, 413)):
        limits = Limits(ping_bytes=ping_bytes, batch_bytes=40_000, decompressed_bytes=40_000)
        ingest = ingest_app(tmp_path / f"{ping_bytes}-{size}", limits=limits)
        assert one(ingest, GOOD.ljust(size)).status_code == status
        line = json.dumps(batched()).encode().ljust(size)
        for lines, good in (([line], 0), ([line, json.dumps(batched()).encode()], 1)):
            answer = ingest.post(PATH, b"\n".join(lines)).json
            assert answer["accepted"] == good + (status == 200)
            assert [each["line"] for each in answer["rejected"]] == ([] if status == 200 else [1])
        assert ingest.totals()["rejected.body_too_large"] == (0 if status == 200 else 3)


EVIL = {"Host": "evil.example"}


def asked(client: Any, path: str, **request: Any) -> Any:
    """Request a path unchanged, because the client would read a part after two slashes as a host."""
    body = request.get("data", b"")
    return client.open("/", environ_overrides={"PATH_INFO": path, "CONTENT_LENGTH": str(len(body))}, **request)


def test_several_slashes_are_one_and_lead_nowhere(ingest: IngestApp) -> None:
    for path in (f"/{PATH}/{uuid.uuid4()}", f"{PATH}//{uuid.uuid4()}", f"///{PATH[1:]}///{uuid.uuid4()}"):
        assert asked(ingest.client, path, method="POST", data=GOOD, headers=EVIL).status_code == 200, path
    answer = asked(ingest.client, "//models//study/main/latest.json", headers=EVIL)
    assert (answer.status_code, answer.json["iteration"]) == (200, 0)
    assert "Location" not in answer.headers
    for path in ("//nothing", "//evil.example/.."):
        assert asked(ingest.client, path, headers=EVIL).status_code == 404


def test_no_application_redirects_to_the_host_that_a_request_names(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path, demo_page=True)
    own, token = ingest.settings, "x" * 32
    settings = DashboardSettings(
        store=own.store, landing=own.landing, journal=own.journal, runs=tmp_path / "runs", token=token
    )
    dashboard = create_application(settings).test_client()
    found = {}
    for name, client in (("ingest", ingest.client), ("dashboard", dashboard)):
        for path in ("/demo", "/runs", "//runs/", "/study//x", "/evil.example//%2f..", "/results"):
            answer = asked(client, path, headers=EVIL | {"Authorization": f"Bearer {token}"})
            if "Location" in answer.headers:
                found[name, path] = answer.headers["Location"]
    assert found["ingest", "/demo"] == "/demo/"
    assert found["dashboard", "/runs"] == "/runs/"
    assert all(re.match("/[^/]", place) for place in found.values()), found


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
