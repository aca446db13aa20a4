"""`fedping join` in private lines: one vector for each version, under a new id, within the cap; and its guarantee."""

import asyncio
import base64
import json
import os
import signal
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from fedping.client_sim.client import Progress
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.joining.folder import open_folder
from fedping.client_sim.joining.terms import promises
from fedping.helper.enrol import join as helper_join
from fedping.helper.folder import make_helper
from fedping.main import main
from fedping.protocol.arrow import landed_schema
from fedping.protocol.enrolment import enrol
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.ping import PRIVATE_UPDATE
from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.privacy import Central, ClippedFlat, LocalGaussian, OneSign, Privacy, Shared
from fedping.protocol.study import Arm, Study, public_study
from fedping.server_jobs.privacy.keys import leader_identity
from tests.support.effort import few_or_all
from tests.support.faulty_server import LANDED, Answer, FaultyServer, faulty_server, refusal
from tests.support.helper_server import helper_server
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.institutions import STUDY, Typed, accuracy, agreed, joining, tables, tumours, typed_join
from tests.support.processes import wait_until
from tests.support.rounds import store_with
from tests.support.shared_rounds import KEY

QUIET = Central(epsilon=100.0, delta=1e-6, rounds=6, population=3, noise_multiplier=0.5)


def private(**privacy: Any) -> Study:
    """Return the study of three institutions with a private line."""
    settings: dict[str, Any] = {"central": QUIET, "loss": (0.0, 5.0), "delay_minutes": 0.0}
    if not isinstance(privacy.get("local"), OneSign):
        settings["contribution"] = ClippedFlat(norm=3.0)
    line = tumours().lines[0]
    line = replace(
        line,
        upload=(),
        pipeline=Pipeline(optimizer=GradientDescent(rate=1.0), min_clients=2),
        privacy=Privacy(**settings | privacy),
    )
    arms = (Arm(name="hospitals", share=1.0, line="main", applies=True, submits=True),)
    return Study(name=STUDY, pings="private-update", enrolment="hash", arms=arms, lines=(line,))


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    return typed_join(tmp_path, capsys)


def vector_in(body: bytes) -> list[int]:
    payload = json.loads(body)["payload"]["update"]["payload"]
    return np.frombuffer(base64.b64decode(payload), "<i4").tolist()


def test_a_ping_is_a_vector_and_nothing_else_under_another_id_each_version(typed: Typed) -> None:
    study = private()
    with faulty_server(study) as server:
        server.plan = lambda name, attempt: publishing(server, len(server.attempts))
        out, said = typed(server.url, "--yes", "--rounds", "3", "--json")
        pings = [json.loads(attempt.body) for attempt in server.attempts]
        assert [ping["payload"]["model_version"] for ping in pings] == [0, 1, 2]
        for ping in pings:
            assert set(ping) == {"clientId", "type", "payload"}
            assert set(ping["payload"]) == {"model_version", "study_variation", "update"}
            msgspec.convert(ping, PRIVATE_UPDATE.ping)
            assert enrol(study, ping["clientId"]) == study.arms[0]
        assert len({ping["clientId"] for ping in pings}) == 3
        assert len({str(attempt.document_id) for attempt in server.attempts}) == 3
        rows = [json.loads(line) for line in out.splitlines()]
        assert [(row["loss"], row["examples"], row["outcome"]) for row in rows] == [(None, None, "accepted")] * 3
        assert all(len(vector_in(attempt.body)) == 31 + 3 for attempt in server.attempts)
        for told in ("the operator can read it", "epsilon 100", "counts as one client", "at most twice", "another id"):
            assert told in said


def test_no_ping_shares_a_connection_with_another_or_with_a_fetch(typed: Typed) -> None:
    with faulty_server(private()) as server:
        server.plan = lambda name, attempt: publishing(server, len(server.attempts))
        typed(server.url, "--yes", "--rounds", "3")
        ports = [attempt.port for attempt in server.attempts]
        assert len(set(ports)) == 3
        assert not {*ports} & {*server.fetching_ports}


def publishing(server: FaultyServer, version: int) -> Any:
    server.publish(version)
    return LANDED


def test_what_is_shown_of_a_private_line_counts_as_no_contribution(typed: Typed, tmp_path: Path) -> None:
    with faulty_server(private(contributions=1, central=None, local=OneSign(epsilon=1.0))) as server:
        first, second = (json.loads(typed(server.url, "--show")[0]) for _ in range(2))
        assert first["clientId"] == second["clientId"]
        assert server.attempts == []
        assert progress(tmp_path).contributed == 0


