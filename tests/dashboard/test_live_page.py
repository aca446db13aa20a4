"""The addresses of the Live page, over the tests' own store."""

import csv
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flask.testing import FlaskClient

from fedping.dashboard.live.decisions import RollbackRequest, plan, roll_back
from fedping.dashboard.live.lineage import OUTCOMES
from fedping.model_store import ModelStore, VersionConflict, open_store
from fedping.model_store.version import GuardState, Version
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import open_landing
from fedping.server_jobs.ingest.answers import Rejection
from fedping.server_jobs.ingest.counters import RejectionLog
from fedping.server_jobs.round.ping_filter import REASONS
from tests.support.dashboard import csrf_token, dashboard_client
from tests.support.processes import wait_until
from tests.support.versions import WHEN, after, small_study, version_0
from tests.support.walks import walked_store

PAGE = {"Accept": "text/html"}
LINE = "/live/study/main"


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return walked_store(tmp_path / "store", small_study(), 4)


@pytest.fixture
def client(store: ModelStore, tmp_path: Path) -> FlaskClient:
    return dashboard_client(tmp_path)


def text_of(client: FlaskClient, path: str) -> str:
    answer = client.get(path, headers=PAGE)
    assert answer.status_code == 200
    return answer.get_data(as_text=True)


def wished(client: FlaskClient, to: int, seen: str) -> Any:
    headers = {"X-CSRF-Token": csrf_token(client, f"{LINE}/")}
    return client.post(f"{LINE}/rollback", json={"to": to, "seen": seen}, headers=headers)


def test_one_line_is_opened_at_once_and_several_are_listed(client: FlaskClient, tmp_path: Path) -> None:
    answer = client.get("/live/", headers=PAGE)
    assert (answer.status_code, answer.location) == (302, f"{LINE}/")
    assert "All studies" not in text_of(client, f"{LINE}/"), "the link would lead back to where it is"
    other = small_study("another")
    open_store(tmp_path / "store").create_study(other, (version_0(other),))
    listed = text_of(client, "/live/")
    assert "/live/another/main/" in listed
    assert f"{LINE}/" in listed


def test_without_a_store_or_a_study_the_page_says_what_to_do(tmp_path: Path) -> None:
    client = dashboard_client(tmp_path)
    assert "There is no model store at" in text_of(client, "/live/")
    (tmp_path / "store").mkdir()
    assert "fedping study create" in text_of(client, "/live/")


def test_a_damaged_study_is_told_beside_the_others(client: FlaskClient, tmp_path: Path) -> None:
    (tmp_path / "store" / "broken").mkdir()
    (tmp_path / "store" / "broken" / "study.json").write_text("{")
    listed = text_of(client, "/live/")
    assert "broken/study.json cannot be read" in listed
    assert f"{LINE}/" in listed


def test_the_page_holds_no_script_or_style_of_its_own(client: FlaskClient) -> None:
    page = text_of(client, f"{LINE}/")
    scripts = [tag for tag in page.split("<script")[1:] if "src=" not in tag.partition(">")[0]]
    assert [tag.partition(">")[0].strip() for tag in scripts] == ['type="application/json" id="refusals"']
    assert "style=" not in page
    assert "<style" not in page
    for address in ("live.js", "live.css", "line.js", "drawings/weights.js"):
        assert client.get(f"/live/-/{address}").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/live/other/main/",
        "/live/study/other/",
        "/live/../main/",
        "/live/study/other/changes",
        "/live/study/other/history.json",
        f"{LINE}/versions/99.json",
        f"{LINE}/rollback.json?to=99",
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(client: FlaskClient, path: str) -> None:
    answer = client.get(path, headers={"Accept": "application/json"})
    assert answer.status_code == 404
    assert answer.get_json()["error"]


