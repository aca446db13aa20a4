"""Readers, analysts and operators: identified by tokens or a proxy, and their permitted changes."""

import json
import os
import socket
import stat
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from flask import Flask
from flask.testing import FlaskClient

from fedping.commands.dashboard import dashboard
from fedping.dashboard.permissions import ACTIONS, HARMLESS
from fedping.dashboard.team import ROLES, Proxy, checked_name, checked_proxy, read_team, token_digest
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.server_jobs.listener import SAFE_METHODS
from tests.support.dashboard import csrf_token, dashboard_application, dashboard_settings
from tests.support.dashboard_server import running_dashboard
from tests.support.teams import add, bearer, of_three
from tests.support.versions import small_study
from tests.support.walks import walked_store

STUDY = "walk"
PAGE = {"Accept": "text/html", "Sec-Fetch-Site": "none"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("team")
    walked_store(folder / "store", small_study(STUDY, m=3), 3)
    return folder


@pytest.fixture
def team(tmp_path: Path) -> Path:
    return tmp_path / "team.json"


@pytest.fixture
def tokens(team: Path) -> dict[str, str]:
    return of_three(team)


@pytest.fixture
def made(folder: Path, tmp_path: Path, team: Path, tokens: dict[str, str]) -> Flask:
    return dashboard_application(folder, team=team, runs=tmp_path / "runs")


def team_command(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(dashboard, ["team", *arguments])
    if done.exception is not None and isinstance(done.exception, FedpingError):
        return 1, str(done.exception)
    return done.exit_code, done.output


def ways_to_change(application: Flask) -> dict[str, str]:
    """Return the address of every request that changes something, by endpoint."""
    filled = {"study": STUDY, "line": "main", "id": "20260102-030405-x", "number": 1}
    adapter = application.url_map.bind("localhost")
    return {
        rule.endpoint: adapter.build(rule.endpoint, {name: filled[name] for name in rule.arguments}, method="POST")
        for rule in application.url_map.iter_rules()
        if set(rule.methods or ()) - SAFE_METHODS
    }


def test_the_table_of_roles_names_every_change_and_no_other(made: Flask) -> None:
    """A view that is added without a role needs an operator; this test asks for the decision."""
    assert set(ways_to_change(made)) - HARMLESS == set(ACTIONS)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("endpoint", ACTIONS)
def test_lesser_roles_are_refused_with_the_role_that_it_needs(
    made: Flask, tokens: dict[str, str], role: str, endpoint: str
) -> None:
    needed, words = ACTIONS[endpoint]
    answer = made.test_client().post(ways_to_change(made)[endpoint], headers=bearer(tokens[role]))
    if ROLES.index(needed) <= ROLES.index(role):  # type: ignore[arg-type]
        assert answer.status_code != 403
        return
    assert answer.status_code == 403
    assert f"to {words}, you need the role {needed}; " in answer.json["error"]


def test_every_role_reads_all_pages_and_only_the_buttons_differ(made: Flask, tokens: dict[str, str]) -> None:
    found = {}
    for role in ROLES:
        client = made.test_client()
        assert client.get(f"/live/{STUDY}/main/?token={tokens[role]}", headers=PAGE).status_code == 302
        pages = {path: client.get(path, headers=PAGE) for path in ("/runs/new", f"/live/{STUDY}/main/", "/changes/")}
        assert {answer.status_code for answer in pages.values()} == {200}
        found[role] = {path: answer.get_data(as_text=True) for path, answer in pages.items()}
    form, live = "/runs/new", f"/live/{STUDY}/main/"
    assert ['<button class="primary">Start</button>' in found[role][form] for role in ROLES] == [False, True, True]
    assert "To start an experiment, you need the role analyst." in found["reader"][form]
    assert ["notes-form" in found[role][live] for role in ROLES] == [False, True, True]
    assert ["held-release" in found[role][live] for role in ROLES] == [False, False, True]
    assert "To roll back a line, you need the role operator." in found["analyst"][live]
    assert "<bdi>ann</bdi>, analyst" in found["analyst"][live]


def test_the_file_has_no_token_and_only_its_owner_can_read_it(team: Path, tokens: dict[str, str]) -> None:
    text = team.read_text()
    assert stat.S_IMODE(team.stat().st_mode) == 0o600
    for token in tokens.values():
        assert token not in text
        assert token_digest(token) in text
        assert len(token) == 32


def test_a_persons_token_is_not_in_the_cookie_nor_kept_in_the_address(made: Flask, tokens: dict[str, str]) -> None:
    answer = made.test_client().get(f"/runs/?token={tokens['reader']}&q=x", headers=PAGE)
    assert answer.location == "/runs/?q=x"
    cookie = answer.headers["Set-Cookie"]
    assert tokens["reader"] not in cookie
    assert token_digest(tokens["reader"]) not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_the_door_takes_each_persons_token_and_leaving_closes_it(made: Flask, tokens: dict[str, str]) -> None:
    client = made.test_client()
    door = client.get("/enter", headers=PAGE).get_data(as_text=True)
    form = {"csrf_token": door.partition('name="csrf_token" value="')[2].partition('"')[0]}
    assert client.post("/enter", data={**form, "token": token_digest(tokens["analyst"])}).status_code == 403
    assert client.post("/enter", data={**form, "token": ""}).status_code == 403
    assert client.post("/enter", data={**form, "token": tokens["analyst"]}).status_code == 302
    assert client.get("/runs/").status_code == 200
    assert client.post("/leave").status_code == 403, "another site may not log out"
    assert client.post("/leave", data={"csrf_token": csrf_token(client, "/runs/")}).location == "/enter"
    assert client.get("/runs/").status_code == 401


def test_a_page_of_another_site_changes_nothing_for_a_person(made: Flask, tokens: dict[str, str]) -> None:
    client = made.test_client()
    client.get(f"/?token={tokens['operator']}", headers=PAGE)
    address, body = f"/notes/{STUDY}/", {"text": "x", "version": 1, "line": "main"}
    assert client.post(address, json=body).status_code == 403, "without the page's token"
    headers = {"X-CSRF-Token": csrf_token(client, "/runs/")}
    assert client.post(address, json=body, headers={**headers, "Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.post(address, json=body, headers={**headers, "Origin": "http://evil.example"}).status_code == 403
    assert client.post(address, json=body, headers=headers).status_code == 200


def test_another_role_a_new_token_and_a_removal_hold_from_the_next_request_on(
    made: Flask, team: Path, tokens: dict[str, str]
) -> None:
    client = made.test_client()
    client.get(f"/?token={tokens['analyst']}", headers=PAGE)
    address, body = f"/notes/{STUDY}/", {"text": "x", "version": 1, "line": "main"}
    headers = {"X-CSRF-Token": csrf_token(client, "/runs/")}
    assert client.post(address, json=body, headers=headers).status_code == 200
    assert team_command("change", "ann", "--role", "reader", "--team", str(team)) == (
        0,
        "ann is now reader (before: analyst)\n",
    )
    assert client.post(address, json=body, headers=headers).status_code == 403
    _, token = team_command("change", "ann", "--new-token", "--team", str(team))
    assert client.get("/runs/").status_code == 401
    assert made.test_client().get("/runs/", headers=bearer(tokens["analyst"])).status_code == 401
    assert made.test_client().get("/runs/", headers=bearer(token.strip())).status_code == 200
    assert team_command("remove", "ann", "--team", str(team))[0] == 0
    assert made.test_client().get("/runs/", headers=bearer(token.strip())).status_code == 401


def test_the_one_token_works_beside_a_team_as_it_did(folder: Path, tmp_path: Path, team: Path) -> None:
    add(team, "rita", "reader")
    token = "a-token-of-the-operator"
    made = dashboard_application(folder, team=team, token=token, runs=tmp_path / "runs")
    client = made.test_client()
    client.get(f"/?token={token}", headers=PAGE)
    assert "Leave</button>" not in client.get("/runs/", headers=PAGE).get_data(as_text=True)
    body = {"text": "x", "version": 1, "line": "main"}
    assert made.test_client().post(f"/notes/{STUDY}/", json=body, headers=bearer(token)).status_code == 200
    team.unlink()
    assert client.get("/runs/").status_code == 200, "the operator can still look"
    other = made.test_client().get("/runs/", headers=bearer("another"))
    assert (other.status_code, "terminal" in other.json["error"]) == (403, True)
    assert str(team) not in other.json["error"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "can't be used"),
        ("[]", "can't be used"),
        ('{"members": [{"name": "a", "role": "king"}]}', "king"),
        ('{"members": [{"name": "a", "role": "reader", "token": "x"}]}', "unknown field `token`"),
        ('{"members": [{"name": "<script>", "role": "reader"}]}', "is not a name"),
        (
            '{"members": [{"name": "a", "role": "reader"}, {"name": "a", "role": "operator"}]}',
            "two members have one name",
        ),
        ('{"proxy": {"header": "Remote-User", "addresses": ["10.0.0.5"]}}', "another spelling"),
        ('{"proxy": {"header": "RemoteUser", "addresses": ["0.0.0.0/0"]}}', "all addresses"),
        ('{"format": 99}', "later version"),
        ("{" + " " * (1 << 20) + "}", "more than 1,048,576 bytes"),
    ],
)
def test_a_file_that_is_no_teams_is_told(team: Path, content: str, said: str) -> None:
    team.write_text(content)
    with pytest.raises(InvalidSettings, match=said):
        read_team(team)


def test_a_file_that_others_can_write_admits_no_one(team: Path, tokens: dict[str, str]) -> None:
    team.chmod(0o602)
    with pytest.raises(InvalidSettings, match="run chmod 600"):
        read_team(team)


def test_a_file_that_others_can_write_from_now_on_admits_no_one_from_now_on(
    made: Flask, team: Path, tokens: dict[str, str]
) -> None:
    def status() -> int:
        return made.test_client().get("/runs/", headers=bearer(tokens["operator"])).status_code

    assert status() == 200
    team.chmod(0o602)
    assert status() == 403
    team.chmod(0o600)
    assert status() == 200


@pytest.mark.parametrize("name", ["", " a", "a ", "a,b", "a\nb", "<b>", "a" * 81, "a\u202eb", "'; drop", "..\x00"])
def test_a_name_has_no_signs_that_could_mislead(name: str) -> None:
    with pytest.raises(InvalidSettings, match="is not a name"):
        checked_name(name)


@pytest.mark.parametrize("name", ["ann", "ann@example.org", "Ann Lee", "李", "عمر", "o-1_2+3"])
def test_names_of_people_are_names(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize(
    "header", ["", "X-Remote-User", "Remote_User", "Host", "cookie", "Authorization", "1x", "a" * 41]
)
def test_a_header_that_visitors_could_send_in_another_spelling_is_refused(header: str) -> None:
    with pytest.raises(InvalidSettings, match="can't identify a person"):
        checked_proxy(Proxy(header=header, addresses=("10.0.0.5",)))


def by_proxy(made: Flask, name: str | None, address: str = "10.0.0.5", **headers: str) -> FlaskClient:
    client = made.test_client()
    client.environ_base["REMOTE_ADDR"] = address
    if name is not None:
        client.environ_base["HTTP_REMOTEUSER"] = name
    for each, value in headers.items():
        client.environ_base[f"HTTP_{each.upper()}"] = value
    return client


def test_a_proxys_header_is_believed_from_the_proxy_alone(made: Flask, team: Path) -> None:
    assert by_proxy(made, "otto").get("/runs/").status_code == 401, "no proxy is named"
    assert team_command("proxy", "--header", "RemoteUser", "--from", "10.0.0.5", "--team", str(team))[0] == 0
    assert by_proxy(made, "otto").get("/runs/").status_code == 200
    assert by_proxy(made, "otto", "::ffff:10.0.0.5").get("/runs/").status_code == 200
    for address in ("10.0.0.6", "127.0.0.1", "::1", "", "x"):
        assert by_proxy(made, "otto", address).get("/runs/").status_code == 401
    assert by_proxy(made, None, RemoteUserX="otto", X_Remote_User="otto").get("/runs/").status_code == 401
    assert by_proxy(made, None, X_Forwarded_For="10.0.0.5", RemoteUser="otto").get("/runs/").status_code == 200
    forwarded = by_proxy(made, None, "10.9.9.9", X_Forwarded_For="10.0.0.5", RemoteUser="otto")
    assert forwarded.get("/runs/").status_code == 401, "the address is the connection's"


@pytest.mark.parametrize("name", ["otto,rita", "otto, rita", " otto", "otto\x00", "é", "o" * 81])
def test_a_header_with_two_names_or_none_is_refused(made: Flask, team: Path, name: str) -> None:
    team_command(
        "proxy", "--header", "RemoteUser", "--from", "10.0.0.0/24", "--others", "operator", "--team", str(team)
    )
    answer = by_proxy(made, name).get("/runs/")
    assert answer.status_code == 403
    assert "has no valid name, or has two" in answer.json["error"]


def test_people_whom_the_proxy_alone_knows_have_the_role_of_others_or_none(made: Flask, team: Path) -> None:
    proxy = ["proxy", "--header", "RemoteUser", "--from", "10.0.0.5", "--team", str(team)]
    team_command(*proxy)
    refused = by_proxy(made, "zoe").get("/runs/")
    assert (refused.status_code, refused.json["error"]) == (
        403,
        "zoe is not on the team of this dashboard; ask its operator for a role",
    )
    team_command(*proxy, "--others", "reader")
    zoe = by_proxy(made, "李".encode().decode("latin-1"))
    page = zoe.get("/runs/", headers=PAGE).get_data(as_text=True)
    assert "<bdi>李</bdi>, reader" in page
    headers = {"X-CSRF-Token": csrf_token(zoe, "/runs/")}
    answer = zoe.post(f"/notes/{STUDY}/", json={"text": "x"}, headers=headers)
    assert answer.json["error"] == "to write a note, you need the role analyst; 李 is a reader here"
    team_command("proxy", "--none", "--team", str(team))
    assert by_proxy(made, "otto").get("/runs/").status_code == 401


def test_a_page_under_a_strangers_name_cannot_pose_as_the_proxys_visitor(made: Flask, team: Path) -> None:
    """By DNS rebinding, a browser on the proxy's machine connects from the trusted address."""
    team_command("proxy", "--header", "RemoteUser", "--from", "127.0.0.1", "--team", str(team))
    client = by_proxy(made, "otto", "127.0.0.1")
    assert client.get("/runs/", headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/runs/", headers={"Host": "localhost:8081"}).status_code == 200


def test_a_change_through_the_proxy_needs_a_page_of_ours(made: Flask, team: Path) -> None:
    team_command("proxy", "--header", "RemoteUser", "--from", "10.0.0.5", "--team", str(team))
    client = by_proxy(made, "otto")
    assert client.post(f"/notes/{STUDY}/", json={"text": "x"}).status_code == 403
    assert (
        client.post(f"/notes/{STUDY}/", json={"text": "x"}, headers={"Origin": "http://evil.example"}).status_code
        == 403
    )


def test_the_command_lists_people_and_refuses_what_cannot_be(team: Path, tokens: dict[str, str]) -> None:
    where = ["--team", str(team)]
    assert team_command("proxy", "--header", "RemoteUser", "--from", "127.0.0.1", "--others", "reader", *where)[0] == 0
    code, listed = team_command("list", *where)
    assert code == 0
    assert "otto  operator  by token  since 20" in listed
    assert "header RemoteUser from 127.0.0.1; others are readers" in listed
    document = json.loads(team_command("list", "--json", *where)[1])
    assert [each["role"] for each in document["members"]] == ["reader", "analyst", "operator"]
    assert not [token for token in tokens.values() if token in listed or token in str(document)]
    assert team_command("add", "ann", "--role", "reader", *where)[0] == 1
    assert "'zoe' is not on the team; it has ann, otto, rita" in team_command("remove", "zoe", *where)[1]
    assert team_command("change", "ann", *where)[0] == 2
    assert team_command("proxy", "--header", "RemoteUser", *where)[0] == 2
    assert team_command("proxy", "--none", "--others", "reader", *where)[0] == 2
    assert "can't be read" in team_command("list", "--team", str(team.with_name("none")))[1]


def test_two_who_change_the_team_at_once_both_do(team: Path) -> None:
    threads = [threading.Thread(target=add, args=(team, f"p{n}", "reader")) for n in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert {each.name for each in read_team(team).members} == {f"p{n}" for n in range(8)}


def test_a_real_server_believes_no_header_of_a_visitor_and_ends_the_pages_of_who_was_removed(
    folder: Path, tmp_path: Path
) -> None:
    """A real server treats two spellings of a header as one; therefore the header has no hyphen."""
    team = tmp_path / "team.json"
    token = add(team, "rita", "reader")
    add(team, "otto", "operator", "--by-proxy")
    (tmp_path / "store").symlink_to(folder / "store")
    with running_dashboard(tmp_path, "--team", str(team)) as server:
        assert server.get("/runs/", headers={"RemoteUser": "otto"}).status_code == 401
        team_command("proxy", "--header", "RemoteUser", "--from", "127.0.0.1", "--team", str(team))
        assert server.get("/runs/", headers={"RemoteUser": "otto"}).status_code == 200
        for spelling in ("Remote-User", "Remote_User", "X-RemoteUser"):
            assert server.get("/runs/", headers={spelling: "otto"}).status_code == 401
        host, port = "127.0.0.1", int(server.url.rpartition(":")[2])
        assert server.get("/runs/", headers={"RemoteUser": "李".encode()}).status_code == 401, "see the next test"
        with socket.create_connection((host, port)) as line:
            line.sendall(
                f"GET /runs/ HTTP/1.1\r\nHost: {host}\r\nRemoteUser: rita\r\nRemoteUser: otto\r\n\r\n".encode()
            )
            assert line.recv(1000).startswith(b"HTTP/1.1 403")
        with server.get("/runs/feed", headers={**bearer(token), "Accept": "text/event-stream"}, stream=True) as stream:
            lines = stream.iter_lines()
            assert next(lines) == b"retry: 2000"
            team_command("remove", "rita", "--team", str(team))
            began = time.monotonic()
            for _ in lines:
                pass
            assert time.monotonic() - began < 60
        assert server.get("/runs/", headers=bearer(token)).status_code == 401


def test_no_one_is_added_whom_no_proxy_can_name(team: Path) -> None:
    """The server drops headers with non-ASCII letters."""
    code, said = team_command("add", "李", "--role", "reader", "--by-proxy", "--team", str(team))
    assert (code, "a proxy can't send the name '李'" in said) == (1, True)
    assert team_command("add", "李", "--role", "reader", "--team", str(team))[0] == 0


def test_the_start_checks_the_team(tmp_path: Path) -> None:
    from fedping.commands.dashboard import DashboardOptions

    def settings(**changes: object) -> object:
        usual = {"token_file": None, "team": None, "no_token": False, "allow_host": (), "data": (), "viewers": 1}
        options = DashboardOptions(**{**usual, "runs": tmp_path, "runs_at_once": 1, "refresh": None, **changes})  # type: ignore[arg-type]
        return options.settings(store=tmp_path, landing=tmp_path, journal=tmp_path, host="127.0.0.1", port=1)

    with pytest.raises(InvalidSettings, match="can't be read: no such file"):
        settings(team=tmp_path / "none")
    add(tmp_path / "team.json", "otto", "operator")
    with pytest.raises(InvalidSettings, match="but you also give --team"):
        settings(team=tmp_path / "team.json", no_token=True)
    made = settings(team=tmp_path / "team.json")
    assert made.token is None  # type: ignore[attr-defined]
    assert os.environ.get("FEDPING_DASHBOARD_TEAM") is None
    assert dashboard_settings(tmp_path, team=tmp_path).is_closed