def progress(tmp_path: Path) -> Progress:
    with open_folder(tmp_path / "state-0") as folder:
        return folder.progress


def test_after_as_many_contributions_as_it_may_make_it_makes_none(typed: Typed, tmp_path: Path) -> None:
    with faulty_server(private(contributions=2, central=None, local=OneSign(epsilon=1.0))) as server:
        server.plan = lambda name, attempt: publishing(server, len(server.attempts))
        _, said = typed(server.url, "--yes")
        assert "has contributed 2 times, the maximum" in said
        assert len(server.attempts) == 2
        assert "has contributed 2 times" in typed(server.url, "--yes")[1]
        assert "no ping would be sent: this institution has contributed 2 times" in typed(server.url, "--show")[1]
        assert len(server.attempts) == 2
    assert progress(tmp_path).contributed == 2


def test_of_versions_that_it_has_not_drawn_it_sends_nothing(typed: Typed) -> None:
    central = replace(QUIET, rounds=10**6)
    with faulty_server(private(central=central, contributions=1)) as server:
        _, said = typed(server.url, "--show")
        assert "was not selected for version 0" in said
        assert "waiting for a version after 0" in typed(server.url, "--yes", "--rounds", "1", "--for", "2s", code=75)[1]
        assert server.attempts == []


def test_a_refused_ping_of_a_private_line_is_not_made_again(typed: Typed, tmp_path: Path) -> None:
    with faulty_server(private()) as server:
        server.plan = lambda name, attempt: refusal(403, "not you")
        assert "rejects pings of this client" in typed(server.url, "--yes", code=1)[1]
        typed(server.url, "--yes", "--rounds", "1", "--for", "2s", code=75)
        assert len(server.attempts) == 1
    assert progress(tmp_path).contributed == 1


def test_a_ping_is_kept_until_its_moment_also_by_the_next_command(typed: Typed, tmp_path: Path) -> None:
    with faulty_server(private(delay_minutes=1440.0)) as server:
        _, said = typed(server.url, "--yes", "--rounds", "1", "--for", "2s", code=75)
        assert "waiting for the random time at which the ping of version 0 is sent" in said
        waiting = tmp_path / "state-0" / "waiting.json"
        kept = json.loads(waiting.read_bytes())
        typed(server.url, "--yes", "--rounds", "1", "--for", "2s", code=75)
        assert json.loads(waiting.read_bytes()) == kept
        assert 0 < kept["not_before"] - time.time() < 1440 * 60
        assert server.attempts == []
        waiting.write_text(json.dumps({**kept, "not_before": time.time()}))
        typed(server.url, "--yes", "--rounds", "1")
        (attempt,) = server.attempts
        assert json.loads(attempt.body) == kept["body"]


def test_a_client_adds_noise_of_its_own(typed: Typed) -> None:
    study = private(central=None, local=LocalGaussian(epsilon=1.0, delta=1e-6))
    with faulty_server(study) as server:
        noisy, again = (vector_in(typed(server.url, "--show")[0].encode()) for _ in range(2))
    assert noisy != again
    assert noisy[-2:] == [0, 0]
    assert max(map(abs, noisy[:-3])) > 2**14


@pytest.mark.parametrize(
    ("privacy", "says"),
    [
        ({"central": None, "local": OneSign(epsilon=2.0)}, "epsilon 2 a ping"),
        ({"central": None, "local": OneSign(epsilon=2.0)}, "one ping a version, without an end"),
        ({"central": None, "local": OneSign(epsilon=2.0)}, "is at most the same"),
        ({"contributions": 4}, "at most 4 pings in all"),
        ({}, "shortened to 3"),
    ],
)
def test_promises_say_what_is_sent_and_for_whom_a_guarantee_is(privacy: dict[str, Any], says: str) -> None:
    line = public_study(private(**privacy)).lines[0]
    assert says in " ".join(promises(line))


# --- whole rounds ---


