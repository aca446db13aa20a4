"""The log of changes: every change is recorded with its user beforehand, and with its outcome, also on errors."""

import csv
import errno
import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from flask import Flask

from fedping.commands.dashboard import dashboard
from fedping.dashboard.changes import log as of_log
from fedping.dashboard.changes.log import Change, ChangeLog, new_change
from fedping.dashboard.changes.views import changes_in
from fedping.model_store import open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.object_store import StorageAway
from tests.support.dashboard import dashboard_application
from tests.support.teams import bearer, of_three
from tests.support.versions import small_study
from tests.support.walks import walked_store
from tests.support.watched import finished_run

RUN = "20260102-030405-two-variants"


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    walked_store(tmp_path / "store", small_study("walk", m=3), 3)
    return of_three(tmp_path / "team.json")


@pytest.fixture
def made(tmp_path: Path, tokens: dict[str, str]) -> Flask:
    return dashboard_application(tmp_path, team=tmp_path / "team.json")


def listed(folder: Path) -> list[Change]:
    return list(ChangeLog(folder / "runs" / ".dashboard-changes").newest_first())


def note(made: Flask, token: str, **changes: object) -> int:
    body = {"text": "x", "version": 1, "line": "main", **changes}
    return made.test_client().post("/notes/walk/", json=body, headers=bearer(token)).status_code


def test_a_rollback_and_notes_are_listed_with_who_before_and_after(
    made: Flask, tokens: dict[str, str], tmp_path: Path
) -> None:
    client, operator = made.test_client(), bearer(tokens["operator"])
    assert note(made, tokens["analyst"], text="Look here") == 200
    seen = client.get("/live/walk/main/rollback.json?to=1", headers=operator).json["seen"]
    assert client.post("/live/walk/main/rollback", json={"to": 1, "seen": seen}, headers=operator).status_code == 200
    again = client.post("/live/walk/main/rollback", json={"to": 1, "seen": seen}, headers=operator)
    assert again.status_code == 409
    assert note(made, tokens["reader"]) == 403
    refused, rolled, noted = listed(tmp_path)
    assert (noted.by, noted.role, noted.action, noted.about) == ("ann", "analyst", "notes.add", "walk")
    assert (noted.before, noted.after) == ("", "note 1 at version 1, line main: Look here")
    assert (rolled.by, rolled.what, rolled.about) == ("otto", "roll back a line", "walk main")
    assert (rolled.before, rolled.after) == ("version 3", "version 4, repeats version 1")
    assert (refused.outcome, refused.before, refused.after) == ("refused", "", "")
    assert "was published while your page showed" in refused.reason
    assert [each.outcome for each in (rolled, noted)] == ["done", "done"]


def test_a_run_is_listed_from_its_start_to_its_deletion(made: Flask, tokens: dict[str, str], tmp_path: Path) -> None:
    client, analyst, operator = made.test_client(), bearer(tokens["analyst"]), bearer(tokens["operator"])
    finished_run(tmp_path / "runs", RUN, "One or three")
    labels = {"tags": "good", "note": "the <b>best</b>"}
    assert client.post(f"/runs/{RUN}/labels", data=labels, headers=analyst).status_code == 302
    assert client.post(f"/runs/{RUN}/stop", headers=analyst).status_code == 409, "it is over"
    assert client.post(f"/runs/{RUN}/delete", headers=analyst).status_code == 403
    assert client.post(f"/runs/{RUN}/delete", headers=operator).status_code == 302
    assert client.post(f"/runs/{RUN}/stop", headers=analyst).status_code == 404
    missing, deleted, stopped, labelled = listed(tmp_path)
    assert (labelled.before, labelled.after) == ("", "tags: good; note: the <b>best</b>")
    assert (stopped.about, stopped.outcome) == (RUN, "refused")
    assert (deleted.by, deleted.before, deleted.after) == ("otto", "One or three (finished)", "deleted")
    assert (missing.outcome, missing.reason) == (
        "refused",
        (f"the run '{RUN}' does not exist; it may have been deleted"),
    )


