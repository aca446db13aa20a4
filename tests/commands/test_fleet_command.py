"""`fedping fleet` as typed by a user: summaries, JSON, mistakes, Ctrl-C, and the user's own history."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from fedping.main import main
from fedping.protocol.personalization import FineTune
from fedping.protocol.training import OneGradient
from tests.support import forked
from tests.support.faulty_server import LANDED, Answer, FaultyServer, faulty_server, refusal
from tests.support.fleets import STUDY, fleet_study, seen
from tests.support.ingest_server import free_port
from tests.support.processes import left_over, new_mark

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "tests" / "client_sim" / "data" / "places_schema.sql"


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server(fleet_study()) as running:
        yield running


NOTE = re.compile(r"^note: [\d,]+ simulated clients? will send to study .*\n", re.MULTILINE)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run a fleet; return its output without the note that the study counts its clients."""
    assert main(["fleet", *arguments]) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out, NOTE.sub("", captured.err)


def test_each_iteration_is_a_line_and_the_end_a_sum(server: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, server.url, STUDY, "--clients", "50", "--iterations", "2")
    first, second, total = out.splitlines()
    sent = len(server.attempts)
    assert first.startswith("iteration   0  version main 0, other 0  ")
    assert second.startswith("iteration   1  ")
    assert "loss: treatment " in first
    assert total == f"{sent} pings: {sent} accepted, 0 rejected, 0 undelivered"
    assert err == ""


