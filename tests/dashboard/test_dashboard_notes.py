"""Notes over HTTP: written, edited and removed by analysts, and hostile notes."""

import csv
import io
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient

from fedping.model_store.documents import sealed, unsealed
from fedping.model_store.versions import version_key
from tests.support.dashboard import csrf_token, dashboard_application
from tests.support.teams import bearer, of_three
from tests.support.versions import small_study
from tests.support.walks import walked_store

STUDY = "walk"
NOTE = {"text": "The crawler was wrong.", "version": 2, "line": "main"}


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    walked_store(tmp_path / "store", small_study(STUDY, m=3), 3)
    return of_three(tmp_path / "team.json")


@pytest.fixture
def made(tmp_path: Path, tokens: dict[str, str]) -> Flask:
    return dashboard_application(tmp_path, team=tmp_path / "team.json")


@pytest.fixture
def analyst(made: Flask, tokens: dict[str, str]) -> FlaskClient:
    client = made.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = bearer(tokens["analyst"])["Authorization"]
    return client


def notes(client: FlaskClient) -> list[dict[str, object]]:
    found: list[dict[str, object]] = client.get(f"/notes/{STUDY}/notes.json").json["notes"]
    return found


def test_a_note_is_written_seen_edited_and_removed(made: Flask, analyst: FlaskClient, tokens: dict[str, str]) -> None:
    assert analyst.post(f"/notes/{STUDY}/", json=NOTE).json == {"id": 1}
    (first,) = notes(analyst)
    assert (first["by"], first["text"], first["version"], first["date"]) == ("ann", NOTE["text"], 2, "")
    assert isinstance(first["at_ms"], int)
    changed = {"text": "It was right.", "date": "2018-06-20T12:00+02:00", "mark": first["mark"]}
    operator = bearer(tokens["operator"])
    assert made.test_client().post(f"/notes/{STUDY}/1", json=changed, headers=operator).status_code == 200
    (second,) = notes(analyst)
    assert (second["by"], second["edited_by"], second["date"]) == ("ann", "otto", "2018-06-20T10:00:00+00:00")
    assert second["at_ms"] == 1529488800000
    stale = analyst.post(f"/notes/{STUDY}/1/remove", json={"mark": first["mark"]})
    assert (stale.status_code, "decide again" in stale.json["error"]) == (409, True)
    assert analyst.post(f"/notes/{STUDY}/1/remove", json={"mark": second["mark"]}).status_code == 200
    assert notes(analyst) == []


def test_a_page_that_has_the_notes_gets_nothing(analyst: FlaskClient) -> None:
    nothing = analyst.get(f"/notes/{STUDY}/notes.json").json["state"]
    assert analyst.get(f"/notes/{STUDY}/notes.json?known={nothing}").status_code == 204
    analyst.post(f"/notes/{STUDY}/", json=NOTE)
    one = analyst.get(f"/notes/{STUDY}/notes.json?known={nothing}").json
    assert one["number"] == 1
    assert analyst.get(f"/notes/{STUDY}/notes.json?known={one['state']}").status_code == 204


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 4}, "line 'main' has no version 4; pin the note to a version up to 3, or to a date"),
        ({"version": -1}, "has no version -1"),
        ({"version": 10**12}, "has no version"),
        ({"version": "2"}, "the body is not valid for this address"),
        ({"text": "x" * 1001}, "1 to 1,000 characters"),
        ({"text": "\t \r\n"}, "this one has 0"),
        ({"line": "../../../etc/passwd"}, "no line '../../../etc/passwd'"),
        ({"by": "otto"}, "unknown field `by`"),
        ({"id": 7}, "unknown field `id`"),
    ],
)
def test_what_cannot_be_a_note_is_refused_in_a_sentence(
    analyst: FlaskClient, changes: dict[str, object], said: str
) -> None:
    answer = analyst.post(f"/notes/{STUDY}/", json={**NOTE, **changes})
    assert answer.status_code == 400
    assert said in answer.json["error"]
    assert notes(analyst) == []


@pytest.mark.parametrize("study", ["..", "%2e%2e", "nowhere", "walk%2f..%2fwalk", "walk%00", ".", "a" * 3000])
@pytest.mark.parametrize("rest", ["notes.json", "notes.csv"])
def test_no_name_in_an_address_leads_out_of_the_store(analyst: FlaskClient, study: str, rest: str) -> None:
    assert analyst.get(f"/notes/{study}/{rest}").status_code in (404, 308)
    assert analyst.post(f"/notes/{study}/", json=NOTE).status_code in (404, 405, 308)