def test_the_page_the_file_and_the_command_show_the_same(made: Flask, tokens: dict[str, str], tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>=2+3"
    assert note(made, tokens["analyst"], text=hostile) == 200
    assert note(made, tokens["analyst"], text="=cmd|' /C calc'!A0") == 200
    store = open_store(tmp_path / "store")
    store.studies.note("walk", "pruned", ("3 files",), at="2026-01-01T00:00:00.000+00:00", by="root", because="=room")
    client, reader = made.test_client(), bearer(tokens["reader"])
    page = client.get("/changes/", headers=reader).get_data(as_text=True)
    assert hostile not in page
    assert "&lt;script&gt;" in page
    assert "remove old pings" in page
    document = client.get("/changes/changes.json", headers=reader).json
    assert [each["by"] for each in document["changes"]] == ["ann", "ann", "root"]
    assert document["changes"][2]["after"] == "3 files because: =room"
    rows = list(csv.DictReader(io.StringIO(client.get("/changes/changes.csv", headers=reader).get_data(as_text=True))))
    assert [row["by"] for row in rows] == ["ann", "ann", "root"]
    places = ["--runs", str(tmp_path / "runs"), "--store", str(tmp_path / "store")]
    said = CliRunner().invoke(dashboard, ["changes", *places, "--json"]).stdout
    assert json.loads(said) == document["changes"]
    words = CliRunner().invoke(dashboard, ["changes", *places, "--most", "1"]).stdout
    assert "ann (analyst)  write a note: walk" in words
    assert (
        CliRunner().invoke(dashboard, ["changes", *places, "--study", "other"]).stdout
        == "no change has been recorded\n"
    )
    nowhere = CliRunner().invoke(dashboard, ["changes", "--runs", str(tmp_path / "none")])
    assert isinstance(nowhere.exception, FedpingError)
    assert client.get("/changes/?study=../..", headers=reader).status_code == 400


def test_a_damaged_history_leaves_the_rest_visible(made: Flask, tokens: dict[str, str], tmp_path: Path) -> None:
    note(made, tokens["analyst"])
    store = open_store(tmp_path / "store")
    store.studies.note("walk", "pruned", ("3 files",), at="2026-01-01T00:00:00.000+00:00")
    (tmp_path / "store" / "walk" / "history" / "1.json").write_text("{")
    found = made.test_client().get("/changes/changes.json", headers=bearer(tokens["reader"])).json
    assert len(found["changes"]) == 1
    assert "history/1.json" in found["unreadable"][0]


def test_a_store_that_cannot_be_read_leaves_the_dashboards_own_changes(
    made: Flask, tokens: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = {"text": "Before", "version": 1, "line": "main"}
    made.test_client().post("/notes/walk/", json=note, headers=bearer(tokens["analyst"]))

    def away(*_: object) -> None:
        raise StorageAway("the object store does not answer")

    monkeypatch.setattr("fedping.dashboard.changes.views.open_store", away)
    found = made.test_client().get("/changes/changes.json", headers=bearer(tokens["reader"])).json
    assert [each["what"] for each in found["changes"]] == ["write a note"]
    assert found["unreadable"] == ["the object store does not answer"]


def test_without_a_team_changes_are_listed_too(tmp_path: Path) -> None:
    walked_store(tmp_path / "store", small_study("walk", m=3), 1)
    made = dashboard_application(tmp_path, token="a-token-of-the-operator")
    assert note(made, "a-token-of-the-operator") == 200
    assert [each.by for each in listed(tmp_path)] == ["the dashboard's token"]


def test_what_cannot_be_written_down_is_not_done(
    made: Flask, tokens: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert note(made, tokens["analyst"]) == 200
    size = sum(each.stat().st_size for each in (tmp_path / "runs" / ".dashboard-changes").glob("*.jsonl"))

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(of_log.os, "write", full)
        client = made.test_client()
        body = {"text": "x", "version": 1, "line": "main"}
        answer = client.post("/notes/walk/", json=body, headers=bearer(tokens["analyst"]))
    assert answer.status_code == 500
    assert "no space left on device), so the change was not made" in answer.json["error"]
    assert len(open_store(tmp_path / "store").notes.of("walk").notes) == 1
    assert size == sum(each.stat().st_size for each in (tmp_path / "runs" / ".dashboard-changes").glob("*.jsonl"))


def test_an_outcome_that_cannot_be_written_stays_unknown(
    made: Flask, tokens: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: ChangeLog, change: Change) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ChangeLog, "end", full)
    assert note(made, tokens["analyst"]) == 200
    assert [each.outcome for each in listed(tmp_path)] == ["unknown"]


def change(n: int) -> Change:
    return new_change(by=f"p{n}", role="analyst", action="notes.add", what="write a note", about=f"study {n}")


def test_half_a_line_that_a_kill_has_left_costs_that_line_alone(tmp_path: Path) -> None:
    log = ChangeLog(tmp_path)
    for n in range(3):
        log.begin(change(n))
    file = tmp_path / "1.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    log.begin(change(3))
    assert [each.by for each in log.newest_first()] == ["p3", "p1", "p0"]
    with file.open("ab") as more:
        more.write(b"\xff\x00 not JSON\n[1]\n")
    log.begin(change(4))
    assert [each.by for each in log.newest_first()] == ["p4", "p3", "p1", "p0"]


def test_a_kill_in_the_middle_of_writing_loses_no_change_that_was_confirmed(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from fedping.dashboard.changes.log import ChangeLog, new_change\n"
        "log = ChangeLog(Path(sys.argv[1]))\n"
        "for n in range(10**6):\n"
        "    log.begin(new_change(by=str(n), role='analyst', action='a', what='b' * 150))\n"
        "    print(n, flush=True)\n"
    )
    for _ in range(2):
        before = len(list(ChangeLog(tmp_path).newest_first()))
        writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(40):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        confirmed = 40 + writer.stdout.read().count(b"\n")
        writer.wait()
        assert len(list(ChangeLog(tmp_path).newest_first())) - before in (confirmed, confirmed + 1)


def test_files_are_bounded_and_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_log, "FILE_BYTES", 2000)
    monkeypatch.setattr(of_log, "MOST_FILES", 3)
    log = ChangeLog(tmp_path)
    for n in range(60):
        log.begin(change(n))
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) == 3
    assert all(each.stat().st_size <= 2000 for each in files)
    found = [each.by for each in log.newest_first()]
    assert found == [f"p{n}" for n in range(59, 59 - len(found), -1)]
    assert len(found) > 10


