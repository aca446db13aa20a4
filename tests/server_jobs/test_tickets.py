"""Clients without the product's ticket for their id aren't counted, for any invented ids."""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fedping.client_sim.learning import model_spec
from fedping.main import main
from fedping.model_store import open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.study import protected, study_from_toml
from fedping.protocol.tickets import PATTERN, TicketKey, keys_text, read_keys, ticket, validate_ticket, with_new_key
from fedping.server_jobs.ingest.admission import Catalogue
from fedping.server_jobs.optimize import first_versions
from tests.support.ingest_app import IngestApp, ingest_app, ingest_study
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.model_updates import model_study
from tests.support.pings import ping_json
from tests.support.telemetry import envelope
from tests.support.telemetry import path as telemetry_path
from tests.support.versions import WHEN

STUDY = replace(ingest_study(), name="members", tickets="required")
PATH = f"/submit/{STUDY.name}/frecency-update/1"
CLIENT = uuid.UUID(ping_json()["clientId"])
SOON = int(time.time()) + 3600


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(keys_text(with_new_key((), "first")))
    return file


@pytest.fixture
def ingest(tmp_path: Path, keys: Path) -> IngestApp:
    return ingest_app(tmp_path, others=(STUDY,), ticket_keys=keys)


def sent(ingest: IngestApp, given: str | None, **envelope: Any) -> Any:
    ping = {**ping_json(), **envelope, **({} if given is None else {"ticket": given})}
    return ingest.post(f"{PATH}/{uuid.uuid4()}", json.dumps(ping).encode())


def test_only_a_good_ticket_opens(ingest: IngestApp, keys: Path) -> None:
    (key,) = read_keys(keys)
    other = TicketKey(key.name, bytes(32))
    cases = {
        ticket(key, "members", CLIENT, SOON): (200, ""),
        None: (403, "ticket_missing"),
        "": (403, "ticket_forged"),
        "...": (403, "ticket_forged"),
        ticket(other, "members", CLIENT, SOON): (403, "ticket_forged"),
        ticket(key, "members", uuid.UUID(int=1), SOON): (403, "ticket_forged"),
        ticket(key, "another", CLIENT, SOON): (403, "ticket_forged"),
        ticket(key, "members", CLIENT, SOON).replace(str(SOON), str(SOON + 1)): (403, "ticket_forged"),
        ticket(key, "members", CLIENT, SOON)[:-2]: (403, "ticket_forged"),
        ticket(key, "members", CLIENT, 1_600_000_000): (403, "ticket_expired"),
        "x" * 129: (400, "not_a_ping"),
        "a:b": (400, "not_a_ping"),
    }
    for given_ticket, (status, reason) in cases.items():
        before = ingest.totals()
        answer = sent(ingest, given_ticket)
        assert answer.status_code == status, (given_ticket, answer.json)
        if reason:
            assert ingest.totals()[f"rejected.{reason}"] == before[f"rejected.{reason}"] + 1


def test_a_study_that_asks_for_none_takes_pings_with_and_without(ingest: IngestApp) -> None:
    for more in ({}, {"ticket": "any.thing.goes"}):
        assert ingest.ping({**ping_json(), **more}).status_code == 200


def test_invented_ids_have_no_effect(ingest: IngestApp, keys: Path) -> None:
    """One batch has as many invented clients as honest ones; only honest pings land, without their tickets."""
    (key,) = read_keys(keys)
    honest = [uuid.uuid4() for _ in range(20)]
    stolen = ticket(key, "members", honest[0], SOON)
    lines = [(client, ticket(key, "members", client, SOON)) for client in honest]
    lines += [(uuid.uuid4(), stolen) for _ in range(20)]
    body = "\n".join(
        json.dumps({**ping_json(), "clientId": str(client), "ticket": each, "documentId": str(uuid.uuid4())})
        for client, each in lines
    )
    answer = ingest.post(PATH, body.encode())
    assert (answer.json["accepted"], len(answer.json["rejected"])) == (20, 20)
    ingest.land()
    (file,) = landed_files(partition(ingest.settings.landing, "members", "main", 0))
    landed = pq.ParquetFile(file).read()
    assert {uuid.UUID(bytes=each) for each in landed["client_id"].to_pylist()} == set(honest)
    assert "ticket" not in landed.column_names
    mac = stolen.rpartition(".")[2].encode()
    assert not any(mac in path.read_bytes() for path in ingest.settings.landing.parent.rglob("*") if path.is_file())


def test_the_envelope_of_firefox_carries_one_too(tmp_path: Path, keys: Path) -> None:
    study = replace(STUDY, name="telemetry-members", telemetry=True)
    ingest = ingest_app(tmp_path, others=(study,), ticket_keys=keys)
    (key,) = read_keys(keys)
    for given_ticket, status in ((ticket(key, study.name, CLIENT, SOON), 200), (None, 403)):
        document = str(uuid.uuid4())
        ping = envelope(ping_json()["payload"], document, str(CLIENT))
        ping |= {} if given_ticket is None else {"ticket": given_ticket}
        assert ingest.post(telemetry_path(document), json.dumps(ping).encode()).status_code == status


