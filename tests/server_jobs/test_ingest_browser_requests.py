"""Browsers' requests: simple requests as text, with an origin, an agent and cookies, none of which is stored."""

import http.client
import json
import time
import uuid
from pathlib import Path

import pytest

from tests.support.ingest_app import PATH, landed_ids, make_store
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.pings import ping_json

INSTALLATION = "moz-extension://0f6b1c9e-5f0a-4d5e-9c55-1f6f0d8f7a61"
FROM_A_BROWSER = {
    "Content-Type": "text/plain;charset=UTF-8",
    "Origin": INSTALLATION,
    "Referer": f"{INSTALLATION}/background.html",
    "Cookie": "who=somebody",
    "User-Agent": "Mozilla/5.0 (a-browser-of-somebody)",
    "X-Forwarded-For": "203.0.113.77",
    "Sec-Fetch-Mode": "no-cors",
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Dest": "empty",
}
SECRETS = [INSTALLATION, "0f6b1c9e", "who=somebody", "a-browser-of-somebody", "203.0.113.77"]


def post(server: IngestServer, path: str, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
    connection.request("POST", path, body, FROM_A_BROWSER)
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_browsers_text_is_taken_and_nothing_of_the_browser_is_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path / "store")
    taken, refused = str(uuid.uuid4()), ping_json(loss="12.5")
    good = json.dumps(ping_json()).encode()
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--journal", str(tmp_path / "journal")) as server:
        assert post(server, f"{PATH}/{taken}", good) == 200
        assert post(server, f"{PATH}/{uuid.uuid4()}", json.dumps(refused).encode()) == 400
        assert post(server, f"{PATH}/{INSTALLATION.rpartition('/')[2]}", b"{") == 400
        assert post(server, f"/submit/nothing/here/1/{uuid.uuid4()}", good) == 404
        kept = [
            *everything_in(tmp_path / "journal"),
            *everything_in(tmp_path / "landing"),
        ]  # also pings that haven't landed yet
        server.flush()
    assert landed_ids(tmp_path / "landing") == [taken]
    files = [*kept, *everything_in(tmp_path / "landing")]
    assert any(b"not_a_ping" in data for data in files)
    for told in [*files, "".join(capfd.readouterr()).encode()]:
        assert not [secret for secret in SECRETS if secret.encode() in told]
        assert uuid.UUID(INSTALLATION.rpartition("/")[2]).bytes not in told


def test_no_log_names_a_client_or_an_address(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "store")
    logs = tmp_path / "landing" / ".rejected"
    with running_ingest(tmp_path / "store", tmp_path / "landing") as server:
        assert post(server, f"{PATH}/{uuid.uuid4()}", json.dumps(ping_json()).encode()) == 200
        assert post(server, f"{PATH}/{uuid.uuid4()}", json.dumps(ping_json(study_variation="nobody")).encode()) == 400
        deadline = time.monotonic() + 240
        while not any(b"unknown_arm" in log for log in everything_in(logs)):
            assert time.monotonic() < deadline, "the refusal was not logged"
            time.sleep(0.1)
    assert not [log for log in everything_in(logs) if b"127.0.0.1" in log]
    for log in [*everything_in(logs), "".join(capfd.readouterr()).encode()]:
        assert ping_json()["clientId"].encode() not in log


def everything_in(folder: Path) -> list[bytes]:
    """Return the bytes of every file below a folder that still exists when it is read."""
    found = []
    for path in folder.rglob("*"):
        try:
            found.append(path.read_bytes() if path.is_file() else b"")
        except FileNotFoundError:  # compacted meanwhile
            continue
    return found