def test_ten_megabytes_are_refused_before_they_are_read(analyst: FlaskClient, tmp_path: Path) -> None:
    body = b'{"text": "' + b"x" * (10 << 20) + b'"}'
    answer = analyst.post(f"/notes/{STUDY}/", data=body, content_type="application/json")
    assert answer.status_code == 413
    assert not (tmp_path / "store" / STUDY / "notes").exists()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b"\xff", b"[" * 100_000, b'{"text": 1}'])
def test_a_body_that_is_no_note_is_refused(analyst: FlaskClient, body: bytes) -> None:
    assert analyst.post(f"/notes/{STUDY}/", data=body, content_type="application/json").status_code == 400


def test_csv_has_every_note_and_no_formula(analyst: FlaskClient) -> None:
    texts = ["=1+1", 'two\nlines, and "quotes"', "@SUM(A1)", "<b>x</b>"]
    for text in texts:
        analyst.post(f"/notes/{STUDY}/", json={**NOTE, "text": text})
    rows = list(csv.DictReader(io.StringIO(analyst.get(f"/notes/{STUDY}/notes.csv").get_data(as_text=True))))
    assert [row["text"] for row in rows] == ["'=1+1", texts[1], "'@SUM(A1)", "<b>x</b>"]
    assert {row["by"] for row in rows} == {"ann"}


def test_a_note_from_windows_has_plain_line_breaks(analyst: FlaskClient) -> None:
    analyst.post(f"/notes/{STUDY}/", json={**NOTE, "text": "  one\r\n\ttwo  \r\n"})
    assert [note["text"] for note in notes(analyst)] == ["one\n two"]


def test_a_page_writes_with_its_token_and_its_own_name(made: Flask, tokens: dict[str, str]) -> None:
    client = made.test_client()
    client.get(f"/?token={tokens['analyst']}", headers={"Accept": "text/html", "Sec-Fetch-Site": "none"})
    headers = {"X-CSRF-Token": csrf_token(client, f"/live/{STUDY}/main/"), "Origin": "http://localhost"}
    assert client.post(f"/notes/{STUDY}/", json=NOTE, headers=headers).status_code == 200
    assert [note["by"] for note in notes(client)] == ["ann"]


def test_notes_and_versions_put_back_from_a_copy_are_seen(analyst: FlaskClient, tmp_path: Path) -> None:
    for text in ("one", "two"):
        analyst.post(f"/notes/{STUDY}/", json={**NOTE, "text": text})
    before = analyst.get(f"/notes/{STUDY}/notes.json").json
    version = tmp_path / "store" / version_key(STUDY, "main", 2)
    version.write_bytes(sealed(unsealed(version.read_bytes()).replace(b"2026-01-01T01:00", b"2026-02-01T01:00")))
    (tmp_path / "store" / STUDY / "notes" / "2.json").unlink()
    analyst.post(f"/notes/{STUDY}/", json={**NOTE, "text": "three"})
    after = analyst.get(f"/notes/{STUDY}/notes.json?known={before['state']}").json
    assert [note["text"] for note in after["notes"]] == ["one", "three"]
    assert after["notes"][0]["at_ms"] - before["notes"][0]["at_ms"] == 31 * 24 * 3_600_000
    assert analyst.get(f"/notes/{STUDY}/notes.json?known={after['state']}").status_code == 204


@pytest.mark.parametrize("date", ["2026-03-01T14:30", "2026-03-01"])
def test_a_date_without_a_zone_is_refused(analyst: FlaskClient, date: str) -> None:
    answer = analyst.post(f"/notes/{STUDY}/", json={"text": "Holiday", "date": date})
    assert (answer.status_code, answer.json["error"].endswith("has no time zone; end it with Z for UTC")) == (400, True)


def test_damaged_notes_leave_the_pages_readable(analyst: FlaskClient, tmp_path: Path) -> None:
    analyst.post(f"/notes/{STUDY}/", json=NOTE)
    (tmp_path / "store" / STUDY / "notes" / "1.json").write_text("{")
    answer = analyst.get(f"/notes/{STUDY}/notes.json")
    assert (answer.status_code, "notes/1.json cannot be read" in answer.json["error"]) == (503, True)
    assert analyst.get(f"/live/{STUDY}/main/").status_code == 200
