"""`fedping study offer`: publishes a helper's offer if its signature and terms are right; it can be replaced."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests

from benchmarks.ingest import free_port
from fedping.commands.study_offer import MOST_BYTES
from fedping.main import main
from fedping.model_store.store import StoreError, open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import Privacy
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.study import public_json, public_study
from tests.support import forked
from tests.support.ingest_server import ROOT
from tests.support.private import CENTRAL, STUDY_FILE, private_study
from tests.support.processes import wait_until
from tests.support.rounds import store_with
from tests.support.sharing import LEADER, Helper, shared

STUDY = private_study(privacy=shared(Privacy(central=CENTRAL)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    store_with(tmp_path / "store", STUDY)
    return tmp_path


def publish(where: str, line: str = "main", study: str = STUDY.name) -> int:
    return main(["study", "offer", study, line, where])


def written(offer: Offer, name: str = "offer.json") -> str:
    Path(name).write_bytes(msgspec.json.encode(offer))
    return name


def test_an_offer_is_published_replaced_and_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    helper, store = Helper(), open_store(folder / "store")
    first, second = helper.offer(STUDY), helper.offer(STUDY, made="2026-01-02T00:00:00Z")
    assert main(["study", "show", STUDY.name]) == 0
    assert "line main has no helper offer yet, so clients send no pings" in capsys.readouterr().out
    assert publish(written(first)) == 0
    assert f"has the offer {first.id.hex()} of helper" in capsys.readouterr().out
    assert store.studies.offer(STUDY.name, "main") == first
    assert publish(written(first)) == 0
    assert "nothing changed" in capsys.readouterr().out
    assert publish(written(second)) == 0
    assert f"it replaces {first.id.hex()}" in capsys.readouterr().out
    assert store.studies.offer(STUDY.name, "main") == second
    assert main(["study", "show", STUDY.name]) == 0
    shown = capsys.readouterr().out
    assert f"line main has the helper offer {second.id.hex()}" in shown
    assert LEADER in shown
    assert "shares come without proof" in shown
    assert publish(written(first)) == 2
    assert "is older than the current offer of line 'main'" in capsys.readouterr().err
    assert store.studies.offers(STUDY) == {"main": second}


def test_an_offer_for_another_leader_is_refused_with_the_key_at_hand(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offer, store = written(Helper().offer(STUDY)), open_store(folder / "store")
    assert main(["privacy", "key", "leader.key"]) == 0
    assert main(["study", "offer", STUDY.name, "main", offer, "--privacy-key", "leader.key"]) == 2
    assert f"the offer is for the leader {LEADER[:16]}…, but leader.key is the key of" in capsys.readouterr().err
    assert store.studies.offers(STUDY) == {}
    capsys.readouterr()
    assert main(["privacy", "identity", "leader.key"]) == 0
    own = written(Helper().offer(STUDY, leader=capsys.readouterr().out.strip()))
    assert main(["study", "offer", STUDY.name, "main", own, "--privacy-key", "leader.key"]) == 0
    assert "main" in store.studies.offers(STUDY)


REFUSED: dict[str, tuple[Any, str]] = {
    "another helper's": (lambda: Helper(secret=b"another").offer(STUDY), "is not signed by the helper"),
    "less noise": (lambda: Helper().offer(STUDY, sigma=1.0), "its noise is 1, and the study has"),
    "for another study": (lambda: Helper().offer(STUDY, study="else"), "its 'study' is 'else'"),
    "a key for nobody": (lambda: Helper().offer(STUDY, key="00" * 32), "a key of 32 bytes that is none"),
    "changed": (lambda: Offer(terms=Helper().offer(STUDY).terms + " ", signature="0" * 128), "is not signed"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    made, why = REFUSED[what]
    before = Helper().offer(STUDY)
    assert publish(written(before)) == 0
    assert publish(written(made())) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "Traceback" not in said
    assert open_store(folder / "store").studies.offer(STUDY.name, "main") == before


def test_mistakes_are_told_in_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("large").write_bytes(b" " * (MOST_BYTES + 1))
    Path("text").write_text("an offer")
    Path("other.json").write_text('{"terms": 1}')
    for where, why in (
        ("nowhere", "cannot read the offer nowhere"),
        ("large", f"more than {MOST_BYTES:,} bytes"),
        ("text", "text is not a helper's offer"),
        ("other.json", "other.json is not a helper's offer"),
        (f"http://127.0.0.1:{free_port()}", "reach the helper at"),
    ):
        assert publish(where) in (1, 2)
        assert why in capsys.readouterr().err
    assert publish("text", line="none") == 2
    assert "has no line 'none'" in capsys.readouterr().err
    plain = private_study(name="plain")
    store_with(folder / "store", plain)
    assert publish("text", study="plain") == 2
    assert "line 'main' of study 'plain' has no helper" in capsys.readouterr().err


@contextmanager
def answering(*answers: tuple[int, bytes], location: str = "") -> Iterator[tuple[str, list[str]]]:
    """Serve one answer for each request; yield the address and the requested paths."""
    left, asked = iter(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, body = next(left)
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


def test_an_address_is_asked_once_and_believed_no_more_than_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offer = Helper().offer(STUDY)
    body = msgspec.json.encode(offer)
    with answering((200, body)) as (url, asked):
        assert publish(f"{url}/") == 0
        assert asked == ["/offers/private/main"]
    assert open_store(folder / "store").studies.offer(STUDY.name, "main") == offer
    for status, told, why in (
        (404, b"{}", "the helper has no offer at"),
        (500, body, "answers 500 instead of an offer"),
        (301, b"", "answers 301 instead of an offer"),
        (200, b" " * 10 * MOST_BYTES, f"more than {MOST_BYTES:,} bytes"),
        (200, b"[", "not a helper's offer"),
    ):
        with answering((status, told), location=url) as (url, asked):
            assert publish(url) in (1, 2)
            assert why in capsys.readouterr().err
            assert len(asked) == 1


def test_a_helper_joins_a_study_is_asked_for_its_offer_and_takes_a_new_key(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uses the commands of both operators, over HTTP."""
    assert main(["helper", "init", "--folder", "helper"]) == 0
    capsys.readouterr()
    assert main(["helper", "identity", "--folder", "helper"]) == 0
    study = private_study(
        name="both", privacy=shared(Privacy(central=CENTRAL), helper=capsys.readouterr().out.strip(), min_batch=10)
    )
    store_with(folder / "store", study)
    Path("study.json").write_bytes(public_json(public_study(study)))
    assert main(["helper", "join", "study.json", "--leader", LEADER, "--folder", "helper"]) == 0
    port = free_port()
    serving = forked.Popen(
        [sys.executable, "-m", "fedping", "helper", "serve", "--port", str(port), "--folder", str(folder / "helper")],
        cwd=ROOT,
    )
    url = f"http://127.0.0.1:{port}"

    def is_well() -> bool:
        assert serving.poll() is None
        with suppress(requests.RequestException):
            return requests.get(f"{url}/__lbheartbeat__", timeout=5).status_code == 200
        return False

    try:
        assert wait_until(is_well)
        assert publish(url, study="both") == 0
        first = open_store(folder / "store").studies.offer("both", "main")
        assert main(["helper", "rotate", "both", "main", "--folder", "helper"]) == 0
        assert publish(url, study="both") == 0
        second = open_store(folder / "store").studies.offer("both", "main")
        assert publish(url) == 2  # a study unknown to this helper
    finally:
        serving.terminate()
        serving.wait()
    assert first is not None
    assert second is not None
    assert first.id != second.id
    assert json.loads(first.terms) | {"key": "", "made": ""} == json.loads(second.terms) | {"key": "", "made": ""}