def test_a_key_is_replaced_without_a_ticket_being_lost(ingest: IngestApp, keys: Path) -> None:
    (first,) = read_keys(keys)
    old = ticket(first, "members", CLIENT, SOON)
    assert main(["study", "ticket-key", str(keys)]) == 0
    second, kept = read_keys(keys)
    assert kept == first
    ingest.services.catalogue.refresh()
    assert sent(ingest, old).status_code == 200
    assert sent(ingest, ticket(second, "members", CLIENT, SOON)).status_code == 200
    keys.write_text(keys_text(with_new_key((second,), "third")))
    ingest.services.catalogue.refresh()
    assert sent(ingest, old).status_code == 403
    keys.write_text("nonsense")
    ingest.services.catalogue.refresh()
    assert "is no file of ticket keys" in (ingest.services.catalogue.trouble or "")
    assert sent(ingest, ticket(second, "members", CLIENT, SOON)).status_code == 200


def test_two_keys_of_the_same_second_are_a_file_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    for _ in range(3):
        assert main(["study", "ticket-key", str(file)]) == 0
    new, kept = read_keys(file)
    assert new.name != kept.name
    assert validate_ticket({"k": new, kept.name: kept}, "s", CLIENT, ticket(kept, "s", CLIENT, 1), 0) is None


def test_who_may_read_the_keys_still_may_when_one_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    assert main(["study", "ticket-key", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    assert main(["study", "ticket-key", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o640, "ingest reads it through its group"


def test_without_keys_the_study_alone_is_not_served(tmp_path: Path, ingest: IngestApp) -> None:
    catalogue = Catalogue(open_store(tmp_path / "store"))
    assert catalogue.names() == ["study"]
    assert "needs tickets; start ingest with --ticket-keys" in catalogue.unusable["members"]


def test_the_command_makes_what_ingest_takes(ingest: IngestApp, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "ticket", "members", str(CLIENT), str(uuid.UUID(int=2)), "--keys", str(keys)]) == 0
    mine, another = capsys.readouterr().out.split()
    assert sent(ingest, mine).status_code == 200
    assert sent(ingest, another).status_code == 403


@pytest.mark.parametrize("text", ["", "a\n", "a 00\n", f"a {'0' * 64}\na {'1' * 64}\n", f"a b {'0' * 64}\n", "é"])
def test_what_is_no_file_of_keys_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(FedpingError, match="ticket keys"):
        read_keys(tmp_path / "keys")
    with pytest.raises(FedpingError, match="cannot read"):
        read_keys(tmp_path / "none")


@given(st.from_regex(PATTERN, fullmatch=True) | st.text(max_size=60))
def test_no_text_but_a_ticket_is_one(text: str) -> None:
    key = TicketKey("k", bytes(range(32)))
    assert validate_ticket({"k": key}, "s", CLIENT, text, 0) == "forged"


def test_nothing_but_the_standard_library_is_needed_to_make_tickets() -> None:
    """A product makes tickets in its own service, which has no NumPy."""
    code = "import sys, fedping.protocol.tickets; print('numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestServer]:
    """Run an ingest with two new studies that require tickets, of interactions and of model updates."""
    folder = tmp_path_factory.mktemp("tickets")
    (folder / "keys").write_text(keys_text(with_new_key((), "k")))
    store = open_store(folder / "store", create=True)
    demo = study_from_toml(Path(__file__).parents[2] / "experiments" / "demo.toml")
    models = replace(model_study(), name="models-with-tickets")
    arms = tuple(replace(arm, line="main", submits=True) for arm in models.arms)
    spec = model_spec("logistic-regression", {"features": 4})
    line = replace(models.lines[0], spec=spec)
    for study in (demo, replace(models, arms=arms, lines=(line,))):
        study = protected(replace(study, tickets="required"))
        store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    options = ("--ticket-keys", str(folder / "keys"), "--prefix-rate", "10000", "--workers", "1")
    with running_ingest(folder / "store", folder / "landing", *options) as made:
        yield made


@pytest.mark.parametrize("study", ["demo", "models-with-tickets"])
def test_a_fleet_with_tickets_is_taken_and_one_without_is_not(
    server: IngestServer, study: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = server.landing.parent / "keys"
    summaries = []
    for more in (["--ticket-keys", str(keys)], []):
        assert main(["fleet", server.url, study, "--clients", "60", "--json", *more]) == 0
        summaries.append(json.loads(capsys.readouterr().out.splitlines()[0])["pings"])
    assert summaries[0]["accepted"] == summaries[0]["generated"] > 10
    assert summaries[1]["accepted"] == 0
    assert sum(summaries[1]["rejected_by_reason"].values()) == summaries[1]["generated"] > 10