def test_a_round_releases_what_institutions_have_contributed(
    typed: Typed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, landing = tmp_path / "store", tmp_path / "landing"
    store_with(store, private())
    with running_ingest(store, landing, "--workers", "1") as server:
        for version in range(2):
            for number in range(3):
                typed(server.url, "--yes", "--rounds", "1", number=number)
            server.flush()
            landed = [pq.read_table(file) for file in landed_files(partition(landing, STUDY, "main", version))]
            assert sum(map(len, landed)) == 3
            assert all(table.schema.equals(landed_schema(PRIVATE_UPDATE)) for table in landed)
            assert main(round_in(store, landing)) == 0
            assert f"published version {version + 1} from about" in capsys.readouterr().out
            assert landed_files(partition(landing, STUDY, "main", version)) == []


def round_in(store: Path, landing: Path, *options: str) -> list[str]:
    return ["round", STUDY, "--engine", "numpy", "--store", str(store), "--landing", str(landing), *options]


@pytest.mark.long
def test_two_servers_read_together_what_institutions_have_shared(typed: Typed, tmp_path: Path) -> None:
    """Without an offer, no ping is sent; with one, a two-server round takes the same step as a single server's."""
    helper = make_helper(tmp_path / "helper")
    study = private(central=None, shared=Shared(helper=helper.identity, min_batch=2))
    store, landing = store_with(tmp_path / "store", study), tmp_path / "landing"
    key = tmp_path / "key"
    key.write_text(KEY.hex() + "\n")
    key.chmod(0o600)
    with running_ingest(tmp_path / "store", landing, "--workers", "1") as server:
        said = typed(server.url, "--yes", "--rounds", "1", "--for", "2s", code=75)[1]
        assert "waiting: line 'main' of study 'tumours' has no offer of its helper yet" in said
        assert "neither the operator nor the helper " in said
        assert "nothing limits what sums over all clients give away" in said
        public = public_study(study)
        offer, _ = helper_join(helper, public, public.lines[0], leader_identity(KEY))
        store.studies.publish_offer(STUDY, "main", offer)
        wait_until(lambda: offered(server))
        for number in range(3):
            out, _ = typed(server.url, "--yes", "--rounds", "1", number=number)
            assert "a private vector in two shares" in out
        server.flush()
        with helper_server(helper) as way:
            assert main(round_in(tmp_path / "store", landing, "--privacy-key", str(key), "--helper", way.url)) == 0
    assert accuracy(tmp_path / "store", 1) > 0.8


def offered(server: IngestServer) -> bool:
    return "offer" in server.ask(f"/models/{STUDY}/study.json")["lines"][0]


@pytest.mark.thorough
def test_killed_at_any_moment_it_contributes_once_a_version(typed: Typed, tmp_path: Path) -> None:
    """Killed before its ping is posted, it later sends the same bytes or, if none were stored, nothing."""
    versions = few_or_all(2, 3)
    study = private(central=None, local=OneSign(epsilon=1.0), contributions=versions)
    options = ["--data", tables(tmp_path)[0], "--columns", agreed(tmp_path / "columns.toml"), "--yes", "--rounds", "1"]
    options += ["--state", tmp_path / "state-0", "--every", "0.1s"]
    with faulty_server(study) as server:
        victims: list[int] = []

        def killing(name: str, attempt: int) -> Any:
            if attempt == 0:
                os.kill(victims[-1], signal.SIGKILL)
            return LANDED

        server.plan = killing
        for version in range(versions):
            server.publish(version)
            process = joining(server.url, *options)
            victims.append(process.pid)
            process.communicate(timeout=60)
            assert process.returncode == -signal.SIGKILL
            assert progress(tmp_path).contributed == version + 1
            typed(server.url, "--yes", "--rounds", "1")
        assert [len(each) for each in by_version(server).values()] == [1] * versions
        assert f"has contributed {versions} times" in typed(server.url, "--yes")[1]


def by_version(server: FaultyServer) -> dict[int, set[bytes]]:
    found: dict[int, set[bytes]] = {}
    for attempt in server.attempts:
        found.setdefault(json.loads(attempt.body)["payload"]["model_version"], set()).add(attempt.body)
    return found


def test_a_server_cannot_mark_a_client_of_a_private_line_by_a_tag_or_a_cookie() -> None:
    with faulty_server(private()) as server:
        line = server.study.lines[0].name
        body = server.files[f"/models/{server.study.name}/{line}/latest.json"]
        server.model = Answer(200, body, {"ETag": '"one of yours"', "Set-Cookie": "id=7; Path=/"})
        url = server.url.replace("127.0.0.1", "localhost")  # an address of numbers has no cookies anyway

        async def twice() -> list[Any]:
            transport = HttpTransport(url)
            await transport.fetch_study(server.study.name)
            found = [await transport.fetch_model(server.study.name, line, None, tag) for tag in (None, '"of before"')]
            await transport.submit(server.study.name, uuid4(), b"{}")
            await transport.close()
            return found

        assert [found.etag for found in asyncio.run(twice())] == [None, None]
        assert [tag for _, tag in server.fetches] == [None, None, None]
        assert not any("cookie" in name.lower() for attempt in server.attempts for name in attempt.headers)