def test_texts_are_cut_and_names_that_cannot_be_written_are(tmp_path: Path) -> None:
    log = ChangeLog(tmp_path)
    begun = new_change(by="b" * 5000, role="analyst", action="a", what="w", about="\udcff" * 5000)
    log.begin(begun)
    log.end(msgspec.structs.replace(begun, before="x" * 10**7, after="\U0001f52c" * 3000, outcome="done"))
    (found,) = log.newest_first()
    assert (len(found.by), len(found.about), len(found.before), len(found.after)) == (200, 200, 2400, 2400)
    assert (tmp_path / "1.jsonl").stat().st_size < 20_000
    assert (tmp_path / "1.jsonl").stat().st_mode & 0o077 == 0


def test_of_many_who_write_at_once_each_line_is_whole(tmp_path: Path) -> None:
    def write(who: int) -> None:
        for _ in range(20):
            ChangeLog(tmp_path).begin(change(who))

    threads = [threading.Thread(target=write, args=(who,)) for who in range(5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = [each.by for each in ChangeLog(tmp_path).newest_first()]
    assert sorted(found) == sorted(f"p{who}" for who in range(5) for _ in range(20))


def test_changes_about_one_study_are_found_without_reading_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ChangeLog(tmp_path)
    every = [msgspec.structs.replace(change(n), about="walk main" if n % 50 == 7 else "other main") for n in range(200)]
    renamed = msgspec.structs.replace(change(200), about="")
    for each in [*every, renamed]:
        log.begin(each)
    for each in every:
        log.end(msgspec.structs.replace(each, outcome="done", reason="walking" if each is every[0] else ""))
    log.end(msgspec.structs.replace(renamed, outcome="done", about="walk main"))
    whole = [each for each in log.newest_first() if "walk" in each.about.split()]
    decoded: list[bytes] = []
    read = of_log._read
    monkeypatch.setattr(of_log, "_read", lambda line: decoded.append(line) or read(line))
    assert [each.by for each in whole] == ["p200", "p157", "p107", "p57", "p7"]
    assert list(log.newest_first("walk")) == whole, "with the outcomes"
    assert len(decoded) <= 2 * (len(whole) + 1)


def test_an_outcome_in_the_next_file_is_found_also_of_one_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_log, "FILE_BYTES", 1000)
    log = ChangeLog(tmp_path)
    slow = msgspec.structs.replace(change(1), about="walk main")
    log.begin(slow)
    for n in range(2, 7):
        log.begin(msgspec.structs.replace(change(n), about="other"))
    log.end(msgspec.structs.replace(slow, about="", outcome="done"))
    newest = max(tmp_path.glob("*.jsonl"), key=lambda each: int(each.stem))
    assert b"walk" not in newest.read_bytes()
    assert [each.outcome for each in log.newest_first("walk")] == ["done"]


def test_a_name_that_no_study_has_is_said_with_those_that_are(made: Flask, tokens: dict[str, str]) -> None:
    reader = bearer(tokens["reader"])
    client = made.test_client()
    assert note(made, tokens["analyst"]) == 200
    for path in ("/changes/", "/changes/changes.json", "/changes/changes.csv"):
        answer = client.get(f"{path}?study=wlak", headers=reader)
        assert answer.status_code == 404
        assert answer.json["error"] == "the dashboard's store has no study 'wlak'; it has walk; did you mean 'walk'?"
    assert len(client.get("/changes/changes.json?study=walk", headers=reader).json["changes"]) == 1


def test_older_changes_are_on_further_pages(tmp_path: Path) -> None:
    log = ChangeLog(tmp_path / "runs" / ".dashboard-changes")
    for n in range(120):
        log.begin(change(n))
    client = dashboard_application(tmp_path).test_client()
    first = client.get("/changes/").get_data(as_text=True)
    assert first.count("<tr>") == 101
    older = first.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    second = client.get(older).get_data(as_text=True)
    assert second.count("<tr>") == 21
    assert "p0</bdi>" in second


def test_an_unknown_id_of_an_address_does_not_read_the_whole_list(tmp_path: Path) -> None:
    log = ChangeLog(tmp_path)
    for number in range(50):
        change = new_change(by=f"p{number}", role="operator", action="a", what="w")
        log.begin(msgspec.structs.replace(change, id=f"2026-01-{number + 1:02d}"))
    read = []

    class Counted(ChangeLog):
        def newest_first(self, about: str = "") -> Iterator[Change]:
            for each in super().newest_first(about):
                read.append(each.id)
                yield each

    for before, first in (("nosuch", "2026-01-50"), ("2026-01-40", "2026-01-39"), ("2026-01-40x", "2026-01-40")):
        read.clear()
        found, _ = changes_in(Counted(tmp_path), tmp_path / "none", before=before, most=3)
        assert found[0].id == first
        assert len(found) == 3
        assert len(read) <= 15
    assert changes_in(log, tmp_path / "none", before="1999", most=3)[0] == []
