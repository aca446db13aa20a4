"""Malformed payloads of every encoding, against the checks of ingest and the reader of rounds.

Every payload is accepted, or rejected with a reason, in bounded memory; a round can read all accepted ones.
"""

import base64
import json
import random
import re
import struct
import tracemalloc
import uuid
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from fedping.protocol.links import Dense, ErrorFeedback, OwnLink, PrivateVector, Rotation, SharedVector, UploadLink
from fedping.protocol.ping import NO_VERSION
from fedping.protocol.spec import Block, ModelSpec, Step
from fedping.protocol.study import Study
from fedping.protocol.update import EncodedUpdate
from fedping.protocol.upload import receiving, sending
from fedping.server_jobs.ingest.admission import ArmRule, LineHead, study_rules
from fedping.server_jobs.ingest.answers import Rejection
from fedping.server_jobs.ingest.settings import LOOK_COST
from tests.support.effort import few_or_all
from tests.support.encodings import ENCODED, keys_of
from tests.support.ingest_app import ingest_app
from tests.support.model_updates import model_ping_json, model_study


def test_every_link_that_encodes_is_fuzzed() -> None:
    """Except links of private lines and extensions; `dense`, `error-feedback` and `rotation` make no payload."""
    others = {Dense, ErrorFeedback, Rotation, PrivateVector, SharedVector, OwnLink}
    assert {type(link) for upload in ENCODED.values() for link in upload} == {*get_args(UploadLink)} - others


EVERY_ENCODING = pytest.mark.parametrize("name", ENCODED)
SHAPES = ((5, 3), (11, 7), (40, 30))
"""Shape of the only matrix of each model: 15, 77 and 1,200 weights."""

CHANGES = few_or_all(150, 2500)
"""Number of changes for each encoding and model."""


def study_of(name: str, shape: tuple[int, int]) -> Study:
    made = model_study()
    block = Block(name="W", shape=shape, step=Step(start=1, min=1, max=1))
    spec = ModelSpec(name="one-matrix", model="any", blocks=(block,))
    line = msgspec.structs.replace(made.lines[0], spec=spec, upload=ENCODED[name])
    plain = "-".join(re.findall("[a-z0-9]+", name))
    return msgspec.structs.replace(made, name=f"{plain}-{spec.m}", lines=(line,))


def rule_of(study: Study) -> ArmRule:
    return study_rules(study, {"main": LineHead(0, lambda known: known)}).arms["treatment"]


def good_payloads(study: Study, count: int) -> list[bytes]:
    line, rng = study.lines[0], np.random.default_rng(7)
    m = line.spec.m
    updates = (rng.standard_normal((count, m)) ** 3 * (rng.random((count, m)) < 0.5)).astype(np.float32)
    updates[0] = 0
    encode = sending(line).encode
    assert encode is not None
    found: list[bytes] = encode(updates, keys_of(count)).to_pylist()
    return found


ODD_NUMBERS = [
    struct.pack("<f", number)
    for number in (float("nan"), float("inf"), float("-inf"), -0.0, 1e38, 3.4e38, -1.0, 1e-45, 1e30)
] + [struct.pack("<Q", number) for number in (0, 2**53 - 1, 2**53, 2**64 - 1)]


def changed(payload: bytes, other: bytes, m: int, draw: random.Random) -> bytes:
    """Return a payload with one or two changes."""
    at = draw.randrange(len(payload) + 1)
    byte = draw.randrange(256).to_bytes(1, "little")
    odd = draw.choice(ODD_NUMBERS)
    start = draw.choice([0, 0, 4, 8, 12, 16, at])
    ways: list[Callable[[], bytes]] = [
        lambda: payload[:at],
        lambda: payload[:at] + byte + payload[at:],
        lambda: payload[:at] + byte + payload[at + 1 :],
        lambda: payload[:start] + odd + payload[start + len(odd) :],
        lambda: payload + draw.randbytes(draw.randrange(1, 12)),
        lambda: draw.randbytes(len(payload)),
        lambda: payload[:at] + other[at:],
        lambda: payload[: draw.choice([4, 12, 16])] + zlib.compress(bytes(draw.choice([0, m - 1, m, m + 1, 10**6])), 9),
        lambda: payload[: draw.choice([4, 8, 12])] + b"\x80" * m,
        lambda: b"\xff" * len(payload),
    ]
    made = draw.choice(ways)()
    return made if draw.random() < 0.8 else changed(made, payload, m, draw)


def refusal_of(rule: ArmRule, payload: bytes, examples: int = 3) -> Rejection | None:
    """Return ingest's rejection of an update with these bytes; None if it is accepted."""
    ping = rule.document.payload(
        model_version=0 if rule.line else NO_VERSION,
        study_variation=rule.arm,
        update=EncodedUpdate(rule.links.encoding if rule.links else "", payload),
        loss=0.0,
        examples=examples,
    )
    try:
        rule.check(ping, 0)
    except Rejection as rejection:
        return rejection
    return None