@pytest.mark.parametrize("query", ["", "?to=", "?to=x", "?to=1.5"])
def test_a_rollback_to_no_number_is_told(client: FlaskClient, query: str) -> None:
    answer = client.get(f"{LINE}/rollback.json{query}")
    assert answer.status_code == 400
    assert answer.json == {"error": "'to' must be the number of a version, as in rollback.json?to=41"}


def test_the_history_is_json_and_csv(client: FlaskClient, store: ModelStore) -> None:
    told = client.get(f"{LINE}/history.json").get_json()
    assert [row["version"] for row in told["rows"]] == [0, 1, 2, 3, 4]
    assert told["weights"]["names"] == ["w0", "w1"]
    assert told["min_clients"] == 1
    rows = list(csv.DictReader(io.StringIO(client.get(f"{LINE}/history.csv").get_data(as_text=True))))
    newest = store.head("study", "main")
    assert len(rows) == 5
    assert float(rows[4]["change.w0"]) == pytest.approx(newest.model[0] - 10, rel=1e-5)
    assert float(rows[4]["treatment.loss"]) == newest.lineage.arms["treatment"].loss
    assert int(rows[4]["pings.used"]) == newest.lineage.counts["used"]
    assert rows[0]["treatment.loss"] == rows[0]["clients"] == ""
    assert set(rows[0]) >= {"rate.w0", "away.w1", "control.pings", "pings.stale", "stable"}


def test_a_page_that_asks_now_and_then_is_told_what_is_new(client: FlaskClient, store: ModelStore) -> None:
    first = client.get(f"{LINE}/changes").get_json()
    assert first["data"]["whole"]
    assert client.get(f"{LINE}/changes?since={first['position']}").status_code == 204
    version = after(store.head("study", "main"))
    store.publish(version)
    dashboard = dashboard_client(Path(store.where).parent)
    more = dashboard.get(f"{LINE}/changes?since={first['position']}").get_json()["data"]
    assert ([row["version"] for row in more["rows"]], more["whole"]) == ([5], False)


def test_the_lineage_of_a_version(client: FlaskClient, store: ModelStore) -> None:
    version = store.version("study", "main", 3)
    told = client.get(f"{LINE}/versions/3.json").get_json()
    assert told["digest"] == version.digest
    assert told["parent_digest"] == store.version("study", "main", 2).digest
    assert told["config_digest"] == version.lineage.config_digest
    assert {one["reason"]: one["pings"] for one in told["counts"]} == version.lineage.counts
    assert all(one["words"] for one in told["counts"])
    assert "round" in told["made_by"]
    first = client.get(f"{LINE}/versions/0.json").get_json()
    assert (first["changes"], first["clients"], first["parent"]) == (None, None, None)


def test_every_outcome_of_a_ping_has_words() -> None:
    assert set(OUTCOMES) >= set(REASONS)


def test_refusals_of_the_study_are_told(client: FlaskClient, tmp_path: Path) -> None:
    log = RejectionLog(tmp_path / "landing" / ".rejected", "w")
    log.add("study", Rejection("update_length", "for the sender", "m is 2"))
    log.flush()
    (entry,) = client.get(f"{LINE}/refused.json").get_json()["newest"]
    assert (entry["reason"], entry["words"], entry["detail"]) == (
        "update_length",
        "an update of another model",
        "m is 2",
    )


def test_a_rollback_publishes_what_its_plan_said(client: FlaskClient, store: ModelStore) -> None:
    asked = client.get(f"{LINE}/rollback.json?to=2").get_json()
    assert (asked["newest"], asked["next"], asked["to"]) == (4, 5, 2)
    head, target = store.head("study", "main"), store.version("study", "main", 2)
    differing = [k for k in range(2) if head.model[k] != target.model[k]]
    assert [one["new"] for one in asked["changes"]["largest"]] == [target.model[k] for k in differing]
    answer = wished(client, 2, asked["seen"])
    assert (answer.status_code, answer.get_json()) == (200, {"published": 5, "repeats": 2})
    newest = store.head("study", "main")
    assert (newest.weights, newest.state) == (target.weights, target.state)
    assert (newest.lineage.origin, newest.lineage.restored, newest.parent) == ("rollback", 2, 4)
    assert "repeats version 2" in client.get(f"{LINE}/versions/5.json").get_json()["made_by"]