def test_a_fleet_says_before_it_sends_that_the_study_counts_it(
    server: FaultyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    before: list[str] = []

    def plan(name: UUID, attempt: int) -> Answer:
        before.append(capsys.readouterr().err)
        return LANDED

    server.plan = plan
    assert main(["fleet", server.url, STUDY, "--clients", "5"]) == 0
    assert before[0] == (
        f"note: 5 simulated clients will send to study '{STUDY}' at {server.url}, whose rounds and results count them "
        "like real ones. To keep them apart, create the study under another name: change 'name' in its file, and run "
        "'fedping study create FILE'.\n"
    )


def test_without_a_number_there_is_one_iteration(server: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, server.url, STUDY, "--clients", "5")
    assert len(out.splitlines()) == 2


def test_json_is_one_object_an_iteration_and_nothing_else(
    server: FaultyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.plan = lambda name, attempt: refusal(400, "no such arm") if name.int % 4 == 0 else LANDED
    out, err = said(capsys, server.url, STUDY, "--clients", "50", "--iterations", "3", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert err == f"{len(server.bodies())} pings: {len(server.landings)} accepted, " + (
        f"{len(server.bodies()) - len(server.landings)} rejected, 0 undelivered\n"
    )
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    assert sum(row["pings"]["generated"] for row in rows) == len(server.bodies())
    assert sum(row["pings"]["accepted"] for row in rows) == len(server.landings)
    for row in rows:
        assert row["pings"]["rejected_by_reason"] == {"400 no such arm": row["pings"]["rejected"]}
        assert [arm["arm"] for arm in row["arms"]] == ["treatment", "control", "linear", "plain"]
        assert sum(arm["pings"] for arm in row["arms"]) == row["pings"]["generated"]


def test_a_single_ping_is_not_many(server: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, server.url, STUDY, "--clients", "1", "--searches", "1", "1", "--seed", "1")
    line, total = out.splitlines()
    assert "  1 ping accepted" in line
    assert total == "1 ping: 1 accepted, 0 rejected, 0 undelivered"


def test_troubles_are_told_with_their_reasons(server: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.model = refusal(404, "line has no version yet")
    server.plan = lambda name, attempt: refusal(400, "the study is closed")
    out, _ = said(capsys, server.url, STUDY, "--clients", "30", "--searches", "1", "1")
    sent = len(server.attempts)
    assert f"0 pings accepted, {sent} rejected" in out
    assert f"\n    {sent} rejected: 400 the study is closed\n" in out
    assert " without a model: 404 line has no version yet\n" in out
    assert f"{sent} pings: 0 accepted, {sent} rejected, 0 undelivered" in out


def test_a_fleet_of_which_no_ping_is_accepted_and_some_are_undelivered_fails(
    server: FaultyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.plan = lambda name, attempt: refusal(507, "the disk of the server is full", Retry_After="3600")
    out, _ = said(capsys, server.url, STUDY, "--clients", "2", "--searches", "1", "1", code=1)
    assert server.attempts
    assert "0 accepted, 0 rejected" in out
    assert " 0 undelivered" not in out


def test_what_is_drawn_follows_from_the_seed(server: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, server.url, STUDY, "--clients", "20", "--seed", "4", "--run", "0")
    first = server.bodies()
    said(capsys, server.url, STUDY, "--clients", "20", "--seed", "4", "--run", "0")
    assert server.bodies() == first  # the same documents, and no body differs
    said(capsys, server.url, STUDY, "--clients", "20", "--seed", "4", "--run", "1")
    assert len(server.bodies()) == 2 * len(first)
    said(capsys, server.url, STUDY, "--clients", "20", "--seed", "5")
    clients = {ping.client_id for ping in seen([attempt.body for attempt in server.attempts])}
    assert 30 <= len(clients) <= 40


def test_the_same_command_given_again_sends_new_documents_of_the_same_clients(
    server: FaultyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, server.url, STUDY, "--clients", "20")
    first = server.bodies()
    said(capsys, server.url, STUDY, "--clients", "20")
    second = {name: body for name, body in server.bodies().items() if name not in first}
    assert sorted(second.values()) == sorted(first.values())


def test_what_clients_keep_for_themselves_is_not_lost_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a state file, state is lost at the end; another training's state stays in the file. Both are reported."""
    state, study = ["--client-state", str(tmp_path / "state.sqlite")], fleet_study()
    arms = tuple(replace(arm, personal=arm.name == "treatment") for arm in study.arms)
    heard = []
    for rate, where in ((1.0, []), (1.0, state), (1.0, state), (2.0, state), (2.0, state)):
        line = replace(study.lines[0], training=OneGradient(personal=FineTune(rate=rate)))
        personal = replace(study, arms=arms, lines=(line, *study.lines[1:]))
        with faulty_server(personal) as running:
            heard.append(said(capsys, running.url, STUDY, "--clients", "20", *where)[1])
    gone, *afresh = heard
    assert gone.startswith("the clients' personal models are lost when this fleet ends; with --client-state")
    assert [len(each.splitlines()) for each in afresh] == [0, 0, 1, 0]
    assert "of line 'main' belongs to another training or model spec of study 'fleet'" in afresh[2]


def test_options_of_behaviour_reach_the_clients(server: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--fetch-late", "1", "--duplicate", "1", "--searches", "2", "2", "--gradient", "analytic"]
    out, _ = said(capsys, server.url, STUDY, "--clients", "20", "--json", *options)
    (row,) = map(json.loads, out.splitlines())
    assert [path for path, _ in server.fetches] == [f"/models/{STUDY}/study.json"]
    assert row["pings"]["duplicates"] == row["pings"]["accepted"] == len(server.landings)
    assert row["pings"]["generated"] == 2 * sum(arm["clients"] for arm in row["arms"])
    quiet, _ = said(capsys, server.url, STUDY, "--clients", "20", "--json", "--go-silent", "1", "--silent-for", "2")
    assert json.loads(quiet)["pings"]["generated"] == 0


def test_clients_with_tastes_of_their_own_choose_otherwise(
    server: FaultyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--clients", "30", "--seed", "4", "--run", "0", "--searches", "3", "3"]
    said(capsys, server.url, STUDY, *options)
    alike = server.bodies()
    said(capsys, server.url, STUDY, *options, "--tastes", "0")
    assert server.bodies() == alike
    count = len(server.attempts)
    said(capsys, server.url, STUDY, *options, "--tastes", "1.5")
    differing = {attempt.document_id: attempt.body for attempt in server.attempts[count:]}
    assert set(differing) == set(alike), "the documents of the same clients and searches"
    assert differing != alike


def test_no_more_requests_at_once_than_told(server: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.meet = 3
    said(capsys, server.url, STUDY, "--clients", "60", "--at-once", "3")
    assert server.most_at_once == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--jitter", "fast"], "--jitter fast is not a time; give seconds, minutes or hours, such as 45s"),
        (["--duration", "10"], "--duration 10 is not a time"),
        (["--duration", ""], "--duration  is not a time"),
        (["--every", "-3s"], "--every -3s is not a time"),
        (["--every", "nans"], "--every nans is not a time"),
        (["--every", "infs"], "--every infs is not a time"),
        (["--searches", "5", "2"], "a client cannot make from 5 to 2 searches; swap the numbers"),
        (["--profile", "/nowhere"], "no Firefox history exists at"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anything_is_asked_of_the_server(
    server: FaultyServer, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["fleet", server.url, STUDY, *arguments]) != 0
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert server.fetches == []


@pytest.mark.parametrize("option", ["--clients 0", "--tastes -1", "--fetch-late 1.5", "--at-once 0", "--gradient x"])
def test_options_out_of_range_are_told(capsys: pytest.CaptureFixture[str], option: str) -> None:
    _, err = said(capsys, "http://127.0.0.1:1", STUDY, *option.split(), code=2)
    assert f"Invalid value for '{option.split()[0]}'" in err


def test_a_study_that_is_not_there(server: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, server.url, "nothing", code=1)
    assert err.startswith(f"fedping: {server.url} does not serve the study 'nothing': 404 ")
    assert (out, server.attempts) == ("", [])


@pytest.mark.parametrize("url", ["nonsense", "127.0.0.1:8080", "http://[::1", "http://a..b"])
def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str], url: str) -> None:
    out, err = said(capsys, url, STUDY, code=2)
    assert err == f"fedping: '{url}' is not an ingest address; write one such as http://127.0.0.1:8080\n"
    assert out == ""


def test_an_address_where_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    _, err = said(capsys, url, STUDY, code=1)
    assert err.startswith(f"fedping: cannot reach {url}: no connection")
    assert err.count("\n") == 1


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_ctrl_c_ends_it_in_order(server: FaultyServer, form: list[str]) -> None:
    """Ctrl-C during sending: accepted pings are reported, others count as undelivered, and there is no traceback."""

    def plan(name: UUID, attempt: int) -> Answer:
        if len(server.attempts) >= 40:
            server.go_on.clear()
        return LANDED

    server.plan = plan
    mark = new_mark()
    environment = {**os.environ, **mark}
    command = [sys.executable, "-m", "fedping", "fleet", server.url, STUDY, "--clients", "300", "--at-once", "4", *form]
    fleet = forked.Popen(
        [*command, "--iterations", "9"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.blocked.wait(60)
    fleet.send_signal(signal.SIGINT)
    out, err = fleet.communicate(timeout=240)
    assert fleet.returncode == 130, err
    assert left_over(mark) == []
    lines = (out + NOTE.sub("", err)).split("\n")
    assert [line for line in lines if line][1:] == ["fedping: interrupted"]
    assert (out == "") == bool(form)  # JSON has no line for a partial iteration; the sum is reported on stderr
    generated, accepted, rejected, undelivered = (int(n) for n in re.findall(r"[\d,]+(?= )", lines[0].replace(",", "")))
    assert rejected == 0
    assert 36 <= accepted <= 44
    assert accepted + undelivered == generated > 300


def test_ctrl_c_between_iterations(server: FaultyServer) -> None:
    command = [sys.executable, "-m", "fedping", "fleet", server.url, STUDY, "--clients", "30", "--every", "1h"]
    fleet = forked.Popen(
        [*command, "--iterations", "2"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert fleet.stdout is not None
    assert fleet.stdout.readline().startswith("iteration   0")
    fleet.send_signal(signal.SIGINT)
    out, err = fleet.communicate(timeout=240)
    assert (fleet.returncode, NOTE.sub("", err).strip()) == (130, "fedping: interrupted")
    assert out.endswith("0 rejected, 0 undelivered\n")


def profile(folder: Path) -> Path:
    """Make a Firefox history of 40 pages in two groups that share a word, each page visited a few times."""
    folder.mkdir()
    with sqlite3.connect(folder / "places.sqlite") as database:
        database.executescript(SCHEMA.read_text())
        for page in range(1, 41):
            word = "secret-apples" if page % 2 else "secret-pears"
            database.execute(
                "INSERT INTO moz_places (id, url, title, visit_count, typed) VALUES (?, ?, ?, 2, ?)",
                (page, f"https://site{page}.example/{word}", f"Private {page}", page % 3 == 0),
            )
            for visit in range(2):
                database.execute(
                    "INSERT INTO moz_historyvisits (from_visit, place_id, visit_date, visit_type) VALUES (0, ?, ?, ?)",
                    (page, 1_790_000_000_000_000 - page * visit * 86_400_000_000, 1 + page % 3),
                )
    database.close()
    return folder


def test_a_history_of_ones_own_is_searched_and_no_word_of_it_leaves(
    server: FaultyServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, err = said(capsys, server.url, STUDY, "--clients", "30", "--profile", str(profile(tmp_path / "profile")))
    assert err == "40 pages of the profile will be searched; no address or title leaves it\n"
    pings = [attempt.body for attempt in server.attempts]
    assert len(pings) >= 27
    assert f"{len(pings)} accepted" in out
    assert {ping.arm for ping in seen(pings)} >= {"treatment", "control", "linear", "plain"}
    for word in (b"example", b"secret", b"Private", b"http"):
        assert not any(word in body for body in pings)
    assert any(any(ping.payload["update"] or ()) for ping in seen(pings))