@pytest.mark.thorough
@EVERY_ENCODING
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ingest_takes_what_a_round_can_read_and_nothing_else(name: str, shape: tuple[int, int]) -> None:
    study = study_of(name, shape)
    rule, m, draw = rule_of(study), study.lines[0].spec.m, random.Random(f"{name} {shape}")
    good = good_payloads(study, 8)
    assert [refusal_of(rule, payload) for payload in good] == [None] * 8
    sent = [changed(draw.choice(good), draw.choice(good), m, draw) for _ in range(CHANGES)]
    refused = [refusal_of(rule, payload) for payload in sent]
    updates, readable = receiving(study.lines[0]).decode(pa.array(sent, pa.binary()), m)
    assert np.isfinite(updates).all()
    wrong = [
        (payload.hex(), told and told.sentence)
        for payload, told, ok in zip(sent, refused, readable, strict=True)
        if (told is None) != ok
    ]
    assert wrong == []
    reasons = Counter(told.reason if told else "taken" for told in refused)
    assert reasons.keys() <= {"taken", "update_length", "update_payload"}
    assert min(reasons["taken"], reasons["update_length"]) > 0
    assert all(told.status == 400 for told in refused if told is not None)


def test_the_largest_step_is_the_same_to_ingest_and_to_a_round() -> None:
    """A fuzzer found this: 1e30 as float32 is slightly more than 1e30."""
    study = study_of("steps size = 2.0", (5, 3))
    payload = np.float32(1e30).tobytes() + bytes([1] * 15)
    assert receiving(study.lines[0]).decode(pa.array([payload], pa.binary()), 15)[1].all()
    assert refusal_of(rule_of(study), payload) is None


@EVERY_ENCODING
def test_a_ping_without_examples_sends_what_the_encoding_makes_of_zeros(name: str) -> None:
    study = study_of(name, (11, 7))
    rule, (zero, other, *_) = rule_of(study), good_payloads(study, 2)
    assert refusal_of(rule, zero, examples=0) is None
    told = refusal_of(rule, other, examples=0)
    assert (told and told.reason) == (None if name.endswith('zero = "up"') else "update_not_zero")


@cache
def bomb() -> bytes:
    """Return a quarter of a megabyte that inflates to a quarter of a gigabyte."""
    return zlib.compress(bytes(2**28), 9)


@EVERY_ENCODING
def test_a_look_into_a_payload_takes_no_more_memory_than_ingest_holds_for_it(name: str) -> None:
    """Even if a kilobyte would inflate to a gigabyte, and also for the check whether all of it is zero."""
    study = study_of(name, (400, 250))
    rule, m = rule_of(study), study.lines[0].spec.m
    good = good_payloads(study, 2)
    bombs = [payload[:head] + bomb()[: rule.lengths[1] - head] for payload in good for head in (4, 16)]
    for payload in (*good, *bombs):
        refusal_of(rule, payload, examples=0)  # what is made once and for all
        tracemalloc.start()
        refusal_of(rule, payload, examples=0)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most <= LOOK_COST * m, f"{most / m:.1f} bytes a weight"


def test_a_batch_has_no_more_lines_than_ingest_has_time_to_look_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes, unpacked to a hundred thousand short lines, would occupy a worker for an hour."""
    monkeypatch.setattr("fedping.server_jobs.ingest.admission.LOOKED_INTO", 300)
    encoded, dense = study_of("low-rank rank = 2", (11, 7)), model_study(77)
    ingest = ingest_app(tmp_path, others=(encoded, dense))
    payload = base64.b64encode(good_payloads(encoded, 1)[0]).decode()
    updates = {encoded.name: {"encoding": "low-rank-outputs", "payload": payload}, dense.name: [0.0] * 77}
    for lines, study, status in ((3, encoded, 200), (4, encoded, 413), (4, dense, 200)):
        ping = {**model_ping_json(77, update=updates[study.name]), "documentId": str(uuid.uuid4())}
        answer = ingest.post(f"/submit/{study.name}/model-update/1", (json.dumps(ping).encode() + b"\n") * lines)
        assert answer.status_code == status
    assert ingest.totals()["rejected.too_many_lines"] == 1


@pytest.mark.thorough
def test_over_http_whatever_is_wrong_is_refused_and_what_is_taken_lands_as_it_was_sent(tmp_path: Path) -> None:
    studies = {name: study_of(name, (11, 7)) for name in ENCODED}
    ingest = ingest_app(tmp_path, others=tuple(studies.values()))
    taken: list[tuple[str, str, bytes]] = []
    for name, study in studies.items():
        draw, m = random.Random(name), study.lines[0].spec.m
        rule, good = rule_of(study), good_payloads(study, 8)
        assert rule.links is not None
        for _ in range(few_or_all(20, 250)):
            payload = changed(draw.choice(good), draw.choice(good), m, draw)
            update = {"encoding": rule.links.encoding, "payload": base64.b64encode(payload).decode()}
            body = json.dumps(model_ping_json(m, update=update)).encode()
            answer = ingest.post(f"/submit/{study.name}/model-update/1/{uuid.uuid4()}", body)
            assert answer.status_code in (200, 400), (payload.hex(), answer.text)
            if answer.status_code == 200:
                taken.append((study.name, rule.links.encoding, payload))
    ingest.land()
    assert ingest.totals()["quarantined"] == 0
    assert landed(ingest.settings.landing) == sorted(taken)


def landed(folder: Path) -> list[tuple[str, str, bytes]]:
    import pyarrow.parquet as pq

    found = []
    for file in folder.glob("study=*/line=*/iteration=*/*.parquet"):
        study = file.relative_to(folder).parts[0].removeprefix("study=")
        found += [(study, row["update_encoding"], row["update"]) for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(found)