def test_a_rollback_of_what_was_overtaken_publishes_nothing(client: FlaskClient, store: ModelStore) -> None:
    seen = client.get(f"{LINE}/rollback.json?to=2").get_json()["seen"]
    store.publish(after(store.head("study", "main")))
    answer = wished(client, 2, seen)
    assert answer.status_code == 409
    assert (
        "version 5 of line 'main' of study 'study' was published while your page showed" in answer.get_json()["error"]
    )
    assert store.iterations("study", "main") == [0, 1, 2, 3, 4, 5]


def test_a_round_that_publishes_during_a_rollback_wins(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = plan(store, "study", "main", 1)
    rival = after(store.head("study", "main"))
    publish = ModelStore.publish

    def second(self: ModelStore, version: Any) -> None:
        monkeypatch.setattr(ModelStore, "publish", publish)
        publish(self, rival)
        publish(self, version)

    monkeypatch.setattr(ModelStore, "publish", second)
    with pytest.raises(VersionConflict, match="the line was not rolled back"):
        roll_back(store, "study", "main", RollbackRequest(1, asked["seen"]), created=WHEN, code_version="test")
    assert store.head("study", "main") == rival


def test_rolling_back_to_the_newest_or_without_a_token_changes_nothing(client: FlaskClient, store: ModelStore) -> None:
    with pytest.raises(InvalidSettings, match="no rollback is needed"):
        plan(store, "study", "main", 4)
    seen = client.get(f"{LINE}/rollback.json?to=2").get_json()["seen"]
    assert client.post(f"{LINE}/rollback", json={"to": 2, "seen": seen}).status_code == 403
    assert wished(client, 99, seen).status_code == 404
    headers = {"X-CSRF-Token": csrf_token(client, f"{LINE}/")}
    assert client.post(f"{LINE}/rollback", data="to=2", headers=headers).status_code == 400
    assert client.get(f"{LINE}/rollback").status_code == 405
    assert store.iterations("study", "main") == [0, 1, 2, 3, 4]


def held_by(store: ModelStore) -> Version:
    """Hold the version after the newest one, and return it."""
    version = after(store.head("study", "main"))
    lineage = msgspec.structs.replace(
        version.lineage, guard=GuardState(alarms=("the updates together are 1e+20 long",))
    )
    version = msgspec.structs.replace(version, lineage=lineage)
    store.hold(version)
    return version


@pytest.mark.parametrize("choice", ["release", "discard"])
def test_a_held_version_is_told_and_decided_on_the_page(client: FlaskClient, store: ModelStore, choice: str) -> None:
    head, held = store.head("study", "main"), held_by(store)
    asked = client.get(f"{LINE}/held.json?choice={choice}").get_json()
    assert (asked["next"], asked["typed"]) == (5, 5)
    assert bool(asked["changes"]["count"]) is (choice == "release")
    headers = {"X-CSRF-Token": csrf_token(client, f"{LINE}/")}
    wish = {"choice": choice, "seen": asked["seen"]}
    assert client.post(f"{LINE}/held", json=wish).status_code == 403
    assert client.post(f"{LINE}/held", json=wish | {"seen": "5.x"}, headers=headers).status_code == 409
    assert store.head("study", "main") == head
    assert client.post(f"{LINE}/held", json=wish, headers=headers).get_json() == {"published": 5}
    assert store.head("study", "main").weights == (held if choice == "release" else head).weights
    made = client.get(f"{LINE}/versions/5.json").get_json()
    assert "held" in made["made_by"]
    assert made["alarms"] == ["the updates together are 1e+20 long"]
    assert client.post(f"{LINE}/held", json=wish, headers=headers).status_code == 400


def test_nothing_is_rolled_back_in_an_older_copy_of_the_store_and_what_is_published_is_noted(
    client: FlaskClient, store: ModelStore, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    open_landing(landing).record_published(store.where, "study", "main", 7)
    seen = client.get(f"{LINE}/rollback.json?to=2").get_json()["seen"]
    answer = wished(client, 2, seen)
    assert answer.status_code >= 400
    assert "the store is an older copy" in answer.text
    assert store.head("study", "main").iteration == 4
    open_landing(landing).record_published(store.where, "study", "main", 4)
    assert wished(client, 2, seen).get_json() == {"published": 5, "repeats": 2}
    assert open_landing(landing).read_published(store.where, "study", "main") == 5


def test_a_held_version_is_not_released_into_an_older_copy_of_the_store(
    client: FlaskClient, store: ModelStore, tmp_path: Path
) -> None:
    held_by(store)
    open_landing(tmp_path / "landing").record_published(store.where, "study", "main", 7)
    seen = client.get(f"{LINE}/held.json?choice=release").get_json()["seen"]
    headers = {"X-CSRF-Token": csrf_token(client, f"{LINE}/")}
    answer = client.post(f"{LINE}/held", json={"choice": "release", "seen": seen}, headers=headers)
    assert answer.status_code >= 400
    assert "the store is an older copy" in answer.text
    assert store.head("study", "main").iteration == 4


def test_what_is_no_decision_is_refused(client: FlaskClient, store: ModelStore) -> None:
    assert "'choice' must be release or discard" in client.get(f"{LINE}/held.json?choice=keep").get_json()["error"]
    assert "no longer has a held version" in client.get(f"{LINE}/held.json?choice=release").get_json()["error"]


def test_a_decision_in_bytes_that_are_no_text_is_refused(client: FlaskClient, store: ModelStore) -> None:
    headers = {"X-CSRF-Token": csrf_token(client, f"{LINE}/"), "Content-Type": "application/json"}
    answer = client.post(f"{LINE}/held", data=b'{"choice": "release", "seen": "\xff"}', headers=headers)
    assert answer.status_code == 400
    assert "not valid for this address" in answer.get_json()["error"]


@pytest.mark.parametrize("path", [f"{LINE}/", f"{LINE}/history.json", "/live/study/privacy", "/results/study/"])
def test_a_damaged_study_answers_with_what_is_wrong_and_not_that_it_is_not_there(
    client: FlaskClient, tmp_path: Path, path: str
) -> None:
    file = tmp_path / "store" / "study" / "study.json"
    file.write_text("{")
    answer = client.get(path, headers=PAGE)
    text = answer.get_data(as_text=True)
    assert answer.status_code == 503
    assert f"{file} cannot be read" in text, "the path as it is written"
    file.unlink()
    assert client.get(path, headers=PAGE).status_code == 404


def test_a_store_that_is_gone_is_no_page_that_is_not_there(client: FlaskClient, tmp_path: Path) -> None:
    (tmp_path / "store").rename(tmp_path / "gone")
    answer = client.get(f"{LINE}/history.json")
    assert (answer.status_code, "there is no model store at" in answer.get_json()["error"]) == (503, True)
    told = client.get(f"{LINE}/changes").get_json()["data"]
    assert "there is no model store at" in told["trouble"]
    assert told["since"] == client.get(f"{LINE}/changes").get_json()["data"]["since"], "since when it was seen first"
    (tmp_path / "gone").rename(tmp_path / "store")
    assert wait_until(lambda: client.get(f"{LINE}/changes").get_json()["data"]["whole"]), "answers are kept a moment"


def test_results_of_other_studies_are_listed_beside_a_damaged_one(client: FlaskClient, tmp_path: Path) -> None:
    (tmp_path / "store" / "broken").mkdir()
    (tmp_path / "store" / "broken" / "study.json").write_text("{")
    listed = text_of(client, "/results/")
    assert f"{tmp_path}/store/broken/study.json cannot be read" in listed
    assert "/results/study/" in listed
