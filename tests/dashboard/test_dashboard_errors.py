"""Invalid requests and damaged files give an error of one sentence, never an internal error."""

import json
import os
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from fedping.dashboard.feeds import Change, Streams
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.settings_file import NotToml, read_toml, tables_in
from tests.support.dashboard import csrf_token, dashboard_application, dashboard_client
from tests.support.versions import small_study
from tests.support.walks import walked_store
from tests.support.watched import noted

DEEP = "x = " + "[" * 20_000
LONG = "x = " + "9" * 5_000
DIGITS = "9" * 450


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    return dashboard_client(tmp_path)


def described(client: FlaskClient, body: str) -> tuple[int, str]:
    """Return the status and the error message of a description."""
    headers = {"X-CSRF-Token": csrf_token(client, "/runs/"), "Content-Type": "application/json"}
    answer = client.post("/runs/describe", data=body, headers=headers)
    said = answer.json
    found = "; ".join(each["sentence"] for each in said.get("problems", ()))
    return answer.status_code, found or str(said.get("error"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (DEEP, "it is nested too deeply"),
        (LONG, "it has a number of thousands of digits"),
        ("x = " + "[" * 900 + "]" * 900, "it is nested too deeply"),
        ("x = ", "Invalid value"),
    ],
)
def test_a_description_that_nobody_would_write_is_no_toml(
    client: FlaskClient, text: str, why: str, tmp_path: Path
) -> None:
    status, problem = described(client, json.dumps({"text": text}))
    assert status == 200
    assert problem.startswith(f"This is not valid TOML: {why}")
    with pytest.raises(NotToml):
        tables_in(text, "this")
    (tmp_path / "file.toml").write_text(text)
    with pytest.raises(InvalidSettings, match=f"the study file .* is not valid TOML: {why}"):
        read_toml(tmp_path / "file.toml", "study file")


def test_json_that_is_nested_too_deeply_is_told(client: FlaskClient) -> None:
    status, problem = described(client, "[" * 100_000)
    assert status == 400
    assert "too deeply" in problem


@pytest.mark.parametrize("fields", [{"rounds": "9" * 5_000}, {"rounds": DEEP[4:]}])
def test_a_field_that_holds_no_number_is_judged_as_text(client: FlaskClient, fields: dict[str, str]) -> None:
    status, problem = described(client, json.dumps(fields))
    assert status == 200
    assert "'rounds'" in problem


def test_a_study_with_a_long_name_is_just_not_shipped(client: FlaskClient) -> None:
    assert "not shipped" in described(client, json.dumps({"text": f"study = '{'a' * 5_000}'"}))[1]


@pytest.mark.parametrize("number", ["²", "9" * 30, "-1", "x"])
def test_one_more_setting_for_a_variant_that_is_not_there_is_none(client: FlaskClient, number: str) -> None:
    form = {"csrf_token": csrf_token(client, "/runs/"), "add": f"arm.{number}"}
    assert client.post("/runs/new", data=form).status_code == 200


def test_numbers_beyond_all_versions_are_versions_that_are_not_there(tmp_path: Path) -> None:
    study = small_study()
    walked_store(tmp_path / "store", study, 2)
    client = dashboard_client(tmp_path)
    for address in (f"versions/{DIGITS}.json", f"rollback.json?to={'9' * 30}"):
        answer = client.get(f"/live/{study.name}/{study.lines[0].name}/{address}")
        assert answer.status_code == 404
        assert len(answer.json["error"]) < 400


@pytest.mark.parametrize("alpha", ["nan", "1e999", "-inf", "much"])
def test_a_level_that_is_no_number_is_told(tmp_path: Path, alpha: str) -> None:
    study = small_study()
    walked_store(tmp_path / "store", study, 1)
    answer = dashboard_client(tmp_path).get(f"/results/{study.name}/feed?alpha={alpha}")
    assert answer.status_code == 400
    assert answer.json["error"] == f"'{alpha}' is not a level alpha; give a number such as 0.05"


class Unreadable:
    """A feed whose file can't be read until it is repaired."""

    def __init__(self) -> None:
        self.mended = False

    def since(self, position: str | None) -> Change | None:
        if not self.mended:
            raise PermissionError(13, "Permission denied", "/runs/secret")
        return Change("1", {"whole": True})


def test_a_file_that_may_not_be_read_is_told_and_the_stream_goes_on(tmp_path: Path) -> None:
    feed = Unreadable()
    application = dashboard_application(tmp_path)
    streams = Streams(4, tick=0.0, sleep=lambda seconds: None)
    application.add_url_rule("/unreadable", view_func=lambda: streams.answer(feed))
    client = application.test_client()
    once = client.get("/unreadable")
    sentence = "/runs/secret cannot be used (permission denied); fix that and try again"
    assert (once.status_code, once.json) == (500, {"error": sentence})
    with client.get("/unreadable", headers={"Accept": "text/event-stream"}) as answer:
        chunks = (chunk for chunk in answer.iter_encoded() if chunk.startswith(b"event"))
        assert sentence.encode() in next(chunks)
        feed.mended = True
        assert next(chunks).startswith(b"event: change")


def test_a_run_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    client = dashboard_client(tmp_path)
    token = csrf_token(client, "/runs/")
    os.replace(tmp_path / "runs", tmp_path / "elsewhere")
    (tmp_path / "runs").write_text("a file where the folder was")
    text = Path("experiments/breast_cancer.toml").read_text()
    answer = client.post("/runs/start", data={"csrf_token": token, "text": text})
    assert answer.status_code == 500
    assert str(tmp_path / "runs") in answer.json["error"]


def test_a_damaged_list_of_trainings_is_told_on_the_page_of_its_run_alone(tmp_path: Path) -> None:
    folder = noted(tmp_path / "runs", "20260101-000001-damaged", "damaged")
    (folder / "out").mkdir()
    (folder / "out" / "units.json").write_text("{")
    client = dashboard_client(tmp_path)
    assert client.get("/runs/feed").json["data"]["runs"][0]["done"] is None
    answer = client.get(f"/runs/{folder.name}/feed")
    assert answer.status_code == 400
    assert "units.json is damaged" in answer.json["error"]


def test_a_defect_is_told_apart_from_what_a_visitor_can_mend(tmp_path: Path) -> None:
    application = dashboard_application(tmp_path)
    application.add_url_rule("/defect", view_func=lambda: str(1 // 0))
    application.config["PROPAGATE_EXCEPTIONS"] = False
    answer = application.test_client().get("/defect")
    assert answer.status_code == 500
    assert "bug in the dashboard" in answer.json["error"]