def test_a_damaged_offer_is_told_of_and_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, offer = open_store(folder / "store"), Helper().offer(STUDY)
    store.studies.publish_offer(STUDY.name, "main", offer)
    kept = folder / "store" / STUDY.name / "main" / "offer.json"
    kept.write_bytes(kept.read_bytes().replace(b"min_batch", b"max_batch"))
    with pytest.raises(StoreError, match=r"offer\.json cannot be read"):
        store.studies.offer(STUDY.name, "main")
    assert main(["study", "show", STUDY.name]) == 1
    assert "offer.json cannot be read" in capsys.readouterr().err
    assert publish(written(offer)) == 0
    assert store.studies.offer(STUDY.name, "main") == offer
    with pytest.raises(InvalidSettings, match="has no line 'none'"):
        store.studies.publish_offer(STUDY.name, "none", offer)


SHARED_STUDY = STUDY_FILE.replace('"private"', '"shares"').replace(
    "sampling = 0.1\n", '\n[lines.privacy.shared]\nhelper = "HELPER"\n'
)


def test_a_study_of_shares_is_checked_created_and_said_to_wait(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").write_text(SHARED_STUDY.replace("HELPER", LEADER))
    assert main(["study", "check", "study.toml"]) == 0
    said = capsys.readouterr().out
    assert f"the helper {LEADER[:16]}… sums those of at least 100 clients of an arm" in said
    assert "updates are encoded by" not in said
    proven = SHARED_STUDY.replace("HELPER", LEADER).replace(LEADER + '"', LEADER + '"\nproofs = true')
    Path("proven.toml").write_text(proven)
    assert main(["study", "check", "proven.toml"]) == 0
    said = capsys.readouterr().out
    assert "clients prove that they send only votes" in said
    assert "come without proof" not in said
    assert "metric" not in said
    assert main(["study", "create", "study.toml"]) == 0
    assert "clients of line 'main' wait for its helper's offer" in capsys.readouterr().out
    sampled = SHARED_STUDY.replace("HELPER", LEADER).replace("10_000", "10_000\nsampling = 0.5")
    Path("sampled.toml").write_text(sampled)
    assert main(["study", "check", "sampled.toml"]) == 2
    assert "'sampling' gives no protection" in capsys.readouterr().err
    Path("no.toml").write_text(SHARED_STUDY)
    assert main(["study", "check", "no.toml"]) == 2
    assert "helper" in capsys.readouterr().err
