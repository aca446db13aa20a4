"""The JavaScript client against the real ingest: its pings are valid, land once, and contain its computed values."""

import json
import subprocess
from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.model_store import open_store
from fedping.protocol.json_schema import json_schema
from fedping.protocol.links import Float32, Levels, Mask, Signs, Steps, Upload
from fedping.protocol.study import Arm, Study
from fedping.protocol.upload import receiving
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, engine_named, run_round
from tests.browser.tools import BROWSER, landed_rows, node
from tests.conformance.vectors import study_of_pings
from tests.support.faulty_server import ANSWER_LOST, CUT_SHORT, DROPPED, LANDED, Answer, faulty_server, refusal
from tests.support.ingest_app import landed_ids
from tests.support.ingest_server import running_ingest
from tests.support.versions import WHEN


def drive(ingest: str, study: str, *, clients: int = 20, mode: str = "cors", seconds: int = 60) -> list[dict[str, Any]]:
    """Run JavaScript clients, and return each one's report."""
    asked = {"ingest": ingest, "study": study, "clients": clients, "mode": mode, "seconds": seconds}
    run = subprocess.run(
        [node(), str(BROWSER / "tests" / "drive.js"), json.dumps(asked)], capture_output=True, text=True, timeout=200
    )
    assert run.returncode == 0, run.stderr
    told: list[dict[str, Any]] = json.loads(run.stdout)
    return told


@pytest.mark.parametrize("mode", ["cors", "no-cors"])
def test_pings_are_valid_and_land_as_they_were_computed(tmp_path: Path, mode: str) -> None:
    study = study_of_pings()
    store = open_store(tmp_path / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    with running_ingest(tmp_path / "store", tmp_path / "landing") as server:
        told = drive(server.url, study.name, mode=mode)
        status = server.flush()
    sent = {each["documentId"]: each["ping"] for client in told for each in client["sent"]}
    assert status["accepted"] == len(sent) == 60
    assert landed_ids(tmp_path / "landing") == sorted(sent)
    assert {client["arm"] for client in told} == {arm.name for arm in study.arms}
    assert all(client["counts"] == {"accepted": 3, "refused": 0, "dropped": 0, "waiting": 0} for client in told)
    schema = jsonschema.Draft202012Validator(json.loads(json_schema("ping")))
    for document, row in landed_rows(tmp_path / "landing").items():
        schema.validate(sent[document])
        assert_landed(row, sent[document])


def assert_landed(row: dict[str, Any], ping: dict[str, Any]) -> None:
    assert str(UUID(bytes=row["client_id"])) == ping["clientId"]
    for name, value in ping["payload"].items():
        if name == "update":
            expected = None if value is None else np.array(value, "<f4").tobytes()
            assert row["update"] == expected
        elif name == "frecency_scores":
            assert row[name] == np.array(value, "<f4").tolist()
        else:
            assert row[name] == value, name


LINKS: dict[str, Upload] = {
    "float32": (Float32(),),
    "signs": (Signs(),),
    "signs-up": (Signs(zero="up"),),
    "mask": (Mask(keep=0.5),),
    "mask-float32": (Mask(keep=0.5), Float32()),
    "mask-levels-4": (Mask(keep=0.5), Levels(bits=4)),
    "mask-steps": (Mask(keep=0.5), Steps(size=1.0)),
    "levels-2": (Levels(bits=2),),
    "levels-r-4": (Levels(bits=4, rotate=True),),
    "steps": (Steps(size=1.0),),
}
"""The browser's links, by the tag of their updates."""


def study_of_links(uploads: dict[str, Upload]) -> Study:
    """Return a study with an arm and a line for each list of links; their rounds need one client."""
    study = study_of_pings()
    (line,) = study.lines
    pipeline = replace(line.pipeline, min_clients=1)
    lines = tuple(replace(line, name=name, upload=upload, pipeline=pipeline) for name, upload in uploads.items())
    share = 1 / len(lines)
    arms = tuple(Arm(name=each.name, share=share, line=each.name, applies=True, submits=True) for each in lines)
    return Study(name="links", arms=arms, lines=lines)


def test_every_encoding_goes_through_ingest_into_a_round(tmp_path: Path) -> None:
    study = study_of_links(LINKS)
    store, landing = open_store(tmp_path / "store", create=True), tmp_path / "landing"
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    with running_ingest(tmp_path / "store", landing) as server:
        told = drive(server.url, study.name, clients=50)
        server.flush()
    sent = {each["documentId"]: each for client in told for each in client["sent"]}
    rows = landed_rows(landing)
    assert set(rows) == set(sent)
    assert len(sent) == 150
    far: dict[str, list[float]] = {tag: [] for tag in LINKS}
    for document, row in rows.items():
        tag = row["study_variation"]
        assert row["update_encoding"] == tag
        assert sent[document]["ping"]["payload"]["update"]["payload"] == b64encode(row["update"]).decode()
        learned = np.array(sent[document]["learned"])
        updates, ok = receiving(study.line(tag)).decode(pa.array([row["update"]], pa.binary()), len(learned))
        assert ok.all()
        assert_near(tag, updates[0], learned)
        far[tag].append(float(np.abs(learned).max()))
    assert all(max(sizes) > 0 for sizes in far.values())
    with engine_named("numpy") as engine:
        for tag in LINKS:
            came = run_round(
                store, landing, study.name, tag, engine, RoundOptions(clock=lambda: WHEN, code_version="test")
            )
            assert (came.status, came.counts.get("bad_update", 0)) == ("published", 0), tag
            assert store.head(study.name, tag).iteration == 1


def assert_near(tag: str, decoded: NDArray[np.float32], learned: NDArray[np.float64]) -> None:
    """Check that the server's update is as close to the client's as random rounding allows."""
    single, longest = learned.astype(np.float32), np.ceil(1 / 0.5)
    spread = float(single.max() - single.min())
    if tag.startswith("mask"):
        kept = np.flatnonzero(decoded)
        single, spread = single[kept] * longest, spread * longest
        decoded = decoded[kept]
    if tag.startswith("signs"):
        expected = np.sign(single) if tag == "signs" else np.where(single >= 0, 1, -1)
        assert decoded.tolist() == expected.tolist()
    elif tag in ("float32", "mask", "mask-float32"):
        assert decoded.tolist() == single.tolist()
    else:
        assert np.abs(decoded - single).max(initial=0) <= spread


@pytest.mark.parametrize("uploads", [{"main": ()}, {"mask": LINKS["mask-steps"]}], ids=["dense", "at-random"])
def test_a_server_that_fails_in_every_way_gets_each_ping_under_one_id(uploads: dict[str, Upload]) -> None:
    """Some attempts are lost, some answers are lost, some attempts are deferred; each ping lands in the end.

    A retry sends the same bytes: nothing is drawn again.
    """
    plan = [DROPPED, refusal(503, "later", Retry_After="0"), CUT_SHORT, ANSWER_LOST, refusal(507), LANDED]

    def answer(document: UUID, attempt: int) -> Answer:
        return plan[(document.int + attempt) % len(plan)]

    with faulty_server(study_of_links(uploads)) as server:
        server.plan = answer
        told = drive(server.url, "links", clients=4)
        sent = {UUID(each["documentId"]) for client in told for each in client["sent"]}
        assert len(sent) == 12
        assert set(server.bodies()) == sent  # also checks that all bodies of an id are equal
        assert set(server.landings) == sent
        assert all(client["counts"]["accepted"] == 3 for client in told)
        attempts = Counter(attempt.document_id for attempt in server.attempts)
    assert max(attempts.values()) > 1


def test_what_a_server_refuses_is_not_sent_again() -> None:
    with faulty_server(study_of_pings()) as server:
        server.plan = lambda document, attempt: refusal(400, "not a ping")
        told = drive(server.url, "pings", clients=4)
        assert all(client["counts"] == {"accepted": 0, "refused": 3, "dropped": 0, "waiting": 0} for client in told)
        assert len(server.attempts) == 12


def test_requests_say_nothing_of_who_makes_them() -> None:
    with faulty_server(study_of_pings()) as server:
        drive(server.url, "pings", clients=2)
        for attempt in server.attempts:
            named = {name.lower(): value for name, value in attempt.headers.items()}
            assert named["content-type"] == "text/plain;charset=UTF-8"
            assert not {"cookie", "referer", "origin", "authorization"} & set(named)
